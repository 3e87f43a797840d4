#ifndef HELMWAY_PJRT_FFI_CALL_H_
#define HELMWAY_PJRT_FFI_CALL_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/pjrt/element_type.h"
#include "helmway/pjrt/ffi.h"

struct XLA_FFI_Api;
struct XLA_FFI_Future;

namespace helmway::pjrt {

// An argument or result of a custom call: dense, row-major, in the memory of the running program. Types under
// 8 bits are packed there, the first element in the low bits. A token has no memory and no bytes.
struct FfiBuffer {
  ElementType type = ElementType::kInvalid;
  absl::Span<const int64_t> dims;
  uint8_t* data = nullptr;
  int64_t bytes = 0;
};

// The end of a custom call whose function has returned before. Finish is called once, by any thread; it runs
// what of the program comes next on that thread, for as long as that takes. A promise that is dropped fails
// its call.
class FfiPromise {
 public:
  FfiPromise() = default;
  FfiPromise(FfiPromise&& other) noexcept;
  FfiPromise& operator=(FfiPromise&& other) noexcept;
  ~FfiPromise();

  void Finish(const absl::Status& status);

 private:
  friend class FfiCall;
  FfiPromise(const XLA_FFI_Api* api, XLA_FFI_Future* future) : api_(api), future_(future) {}
  const XLA_FFI_Api* api_ = nullptr;
  XLA_FFI_Future* future_ = nullptr;
};

// One custom call of a running program, as its function sees it. Valid until the function returns; the memory
// of its buffers until the call ends: with the function, or with the promise that it has made. One thread.
class FfiCall {
 public:
  explicit FfiCall(XLA_FFI_CallFrame* frame) : frame_(frame) {}

  size_t num_arguments() const;
  size_t num_results() const;
  // UNIMPLEMENTED for an element type that is unknown here.
  absl::StatusOr<FfiBuffer> argument(size_t i) const;
  absl::StatusOr<FfiBuffer> result(size_t i) const;

  // A scalar attribute of type u64. INVALID_ARGUMENT if there is none of that name or it has another type.
  absl::StatusOr<uint64_t> Uint64Attribute(absl::string_view name) const;
  // An array attribute with elements of type i64; valid as long as the program.
  absl::StatusOr<absl::Span<const int64_t>> Int64ArrayAttribute(absl::string_view name) const;

  // What the run's RunContext holds. A run without one must not come here: the plugin would crash.
  void* run_data() const;

  // The call shall end later. At most once; the function must return OK then. UNIMPLEMENTED: the plugin
  // cannot.
  absl::StatusOr<FfiPromise> Defer();

 private:
  XLA_FFI_CallFrame* const frame_;
};

// What a custom call does. An error ends the run with its code and text.
using FfiFunction = absl::Status(FfiCall& call);

XLA_FFI_Error* RunFfiFunction(XLA_FFI_CallFrame* frame, FfiFunction* function);

// `kFunction` as a handler for RegisterFfiHandler.
template <FfiFunction* kFunction>
XLA_FFI_Error* FfiHandlerOf(XLA_FFI_CallFrame* frame) {
  return RunFfiFunction(frame, kFunction);
}

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_FFI_CALL_H_
