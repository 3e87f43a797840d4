#ifndef HELMWAY_CLUSTER_MEMBERSHIP_H_
#define HELMWAY_CLUSTER_MEMBERSHIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/cluster/manager.pb.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// States of a worker, as manager.proto (WorkerRecord.State) tells them.
enum class WorkerState { kExpected, kStarting, kUp, kDraining, kDown };

absl::string_view WorkerStateName(WorkerState state);

struct SliceShape {
  std::string instance_type;  // "cpu:2x4"
  int32_t hosts = 0;
  int32_t devices_per_host = 0;
  int32_t first_worker = 0;  // its workers are first_worker .. first_worker + hosts - 1

  friend bool operator==(const SliceShape&, const SliceShape&) = default;
};

// One place of the cluster and the worker in it.
struct WorkerView {
  int32_t worker = 0;
  int32_t slice = 0;
  int32_t task = 0;
  WorkerState state = WorkerState::kExpected;
  std::string reason;        // why it is kDown
  uint64_t incarnation = 0;  // 0: none was ever here
  std::string host;
  std::string pod;
  std::string address;  // host:port
  std::string software;
  std::shared_ptr<const WorkerInfo> info;  // of the last worker here whose devices are known; null: none

  // Work can be given to it: its devices are known and it answers.
  bool usable() const { return state == WorkerState::kUp || state == WorkerState::kDraining; }
};

struct Membership {
  uint64_t manager_incarnation = 0;  // 0: the manager has not been heard yet
  std::string manager_software;
  std::vector<SliceShape> slices;
  std::vector<WorkerView> workers;  // every place, by worker index

  // All workers of the slice are usable.
  bool SliceIsReady(int32_t slice) const;
};

// What a client of the manager knows, kept over the manager's restarts: a manager that has just started has
// not heard of every worker yet, and until it is settled its silence about one says nothing. One thread.
class MembershipView {
 public:
  // Both return the indices of the workers that changed. INVALID_ARGUMENT for messages that contradict
  // themselves, FAILED_PRECONDITION if the manager's slices are not those that it had before; nothing is
  // changed then.
  absl::StatusOr<std::vector<int32_t>> Apply(const proto::Snapshot& snapshot);
  absl::StatusOr<std::vector<int32_t>> Apply(const proto::Changes& changes);

  const Membership& membership() const { return membership_; }

 private:
  absl::StatusOr<std::vector<WorkerView>> Read(
      const google::protobuf::RepeatedPtrField<proto::WorkerRecord>& records, const Membership& membership);
  std::vector<int32_t> Take(std::vector<WorkerView> workers, bool settled);

  Membership membership_;
  std::vector<bool> confirmed_;  // by worker: the manager has spoken of it since its last snapshot
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_MEMBERSHIP_H_
