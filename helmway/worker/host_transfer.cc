#include "helmway/worker/host_transfer.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "helmway/base/status.h"
#include "helmway/program/strides.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::worker {
namespace {

constexpr int64_t kSlowFillBytes = 256 << 10;

pjrt::ElementType TypeOf(const cluster::HostContents& contents) {
  return static_cast<pjrt::ElementType>(contents.element_type);
}

bool IsStrided(const cluster::HostContents& contents) {
  return contents.byte_strides.has_value() &&
         !program::IsDense(contents.dims, pjrt::HostElementBytes(TypeOf(contents)), *contents.byte_strides);
}

// The memory of that kind (empty: null, for the device's default).
absl::StatusOr<const pjrt::Memory*> FindMemory(const pjrt::Device* device, const std::string& kind) {
  if (kind.empty()) return nullptr;
  const pjrt::Memory* memory = device->FindMemory(kind);
  if (memory != nullptr) return memory;
  return absl::InvalidArgumentError(
      absl::StrCat("device ", device->id(), " has no memory of kind \"", kind, "\""));
}

void FinishWhenReady(pjrt::Buffer buffer, const SlotRef& slot) {
  slot->buffer = std::move(buffer);
  absl::StatusOr<pjrt::Event> ready = slot->buffer.ReadyEvent();
  if (!ready.ok()) {
    slot->Finish(ready.status());
    return;
  }
  ready->OnReady([slot](const absl::Status& status) { slot->Finish(status); });
}

// A buffer whose memory a reader outside the plugin looks at. The members are dropped in reverse order: the
// reference before the buffer that it belongs to.
struct View {
  ReadHold slot;
  pjrt::ExternalReference reference;
};

// Copies a dense row-major array into the region of a strided one. Bytes between elements are zeros.
void Scatter(const uint8_t* dense, absl::Span<const int64_t> dims, absl::Span<const int64_t> strides,
             int64_t element_bytes, uint8_t* region) {
  if (dims.empty()) {
    std::memcpy(region, dense, static_cast<size_t>(element_bytes));
    return;
  }
  int64_t inner = element_bytes;
  for (const int64_t dim : dims.subspan(1)) inner *= dim;
  for (int64_t i = 0; i < dims[0]; ++i) {
    Scatter(dense + i * inner, dims.subspan(1), strides.subspan(1), element_bytes, region + i * strides[0]);
  }
}

struct DenseRead {
  ReadHold slot;
  base::HostBlock block;
  absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done;
};

// Lets the plugin write the array densely into a fresh block.
void ReadDense(ReadHold slot, base::HostMemoryPool* pool,
               absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  absl::StatusOr<size_t> size = slot->buffer.HostSizeBytes();
  if (!size.ok()) return done(size.status());
  absl::StatusOr<base::HostBlock> block = pool->Allocate(static_cast<int64_t>(*size));
  if (!block.ok()) return done(block.status());
  if (*size == 0) return done(std::move(*block).Finish());
  auto read = std::make_shared<DenseRead>(DenseRead{std::move(slot), *std::move(block), std::move(done)});
  absl::StatusOr<pjrt::Event> event = read->slot->buffer.ToHost(read->block.data, *size);
  if (!event.ok()) return read->done(event.status());
  event->OnReady([read](const absl::Status& status) {
    if (status.ok()) {
      read->done(std::move(read->block).Finish());
    } else {
      read->done(status);
    }
  });
}

}  // namespace

bool FillIsSlow(const cluster::HostContents& contents) {
  return contents.bytes.size > kSlowFillBytes &&
         contents.element_type != xla::ifrt::DTypeProto::KIND_STRING &&
         (IsStrided(contents) || contents.minor_to_major.has_value() ||
          pjrt::ElementBits(TypeOf(contents)) < 8);
}

void FillSlot(const pjrt::Client& client, const pjrt::Device* device, const cluster::HostContents& contents,
              const SlotRef& slot) {
  pjrt::HostBufferArgs args;
  args.data = contents.bytes.data;
  args.type = TypeOf(contents);
  args.dims = contents.dims;
  if (IsStrided(contents)) args.byte_strides = *contents.byte_strides;
  if (contents.minor_to_major) args.minor_to_major = *contents.minor_to_major;
  args.device = device;
  absl::StatusOr<const pjrt::Memory*> memory = FindMemory(device, contents.memory_kind);
  if (!memory.ok()) {
    slot->Finish(memory.status());
    return;
  }
  args.memory = *memory;
  if (contents.element_type == xla::ifrt::DTypeProto::KIND_STRING) {
    slot->strings = contents.bytes;
    slot->strings->exclusive = false;
    slot->Finish(absl::OkStatus());
    return;
  }
  // Only bytes that nobody else sees may become an output in place later.
  args.semantics = contents.bytes.exclusive && contents.targets.size() == 1
                       ? pjrt::HostBufferSemantics::kMutableZeroCopy
                       : pjrt::HostBufferSemantics::kImmutableZeroCopy;
  absl::StatusOr<pjrt::HostBufferResult> result = client.BufferFromHost(args);
  if (!result.ok()) {
    slot->Finish(base::Annotate(result.status(), absl::StrCat("host buffer to device ", device->id())));
    return;
  }
  result->done_with_host_buffer.OnReady([owner = contents.bytes.owner](const absl::Status&) {});
  FinishWhenReady(std::move(result->buffer), slot);
}

void FillSlotWithToken(TokenMaker& tokens, const pjrt::Device* device, const std::string& memory_kind,
                       const SlotRef& slot) {
  absl::Status status = FindMemory(device, memory_kind).status();
  if (status.ok()) {
    absl::StatusOr<pjrt::Buffer> token = tokens.Make(device);
    if (token.ok()) return FinishWhenReady(*std::move(token), slot);
    status = token.status();
  }
  slot->Finish(std::move(status));
}

std::optional<pjrt::ExternalReference> HostView(const pjrt::Buffer& buffer) {
  if (buffer.client()->platform_name() != "cpu" || pjrt::ElementBits(buffer.element_type()) < 8) {
    return std::nullopt;
  }
  absl::StatusOr<pjrt::MemoryLayout> layout = buffer.GetMemoryLayout();
  if (!layout.ok() || !layout->IsDenseRowMajor()) return std::nullopt;
  absl::StatusOr<pjrt::ExternalReference> reference = pjrt::ExternalReference::Acquire(buffer);
  if (!reference.ok()) return std::nullopt;
  return *std::move(reference);
}

void ReadSlot(ReadHold slot, const cluster::ReadFormat& format, base::HostMemoryPool* pool,
              absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  if (slot->strings) return done(*slot->strings);
  const pjrt::Buffer& buffer = slot->buffer;
  if (buffer.IsDeleted()) return done(absl::InvalidArgumentError("Array has been deleted."));
  const pjrt::ElementType type = buffer.element_type();
  if (type == pjrt::ElementType::kToken)
    return done(absl::InvalidArgumentError("a token has no contents to read"));
  const int64_t element_bytes = pjrt::HostElementBytes(type);
  const std::vector<int64_t> dims(buffer.dimensions().begin(), buffer.dimensions().end());

  if (format.byte_strides && !program::IsDense(dims, element_bytes, *format.byte_strides)) {
    absl::StatusOr<int64_t> region = program::RegionSizeBytes(dims, element_bytes, *format.byte_strides);
    if (!region.ok()) return done(region.status());
    ReadDense(std::move(slot), pool,
              [strides = *format.byte_strides, dims, element_bytes, size = *region, pool,
               done = std::move(done)](absl::StatusOr<base::HostBytes> dense) mutable {
                if (!dense.ok()) return done(dense.status());
                absl::StatusOr<base::HostBlock> block = pool->Allocate(size);
                if (!block.ok()) return done(block.status());
                std::memset(block->data, 0, static_cast<size_t>(size));
                Scatter(dense->data, dims, strides, element_bytes, block->data);
                done(std::move(*block).Finish());
              });
    return;
  }

  absl::StatusOr<int64_t> size = program::RegionSizeBytes(dims, element_bytes, std::nullopt);
  if (size.ok() && *size > 0) {
    if (std::optional<pjrt::ExternalReference> reference = HostView(buffer)) {
      if (*size <= kLargestCopiedRead) {
        absl::StatusOr<base::HostBlock> block = pool->Allocate(*size);
        if (!block.ok()) return done(block.status());
        std::memcpy(block->data, reference->data(), static_cast<size_t>(*size));
        reference->Release();
        return done(std::move(*block).Finish());
      }
      auto view = std::make_shared<View>(View{std::move(slot), *std::move(reference)});
      const auto* data = static_cast<const uint8_t*>(view->reference.data());
      return done(base::HostBytes{std::move(view), data, *size, /*exclusive=*/false});
    }
  }
  ReadDense(std::move(slot), pool, std::move(done));
}

bool HasDefaultLayout(const pjrt::Buffer& buffer) {
  if (buffer.element_type() == pjrt::ElementType::kToken) return true;
  absl::StatusOr<pjrt::MemoryLayout> layout = buffer.GetMemoryLayout();
  return layout.ok() && layout->IsDenseRowMajor();
}

void CopyByWayOfHost(const pjrt::Client& client, ReadHold source, const pjrt::Device* device,
                     const std::string& memory_kind, base::HostMemoryPool* pool, const SlotRef& result) {
  cluster::HostContents contents;
  contents.targets.push_back({});
  contents.element_type = static_cast<cluster::ElementType>(source->buffer.element_type());
  const absl::Span<const int64_t> dims = source->buffer.dimensions();
  contents.dims.assign(dims.begin(), dims.end());
  contents.memory_kind = memory_kind;
  ReadDense(std::move(source), pool,
            [&client, device, contents = std::move(contents),
             result](absl::StatusOr<base::HostBytes> bytes) mutable {
              if (!bytes.ok()) {
                result->Finish(bytes.status());
                return;
              }
              contents.bytes = *std::move(bytes);
              FillSlot(client, device, contents, result);
            });
}

}  // namespace helmway::worker
