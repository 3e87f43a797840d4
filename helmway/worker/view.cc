#include "helmway/worker/bitcast.h"

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

absl::StatusOr<pjrt::Buffer> MakeView(const pjrt::Client& client, ReadHold source, const BitcastForm& form) {
  HELMWAY_RETURN_IF_ERROR(source->CheckElements());
  const pjrt::Buffer& buffer = source->buffer;
  if (buffer.IsDeleted()) return absl::InvalidArgumentError("Array has been deleted.");
  const auto type = static_cast<pjrt::ElementType>(form.element_type);
  const pjrt::Memory* memory = buffer.memory();
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

void BitcastSlot(const pjrt::Client& client, ReadHold source, const BitcastForm& form,
                 const SlotRef& result) {
  absl::StatusOr<pjrt::Buffer> view = MakeView(client, std::move(source), form);
  if (!view.ok()) {
    result->ready->Finish(view.status());
    return;
  }
  // For good: the memory is the source's too.
  result->readers.fetch_add(1);
  result->buffer = *std::move(view);
  absl::StatusOr<pjrt::Event> ready = result->buffer.ReadyEvent();
  if (!ready.ok()) {
    result->ready->Finish(ready.status());
    return;
  }
  ready->OnReady([result](const absl::Status& status) { result->ready->Finish(status); });
}

}  // namespace helmway::worker
