#ifndef HELMWAY_CLUSTER_WORKER_GROUP_H_
#define HELMWAY_CLUSTER_WORKER_GROUP_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/placement.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

class GroupSession;

// A worker from when it is connected to when it is lost. Sessions keep a lost one for as long as they have
// nothing in its place.
struct WorkerLife {
  explicit WorkerLife(std::unique_ptr<WorkerLink> worker) : link(std::move(worker)) {}
  const std::unique_ptr<WorkerLink> link;
  uint64_t places_taken = 0;  // in the order of its launches; WorkerGroup's
};

// Several workers as one: the link that a proxy of a cluster has. Splits each command by the workers whose
// devices it is about, a few small messages for each, whatever the number of devices; what goes from one
// worker to another is sent by the one to the other. Any thread.
//
// A worker that is lost may come back (Return). Meanwhile its devices stay listed: what is asked of them
// fails with DATA_LOSS, programs for them are compiled elsewhere, and launches that need them fail on all
// workers.
//
// Device ids must differ between the workers. Memory ids are numbered anew.
class WorkerGroup final : public WorkerLink {
 public:
  // INVALID_ARGUMENT: no workers, several platforms, or a device id twice.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Create(
      std::vector<std::unique_ptr<WorkerLink>> workers);

  const WorkerInfo& info() const override { return info_; }
  PeerAddress peer_address() const override { return {}; }
  absl::Status Loss() override { return absl::OkStatus(); }
  std::shared_ptr<SessionLink> OpenSession(SessionId session,
                                           std::shared_ptr<CallbackSink> callbacks) override;
  void DefaultLayout(ElementType type, const std::vector<int64_t>& dims,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override;
  // The first devices of all, in the order of info().
  absl::StatusOr<std::vector<DeviceId>> DefaultDeviceAssignment(int replicas, int partitions) override;

  // A worker that was lost is there again, with the same devices. New sessions have it from now on; those
  // that are open take it when it has their programs. FAILED_PRECONDITION: it has other devices than before.
  // INVALID_ARGUMENT: no such worker. DATA_LOSS: it is lost again.
  absl::Status Return(WorkerIndex worker, std::unique_ptr<WorkerLink> link);
  bool IsLost(WorkerIndex worker) const;

  // ---- For the sessions of this group ----
  // The worker of a device, or -1.
  int WorkerOf(DeviceId device) const;
  DeviceId FirstDeviceOf(WorkerIndex worker) const { return first_device_[worker]; }
  // The next places in the orders of these workers' launches (Launch::place), one for each. Launches that
  // were given places one after the other have them in that order on every worker that they share, so that
  // two never wait for each other.
  std::vector<uint64_t> TakePlaces(const std::vector<WorkerLife*>& lives);
  // Runs a callback that must not run inside the call that it belongs to.
  void Later(absl::AnyInvocable<void()> task) { later_.PostOrRun(std::move(task)); }

 private:
  WorkerGroup();
  std::vector<std::shared_ptr<WorkerLife>> Lives() const;

  WorkerInfo info_;
  absl::flat_hash_map<DeviceId, WorkerIndex> worker_of_device_;
  std::vector<DeviceId> first_device_;  // by worker
  base::Mutex places_mu_;               // of places_taken of all lives
  mutable base::Mutex mu_;
  std::vector<std::shared_ptr<WorkerLife>> lives_ ABSL_GUARDED_BY(mu_);  // by worker: the newest
  // Those that were replaced, until nobody uses them: the last reference to a connection must not be dropped
  // on the threads of its streams.
  std::vector<std::shared_ptr<WorkerLife>> replaced_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<GroupSession>> sessions_ ABSL_GUARDED_BY(mu_);
  async::ThreadPool later_;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_WORKER_GROUP_H_
