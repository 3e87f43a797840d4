#include "helmway/pjrt/ffi_call.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/ffi_api.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "xla_ffi_c_api.h"

namespace helmway::pjrt {
namespace {

absl::StatusOr<ElementType> FromFfiType(XLA_FFI_DataType type) {
  // The numbers agree with ours up to 29. Read as a number: a younger plugin may send one that the enum
  // lacks.
  int number;
  static_assert(sizeof(type) == sizeof(number));
  std::memcpy(&number, &type, sizeof(number));
  switch (number) {
    case XLA_FFI_DataType_S1:
      return ElementType::kS1;
    case XLA_FFI_DataType_U1:
      return ElementType::kU1;
    case XLA_FFI_DataType_F4E2M1FN:
      return ElementType::kF4E2M1FN;
    case XLA_FFI_DataType_F8E8M0FNU:
      return ElementType::kF8E8M0FNU;
    default:
      break;
  }
  const ElementType result = static_cast<ElementType>(number);
  if (number > XLA_FFI_DataType_F8E3M4 || ElementTypeName(result) == "invalid") {
    return absl::UnimplementedError(absl::StrCat("element type ", number, " in a custom call"));
  }
  return result;
}

absl::StatusOr<FfiBuffer> ToBuffer(const XLA_FFI_Buffer& buffer) {
  absl::StatusOr<ElementType> type = FromFfiType(buffer.dtype);
  if (!type.ok()) return type.status();
  FfiBuffer result;
  result.type = *type;
  result.dims = absl::MakeConstSpan(buffer.dims, static_cast<size_t>(buffer.rank));
  result.data = static_cast<uint8_t*>(buffer.data);
  int64_t elements = 1;
  for (const int64_t dim : result.dims) elements *= dim;
  result.bytes = (elements * ElementBits(*type) + 7) / 8;
  return result;
}

}  // namespace

FfiPromise::FfiPromise(FfiPromise&& other) noexcept
    : api_(other.api_), future_(std::exchange(other.future_, nullptr)) {}

FfiPromise& FfiPromise::operator=(FfiPromise&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(future_, other.future_);
  return *this;
}

FfiPromise::~FfiPromise() {
  if (future_ != nullptr) Finish(absl::InternalError("a custom call was given up"));
}

void FfiPromise::Finish(const absl::Status& status) {
  XLA_FFI_Future* future = std::exchange(future_, nullptr);
  base::HappensBefore(&results_of_custom_calls);
  base::ForeignCode foreign;  // What waits may go on in here.
  XLA_FFI_Error* failed;
  if (status.ok()) {
    XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr, future};
    failed = api_->XLA_FFI_Future_SetAvailable(&args);
  } else {
    XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, future,
                                         MakeFfiError(api_, status)};
    failed = api_->XLA_FFI_Future_SetError(&args);
  }
  // The plugin refuses only what is not its own.
  TakeFfiError(api_, failed).IgnoreError();
}

size_t FfiCall::num_arguments() const { return static_cast<size_t>(frame_->args.size); }
size_t FfiCall::num_results() const { return static_cast<size_t>(frame_->rets.size); }

absl::StatusOr<FfiBuffer> FfiCall::argument(size_t i) const {
  if (frame_->args.types[i] != XLA_FFI_ArgType_BUFFER) {
    return absl::UnimplementedError(absl::StrCat("argument ", i, " of a custom call is no buffer"));
  }
  return ToBuffer(*static_cast<const XLA_FFI_Buffer*>(frame_->args.args[i]));
}

absl::StatusOr<FfiBuffer> FfiCall::result(size_t i) const {
  if (frame_->rets.types[i] != XLA_FFI_RetType_BUFFER) {
    return absl::UnimplementedError(absl::StrCat("result ", i, " of a custom call is no buffer"));
  }
  return ToBuffer(*static_cast<const XLA_FFI_Buffer*>(frame_->rets.rets[i]));
}

absl::StatusOr<uint64_t> FfiCall::Uint64Attribute(absl::string_view name) const {
  for (int64_t i = 0; i < frame_->attrs.size; ++i) {
    if (absl::string_view(frame_->attrs.names[i]->ptr, frame_->attrs.names[i]->len) != name) continue;
    if (frame_->attrs.types[i] == XLA_FFI_AttrType_SCALAR) {
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(frame_->attrs.attrs[i]);
      if (scalar->dtype == XLA_FFI_DataType_U64) return *static_cast<const uint64_t*>(scalar->value);
    }
    return absl::InvalidArgumentError(absl::StrCat("attribute ", name, " of a custom call is no u64"));
  }
  return absl::InvalidArgumentError(absl::StrCat("a custom call lacks its attribute ", name));
}

absl::StatusOr<absl::Span<const int64_t>> FfiCall::Int64ArrayAttribute(absl::string_view name) const {
  for (int64_t i = 0; i < frame_->attrs.size; ++i) {
    if (absl::string_view(frame_->attrs.names[i]->ptr, frame_->attrs.names[i]->len) != name) continue;
    if (frame_->attrs.types[i] == XLA_FFI_AttrType_ARRAY) {
      const auto* array = static_cast<const XLA_FFI_Array*>(frame_->attrs.attrs[i]);
      if (array->dtype == XLA_FFI_DataType_S64) {
        return absl::MakeConstSpan(static_cast<const int64_t*>(array->data), array->size);
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("attribute ", name, " of a custom call is no list of i64"));
  }
  return absl::InvalidArgumentError(absl::StrCat("a custom call lacks its attribute ", name));
}

void* FfiCall::run_data() const {
  const XLA_FFI_Api* api = frame_->api;
  absl::StatusOr<int64_t> id = RunDataTypeId(api);
  if (!id.ok()) return nullptr;
  XLA_FFI_TypeId type = {*id};
  XLA_FFI_InvokeContext_Get_Args args = {XLA_FFI_InvokeContext_Get_Args_STRUCT_SIZE, nullptr, frame_->ctx,
                                         &type, nullptr};
  if (!TakeFfiError(api, CallPlugin(api->XLA_FFI_InvokeContext_Get, &args)).ok()) return nullptr;
  base::HappensAfter(args.data);
  return args.data;
}

absl::StatusOr<FfiPromise> FfiCall::Defer() {
  XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
  if (absl::Status status = TakeFfiError(frame_->api, CallPlugin(frame_->api->XLA_FFI_Future_Create, &args));
      !status.ok()) {
    return status;
  }
  frame_->future = args.future;
  return FfiPromise(frame_->api, args.future);
}

XLA_FFI_Error* RunFfiFunction(XLA_FFI_CallFrame* frame, FfiFunction* function) {
  const XLA_FFI_InternalExtension* extension = frame->extension_start;
  if (extension != nullptr && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata = reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
    metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    metadata->traits = 0;
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  base::OwnCode own;
  base::HappensAfter(&results_of_custom_calls);
  FfiCall call(frame);
  const absl::Status status = function(call);
  base::HappensBefore(&results_of_custom_calls);
  return status.ok() ? nullptr : MakeFfiError(frame->api, status);
}

}  // namespace helmway::pjrt
