#include "helmway/cluster/membership.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::cluster {
namespace {

// What a message may make us allocate.
constexpr int64_t kMaxWorkers = 1 << 20;

absl::StatusOr<WorkerState> ReadState(proto::WorkerRecord::State state) {
  switch (state) {
    case proto::WorkerRecord::EXPECTED:
      return WorkerState::kExpected;
    case proto::WorkerRecord::STARTING:
      return WorkerState::kStarting;
    case proto::WorkerRecord::UP:
      return WorkerState::kUp;
    case proto::WorkerRecord::DRAINING:
      return WorkerState::kDraining;
    case proto::WorkerRecord::DOWN:
      return WorkerState::kDown;
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown state of a worker: ", static_cast<int>(state)));
  }
}

absl::StatusOr<Membership> ReadShape(const proto::Snapshot& snapshot) {
  Membership membership;
  membership.manager_incarnation = snapshot.manager_incarnation();
  membership.manager_software = snapshot.version().software();
  int64_t workers = 0;
  for (const proto::SliceShape& slice : snapshot.slices()) {
    if (slice.hosts() < 1 || slice.devices_per_host() < 1 || workers + slice.hosts() > kMaxWorkers) {
      return absl::InvalidArgumentError("a slice of an impossible shape");
    }
    membership.slices.push_back({.instance_type = slice.instance_type(),
                                 .hosts = slice.hosts(),
                                 .devices_per_host = slice.devices_per_host(),
                                 .first_worker = static_cast<int32_t>(workers)});
    workers += slice.hosts();
  }
  for (size_t slice = 0; slice < membership.slices.size(); ++slice) {
    for (int32_t task = 0; task < membership.slices[slice].hosts; ++task) {
      WorkerView worker;
      worker.worker = static_cast<int32_t>(membership.workers.size());
      worker.slice = static_cast<int32_t>(slice);
      worker.task = task;
      membership.workers.push_back(std::move(worker));
    }
  }
  return membership;
}

// Apart from the devices, which are those of the incarnation.
bool Same(const WorkerView& a, const WorkerView& b) {
  return a.state == b.state && a.reason == b.reason && a.incarnation == b.incarnation && a.host == b.host &&
         a.pod == b.pod && a.address == b.address && a.software == b.software &&
         (a.info == nullptr) == (b.info == nullptr);
}

}  // namespace

absl::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kExpected:
      return "expected";
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kUp:
      return "up";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kDown:
      return "down";
  }
  return "unknown";
}

bool Membership::SliceIsReady(int32_t slice) const {
  const SliceShape& shape = slices.at(static_cast<size_t>(slice));
  const auto first = workers.begin() + shape.first_worker;
  return std::all_of(first, first + shape.hosts, [](const WorkerView& worker) { return worker.usable(); });
}

absl::StatusOr<std::vector<int32_t>> MembershipView::Apply(const proto::Snapshot& snapshot) {
  HELMWAY_ASSIGN_OR_RETURN(Membership fresh, ReadShape(snapshot));
  const bool first = membership_.manager_incarnation == 0;
  if (!first && fresh.slices != membership_.slices) {
    return absl::FailedPreconditionError(
        "the resource manager came back with other slices (--instance_type or --instance_count)");
  }
  HELMWAY_ASSIGN_OR_RETURN(std::vector<WorkerView> workers,
                           Read(snapshot.workers(), first ? fresh : membership_));
  if (first) {
    membership_ = std::move(fresh);
  } else {
    membership_.manager_incarnation = fresh.manager_incarnation;
    membership_.manager_software = std::move(fresh.manager_software);
  }
  confirmed_.assign(membership_.workers.size(), false);
  return Take(std::move(workers), snapshot.settled());
}

absl::StatusOr<std::vector<int32_t>> MembershipView::Apply(const proto::Changes& changes) {
  if (membership_.manager_incarnation == 0) {
    return absl::InvalidArgumentError("changes came before the first snapshot");
  }
  HELMWAY_ASSIGN_OR_RETURN(std::vector<WorkerView> workers, Read(changes.workers(), membership_));
  return Take(std::move(workers), changes.settled());
}

absl::StatusOr<std::vector<WorkerView>> MembershipView::Read(
    const google::protobuf::RepeatedPtrField<proto::WorkerRecord>& records, const Membership& membership) {
  std::vector<WorkerView> workers;
  for (const proto::WorkerRecord& record : records) {
    if (record.worker() < 0 || static_cast<size_t>(record.worker()) >= membership.workers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("no place has the number ", record.worker()));
    }
    const WorkerView& known = membership.workers[static_cast<size_t>(record.worker())];
    if (record.slice() != known.slice || record.task() != known.task) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", record.worker(), " is said to be in slice ", record.slice()));
    }
    WorkerView worker;
    worker.worker = known.worker;
    worker.slice = known.slice;
    worker.task = known.task;
    HELMWAY_ASSIGN_OR_RETURN(worker.state, ReadState(record.state()));
    worker.reason = record.reason();
    worker.incarnation = record.incarnation();
    worker.host = record.host();
    worker.pod = record.pod();
    worker.address = record.address();
    worker.software = record.software();
    if (record.has_info()) {
      HELMWAY_ASSIGN_OR_RETURN(WorkerInfo info, WorkerInfoFromProto(record.info()));
      worker.info = std::make_shared<const WorkerInfo>(std::move(info));
    } else {
      worker.info = known.info;
    }
    if (worker.usable() && worker.info == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", record.worker(), " is up, but its devices are not described"));
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

std::vector<int32_t> MembershipView::Take(std::vector<WorkerView> workers, bool settled) {
  std::vector<int32_t> changed;
  for (WorkerView& worker : workers) {
    const auto index = static_cast<size_t>(worker.worker);
    // A manager that does not know a worker yet says nothing about it.
    if (worker.state == WorkerState::kExpected) continue;
    confirmed_[index] = true;
    if (Same(worker, membership_.workers[index])) continue;
    changed.push_back(worker.worker);
    membership_.workers[index] = std::move(worker);
  }
  if (!settled) return changed;
  for (WorkerView& worker : membership_.workers) {
    if (confirmed_[static_cast<size_t>(worker.worker)] || worker.state == WorkerState::kExpected ||
        worker.state == WorkerState::kDown) {
      continue;
    }
    worker.state = WorkerState::kDown;
    worker.reason = "it did not come back to the resource manager after that one's restart";
    changed.push_back(worker.worker);
  }
  return changed;
}

}  // namespace helmway::cluster
