#ifndef HELMWAY_CLUSTER_WORKER_GROUP_H_
#define HELMWAY_CLUSTER_WORKER_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/placement.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// Several workers as one: the link that a proxy of a cluster has. Splits each command by the workers whose
// devices it is about, a few small messages for each, whatever the number of devices; what goes from one
// worker to another is sent by the one to the other. Any thread.
//
// Device ids must differ between the workers. Memory ids are numbered anew.
class WorkerGroup final : public WorkerLink {
 public:
  // INVALID_ARGUMENT: no workers, several platforms, or a device id twice.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Create(
      std::vector<std::unique_ptr<WorkerLink>> workers);

  const WorkerInfo& info() const override { return info_; }
  PeerAddress peer_address() const override { return {}; }
  std::shared_ptr<SessionLink> OpenSession(SessionId session,
                                           std::shared_ptr<CallbackSink> callbacks) override;
  absl::StatusOr<std::string> DefaultLayout(ElementType type, const std::vector<int64_t>& dims) override;
  // The first devices of all, in the order of info().
  absl::StatusOr<std::vector<DeviceId>> DefaultDeviceAssignment(int replicas, int partitions) override;

  // ---- For the sessions of this group ----
  size_t size() const { return workers_.size(); }
  WorkerLink& worker(WorkerIndex index) const { return *workers_[index]; }
  // The worker of a device, or -1.
  int WorkerOf(DeviceId device) const;
  // The next places in the orders of these workers' launches (Launch::place), one for each. Launches that
  // were given places one after the other have them in that order on every worker that they share, so that
  // two never wait for each other.
  std::vector<uint64_t> TakePlaces(const std::vector<WorkerIndex>& workers);

 private:
  WorkerGroup() = default;

  std::vector<std::unique_ptr<WorkerLink>> workers_;
  WorkerInfo info_;
  absl::flat_hash_map<DeviceId, WorkerIndex> worker_of_device_;
  base::Mutex mu_;
  std::vector<uint64_t> places_taken_ ABSL_GUARDED_BY(mu_);  // by worker
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_WORKER_GROUP_H_
