#include "helmway/pjrt/buffer.h"

#include <glog/logging.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/layout_text.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

using DimVector = absl::InlinedVector<int64_t, 8>;

}  // namespace

Buffer::Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* buffer)
    : client_(std::move(client)), buffer_(buffer) {}

Buffer::Buffer(Buffer&& other) noexcept
    : client_(std::move(other.client_)), buffer_(std::exchange(other.buffer_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    client_ = std::move(other.client_);
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

void Buffer::Reset() {
  if (buffer_ == nullptr) return;
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_Destroy_Args args{.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE, .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_Destroy(&args));
  LOG_IF(ERROR, !status.ok()) << "PJRT_Buffer_Destroy: " << status;
  buffer_ = nullptr;
  client_.reset();
}

ElementType Buffer::element_type() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_ElementType_Args args{.struct_size = PJRT_Buffer_ElementType_Args_STRUCT_SIZE,
                                    .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_ElementType(&args));
  LOG_IF(ERROR, !status.ok()) << "PJRT_Buffer_ElementType: " << status;
  if (!status.ok()) return ElementType::kInvalid;
  return FromPjrtBufferType(EnumNumber(args.type)).value_or(ElementType::kInvalid);
}

absl::Span<const int64_t> Buffer::dimensions() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_Dimensions_Args args{.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE, .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_Dimensions(&args));
  CHECK(status.ok()) << "PJRT_Buffer_Dimensions: " << status;
  return absl::MakeConstSpan(args.dims, args.num_dims);
}

const Memory* Buffer::memory() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_Memory_Args args{.struct_size = PJRT_Buffer_Memory_Args_STRUCT_SIZE, .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_Memory(&args));
  CHECK(status.ok()) << "PJRT_Buffer_Memory: " << status;
  return client_->FindMemory(args.memory);
}

const Device* Buffer::device() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_Device_Args args{.struct_size = PJRT_Buffer_Device_Args_STRUCT_SIZE, .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_Device(&args));
  CHECK(status.ok()) << "PJRT_Buffer_Device: " << status;
  return client_->FindDevice(args.device);
}

absl::StatusOr<size_t> Buffer::OnDeviceSizeBytes() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_OnDeviceSizeInBytes_Args args{.struct_size = PJRT_Buffer_OnDeviceSizeInBytes_Args_STRUCT_SIZE,
                                            .buffer = buffer_};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_OnDeviceSizeInBytes(&args)); !s.ok()) return s;
  return args.on_device_size_in_bytes;
}

absl::Status Buffer::Delete() {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_Delete_Args args{.struct_size = PJRT_Buffer_Delete_Args_STRUCT_SIZE, .buffer = buffer_};
  return ToStatus(api, api->PJRT_Buffer_Delete(&args));
}

bool Buffer::IsDeleted() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_IsDeleted_Args args{.struct_size = PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE, .buffer = buffer_};
  absl::Status status = ToStatus(api, api->PJRT_Buffer_IsDeleted(&args));
  CHECK(status.ok()) << "PJRT_Buffer_IsDeleted: " << status;
  return args.is_deleted;
}

absl::StatusOr<Event> Buffer::ReadyEvent() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_ReadyEvent_Args args{.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE, .buffer = buffer_};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_ReadyEvent(&args)); !s.ok()) return s;
  return Event(api, args.event, client_->callbacks());
}

absl::StatusOr<Buffer> Buffer::CopyToDevice(const Device* device) const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_CopyToDevice_Args args{.struct_size = PJRT_Buffer_CopyToDevice_Args_STRUCT_SIZE,
                                     .buffer = buffer_,
                                     .dst_device = device->get()};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_CopyToDevice(&args)); !s.ok()) return s;
  return Buffer(client_, args.dst_buffer);
}

absl::StatusOr<Buffer> Buffer::CopyToMemory(const Memory* memory) const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_CopyToMemory_Args args{.struct_size = PJRT_Buffer_CopyToMemory_Args_STRUCT_SIZE,
                                     .buffer = buffer_,
                                     .dst_memory = memory->get()};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_CopyToMemory(&args)); !s.ok()) return s;
  return Buffer(client_, args.dst_buffer);
}

absl::StatusOr<Event> Buffer::CopyRawToHost(void* dst, int64_t offset, int64_t size) const {
  absl::StatusOr<size_t> available = OnDeviceSizeBytes();
  if (!available.ok()) return available.status();
  const int64_t limit = static_cast<int64_t>(*available);
  if (offset < 0 || size < 0 || offset > limit || size > limit - offset) {
    return absl::InvalidArgumentError(absl::StrCat("CopyRawToHost: bytes [", offset, ", ", offset, "+", size,
                                                   ") lie outside a buffer of ", limit, " bytes"));
  }
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_CopyRawToHost_Args args{.struct_size = PJRT_Buffer_CopyRawToHost_Args_STRUCT_SIZE,
                                      .buffer = buffer_,
                                      .dst = dst,
                                      .offset = offset,
                                      .transfer_size = size};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_CopyRawToHost(&args)); !s.ok()) return s;
  return Event(api, args.event, client_->callbacks());
}

absl::StatusOr<size_t> Buffer::HostSizeBytes() const { return DenseHostBytes(element_type(), dimensions()); }

absl::StatusOr<Event> Buffer::ToHost(void* dst, size_t dst_size, const HostLayout& layout) const {
  absl::Span<const int64_t> dims = dimensions();
  const ElementType type = element_type();
  absl::StatusOr<size_t> needed = DenseHostBytes(type, dims);
  if (!needed.ok()) return needed.status();
  if (dst_size < *needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("ToHost: the array takes ", *needed, " bytes, the destination has ", dst_size));
  }
  DimVector order(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) order[i] = static_cast<int64_t>(dims.size() - 1 - i);
  if (layout.byte_strides.has_value()) {
    if (layout.byte_strides->size() != dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat("ToHost: ", layout.byte_strides->size(),
                                                     " byte strides for an array of rank ", dims.size()));
    }
    std::optional<std::vector<int64_t>> dense =
        DenseMinorToMajor(dims, *layout.byte_strides, HostElementBytes(type));
    if (!dense.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat("ToHost: byte strides [", absl::StrJoin(*layout.byte_strides, ","),
                       "] leave gaps or overlap for shape [", absl::StrJoin(dims, ","),
                       "]; only dense host arrays can be written"));
    }
    order.assign(dense->begin(), dense->end());
  } else if (layout.minor_to_major.has_value()) {
    if (absl::Status s = CheckMinorToMajor(*layout.minor_to_major, dims.size()); !s.ok()) return s;
    order.assign(layout.minor_to_major->begin(), layout.minor_to_major->end());
  }
  PJRT_Buffer_MemoryLayout host_layout{.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                       .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  host_layout.tiled =
      PJRT_Buffer_MemoryLayout_Tiled{.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                     .minor_to_major = order.data(),
                                     .minor_to_major_size = order.size()};
  // With a null destination the plugin would only say how much it needs.
  char nothing = 0;
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_ToHostBuffer_Args args{.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                     .src = buffer_,
                                     .host_layout = &host_layout,
                                     .dst = *needed == 0 ? &nothing : dst,
                                     .dst_size = dst_size};
  if (*needed != 0 && dst == nullptr) return absl::InvalidArgumentError("ToHost: the destination is null");
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_ToHostBuffer(&args)); !s.ok()) return s;
  return Event(api, args.event, client_->callbacks());
}

absl::StatusOr<MemoryLayout> Buffer::GetMemoryLayout() const {
  // The CPU plugin ends the process when it is asked.
  if (element_type() == ElementType::kToken) return absl::InvalidArgumentError("a token has no layout");
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_GetMemoryLayout_Args args{.struct_size = PJRT_Buffer_GetMemoryLayout_Args_STRUCT_SIZE,
                                        .buffer = buffer_};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_GetMemoryLayout(&args)); !s.ok()) return s;
  if (args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) {
    return absl::UnimplementedError("the plugin describes the buffer's layout by strides");
  }
  const PJRT_Buffer_MemoryLayout_Tiled& tiled = args.layout.tiled;
  MemoryLayout layout;
  layout.minor_to_major.assign(tiled.minor_to_major, tiled.minor_to_major + tiled.minor_to_major_size);
  const int64_t* tile = tiled.tile_dims;
  for (size_t i = 0; i < tiled.num_tiles; ++i) {
    layout.tiles.emplace_back(tile, tile + tiled.tile_dim_sizes[i]);
    tile += tiled.tile_dim_sizes[i];
  }
  return layout;
}

absl::StatusOr<std::string> Buffer::LayoutText() const {
  const Plugin& plugin = *client_->plugin();
  absl::StatusOr<const LayoutsExtension*> layouts = RequireLayouts(plugin);
  if (!layouts.ok()) return layouts.status();
  BufferLayoutArgs args{.struct_size = sizeof(BufferLayoutArgs), .buffer = buffer_};
  if (absl::Status s = ToStatus(plugin.api(), CallPlugin((*layouts)->buffer_layout, &args)); !s.ok())
    return s;
  return ConsumeLayout(plugin, args.layout);
}

absl::StatusOr<uintptr_t> Buffer::UnsafePointer() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_UnsafePointer_Args args{.struct_size = PJRT_Buffer_UnsafePointer_Args_STRUCT_SIZE,
                                      .buffer = buffer_};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_UnsafePointer(&args)); !s.ok()) return s;
  return args.buffer_pointer;
}

absl::StatusOr<void*> Buffer::OpaqueDevicePointer() const {
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args args{
      .struct_size = PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args_STRUCT_SIZE, .buffer = buffer_};
  if (absl::Status s = ToStatus(api, api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&args)); !s.ok())
    return s;
  return args.device_memory_ptr;
}

namespace {

// Plugins keep the references of a buffer in a list without a lock (the CPU plugin ends the process when two
// threads meet there), so whoever changes the list of a buffer takes the lock that its address falls to.
base::Mutex& ReferenceLock(const PJRT_Buffer* buffer) {
  static std::array<base::Mutex, 64>& locks = *new std::array<base::Mutex, 64>;
  return locks[std::hash<const void*>()(buffer) / alignof(std::max_align_t) % locks.size()];
}

// What a view keeps. The reference goes before the buffer that it belongs to.
struct Shared {
  std::shared_ptr<const void> keep;
  ExternalReference reference;
};

}  // namespace

absl::StatusOr<Buffer> Buffer::ShareWith(const std::shared_ptr<const Client>& to,
                                         std::shared_ptr<const void> keep) const {
  const Memory* target = memory() == nullptr ? nullptr : to->FindMemory(memory()->id());
  const Device* target_device = device() == nullptr ? nullptr : to->FindDevice(device()->id());
  const ElementType type = element_type();
  if (target == nullptr || target_device == nullptr) {
    return absl::InvalidArgumentError("the other client has no such device or memory");
  }
  absl::StatusOr<int> pjrt_type = ToPjrtBufferType(type);
  if (!pjrt_type.ok()) return pjrt_type.status();
  const absl::Span<const int64_t> dims = dimensions();
  if (absl::StatusOr<size_t> bytes = DenseHostBytes(type, dims); !bytes.ok()) return bytes.status();
  absl::StatusOr<MemoryLayout> layout = GetMemoryLayout();
  if (!layout.ok()) return layout.status();
  if (!layout->tiles.empty()) return absl::UnimplementedError("sharing a buffer with a tiled layout");
  absl::StatusOr<ExternalReference> reference = ExternalReference::Acquire(*this);
  if (!reference.ok()) return reference.status();
  PJRT_Buffer_MemoryLayout pjrt_layout{.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                       .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  pjrt_layout.tiled =
      PJRT_Buffer_MemoryLayout_Tiled{.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                     .minor_to_major = layout->minor_to_major.data(),
                                     .minor_to_major_size = layout->minor_to_major.size()};
  auto shared = std::make_unique<Shared>(Shared{std::move(keep), *std::move(reference)});
  PJRT_Client_CreateViewOfDeviceBuffer_Args args{
      .struct_size = PJRT_Client_CreateViewOfDeviceBuffer_Args_STRUCT_SIZE,
      .client = to->get(),
      .device_buffer_ptr = const_cast<void*>(shared->reference.data()),
      .dims = dims.data(),
      .num_dims = dims.size(),
      .element_type = static_cast<PJRT_Buffer_Type>(*pjrt_type),
      // Left out where it can be: it has no words for packed elements.
      .layout = layout->IsDenseRowMajor() ? nullptr : &pjrt_layout,
      .device = target_device->get(),
      .on_delete_callback = [](void* /*data*/, void* arg) { delete static_cast<Shared*>(arg); },
      .on_delete_callback_arg = shared.get(),
      .memory = target->get()};
  const PJRT_Api* api = client_->api();
  if (absl::Status s = ToStatus(api, api->PJRT_Client_CreateViewOfDeviceBuffer(&args)); !s.ok()) return s;
  shared.release();  // NOLINT(bugprone-unused-return-value): the callback of the view owns it now.
  return Buffer(to, args.buffer);
}

absl::StatusOr<ExternalReference> ExternalReference::Acquire(const Buffer& buffer) {
  const PJRT_Api* api = buffer.client()->api();
  PJRT_Buffer_IncreaseExternalReferenceCount_Args args{
      .struct_size = PJRT_Buffer_IncreaseExternalReferenceCount_Args_STRUCT_SIZE, .buffer = buffer.get()};
  PJRT_Error* error;
  {
    base::MutexLock lock(&ReferenceLock(buffer.get()));
    error = api->PJRT_Buffer_IncreaseExternalReferenceCount(&args);
  }
  if (absl::Status s = ToStatus(api, error); !s.ok()) return s;
  ExternalReference reference;
  reference.client_ = buffer.client();
  reference.buffer_ = buffer.get();
  absl::StatusOr<void*> data = buffer.OpaqueDevicePointer();
  if (!data.ok()) return data.status();
  reference.data_ = *data;
  return reference;
}

ExternalReference::ExternalReference(ExternalReference&& other) noexcept
    : client_(std::move(other.client_)),
      buffer_(std::exchange(other.buffer_, nullptr)),
      data_(std::exchange(other.data_, nullptr)) {}

ExternalReference& ExternalReference::operator=(ExternalReference&& other) noexcept {
  if (this != &other) {
    Release();
    client_ = std::move(other.client_);
    buffer_ = std::exchange(other.buffer_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

void ExternalReference::Release() {
  if (buffer_ == nullptr) return;
  const PJRT_Api* api = client_->api();
  PJRT_Buffer_DecreaseExternalReferenceCount_Args args{
      .struct_size = PJRT_Buffer_DecreaseExternalReferenceCount_Args_STRUCT_SIZE, .buffer = buffer_};
  PJRT_Error* error;
  {
    base::MutexLock lock(&ReferenceLock(buffer_));
    error = api->PJRT_Buffer_DecreaseExternalReferenceCount(&args);
  }
  const absl::Status status = ToStatus(api, error);
  LOG_IF(ERROR, !status.ok()) << "PJRT_Buffer_DecreaseExternalReferenceCount: " << status;
  buffer_ = nullptr;
  data_ = nullptr;
  client_.reset();
}

}  // namespace helmway::pjrt
