#include "helmway/cluster/worker_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/group_session.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::cluster {

WorkerGroup::WorkerGroup() : later_({.name = "lost-worker", .threads = 1, .max_queued = size_t{1} << 24}) {}

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Create(
    std::vector<std::unique_ptr<WorkerLink>> workers) {
  if (workers.empty()) return absl::InvalidArgumentError("a group of no workers");
  auto group = std::unique_ptr<WorkerGroup>(new WorkerGroup());
  WorkerInfo& all = group->info_;
  all.platform_name = workers[0]->info().platform_name;
  all.platform_version = workers[0]->info().platform_version;
  for (WorkerIndex w = 0; w < workers.size(); ++w) {
    const WorkerInfo& info = workers[w]->info();
    if (info.devices.empty()) return absl::InvalidArgumentError("a worker without devices");
    group->first_device_.push_back(info.devices[0].id);
    if (info.platform_name != all.platform_name) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers of the platforms ", all.platform_name, " and ", info.platform_name));
    }
    absl::flat_hash_map<int32_t, int32_t> new_id;
    for (const MemoryInfo& memory : info.memories) {
      const auto id = static_cast<int32_t>(all.memories.size());
      new_id[memory.id] = id;
      all.memories.push_back(memory);
      all.memories.back().id = id;
    }
    for (const DeviceInfo& device : info.devices) {
      if (!group->worker_of_device_.emplace(device.id, w).second) {
        return absl::InvalidArgumentError(absl::StrCat("two workers have a device ", device.id));
      }
      DeviceInfo& renumbered = all.devices.emplace_back(device);
      if (device.default_memory) renumbered.default_memory = new_id[*device.default_memory];
      for (int32_t& memory : renumbered.memories) memory = new_id[memory];
    }
  }
  base::MutexLock lock(&group->mu_);
  for (auto& worker : workers) group->lives_.push_back(std::make_shared<WorkerLife>(std::move(worker)));
  return group;
}

absl::Status WorkerGroup::Return(WorkerIndex worker, std::unique_ptr<WorkerLink> link) {
  // A life that is over already must not take the place of a later one.
  if (absl::Status loss = link->Loss(); !loss.ok()) return loss;
  std::vector<std::shared_ptr<GroupSession>> sessions;
  std::vector<std::shared_ptr<WorkerLife>> unused;
  std::shared_ptr<WorkerLife> life;
  {
    base::MutexLock lock(&mu_);
    if (worker >= lives_.size()) return absl::InvalidArgumentError("the group has no such worker");
    const std::vector<DeviceInfo>& known = lives_[worker]->link->info().devices;
    const std::vector<DeviceInfo>& devices = link->info().devices;
    const bool same = std::equal(known.begin(), known.end(), devices.begin(), devices.end(),
                                 [](const DeviceInfo& a, const DeviceInfo& b) {
                                   return a.id == b.id && a.kind == b.kind &&
                                          a.platform_name == b.platform_name &&
                                          a.memories.size() == b.memories.size();
                                 });
    if (!same) {
      return absl::FailedPreconditionError(
          "the worker has come back with other devices than it had; they cannot change while the proxy "
          "serves");
    }
    life = std::make_shared<WorkerLife>(std::move(link));
    replaced_.push_back(std::exchange(lives_[worker], life));
    for (const auto& session : sessions_) {
      if (auto live = session.lock()) sessions.push_back(std::move(live));
    }
    for (auto& replaced : replaced_) {
      if (replaced.use_count() == 1) unused.push_back(std::move(replaced));
    }
    std::erase(replaced_, nullptr);
  }
  for (const auto& session : sessions) session->Return(worker, life);
  return absl::OkStatus();
}

bool WorkerGroup::IsLost(WorkerIndex worker) const {
  std::shared_ptr<WorkerLife> life;
  {
    base::MutexLock lock(&mu_);
    life = lives_[worker];
  }
  return !life->link->Loss().ok();
}

std::vector<uint64_t> WorkerGroup::TakePlaces(const std::vector<WorkerLife*>& lives) {
  std::vector<uint64_t> places;
  places.reserve(lives.size());
  base::MutexLock lock(&places_mu_);
  for (WorkerLife* life : lives) places.push_back(++life->places_taken);
  return places;
}

int WorkerGroup::WorkerOf(DeviceId device) const {
  const auto it = worker_of_device_.find(device);
  return it == worker_of_device_.end() ? -1 : static_cast<int>(it->second);
}

std::vector<std::shared_ptr<WorkerLife>> WorkerGroup::Lives() const {
  base::MutexLock lock(&mu_);
  return lives_;
}

std::shared_ptr<SessionLink> WorkerGroup::OpenSession(SessionId session,
                                                      std::shared_ptr<CallbackSink> callbacks) {
  const std::vector<std::shared_ptr<WorkerLife>> lives = Lives();
  auto opened = std::make_shared<GroupSession>(this, session, std::move(callbacks), lives);
  opened->WatchWorkers();
  std::vector<std::shared_ptr<WorkerLife>> now;
  {
    base::MutexLock lock(&mu_);
    std::erase_if(sessions_, [](const auto& known) { return known.expired(); });
    sessions_.push_back(opened);
    now = lives_;
  }
  // Those that came back before the session was known.
  for (WorkerIndex w = 0; w < lives.size(); ++w) {
    if (now[w] != lives[w]) opened->Return(w, now[w]);
  }
  return opened;
}

namespace {

// Asks the lives from `next` on, one after the other, until one is there.
void AskForLayout(std::vector<std::shared_ptr<WorkerLife>> lives, size_t next, ElementType type,
                  std::vector<int64_t> dims, absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) {
  WorkerLink& link = *lives[next]->link;
  auto asked = [lives = std::move(lives), next, type, dims,
                done = std::move(done)](absl::StatusOr<std::string> layout) mutable {
    if (absl::IsDataLoss(layout.status()) && next + 1 < lives.size()) {
      return AskForLayout(std::move(lives), next + 1, type, std::move(dims), std::move(done));
    }
    done(std::move(layout));
  };
  link.DefaultLayout(type, dims, std::move(asked));
}

}  // namespace

void WorkerGroup::DefaultLayout(ElementType type, const std::vector<int64_t>& dims,
                                absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) {
  // All have one platform: any that is there knows.
  AskForLayout(Lives(), 0, type, dims, std::move(done));
}

absl::StatusOr<std::vector<DeviceId>> WorkerGroup::DefaultDeviceAssignment(int replicas, int partitions) {
  return AssignInOrder(info_, replicas, partitions);
}

}  // namespace helmway::cluster
