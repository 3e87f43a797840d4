#include "helmway/worker/assembly.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "helmway/base/status.h"
#include "helmway/program/block_copy.h"
#include "helmway/program/strides.h"
#include "helmway/worker/host_transfer.h"

namespace helmway::worker {
namespace {

using Result = AssemblyJob::Result;

// Results that are copied faster than a thread is woken share a job.
constexpr int64_t kSmallJobBytes = 256 << 10;

void Finish(const Result& result, const absl::Status& status) {
  for (const SlotRef& slot : result.slots) slot->ready->Finish(status);
}

// The blocks fit and have as many elements as the result, which they fill if they do not overlap.
absl::Status CheckBlocks(const cluster::Dims& dims, const std::vector<cluster::BufferBlock>& blocks) {
  HELMWAY_ASSIGN_OR_RETURN(int64_t missing, program::ElementCount(dims));
  for (const cluster::BufferBlock& block : blocks) {
    if (!program::BlockFits(dims, block.result_origin, block.shape)) {
      return absl::InvalidArgumentError("a block lies outside the buffer that it is for");
    }
    HELMWAY_ASSIGN_OR_RETURN(const int64_t elements, program::ElementCount(block.shape));
    missing -= std::min(elements, missing + 1);
  }
  if (missing != 0) return absl::InvalidArgumentError("blocks that do not fill the buffer that they are for");
  return absl::OkStatus();
}

// The contents of a source as a dense row-major array in host memory, for as long as it lives.
class SourceBytes {
 public:
  static absl::StatusOr<SourceBytes> Read(const pjrt::Buffer& buffer, base::HostMemoryPool& pool) {
    SourceBytes bytes;
    bytes.view_ = HostView(buffer);
    if (bytes.view_) return bytes;
    HELMWAY_ASSIGN_OR_RETURN(const size_t size, buffer.HostSizeBytes());
    HELMWAY_ASSIGN_OR_RETURN(bytes.block_, pool.Allocate(static_cast<int64_t>(size)));
    HELMWAY_ASSIGN_OR_RETURN(const pjrt::Event event, buffer.ToHost(bytes.block_.data, size));
    HELMWAY_RETURN_IF_ERROR(event.Await());
    return bytes;
  }

  const uint8_t* data() const { return view_ ? static_cast<const uint8_t*>(view_->data()) : block_.data; }

 private:
  std::optional<pjrt::ExternalReference> view_;
  base::HostBlock block_;
};

// A result on its way. The first error stays.
struct Part {
  const Result* result;
  base::HostBlock block;
  absl::Status status;
};

struct Use {
  Part* part;
  const cluster::BufferBlock* block;
};

void CopyFrom(const pjrt::Buffer& buffer, pjrt::ElementType type, const std::vector<Use>& uses,
              base::HostMemoryPool& pool) {
  if (std::all_of(uses.begin(), uses.end(), [](const Use& use) { return !use.part->status.ok(); })) return;
  const auto fail = [&uses](const absl::Status& status) {
    for (const Use& use : uses) use.part->status.Update(status);
  };
  if (buffer.IsDeleted()) return fail(absl::InvalidArgumentError("Array has been deleted."));
  if (buffer.element_type() != type) {
    return fail(
        absl::InvalidArgumentError("a buffer is to be put together from one of another element type"));
  }
  absl::StatusOr<SourceBytes> bytes = SourceBytes::Read(buffer, pool);
  if (!bytes.ok()) return fail(bytes.status());
  const absl::Span<const int64_t> dims = buffer.dimensions();
  for (const Use& use : uses) {
    if (!use.part->status.ok()) continue;
    const cluster::BufferBlock& block = *use.block;
    if (!program::BlockFits(dims, block.source_origin, block.shape)) {
      use.part->status = absl::InvalidArgumentError("a block lies outside the buffer that it is taken from");
      continue;
    }
    program::CopyBlock(bytes->data(), {dims, block.source_origin}, use.part->block.data,
                       {use.part->result->dims, block.result_origin}, block.shape,
                       pjrt::HostElementBytes(type));
  }
}

}  // namespace

std::vector<AssemblyJob> MakeAssemblyJobs(cluster::AssembleBuffers command,
                                          const std::vector<SlotRef>& sources,
                                          const std::vector<std::vector<SlotRef>>& slots,
                                          const pjrt::Client& client) {
  const auto type = static_cast<pjrt::ElementType>(command.element_type);
  // Where sources need not be read first, small jobs share the threads best and hold the least.
  const bool staged = client.platform_name() != "cpu" || pjrt::ElementBits(type) < 8;
  const int64_t max_job_bytes = staged ? kMaxStagedBytes : kSmallJobBytes;
  std::vector<AssemblyJob> jobs;
  absl::flat_hash_map<uint32_t, uint32_t> number_in_job;
  int64_t job_bytes = 0;
  for (size_t r = 0; r < command.results.size(); ++r) {
    cluster::AssembleBuffers::Result& from = command.results[r];
    Result result{.dims = std::move(from.dims), .blocks = std::move(from.blocks)};
    for (size_t t = 0; t < from.targets.size(); ++t) {
      const pjrt::Device* device = client.FindDevice(from.targets[t].device);
      if (device == nullptr || !device->is_addressable()) {
        slots[r][t]->ready->Finish(
            absl::InvalidArgumentError(absl::StrCat("no device ", from.targets[t].device)));
        continue;
      }
      result.targets.push_back(from.targets[t]);
      result.slots.push_back(slots[r][t]);
      result.devices.push_back(device);
    }
    if (result.slots.empty()) continue;
    absl::Status status = CheckBlocks(result.dims, result.blocks);
    for (const cluster::BufferBlock& block : result.blocks) {
      if (block.source >= sources.size()) {
        status.Update(absl::InvalidArgumentError("a block of a buffer that the command does not name"));
      }
    }
    absl::StatusOr<int64_t> bytes =
        program::RegionSizeBytes(result.dims, pjrt::HostElementBytes(type), std::nullopt);
    status.Update(bytes.status());
    if (!status.ok()) {
      Finish(result, status);
      continue;
    }
    if (jobs.empty() || *bytes > max_job_bytes - job_bytes) {
      AssemblyJob& job = jobs.emplace_back();
      job.element_type = command.element_type;
      job.memory_kind = command.memory_kind;
      job.minor_to_major = command.minor_to_major;
      number_in_job.clear();
      job_bytes = 0;
    }
    AssemblyJob& job = jobs.back();
    job_bytes += *bytes;
    for (cluster::BufferBlock& block : result.blocks) {
      const auto [it, is_new] =
          number_in_job.try_emplace(block.source, static_cast<uint32_t>(job.sources.size()));
      if (is_new) job.sources.emplace_back(sources[block.source]);
      block.source = it->second;
    }
    job.results.push_back(std::move(result));
  }
  return jobs;
}

void RunAssembly(const pjrt::Client& client, base::HostMemoryPool& pool, AssemblyJob job) {
  const auto type = static_cast<pjrt::ElementType>(job.element_type);
  std::vector<Part> parts;
  parts.reserve(job.results.size());
  std::vector<std::vector<Use>> uses(job.sources.size());
  for (const Result& result : job.results) {
    Part& part = parts.emplace_back(Part{&result, {}, absl::OkStatus()});
    for (const cluster::BufferBlock& block : result.blocks) {
      const Slot& source = *job.sources[block.source];
      part.status.Update(source.ready->status());
      if (part.status.ok()) part.status = source.CheckElements();
    }
    if (!part.status.ok()) continue;
    absl::StatusOr<base::HostBlock> block = pool.Allocate(
        program::RegionSizeBytes(result.dims, pjrt::HostElementBytes(type), std::nullopt).value_or(0));
    if (!block.ok()) {
      part.status = block.status();
      continue;
    }
    part.block = *std::move(block);
    for (const cluster::BufferBlock& b : result.blocks) uses[b.source].push_back({&part, &b});
  }
  for (size_t s = 0; s < uses.size(); ++s) {
    if (!uses[s].empty()) CopyFrom(job.sources[s]->buffer, type, uses[s], pool);
  }
  // Sources that nobody else wants are given back before the results are shown.
  job.sources.clear();
  for (Part& part : parts) {
    if (!part.status.ok()) {
      Finish(*part.result, part.status);
      continue;
    }
    cluster::HostContents contents;
    contents.targets = part.result->targets;
    contents.element_type = job.element_type;
    contents.dims = part.result->dims;
    contents.memory_kind = job.memory_kind;
    contents.minor_to_major = job.minor_to_major;
    contents.bytes = std::move(part.block).Finish();
    for (size_t t = 0; t < part.result->slots.size(); ++t) {
      FillSlot(client, part.result->devices[t], contents, part.result->slots[t]);
    }
  }
}

void DropAssembly(const AssemblyJob& job, const absl::Status& status) {
  for (const Result& result : job.results) Finish(result, status);
}

}  // namespace helmway::worker
