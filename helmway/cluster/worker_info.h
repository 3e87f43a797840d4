#ifndef HELMWAY_CLUSTER_WORKER_INFO_H_
#define HELMWAY_CLUSTER_WORKER_INFO_H_

#include <vector>

#include "absl/status/statusor.h"
#include "helmway/cluster/worker_info.pb.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// Device ids, as the CPU plugin makes them from its process id: those of worker w are
// [w * kDeviceIdsPerWorker, (w + 1) * kDeviceIdsPerWorker).
inline constexpr int32_t kDeviceIdsPerWorker = 2048;

inline DeviceId FirstDeviceId(int32_t worker) { return worker * kDeviceIdsPerWorker; }

// Gives the device, whose id is set, the attributes that JAX, pathwaysutils, Orbax and MaxText group devices
// by; `task` is the number of its worker in the slice.
void SetPlace(int64_t slice, int64_t task, DeviceInfo* device);

// The hosts of these devices, by process, for Python beside them. UNIMPLEMENTED, naming the platform, where
// the hosts' CPU devices are not among them; INTERNAL if their ids are not as above.
absl::StatusOr<std::vector<PythonHost>> PythonHostsOf(const WorkerInfo& info);

// An assignment of the first devices, in their order: result[replica * partitions + partition].
// INVALID_ARGUMENT if there are too few.
absl::StatusOr<std::vector<DeviceId>> AssignInOrder(const WorkerInfo& info, int replicas, int partitions);

proto::AttributeValue ToProto(const AttributeValue& attribute);
// INVALID_ARGUMENT if it has no value.
absl::StatusOr<AttributeValue> FromProto(const proto::AttributeValue& message);

proto::WorkerInfo WorkerInfoToProto(const WorkerInfo& info);

// INVALID_ARGUMENT for what no worker can mean: an attribute without a value, two devices or two memories of
// one id, a reference to a memory or device that is not in the message.
absl::StatusOr<WorkerInfo> WorkerInfoFromProto(const proto::WorkerInfo& message);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_WORKER_INFO_H_
