#ifndef HELMWAY_WORKER_ASSEMBLY_H_
#define HELMWAY_WORKER_ASSEMBLY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/slot.h"

namespace helmway::worker {

// Buffers that are put together at once from the same sources.
struct AssemblyJob {
  struct Result {
    cluster::BufferTargets targets;
    std::vector<SlotRef> slots;                // of the targets; to be finished
    std::vector<const pjrt::Device*> devices;  // of the targets
    cluster::Dims dims;
    std::vector<cluster::BufferBlock> blocks;  // BufferBlock::source is a number in `sources`
  };
  std::vector<ReadHold> sources;
  std::vector<Result> results;
  cluster::ElementType element_type = 0;
  std::string memory_kind;
  std::optional<std::vector<int64_t>> minor_to_major;
};

// The most bytes of results in one job where device memory is not the host's: all of them lie in host memory
// while the sources are read one after the other. (A single result may be larger.)
inline constexpr int64_t kMaxStagedBytes = 256 << 20;

// Cuts a command into jobs, with its checks done that need no buffer: a result whose device or source does
// not exist is finished with INVALID_ARGUMENT and left out. `sources` are the slots of the command's sources,
// null for those that no block names; `slots` those of the targets, result by result.
std::vector<AssemblyJob> MakeAssemblyJobs(cluster::AssembleBuffers command,
                                          const std::vector<SlotRef>& sources,
                                          const std::vector<std::vector<SlotRef>>& slots,
                                          const pjrt::Client& client);

// Does a job whose sources are all done, failed or not, and finishes its results; blocks while it copies.
// Source memory that the host can read is copied from directly, other sources are read whole, one at a time;
// the results lie in host memory that the plugin takes over without another copy where it can. A result with
// a failed source gets the first such error, in the order of its blocks.
void RunAssembly(const pjrt::Client& client, base::HostMemoryPool& pool, AssemblyJob job);

// Finishes all results without doing anything.
void DropAssembly(const AssemblyJob& job, const absl::Status& status);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_ASSEMBLY_H_
