#ifndef HELMWAY_PJRT_BUFFER_H_
#define HELMWAY_PJRT_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/pjrt/element_type.h"
#include "helmway/pjrt/event.h"
#include "helmway/pjrt/layout.h"

struct PJRT_Buffer;

namespace helmway::pjrt {

class Client;
class Device;
class Memory;

// One array on one device of a client. Move-only; frees the device memory when dropped (after the work that
// uses it). Holds the client alive. const methods may run on any thread at once, except that no call may race
// with Delete, with a donation or with a move or destruction.
//
// A default-constructed or moved-from Buffer is empty; only operator bool, assignment and destruction are
// allowed.
class Buffer {
 public:
  Buffer() = default;
  // Takes ownership of `buffer`.
  Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* buffer);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }

  explicit operator bool() const { return buffer_ != nullptr; }
  void Reset();
  PJRT_Buffer* get() const { return buffer_; }
  const std::shared_ptr<const Client>& client() const { return client_; }

  // Also valid after Delete and after donation.
  ElementType element_type() const;
  // Logical sizes; lives as long as this buffer.
  absl::Span<const int64_t> dimensions() const;
  const Memory* memory() const;
  const Device* device() const;

  absl::StatusOr<size_t> OnDeviceSizeBytes() const;
  // Gives the device memory back once running work is done with it. Later uses fail.
  absl::Status Delete();
  // Deleted by Delete() or by donation.
  bool IsDeleted() const;

  // Ready when the contents are, or when computing them failed.
  absl::StatusOr<Event> ReadyEvent() const;

  // Copies; the source stays. Asynchronous: errors of the source appear in the copy.
  absl::StatusOr<Buffer> CopyToDevice(const Device* device) const;
  absl::StatusOr<Buffer> CopyToMemory(const Memory* memory) const;

  // Copies `size` bytes from byte `offset` of the device form (sub-byte types packed) to `dst`, which must
  // live until the event is ready.
  absl::StatusOr<Event> CopyRawToHost(void* dst, int64_t offset, int64_t size) const;

  // Bytes that ToHost writes for a dense host array; sub-byte types take one byte per element, whose
  // unused high bits have no meaning.
  absl::StatusOr<size_t> HostSizeBytes() const;

  // Copies the whole array to `dst` in `layout`, dense row-major by default. `dst` holds `dst_size` bytes, at
  // least HostSizeBytes(), and must live until the event is ready; until then this buffer may be deleted or
  // dropped. UNIMPLEMENTED for byte strides that do not describe a dense array.
  absl::StatusOr<Event> ToHost(void* dst, size_t dst_size, const HostLayout& layout = {}) const;

  // The same memory as a buffer of `to`, another client of this plugin, on its device and in its memory of
  // the same id. No bytes move, and nothing is ordered: this buffer must be ready and without error, and stay
  // so. `keep` keeps this buffer alive; it is dropped, on any thread, when the view and what uses it have let
  // go. A program that donates the view may write the memory. INVALID_ARGUMENT for a buffer without memory of
  // its own (a token).
  absl::StatusOr<Buffer> ShareWith(const std::shared_ptr<const Client>& to,
                                   std::shared_ptr<const void> keep) const;

  // INVALID_ARGUMENT for a token.
  absl::StatusOr<MemoryLayout> GetMemoryLayout() const;
  // The same as the plugin's text form, e.g. "{1,0}" or "{0:E(4)}". UNIMPLEMENTED without the Layouts
  // extension.
  absl::StatusOr<std::string> LayoutText() const;

  // Addresses of the device memory; on CPU the contents, once the buffer is ready. Valid while an
  // ExternalReference is held.
  absl::StatusOr<uintptr_t> UnsafePointer() const;
  absl::StatusOr<void*> OpaqueDevicePointer() const;

 private:
  std::shared_ptr<const Client> client_;
  PJRT_Buffer* buffer_ = nullptr;
};

// Keeps the memory of a buffer in place while code outside the plugin reads it: a held reference makes Delete
// wait to free, and a program that would donate the buffer copies it instead and leaves it alive. Move-only.
// Must be dropped before its Buffer is.
class ExternalReference {
 public:
  static absl::StatusOr<ExternalReference> Acquire(const Buffer& buffer);

  ExternalReference() = default;
  ExternalReference(ExternalReference&& other) noexcept;
  ExternalReference& operator=(ExternalReference&& other) noexcept;
  ~ExternalReference() { Release(); }

  const void* data() const { return data_; }
  void Release();

 private:
  std::shared_ptr<const Client> client_;
  PJRT_Buffer* buffer_ = nullptr;
  const void* data_ = nullptr;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_BUFFER_H_
