#include "helmway/cluster/worker_group.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"

namespace helmway::cluster {
namespace {

using StatusCallback = absl::AnyInvocable<void(const absl::Status&)>;

// Calls back once, when all of several parts have given a status: with the first error in the order of the
// parts.
class AllOf {
 public:
  AllOf(size_t parts, StatusCallback done) : statuses_(parts), remaining_(parts), done_(std::move(done)) {}
  void Give(size_t part, const absl::Status& status) {
    statuses_[part] = status;
    if (remaining_.fetch_sub(1) != 1) return;
    for (const absl::Status& one : statuses_) {
      if (!one.ok()) return done_(one);
    }
    done_(absl::OkStatus());
  }

 private:
  std::vector<absl::Status> statuses_;  // each written by its part, before the count
  std::atomic<size_t> remaining_;
  StatusCallback done_;
};

// Which part of a program a worker runs: the positions of its devices.
struct ExecutableRoute {
  PlacementRef placement;
  std::vector<WorkerIndex> workers;  // distinct, in the order in which they appear
};

class GroupSession final : public SessionLink, public std::enable_shared_from_this<GroupSession> {
 public:
  GroupSession(WorkerGroup* group, SessionId id, const std::shared_ptr<CallbackSink>& callbacks)
      : group_(group), dirty_(group->size()) {
    for (WorkerIndex w = 0; w < group->size(); ++w) {
      parts_.push_back(group->worker(w).OpenSession(id, callbacks));
    }
  }

  void Declare(DeclareBuffers command) override {
    ByWorker<DeclareBuffers> split(parts_.size());
    {
      base::MutexLock lock(&mu_);
      AddTargets(command.targets);
    }
    for (const BufferTarget& target : command.targets) {
      if (const int w = group_->WorkerOf(target.device); w >= 0) split.at(w).targets.push_back(target);
    }
    split.ForEach([this](WorkerIndex w, DeclareBuffers part) { parts_[w]->Declare(std::move(part)); });
  }

  void Fill(HostContents contents) override {
    ByWorker<BufferTargets> split(parts_.size());
    for (const BufferTarget& target : contents.targets) {
      if (const int w = group_->WorkerOf(target.device); w >= 0) split.at(w).push_back(target);
    }
    // Bytes that go to several workers belong to none of them alone.
    if (split.count() > 1) contents.bytes.exclusive = false;
    split.ForEach([&](WorkerIndex w, BufferTargets targets) {
      HostContents part = contents;
      part.targets = std::move(targets);
      parts_[w]->Fill(std::move(part));
    });
  }

  void Fail(const BufferTargets& targets, const absl::Status& status) override {
    ByWorker<BufferTargets> split(parts_.size());
    for (const BufferTarget& target : targets) {
      if (const int w = group_->WorkerOf(target.device); w >= 0) split.at(w).push_back(target);
    }
    split.ForEach([&](WorkerIndex w, const BufferTargets& part) { parts_[w]->Fail(part, status); });
  }

  void Execute(Launch launch) override;

  void Flush() override {
    for (WorkerIndex w = 0; w < parts_.size(); ++w) {
      if (dirty_[w].exchange(false, std::memory_order_relaxed)) parts_[w]->Flush();
    }
  }

  // The group gives the places.
  void ReleaseLaunch(LaunchId id, uint64_t /*place*/) override {
    std::vector<WorkerIndex> workers;
    {
      base::MutexLock lock(&mu_);
      const auto it = held_.find(id);
      if (it == held_.end()) return;
      workers = std::move(it->second);
      held_.erase(it);
    }
    const std::vector<uint64_t> places = group_->TakePlaces(workers);
    for (size_t i = 0; i < workers.size(); ++i) parts_[workers[i]]->ReleaseLaunch(id, places[i]);
  }

  void Copy(CopyBuffers command) override;
  void Assemble(AssembleBuffers command) override;
  void Bitcast(BitcastBuffers command) override;
  // Only groups send, and there is no group of groups.
  void Send(SendBuffers /*command*/) override {}
  void Receive(ReceiveBuffers /*command*/) override {}

  void Delete(const std::vector<BufferNames>& buffers) override {
    ByWorker<std::vector<BufferNames>> split(parts_.size());
    {
      base::MutexLock lock(&mu_);
      for (const BufferNames& names : buffers) {
        ByWorker<BufferNames> pieces(parts_.size());
        buffers_.Remove(
            names,
            [&](BufferId first, uint32_t count, WorkerIndex w) {
              AppendNames(first, count, &pieces.at(static_cast<int>(w)));
            },
            [](BufferId, uint32_t) {});
        pieces.ForEach([&](WorkerIndex w, BufferNames piece) {
          split.at(static_cast<int>(w)).push_back(std::move(piece));
        });
      }
    }
    split.ForEach([this](WorkerIndex w, const std::vector<BufferNames>& part) { parts_[w]->Delete(part); });
  }

  void Read(BufferId buffer, ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override {
    PartOf(buffer).Read(buffer, std::move(format), std::move(done));
  }

  void Await(const std::vector<BufferNames>& buffers, StatusCallback done) override;

  void Compile(CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override;

  // Only groups load.
  void Load(LoadProgram /*command*/, StatusCallback done) override {
    done(absl::UnimplementedError("a group of workers loads what it has compiled itself"));
  }

  void Unload(ExecutableId executable) override {
    std::vector<WorkerIndex> workers;
    {
      base::MutexLock lock(&mu_);
      const auto it = executables_.find(executable);
      if (it == executables_.end()) return;
      workers = it->second.workers;
      executables_.erase(it);
    }
    for (const WorkerIndex w : workers) parts_[w]->Unload(executable);
  }

  void CostAnalysis(ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) override {
    WorkerIndex first = 0;
    {
      base::MutexLock lock(&mu_);
      if (const auto it = executables_.find(executable); it != executables_.end())
        first = it->second.workers[0];
    }
    parts_[first]->CostAnalysis(executable, std::move(done));
  }

  void WhenLost(StatusCallback /*lost*/) override {}

  void Close() override {
    for (const auto& part : parts_) part->Close();
  }

  // What workers that are lost were to send will not come; whoever was to receive it is told.
  void WatchWorkers() {
    for (WorkerIndex w = 0; w < parts_.size(); ++w) {
      parts_[w]->WhenLost([weak = weak_from_this(), w](const absl::Status& status) {
        if (const auto self = weak.lock()) self->FailSendsOf(w, status);
      });
    }
  }

 private:
  // Something for each worker that has anything to do.
  template <typename T>
  class ByWorker {
   public:
    explicit ByWorker(size_t workers) : values_(workers) {}
    T& at(int worker) {
      std::optional<T>& value = values_[static_cast<size_t>(worker)];
      if (!value) {
        value.emplace();
        order_.push_back(static_cast<WorkerIndex>(worker));
      }
      return *value;
    }
    size_t count() const { return order_.size(); }
    template <typename Function>
    void ForEach(Function function) {
      for (const WorkerIndex w : order_) function(w, *std::move(values_[w]));
    }

   private:
    std::vector<std::optional<T>> values_;
    std::vector<WorkerIndex> order_;
  };

  void AddTargets(const BufferTargets& targets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<WorkerIndex> workers;
    for (size_t i = 0; i < targets.size();) {
      const BufferId first = targets[i].buffer;
      workers.clear();
      for (; i < targets.size() && targets[i].buffer == first + workers.size(); ++i) {
        const int w = group_->WorkerOf(targets[i].device);
        workers.push_back(static_cast<WorkerIndex>(std::max(w, 0)));
      }
      buffers_.Add(first, static_cast<uint32_t>(workers.size()), std::make_shared<const Placement>(workers));
    }
  }

  void AddNames(const BufferNames& names, const std::vector<WorkerIndex>& workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (names.list.empty()) {
      buffers_.Add(names.first, names.count, std::make_shared<const Placement>(workers));
      return;
    }
    for (size_t i = 0; i < names.list.size(); ++i) {
      buffers_.Add(names.list[i], 1, std::make_shared<const Placement>(absl::MakeConstSpan(&workers[i], 1)));
    }
  }

  // The session on the worker that has a buffer; if none has it, on one that will say so.
  SessionLink& PartOf(BufferId buffer) {
    WorkerIndex worker = 0;
    base::MutexLock lock(&mu_);
    buffers_.ForEach(
        {buffer, 1, {}}, [&](BufferId, uint32_t, WorkerIndex w) { worker = w; }, [](BufferId, uint32_t) {});
    return *parts_[worker];
  }

  void LoadEverywhere(ExecutableId id, const std::string& options, CompiledProgram compiled,
                      absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done);

  // Sends buffers to a worker that has been told to receive them, and sees to it that it hears of a loss.
  void SendAcross(WorkerIndex source, WorkerIndex target, SendBuffers send, BufferTargets targets);

  // Buffers on their way from one worker to another.
  struct Sending {
    WorkerIndex from;
    WorkerIndex to;
    BufferTargets targets;
  };
  void FailSendsOf(WorkerIndex from, const absl::Status& status) {
    std::vector<Sending> failed;
    {
      base::MutexLock lock(&mu_);
      for (const auto& [number, sending] : sending_) {
        if (sending.from == from) failed.push_back(sending);
      }
    }
    for (const Sending& sending : failed) parts_[sending.to]->Fail(sending.targets, status);
  }

  WorkerGroup* const group_;
  std::vector<std::shared_ptr<SessionLink>> parts_;  // by worker
  std::vector<std::atomic<bool>> dirty_;             // has launches that wait for Flush
  // Names for buffers that the proxy knows nothing of; those that it gives stay below.
  std::atomic<BufferId> next_own_name_{BufferId{1} << 63};

  base::Mutex mu_;
  BufferMap buffers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExecutableId, ExecutableRoute> executables_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<LaunchId, std::vector<WorkerIndex>> held_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Sending> sending_ ABSL_GUARDED_BY(mu_);  // by number
  uint64_t next_sending_ ABSL_GUARDED_BY(mu_) = 1;
};

// The names at the positions of one worker.
BufferNames PartOfNames(const BufferNames& names, const Placement& placement, WorkerIndex worker) {
  BufferNames part;
  for (const Placement::Run& run : placement.runs()) {
    if (run.worker != worker) continue;
    if (names.list.empty()) {
      AppendNames(names.first + run.begin, run.end - run.begin, &part);
    } else {
      for (uint32_t i = run.begin; i < run.end; ++i) AppendNames(names.list[i], 1, &part);
    }
  }
  return part;
}

void GroupSession::Execute(Launch launch) {
  ExecutableRoute route;
  {
    base::MutexLock lock(&mu_);
    const auto it = executables_.find(launch.executable);
    if (it != executables_.end()) {
      route = it->second;
      for (const BufferNames& names : launch.results) {
        if (names.list.empty()) {
          buffers_.Add(names.first, names.count, route.placement);
        } else {
          for (size_t i = 0; i < names.list.size(); ++i) {
            const WorkerIndex w = route.placement->at(i);
            buffers_.Add(names.list[i], 1, std::make_shared<const Placement>(absl::MakeConstSpan(&w, 1)));
          }
        }
      }
      if (launch.held) held_[launch.id] = route.workers;
    }
  }
  if (route.workers.size() <= 1) {
    // An executable that nobody knows any more is for any worker to refuse.
    const WorkerIndex w = route.workers.empty() ? 0 : route.workers[0];
    launch.place = launch.held ? 0 : group_->TakePlaces({w})[0];
    dirty_[w].store(true, std::memory_order_relaxed);
    parts_[w]->Execute(std::move(launch));
    return;
  }
  auto all = std::make_shared<AllOf>(
      route.workers.size(), launch.on_done ? std::move(launch.on_done) : [](const absl::Status&) {});
  std::vector<uint64_t> places(route.workers.size(), 0);
  if (!launch.held) places = group_->TakePlaces(route.workers);
  for (size_t i = 0; i < route.workers.size(); ++i) {
    const WorkerIndex w = route.workers[i];
    Launch part;
    part.id = launch.id;
    part.executable = launch.executable;
    for (const BufferNames& names : launch.arguments) {
      part.arguments.push_back(PartOfNames(names, *route.placement, w));
    }
    for (const BufferNames& names : launch.results) {
      part.results.push_back(PartOfNames(names, *route.placement, w));
    }
    part.donated = launch.donated;
    part.kept = launch.kept;
    part.held = launch.held;
    part.user_context = launch.user_context;
    part.stream = launch.stream;
    part.place = places[i];
    part.on_done = [all, i](const absl::Status& status) { all->Give(i, status); };
    dirty_[w].store(true, std::memory_order_relaxed);
    parts_[w]->Execute(std::move(part));
  }
}

void GroupSession::Copy(CopyBuffers command) {
  const size_t count = command.devices.size();
  std::vector<WorkerIndex> from(count, 0), to(count, 0);
  {
    base::MutexLock lock(&mu_);
    size_t i = 0;
    auto skip = [&](BufferId, uint32_t n) {
      for (; n > 0 && i < count; --n, ++i) {
        // Nobody has it; the worker of the result will say so.
        from[i] = static_cast<WorkerIndex>(std::max(group_->WorkerOf(command.devices[i]), 0));
      }
    };
    buffers_.ForEach(
        command.sources,
        [&](BufferId, uint32_t n, WorkerIndex w) {
          for (; n > 0 && i < count; --n, ++i) from[i] = w;
        },
        skip);
    for (size_t k = 0; k < count; ++k)
      to[k] = static_cast<WorkerIndex>(std::max(group_->WorkerOf(command.devices[k]), 0));
    AddNames(command.results, to);
  }
  ByWorker<CopyBuffers> copies(parts_.size());
  ByWorker<ReceiveBuffers> receives(parts_.size());
  std::map<std::pair<WorkerIndex, WorkerIndex>, std::pair<SendBuffers, BufferTargets>> sends;
  for (size_t i = 0; i < count; ++i) {
    if (from[i] == to[i]) {
      CopyBuffers& copy = copies.at(static_cast<int>(to[i]));
      AppendNames(command.sources.at(i), 1, &copy.sources);
      AppendNames(command.results.at(i), 1, &copy.results);
      copy.devices.push_back(command.devices[i]);
      copy.memory_kind = command.memory_kind;
      copy.default_layout = command.default_layout;
      copy.user_context = command.user_context;
      continue;
    }
    ReceiveBuffers& receive = receives.at(static_cast<int>(to[i]));
    AppendNames(command.results.at(i), 1, &receive.results);
    receive.devices.push_back(command.devices[i]);
    receive.memory_kind = command.memory_kind;
    receive.default_layout = command.default_layout;
    auto& [send, targets] = sends[{from[i], to[i]}];
    AppendNames(command.sources.at(i), 1, &send.sources);
    AppendNames(command.results.at(i), 1, &send.results);
    targets.push_back({command.results.at(i), command.devices[i]});
  }
  copies.ForEach([this](WorkerIndex w, CopyBuffers copy) { parts_[w]->Copy(std::move(copy)); });
  receives.ForEach([this](WorkerIndex w, ReceiveBuffers receive) { parts_[w]->Receive(std::move(receive)); });
  for (auto& [way, sent] : sends) {
    auto& [send, targets] = sent;
    const auto [source, target] = way;
    SendAcross(source, target, std::move(send), std::move(targets));
  }
}

void GroupSession::SendAcross(WorkerIndex source, WorkerIndex target, SendBuffers send,
                              BufferTargets targets) {
  uint64_t number;
  {
    base::MutexLock lock(&mu_);
    number = next_sending_++;
    sending_[number] = {source, target, targets};
  }
  send.to = group_->worker(target).peer_address();
  const BufferNames results = send.results;
  if (send.to.address.empty()) {
    parts_[target]->Fail(targets,
                         absl::UnimplementedError("a worker without an address takes nothing from others"));
  } else {
    parts_[source]->Send(std::move(send));
  }
  // Here, or failed: either way nobody needs to be told any more. A source that was lost before this knew of
  // it is asked again.
  parts_[target]->Await({results}, [weak = weak_from_this(), number](const absl::Status&) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    base::MutexLock lock(&self->mu_);
    self->sending_.erase(number);
  });
  parts_[source]->Await({}, [weak = weak_from_this(), source](const absl::Status& status) {
    const auto self = weak.lock();
    if (self != nullptr && absl::IsDataLoss(status)) self->FailSendsOf(source, status);
  });
}

void GroupSession::Assemble(AssembleBuffers command) {
  const size_t num_sources = command.sources.size();
  std::vector<WorkerIndex> worker_of_source(num_sources, 0);
  {
    base::MutexLock lock(&mu_);
    size_t i = 0;
    buffers_.ForEach(
        command.sources,
        [&](BufferId, uint32_t n, WorkerIndex w) {
          for (; n > 0; --n) worker_of_source[i++] = w;
        },
        [&](BufferId, uint32_t n) { i += n; });
    for (const AssembleBuffers::Result& result : command.results) AddTargets(result.targets);
  }
  ByWorker<AssembleBuffers> parts(parts_.size());
  auto part_of = [&](WorkerIndex w) -> AssembleBuffers& {
    AssembleBuffers& part = parts.at(static_cast<int>(w));
    part.element_type = command.element_type;
    part.memory_kind = command.memory_kind;
    part.minor_to_major = command.minor_to_major;
    return part;
  };
  // Blocks of a worker's buffers that other workers want: cut out there, under a name of this group's own,
  // and sent.
  struct Cut {
    AssembleBuffers cut;  // on the source
    SendBuffers send;
    ReceiveBuffers receive;  // on the target
    BufferTargets targets;
  };
  std::map<std::pair<WorkerIndex, WorkerIndex>, Cut> cuts;  // source, target

  for (const AssembleBuffers::Result& result : command.results) {
    ByWorker<BufferTargets> targets(parts_.size());
    for (const BufferTarget& target : result.targets) {
      if (const int w = group_->WorkerOf(target.device); w >= 0) targets.at(w).push_back(target);
    }
    targets.ForEach([&](WorkerIndex w, BufferTargets own) {
      AssembleBuffers& part = part_of(w);
      AssembleBuffers::Result wanted;
      wanted.dims = result.dims;
      for (const BufferBlock& block : result.blocks) {
        BufferBlock local = block;
        local.source = static_cast<uint32_t>(part.sources.size());
        const WorkerIndex from = worker_of_source[block.source];
        BufferId source = command.sources.at(block.source);
        if (from != w) {
          Cut& cut = cuts[{from, w}];
          const BufferId name = next_own_name_.fetch_add(2, std::memory_order_relaxed);
          const DeviceId there = group_->worker(from).info().devices[0].id;
          AssembleBuffers::Result piece;
          piece.targets.push_back({name, there});
          piece.dims = block.shape;
          piece.blocks.push_back({static_cast<uint32_t>(cut.cut.sources.size()), block.source_origin,
                                  Dims(block.shape.size(), 0), block.shape});
          AppendNames(source, 1, &cut.cut.sources);
          cut.cut.element_type = command.element_type;
          cut.cut.results.push_back(std::move(piece));
          // A name belongs to one worker, so the piece has another one where it arrives.
          source = name + 1;
          AppendNames(name, 1, &cut.send.sources);
          AppendNames(source, 1, &cut.send.results);
          AppendNames(source, 1, &cut.receive.results);
          cut.receive.devices.push_back(own[0].device);
          cut.targets.push_back({source, own[0].device});
          local.source_origin.assign(block.shape.size(), 0);
        }
        AppendNames(source, 1, &part.sources);
        wanted.blocks.push_back(std::move(local));
      }
      wanted.targets = std::move(own);
      part.results.push_back(std::move(wanted));
    });
  }
  std::vector<std::pair<WorkerIndex, BufferNames>> temporary;
  for (auto& [way, cut] : cuts) {
    const auto [from, to] = way;
    temporary.emplace_back(from, cut.send.sources);
    temporary.emplace_back(to, cut.send.results);
    parts_[from]->Assemble(std::move(cut.cut));
    parts_[to]->Receive(std::move(cut.receive));
    SendAcross(from, to, std::move(cut.send), std::move(cut.targets));
  }
  parts.ForEach([this](WorkerIndex w, AssembleBuffers part) { parts_[w]->Assemble(std::move(part)); });
  // What was commanded before keeps them for as long as it needs them.
  for (auto& [w, names] : temporary) parts_[w]->Delete({names});
}

void GroupSession::Bitcast(BitcastBuffers command) {
  const size_t count = command.dims.size();
  std::vector<WorkerIndex> workers(count, 0);
  {
    base::MutexLock lock(&mu_);
    size_t i = 0;
    buffers_.ForEach(
        command.sources,
        [&](BufferId, uint32_t n, WorkerIndex w) {
          for (; n > 0 && i < count; --n) workers[i++] = w;
        },
        [&](BufferId, uint32_t n) { i += n; });
    AddNames(command.results, workers);
  }
  ByWorker<BitcastBuffers> parts(parts_.size());
  for (size_t i = 0; i < count; ++i) {
    BitcastBuffers& part = parts.at(static_cast<int>(workers[i]));
    AppendNames(command.sources.at(i), 1, &part.sources);
    AppendNames(command.results.at(i), 1, &part.results);
    part.dims.push_back(std::move(command.dims[i]));
    part.element_type = command.element_type;
    part.minor_to_major = command.minor_to_major;
  }
  parts.ForEach([this](WorkerIndex w, BitcastBuffers part) { parts_[w]->Bitcast(std::move(part)); });
}

void GroupSession::Await(const std::vector<BufferNames>& buffers, StatusCallback done) {
  // Runs of buffers on one worker, in the order of all, so that the first error is the first.
  std::vector<std::pair<WorkerIndex, std::vector<BufferNames>>> runs;
  auto add = [&](BufferId first, uint32_t count, WorkerIndex w) {
    if (runs.empty() || runs.back().first != w) runs.emplace_back(w, std::vector<BufferNames>());
    runs.back().second.push_back({first, count, {}});
  };
  {
    base::MutexLock lock(&mu_);
    for (const BufferNames& names : buffers) {
      buffers_.ForEach(names, add, [&](BufferId first, uint32_t count) {
        add(first, count, runs.empty() ? 0 : runs.back().first);
      });
    }
  }
  if (runs.empty()) return done(absl::OkStatus());
  if (runs.size() == 1) return parts_[runs[0].first]->Await(runs[0].second, std::move(done));
  auto all = std::make_shared<AllOf>(runs.size(), std::move(done));
  for (size_t i = 0; i < runs.size(); ++i) {
    parts_[runs[i].first]->Await(runs[i].second,
                                 [all, i](const absl::Status& status) { all->Give(i, status); });
  }
}

void GroupSession::Compile(CompileProgram command,
                           absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) {
  ExecutableRoute route;
  std::vector<WorkerIndex> workers;
  for (const DeviceId device : command.devices) {
    const int w = group_->WorkerOf(device);
    workers.push_back(static_cast<WorkerIndex>(std::max(w, 0)));
  }
  if (workers.empty()) workers.push_back(0);
  route.placement = std::make_shared<const Placement>(workers);
  for (const WorkerIndex w : workers) {
    if (std::find(route.workers.begin(), route.workers.end(), w) == route.workers.end())
      route.workers.push_back(w);
  }
  const WorkerIndex first = route.workers[0];
  const ExecutableId id = command.executable;
  const size_t num_workers = route.workers.size();
  {
    base::MutexLock lock(&mu_);
    executables_[id] = std::move(route);
  }
  if (num_workers == 1) return parts_[first]->Compile(std::move(command), std::move(done));
  // Compiled once, by one of them, and loaded by all.
  command.for_several_workers = true;
  const std::vector<DeviceId> devices = command.devices;
  const std::string options = command.options;
  parts_[first]->Compile(std::move(command),
                         [self = shared_from_this(), id, devices, options,
                          done = std::move(done)](absl::StatusOr<CompiledProgram> compiled) mutable {
                           if (!compiled.ok()) return done(std::move(compiled));
                           compiled->devices = devices;
                           self->LoadEverywhere(id, options, *std::move(compiled), std::move(done));
                         });
}

void GroupSession::LoadEverywhere(ExecutableId id, const std::string& options, CompiledProgram compiled,
                                  absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) {
  std::vector<WorkerIndex> workers;
  PlacementRef placement;
  {
    base::MutexLock lock(&mu_);
    const auto it = executables_.find(id);
    if (it != executables_.end()) {
      workers = it->second.workers;
      placement = it->second.placement;
    }
  }
  if (workers.empty()) return done(absl::CancelledError("the program was unloaded before it was loaded"));
  const auto serialized = std::make_shared<const std::string>(std::move(compiled.serialized));
  std::vector<DeviceId> devices;
  std::vector<ProgramWorker> program_workers;
  if (compiled.has_collectives) {
    devices = compiled.devices;
    for (const WorkerIndex w : workers) {
      ProgramWorker& worker = program_workers.emplace_back();
      worker.address = group_->worker(w).peer_address();
      if (worker.address.address.empty()) {
        return done(absl::UnimplementedError("collectives with a worker that others can't reach"));
      }
      for (size_t i = 0; i < devices.size(); ++i) {
        if (placement->at(i) == w) worker.positions.push_back(static_cast<int32_t>(i));
      }
    }
  }
  auto all = std::make_shared<AllOf>(workers.size(), [compiled = std::move(compiled), done = std::move(done)](
                                                         const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    done(std::move(compiled));
  });
  for (size_t i = 0; i < workers.size(); ++i) {
    LoadProgram load;
    load.executable = id;
    load.serialized = serialized;
    load.options = options;
    load.devices = devices;
    load.workers = program_workers;
    load.self = static_cast<int32_t>(i);
    parts_[workers[i]]->Load(std::move(load), [all, i](const absl::Status& status) { all->Give(i, status); });
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Create(
    std::vector<std::unique_ptr<WorkerLink>> workers) {
  if (workers.empty()) return absl::InvalidArgumentError("a group of no workers");
  auto group = std::unique_ptr<WorkerGroup>(new WorkerGroup());
  group->workers_ = std::move(workers);
  group->places_taken_.assign(group->workers_.size(), 0);
  WorkerInfo& all = group->info_;
  all.platform_name = group->workers_[0]->info().platform_name;
  all.platform_version = group->workers_[0]->info().platform_version;
  for (WorkerIndex w = 0; w < group->workers_.size(); ++w) {
    const WorkerInfo& info = group->workers_[w]->info();
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
  return group;
}

std::vector<uint64_t> WorkerGroup::TakePlaces(const std::vector<WorkerIndex>& workers) {
  std::vector<uint64_t> places;
  places.reserve(workers.size());
  base::MutexLock lock(&mu_);
  for (const WorkerIndex w : workers) places.push_back(++places_taken_[w]);
  return places;
}

int WorkerGroup::WorkerOf(DeviceId device) const {
  const auto it = worker_of_device_.find(device);
  return it == worker_of_device_.end() ? -1 : static_cast<int>(it->second);
}

std::shared_ptr<SessionLink> WorkerGroup::OpenSession(SessionId session,
                                                      std::shared_ptr<CallbackSink> callbacks) {
  auto opened = std::make_shared<GroupSession>(this, session, callbacks);
  opened->WatchWorkers();
  return opened;
}

absl::StatusOr<std::string> WorkerGroup::DefaultLayout(ElementType type, const std::vector<int64_t>& dims) {
  absl::StatusOr<std::string> layout = workers_[0]->DefaultLayout(type, dims);
  // All have one platform: any that is there knows.
  for (size_t w = 1; w < workers_.size() && absl::IsDataLoss(layout.status()); ++w) {
    layout = workers_[w]->DefaultLayout(type, dims);
  }
  return layout;
}

absl::StatusOr<std::vector<DeviceId>> WorkerGroup::DefaultDeviceAssignment(int replicas, int partitions) {
  const int64_t count = int64_t{replicas} * partitions;
  if (replicas < 1 || partitions < 1 || count > static_cast<int64_t>(info_.devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat("no assignment of ", replicas, " replicas with ",
                                                   partitions, " partitions to ", info_.devices.size(),
                                                   " devices"));
  }
  std::vector<DeviceId> devices;
  for (int64_t i = 0; i < count; ++i) devices.push_back(info_.devices[static_cast<size_t>(i)].id);
  return devices;
}

}  // namespace helmway::cluster
