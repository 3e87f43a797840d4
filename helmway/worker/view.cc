#include "helmway/worker/view.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/program/strides.h"

namespace helmway::worker {
namespace {

// What a view rests on. The members are dropped in reverse order: the reference before its buffer.
struct Ground {
  ReadHold slot;
  pjrt::ExternalReference reference;
};

absl::StatusOr<pjrt::Buffer> MakeView(const pjrt::Client& client, ReadHold source, const ViewForm& form) {
  HELMWAY_RETURN_IF_ERROR(source->CheckElements());
  const pjrt::Buffer& buffer = source->buffer;
  if (buffer.IsDeleted()) return absl::InvalidArgumentError("Array has been deleted.");
  const auto type = static_cast<pjrt::ElementType>(form.element_type);
  const pjrt::Memory* memory = form.memory == nullptr ? buffer.memory() : form.memory;
  std::optional<absl::Span<const int64_t>> order;
  if (form.minor_to_major) order = *form.minor_to_major;
  HELMWAY_ASSIGN_OR_RETURN(const size_t source_bytes, buffer.OnDeviceSizeBytes());
  const auto wrong_size = [source_bytes](size_t bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a buffer of ", source_bytes, " bytes cannot be taken for one of ", bytes));
  };
  HELMWAY_ASSIGN_OR_RETURN(const int64_t host_bytes,
                           program::RegionSizeBytes(form.dims, pjrt::HostElementBytes(type), std::nullopt));
  if (host_bytes == 0) {
    // There is no memory to look at.
    HELMWAY_ASSIGN_OR_RETURN(const size_t source_host_bytes, buffer.HostSizeBytes());
    if (source_host_bytes != 0) return wrong_size(0);
    HELMWAY_ASSIGN_OR_RETURN(
        pjrt::HostBufferResult empty,
        client.BufferFromHost({.type = type, .dims = form.dims, .memory = memory, .minor_to_major = order}));
    return std::move(empty.buffer);
  }
  HELMWAY_ASSIGN_OR_RETURN(pjrt::ExternalReference reference, pjrt::ExternalReference::Acquire(buffer));
  void* data = const_cast<void*>(reference.data());
  auto ground = std::make_shared<Ground>(Ground{std::move(source), std::move(reference)});
  HELMWAY_ASSIGN_OR_RETURN(
      pjrt::Buffer view,
      client.ViewOfDeviceMemory(
          {.data = data, .type = type, .dims = form.dims, .memory = memory, .minor_to_major = order},
          [ground = std::move(ground)]() mutable { ground.reset(); }));
  HELMWAY_ASSIGN_OR_RETURN(const size_t bytes, view.OnDeviceSizeBytes());
  if (bytes != source_bytes) return wrong_size(bytes);
  return view;
}

}  // namespace

void ViewSlot(const pjrt::Client& client, ReadHold source, const ViewForm& form, const SlotRef& result) {
  absl::StatusOr<pjrt::Buffer> view = MakeView(client, std::move(source), form);
  if (!view.ok()) return result->Finish(view.status());
  result->buffer = *std::move(view);
  absl::StatusOr<pjrt::Event> ready = result->buffer.ReadyEvent();
  if (!ready.ok()) return result->Finish(ready.status());
  ready->OnReady([result](const absl::Status& status) { result->Finish(status); });
}

std::optional<ViewForm> FormOfCopy(const Slot& source, const pjrt::Device* device, const pjrt::Memory* memory,
                                   bool default_layout) {
  const pjrt::Buffer& buffer = source.buffer;
  if (!source.CheckElements().ok() || buffer.client()->platform_name() != "cpu" ||
      buffer.device() != device || pjrt::ElementBits(buffer.element_type()) < 8) {
    return std::nullopt;
  }
  const absl::StatusOr<pjrt::MemoryLayout> layout = buffer.GetMemoryLayout();
  if (!layout.ok() || !layout->tiles.empty()) return std::nullopt;
  if (default_layout && !layout->IsDenseRowMajor()) return std::nullopt;
  const absl::Span<const int64_t> dims = buffer.dimensions();
  return ViewForm{.element_type = static_cast<cluster::ElementType>(buffer.element_type()),
                  .dims = {dims.begin(), dims.end()},
                  .minor_to_major = {{layout->minor_to_major.begin(), layout->minor_to_major.end()}},
                  .memory = memory};
}

}  // namespace helmway::worker
