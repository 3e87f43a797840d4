// Programs of a session: compiled once, loaded on their workers, and run there.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/all_of.h"
#include "helmway/cluster/group_session.h"

namespace helmway::cluster {
namespace {

// The names at the positions of one worker.
BufferNames PartOfNames(const BufferNames& names, const Placement& placement, WorkerIndex worker) {
  BufferNames part;
  for (const Placement::Run& run : placement.runs_of(worker)) {
    if (names.list.empty()) {
      AppendNames(names.first + run.begin, run.end - run.begin, &part);
    } else {
      for (uint32_t i = run.begin; i < run.end; ++i) AppendNames(names.list[i], 1, &part);
    }
  }
  return part;
}

// What one worker is told of a launch, but for its place and its end.
Launch PartOfLaunch(const Launch& launch, const Placement& placement, WorkerIndex worker) {
  Launch part;
  part.id = launch.id;
  part.executable = launch.executable;
  for (const BufferNames& names : launch.arguments) {
    part.arguments.push_back(PartOfNames(names, placement, worker));
  }
  for (const BufferNames& names : launch.results) {
    part.results.push_back(PartOfNames(names, placement, worker));
  }
  part.donated = launch.donated;
  part.kept = launch.kept;
  part.held = launch.held;
  part.may_be_passed = launch.may_be_passed;
  part.end_is_awaited = launch.end_is_awaited;
  part.user_context = launch.user_context;
  part.stream = launch.stream;
  return part;
}

}  // namespace

LoadProgram GroupSession::WhatToLoad(const CompileProgram& source, CompiledProgram* compiled) {
  LoadProgram load;
  load.serialized = std::make_shared<const std::string>(std::exchange(compiled->serialized, {}));
  load.options = source.options;
  load.outline = compiled->outline;
  if (compiled->has_collectives) load.devices = source.devices;
  return load;
}

std::vector<GroupSession::Member> GroupSession::MembersOf(const Edition& edition) {
  std::vector<Member> members;
  members.reserve(edition.workers.size());
  for (const WorkerIndex w : edition.workers) members.push_back({w, parts_[w].life, parts_[w].link});
  return members;
}

// ---- Launches --------------------------------------------------------------------------------------------

void GroupSession::Execute(Launch launch) {
  TakeReturned();
  EditionRef edition;
  std::vector<Member> members;
  absl::Status status;
  std::vector<async::CompletionRef> behind;
  async::CompletionRef over;  // what its results are behind, if it makes any wait
  bool is_python = false;
  {
    base::MutexLock lock(&mu_);
    const auto it = programs_.find(launch.executable);
    if (it != programs_.end()) {
      edition = it->second.edition;
      is_python = it->second.source->python.has_value();
      members = MembersOf(*edition);
      // A program that calls back waits for its inputs outside the order.
      if (!it->second.calls_python) behind = Behind(launch.arguments);
      if (it->second.calls_python || !behind.empty()) over = base::MakeRef<async::Completion>();
      for (const BufferNames& names : launch.results) {
        if (names.list.empty()) {
          buffers_.Add(names.first, names.count, edition->placement);
        } else {
          for (size_t i = 0; i < names.list.size(); ++i) {
            const WorkerIndex w = edition->placement->at(i);
            buffers_.Add(names.list[i], 1, std::make_shared<const Placement>(absl::MakeConstSpan(&w, 1)));
          }
        }
      }
    } else {
      // An executable that nobody knows any more is for any worker to refuse.
      members.push_back({0, parts_[0].life, parts_[0].link});
    }
  }
  for (const Member& member : members) {
    if (status.ok()) status = member.link->Loss();
  }
  if (edition != nullptr && status.ok()) {
    const bool loaded =
        edition->lives.size() == members.size() &&
        std::equal(members.begin(), members.end(), edition->lives.begin(),
                   [](const Member& member, const LifeRef& life) { return member.life == life; });
    if (!loaded) {
      status =
          !edition->status.ok() ? edition->status
          : is_python
              ? absl::DataLossError("the function's state is lost with one of its workers")
              : absl::DataLossError("the program has not been loaded since one of its workers came back");
    }
  }
  if (edition != nullptr && !status.ok()) return FailLaunch(std::move(launch), *edition, members, status);

  if (edition != nullptr) launch.executable = edition->name;
  if (over && behind.empty()) {
    launch.end_is_awaited = true;
    launch.on_done = [over, on_done = std::move(launch.on_done)](const absl::Status& outcome) mutable {
      if (on_done) on_done(outcome);
      over->Finish(absl::OkStatus());
    };
  }
  std::vector<uint64_t> places(members.size(), 0);
  const LaunchId id = launch.id;
  const int reasons = (launch.held ? 1 : 0) + (behind.empty() ? 0 : 1);
  launch.held = reasons > 0;
  launch.may_be_passed = !behind.empty();
  if (over || launch.held) {
    base::MutexLock lock(&mu_);
    if (over) PutBehind(launch.results, {over});
    if (launch.held) held_[id] = {members, reasons};
  }
  const bool takes_places = !launch.held;
  if (takes_places) {
    BeginPlacing();
    places = TakePlaces(members);
  }
  if (is_python && members.size() > 1) {
    CommandPython(std::move(launch), *edition, members, places, over);
  } else {
    Command(std::move(launch), edition.get(), members, places);
  }
  if (takes_places) EndPlacing();
  if (behind.empty()) return;
  WhenAllDone(behind, [weak = weak_from_this(), id, over] {
    if (const auto self = weak.lock()) self->DropReason(id);
    over->Finish(absl::OkStatus());
  });
}

void GroupSession::Command(Launch launch, const Edition* edition, const std::vector<Member>& members,
                           const std::vector<uint64_t>& places) {
  if (members.size() == 1) {
    launch.place = places[0];
    dirty_[members[0].worker].store(true, std::memory_order_relaxed);
    members[0].link->Execute(std::move(launch));
    return;
  }
  auto all = std::make_shared<AllOf>(
      members.size(), launch.on_done ? std::move(launch.on_done) : [](const absl::Status&) {});
  for (size_t i = 0; i < members.size(); ++i) {
    Launch part = PartOfLaunch(launch, *edition->placement, members[i].worker);
    part.place = places[i];
    part.on_done = [all, i](const absl::Status& outcome) { all->Give(i, outcome); };
    dirty_[members[i].worker].store(true, std::memory_order_relaxed);
    members[i].link->Execute(std::move(part));
  }
}

void GroupSession::CommandPython(Launch launch, const Edition& edition, const std::vector<Member>& members,
                                 const std::vector<uint64_t>& places, const async::CompletionRef& over) {
  // What one of them makes is worth nothing if another has failed.
  auto settle = [members, id = launch.id](const absl::Status& outcome) {
    for (const Member& member : members) member.link->Settle(id, outcome);
  };
  auto all = std::make_shared<AllOf>(
      members.size(), [settle, on_done = std::move(launch.on_done)](const absl::Status& outcome) mutable {
        settle(outcome);
        if (on_done) on_done(outcome);
      });
  for (size_t i = 0; i < members.size(); ++i) {
    Launch part = PartOfLaunch(launch, *edition.placement, members[i].worker);
    part.place = places[i];
    part.settles = true;
    part.end_is_awaited = true;
    part.on_done = [all, i, settle, over](const absl::Status& outcome) {
      // The others may take long, or wait for this one.
      if (!outcome.ok()) {
        settle(outcome);
        over->Finish(absl::OkStatus());
      }
      all->Give(i, outcome);
    };
    dirty_[members[i].worker].store(true, std::memory_order_relaxed);
    members[i].link->Execute(std::move(part));
  }
}

void GroupSession::FailLaunch(Launch launch, const Edition& edition, const std::vector<Member>& members,
                              const absl::Status& status) {
  for (const Member& member : members) {
    DeclareBuffers results;
    const DeviceId device = group_->FirstDeviceOf(member.worker);
    for (const BufferNames& names : launch.results) {
      const BufferNames part = PartOfNames(names, *edition.placement, member.worker);
      for (size_t i = 0; i < part.size(); ++i) results.targets.push_back({part.at(i), device});
    }
    if (results.targets.empty()) continue;
    const BufferTargets targets = results.targets;
    member.link->Declare(std::move(results));
    member.link->Fail(targets, status);
  }
  if (launch.on_done) {
    group_->Later([on_done = std::move(launch.on_done), status]() mutable { on_done(status); });
  }
}

void GroupSession::ReleaseLaunch(LaunchId id, uint64_t /*place*/) {
  TakeReturned();
  DropReason(id);
}

void GroupSession::Flush() {
  for (WorkerIndex w = 0; w < size(); ++w) {
    if (dirty_[w].exchange(false, std::memory_order_relaxed)) PartAt(w)->Flush();
  }
}

// ---- Programs --------------------------------------------------------------------------------------------

void GroupSession::Compile(CompileProgram command, CompileCallback done) {
  std::vector<WorkerIndex> workers;
  for (const DeviceId device : command.devices) {
    const int w = group_->WorkerOf(device);
    workers.push_back(static_cast<WorkerIndex>(std::max(w, 0)));
  }
  if (workers.empty()) workers.push_back(0);
  const ExecutableId id = command.executable;
  auto edition = std::make_shared<Edition>();
  edition->placement = std::make_shared<const Placement>(workers);
  edition->name = id;
  for (const WorkerIndex w : workers) {
    if (std::find(edition->workers.begin(), edition->workers.end(), w) == edition->workers.end())
      edition->workers.push_back(w);
  }
  {
    base::MutexLock lock(&mu_);
    const bool is_python = command.python.has_value();
    programs_[id] = {std::make_shared<const CompileProgram>(std::move(command)), std::move(edition),
                     is_python};
  }
  CompileOnce(id, static_cast<int>(size()),
              [self = shared_from_this(), id,
               done = std::move(done)](absl::StatusOr<CompiledProgram> compiled) mutable {
                if (!compiled.ok()) {
                  base::MutexLock lock(&self->mu_);
                  self->programs_.erase(id);
                }
                done(std::move(compiled));
              });
}

void GroupSession::CompileOnce(ExecutableId id, int attempts, CompileCallback done) {
  std::shared_ptr<const CompileProgram> source;
  EditionRef edition;
  std::vector<Member> members;
  std::vector<Part> parts;
  {
    base::MutexLock lock(&mu_);
    const auto it = programs_.find(id);
    if (it != programs_.end()) {
      source = it->second.source;
      edition = it->second.edition;
      members = MembersOf(*edition);
      parts = parts_;
    }
  }
  if (source == nullptr) {
    return group_->Later([done = std::move(done)]() mutable {
      done(absl::CancelledError("the program was unloaded before it was compiled"));
    });
  }
  if (source->python) return CompilePython(id, source, edition, members, std::move(done));
  // On one of its workers; but any that lives can compile it.
  LinkRef compiler;
  absl::Status loss;
  for (const Member& member : members) {
    absl::Status status = member.link->Loss();
    if (status.ok() && compiler == nullptr) compiler = member.link;
    loss.Update(status);
  }
  for (size_t w = 0; w < parts.size() && compiler == nullptr; ++w) {
    if (parts[w].link->Loss().ok()) compiler = parts[w].link;
  }
  if (compiler == nullptr) compiler = members[0].link;  // it says why it is lost
  CompileProgram command = *source;
  command.for_several_workers = members.size() > 1 || !loss.ok();
  compiler->Compile(std::move(command), [self = shared_from_this(), id, attempts, source, edition, members,
                                         compiler, all_live = loss.ok(), done = std::move(done)](
                                            absl::StatusOr<CompiledProgram> compiled) mutable {
    if (!compiled.ok()) {
      if (attempts > 0 && !compiler->Loss().ok() && absl::IsDataLoss(compiled.status())) {
        return self->CompileOnce(id, attempts - 1, std::move(done));
      }
      return done(std::move(compiled));
    }
    if (!source->devices.empty()) compiled->devices = source->devices;
    if (compiled->calls_python) {
      base::MutexLock lock(&self->mu_);
      if (const auto it = self->programs_.find(id); it != self->programs_.end())
        it->second.calls_python = true;
    }
    if (!all_live) {
      // It is loaded when its workers are back.
      compiled->serialized.clear();
      return done(std::move(compiled));
    }
    const LoadProgram load = WhatToLoad(*source, &*compiled);
    auto loaded = [self, id, compiled = *std::move(compiled),
                   done = std::move(done)](absl::StatusOr<EditionRef> made) mutable {
      if (absl::IsDataLoss(made.status())) return done(std::move(compiled));  // as above
      if (!made.ok()) return done(made.status());
      self->PutEdition(id, *std::move(made));
      done(std::move(compiled));
    };
    if (members.size() == 1) {
      auto single = std::make_shared<Edition>(*edition);
      single->lives = {members[0].life};
      return loaded(EditionRef(std::move(single)));
    }
    self->LoadOn(members, edition->placement, load, std::move(loaded));
  });
}

void GroupSession::PutEdition(ExecutableId id, EditionRef made) {
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(id);
  bool current = it != programs_.end();
  for (size_t i = 0; i < made->lives.size(); ++i) {
    current = current && parts_[made->workers[i]].life == made->lives[i];
  }
  if (current) {
    it->second.edition = std::move(made);
  } else {
    UnloadEdition(*made);
  }
}

void GroupSession::CompilePython(ExecutableId id, const std::shared_ptr<const CompileProgram>& source,
                                 const EditionRef& edition, const std::vector<Member>& members,
                                 CompileCallback done) {
  auto loaded = std::make_shared<Edition>(*edition);
  for (const Member& member : members) loaded->lives.push_back(member.life);
  // Each says the same of it.
  auto answer = std::make_shared<CompiledProgram>();
  auto all =
      std::make_shared<AllOf>(members.size(), [self = shared_from_this(), id, loaded, answer, members,
                                               done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok()) {
          self->PutEdition(id, std::move(loaded));
          return done(std::move(*answer));
        }
        for (const Member& member : members) member.link->Unload(loaded->name, std::nullopt);
        done(status);
      });
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].link->Compile(*source, [all, answer, i](absl::StatusOr<CompiledProgram> compiled) {
      const absl::Status status = compiled.status();
      if (i == 0 && status.ok()) *answer = *std::move(compiled);
      all->Give(i, status);
    });
  }
}

void GroupSession::LoadOn(const std::vector<Member>& members, PlacementRef placement, const LoadProgram& load,
                          absl::AnyInvocable<void(absl::StatusOr<EditionRef>)> done) {
  auto edition = std::make_shared<Edition>();
  edition->name = next_own_name_.fetch_add(1, std::memory_order_relaxed);
  std::vector<ProgramWorker> program_workers;
  for (const Member& member : members) {
    edition->workers.push_back(member.worker);
    edition->lives.push_back(member.life);
  }
  if (!load.devices.empty()) {
    for (const Member& member : members) {
      ProgramWorker& worker = program_workers.emplace_back();
      worker.address = member.life->link->peer_address();
      if (worker.address.address.empty()) {
        return done(absl::UnimplementedError("collectives with a worker that others can't reach"));
      }
      for (size_t i = 0; i < load.devices.size(); ++i) {
        if (placement->at(i) == member.worker) worker.positions.push_back(static_cast<int32_t>(i));
      }
    }
  }
  edition->placement = std::move(placement);
  const ExecutableId name = edition->name;
  auto all =
      std::make_shared<AllOf>(members.size(), [members, edition = EditionRef(std::move(edition)),
                                               done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok()) return done(std::move(edition));
        for (const Member& member : members) member.link->Unload(edition->name, std::nullopt);
        done(status);
      });
  for (size_t i = 0; i < members.size(); ++i) {
    LoadProgram one = load;
    one.executable = name;
    one.workers = program_workers;
    one.self = static_cast<int32_t>(i);
    members[i].link->Load(std::move(one), [all, i](const absl::Status& status) { all->Give(i, status); });
  }
}

void GroupSession::Load(LoadProgram /*command*/, StatusCallback done) {
  done(absl::UnimplementedError("a group of workers loads what it has compiled itself"));
}

void GroupSession::UnloadEdition(const Edition& edition, std::optional<int64_t> stream) {
  for (size_t i = 0; i < edition.lives.size(); ++i) {
    const Part& part = parts_[edition.workers[i]];
    if (part.life == edition.lives[i]) part.link->Unload(edition.name, stream);
    for (const auto& [worker, returning] : returning_) {
      if (returning->life == edition.lives[i]) returning->link->Unload(edition.name, stream);
    }
  }
}

void GroupSession::Unload(ExecutableId executable, std::optional<int64_t> stream) {
  TakeReturned();
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(executable);
  if (it == programs_.end()) return;
  UnloadEdition(*it->second.edition, stream);
  programs_.erase(it);
  for (const auto& [worker, returning] : returning_) {
    const auto made = returning->editions.find(executable);
    if (made == returning->editions.end()) continue;
    UnloadEdition(*made->second);
    returning->editions.erase(made);
  }
}

void GroupSession::CostAnalysis(ExecutableId executable,
                                absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) {
  LinkRef link;
  ExecutableId name = executable;
  {
    base::MutexLock lock(&mu_);
    link = parts_[0].link;
    if (const auto it = programs_.find(executable); it != programs_.end()) {
      const Edition& edition = *it->second.edition;
      name = edition.name;
      link = parts_[edition.workers[0]].link;
      for (size_t i = 0; i < edition.lives.size(); ++i) {
        const Part& part = parts_[edition.workers[i]];
        if (part.life == edition.lives[i] && part.link->Loss().ok()) link = part.link;
      }
    }
  }
  link->CostAnalysis(name, std::move(done));
}

}  // namespace helmway::cluster
