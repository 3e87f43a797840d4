// Workers that were lost and are back: programs are loaded again, and the new life takes the place of the
// old.
#include <algorithm>
#include <utility>

#include "helmway/cluster/group_session.h"

namespace helmway::cluster {
namespace {

constexpr size_t kMaxTargetsInACommand = 4096;

}  // namespace

void GroupSession::Return(WorkerIndex worker, std::shared_ptr<WorkerLife> life) {
  auto returning = std::make_shared<Returning>();
  returning->worker = worker;
  returning->life = std::move(life);
  returning->link = returning->life->link->OpenSession(id_, callbacks_);
  Watch(worker, returning->link);
  LinkRef dropped;
  {
    base::MutexLock lock(&mu_);
    if (closed_) {
      dropped = returning->link;
    } else {
      std::shared_ptr<Returning>& place = returning_[worker];
      if (place != nullptr) dropped = place->link;
      place = returning;
    }
  }
  if (dropped != nullptr) dropped->Close();
  Advance(returning);
}

std::vector<ExecutableId> GroupSession::Missing(const Returning& returning) {
  std::vector<ExecutableId> missing;
  for (const auto& [id, program] : programs_) {
    // What a Python function has kept can't be loaded again.
    if (program.source->python) continue;
    const Edition& edition = *program.edition;
    if (std::find(edition.workers.begin(), edition.workers.end(), returning.worker) == edition.workers.end())
      continue;
    // As long as another worker of the program is lost there is nothing to run it on. It is loaded when that
    // one returns.
    const bool complete = std::all_of(edition.workers.begin(), edition.workers.end(), [&](WorkerIndex w) {
      return w == returning.worker || parts_[w].link->Loss().ok();
    });
    if (!complete) continue;
    const auto made = returning.editions.find(id);
    if (made != returning.editions.end()) {
      const Edition& again = *made->second;
      bool current = true;
      for (size_t i = 0; i < again.lives.size(); ++i) {
        const WorkerIndex w = again.workers[i];
        current = current && again.lives[i] == (w == returning.worker ? returning.life : parts_[w].life);
      }
      if (current) continue;
    }
    missing.push_back(id);
  }
  return missing;
}

void GroupSession::Advance(const std::shared_ptr<Returning>& returning) {
  std::vector<ExecutableId> missing;
  {
    base::MutexLock lock(&mu_);
    const auto it = returning_.find(returning->worker);
    if (it == returning_.end() || it->second != returning || returning->loading > 0) return;
    missing = Missing(*returning);
    returning->loading = missing.size();
    if (missing.empty()) some_ready_.store(true, std::memory_order_release);
  }
  for (const ExecutableId id : missing) Reload(returning, id);
}

void GroupSession::Reload(const std::shared_ptr<Returning>& returning, ExecutableId id) {
  std::shared_ptr<const CompileProgram> source;
  EditionRef old;
  std::vector<Member> members;
  {
    base::MutexLock lock(&mu_);
    if (const auto it = programs_.find(id); it != programs_.end()) {
      source = it->second.source;
      old = it->second.edition;
      members = MembersOf(*old);
    }
  }
  if (source == nullptr) return Reloaded(returning, id, nullptr);
  LinkRef compiler = returning->link;
  for (Member& member : members) {
    if (member.worker == returning->worker) {
      member.life = returning->life;
      member.link = returning->link;
    } else {
      // Its cache has the program.
      compiler = member.link;
    }
  }
  CompileProgram command = *source;
  command.for_several_workers = members.size() > 1;
  compiler->Compile(std::move(command), [self = shared_from_this(), returning, id, source, old,
                                         members](absl::StatusOr<CompiledProgram> compiled) mutable {
    // What can't be loaded again is known as such, so that the worker is not kept out for it.
    auto made = std::make_shared<Edition>(*old);
    made->lives.clear();
    for (const Member& member : members) made->lives.push_back(member.life);
    made->status = compiled.status();
    if (!compiled.ok() || members.size() == 1) {
      if (!made->status.ok()) made->lives.clear();
      return self->Reloaded(returning, id, std::move(made));
    }
    self->LoadOn(members, old->placement, WhatToLoad(*source, &*compiled),
                 [self, returning, id, made](absl::StatusOr<EditionRef> loaded) mutable {
                   if (loaded.ok()) return self->Reloaded(returning, id, *std::move(loaded));
                   made->status = loaded.status();
                   made->lives.clear();
                   self->Reloaded(returning, id, std::move(made));
                 });
  });
}

void GroupSession::Reloaded(const std::shared_ptr<Returning>& returning, ExecutableId id,
                            EditionRef edition) {
  {
    base::MutexLock lock(&mu_);
    if (edition != nullptr) {
      if (programs_.contains(id)) {
        EditionRef& place = returning->editions[id];
        if (place != nullptr) UnloadEdition(*place);
        place = std::move(edition);
      } else {
        UnloadEdition(*edition);
      }
    }
    if (--returning->loading > 0) return;
  }
  Advance(returning);
}

void GroupSession::TakeReady() {
  std::vector<std::shared_ptr<Returning>> not_yet;
  std::vector<LinkRef> dropped;
  {
    base::MutexLock lock(&mu_);
    some_ready_.store(false, std::memory_order_relaxed);
    for (auto it = returning_.begin(); it != returning_.end();) {
      const std::shared_ptr<Returning> returning = it->second;
      if (!returning->link->Loss().ok()) {
        // Lost again.
        dropped.push_back(returning->link);
        it = returning_.erase(it);
      } else if (returning->loading > 0) {
        ++it;
      } else if (!Missing(*returning).empty()) {
        not_yet.push_back(returning);
        ++it;
      } else {
        dropped.push_back(parts_[returning->worker].link);
        PutInPlace(*returning);
        it = returning_.erase(it);
      }
    }
  }
  for (const LinkRef& link : dropped) link->Close();
  for (const auto& returning : not_yet) Advance(returning);
}

void GroupSession::PutInPlace(Returning& returning) {
  const WorkerIndex w = returning.worker;
  absl::Status loss = parts_[w].link->Loss();
  if (loss.ok()) loss = absl::DataLossError("the worker has been replaced");
  for (auto& [id, edition] : returning.editions) {
    const auto it = programs_.find(id);
    if (it == programs_.end()) continue;
    if (it->second.edition->name != edition->name) UnloadEdition(*it->second.edition);
    it->second.edition = std::move(edition);
  }
  parts_[w] = {returning.life, returning.link};
  dirty_[w].store(false, std::memory_order_relaxed);
  // What was on the lost one is known to the new one as failed, and so is what is made of it. Under the lock,
  // so that nobody asks before.
  const DeviceId device = group_->FirstDeviceOf(w);
  BufferTargets targets;
  const auto send = [&] {
    if (targets.empty()) return;
    returning.link->Declare({targets});
    returning.link->Fail(targets, loss);
    targets.clear();
  };
  buffers_.ForEachOf(w, [&](BufferId first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      targets.push_back({first + i, device});
      if (targets.size() == kMaxTargetsInACommand) send();
    }
  });
  send();
}

}  // namespace helmway::cluster
