#ifndef HELMWAY_CLUSTER_ABSENT_WORKER_H_
#define HELMWAY_CLUSTER_ABSENT_WORKER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// The place of a worker in a cluster.
struct WorkerPlaceInCluster {
  int32_t worker = 0;
  int32_t slice = 0;
  int32_t task = 0;  // in its slice
};

// The link to a worker that has not come yet, for a WorkerGroup in which it takes its place later: `info` is
// what is expected of it, and everything that is asked of it fails with `loss` (DATA_LOSS, naming it).
std::unique_ptr<WorkerLink> MakeAbsentWorker(WorkerInfo info, absl::Status loss);

// What a worker will be like that is not there yet, from one that is, of a slice of the same type: the same
// devices with the ids of its own place (FirstDeviceId in worker_info.h). UNIMPLEMENTED
// if that can't be known: the sibling's devices are numbered otherwise, or differ by their place in the slice
// (`coords`) and the sibling has another.
absl::StatusOr<WorkerInfo> ExpectWorker(const WorkerInfo& sibling, const WorkerPlaceInCluster& sibling_place,
                                        const WorkerPlaceInCluster& place);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_ABSENT_WORKER_H_
