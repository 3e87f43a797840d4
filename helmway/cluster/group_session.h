#ifndef HELMWAY_CLUSTER_GROUP_SESSION_H_
#define HELMWAY_CLUSTER_GROUP_SESSION_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/async/completion.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/placement.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// The commands of one client session to a group of workers. Four files: group_session.cc (buffers),
// group_programs.cc (programs and launches), group_callbacks.cc (what waits for the client's Python
// functions), group_return.cc (workers that were lost and come back).
//
// Each worker has a part of the session, on one of its lives. When a life is lost its part answers DATA_LOSS
// to everything, and launches that need it fail on all workers. A worker that returns gets a new part, and
// the programs that run on it are loaded again there, and where they must know its address. Only then it
// takes the place of the lost part, with the next command: what lay on the lost one stays failed.
class GroupSession final : public SessionLink, public std::enable_shared_from_this<GroupSession> {
 public:
  GroupSession(WorkerGroup* group, SessionId id, std::shared_ptr<CallbackSink> callbacks,
               const std::vector<std::shared_ptr<WorkerLife>>& lives);
  // What workers that are lost were to send will not come; whoever was to receive it is told. Once.
  void WatchWorkers();
  // The worker is back. Any thread.
  void Return(WorkerIndex worker, std::shared_ptr<WorkerLife> life);

  // ---- SessionLink ----
  void Declare(DeclareBuffers command) override;
  void Fill(HostContents contents) override;
  void Fail(const BufferTargets& targets, const absl::Status& status) override;
  void Execute(Launch launch) override;
  void Flush() override;
  // The group gives the places.
  void ReleaseLaunch(LaunchId id, uint64_t place) override;
  // The group settles the launches that it gives to several.
  void Settle(LaunchId /*id*/, const absl::Status& /*status*/) override {}
  void Copy(CopyBuffers command) override;
  void Assemble(AssembleBuffers command) override;
  void Bitcast(BitcastBuffers command) override;
  // Only groups send, and there is no group of groups.
  void Send(SendBuffers /*command*/) override {}
  void Receive(ReceiveBuffers /*command*/) override {}
  void Delete(const std::vector<BufferNames>& buffers) override;
  void Read(BufferId buffer, ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override;
  void Await(const std::vector<BufferNames>& buffers,
             absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Compile(CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override;
  // Only groups load.
  void Load(LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Unload(ExecutableId executable, std::optional<int64_t> stream) override;
  void CostAnalysis(ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) override;
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) override {}
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost /*lost*/) override {}
  void WhenPythonSays(PythonSays /*says*/) override {}
  void TellPython(const std::string& /*text*/) override {}
  void Close() override;

 private:
  using StatusCallback = absl::AnyInvocable<void(const absl::Status&)>;
  using CompileCallback = absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)>;
  using LinkRef = std::shared_ptr<SessionLink>;
  using LifeRef = std::shared_ptr<WorkerLife>;

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

  struct Part {
    LifeRef life;
    LinkRef link;
  };

  // A worker of a program, in one of its lives.
  struct Member {
    WorkerIndex worker;
    LifeRef life;
    LinkRef link;
  };

  // A program as it is loaded on its workers. Immutable.
  struct Edition {
    PlacementRef placement;            // of its devices
    std::vector<WorkerIndex> workers;  // distinct, in the order in which they appear
    std::vector<LifeRef> lives;        // of `workers`, on which it is loaded; empty: it is not
    ExecutableId name = 0;             // what the workers call it
    absl::Status status;               // why it could not be loaded again
  };
  using EditionRef = std::shared_ptr<const Edition>;

  struct Program {
    std::shared_ptr<const CompileProgram> source;
    EditionRef edition;
    bool calls_python = false;  // or is Python: its launches may take for ever
  };

  // A launch that is held, and the workers that know of it.
  struct Held {
    std::vector<Member> members;
    int reasons = 1;  // it is released once all of them are gone
  };
  struct Released {
    LaunchId id;
    std::vector<Member> members;
  };

  // A worker that is back, and not in its place yet.
  struct Returning {
    WorkerIndex worker;
    LifeRef life;
    LinkRef link;
    size_t loading = 0;  // programs that are being loaded
    absl::flat_hash_map<ExecutableId, EditionRef> editions;
  };

  // ---- Parts (group_session.cc) ----
  size_t size() const { return dirty_.size(); }
  LinkRef PartAt(WorkerIndex worker);
  // The part that has a buffer; if none has it, one that will say so.
  LinkRef PartOf(BufferId buffer);
  void Watch(WorkerIndex worker, const LinkRef& link);
  void AddTargets(const BufferTargets& targets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddNames(const BufferNames& names, const std::vector<WorkerIndex>& workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Targets by the workers of their devices; those of devices that nobody has are left out.
  ByWorker<BufferTargets> SplitTargets(const BufferTargets& targets) const;
  // Puts the workers of those names that are known into their places in `workers`, which may be fewer.
  void FindWorkers(const BufferNames& names, std::vector<WorkerIndex>* workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Sends buffers to a worker that has been told to receive them, and sees to it that it hears of a loss.
  void SendAcross(WorkerIndex source, WorkerIndex target, SendBuffers send, BufferTargets targets);
  // Buffers on their way from one worker to another.
  struct Sending {
    WorkerIndex from;
    WorkerIndex to;
    BufferTargets targets;
  };
  void FailSendsOf(WorkerIndex from, const absl::Status& status);
  // The worker and the peer have lost their connection, in either direction.
  void FailSendsBetween(WorkerIndex worker, const PeerAddress& peer, const absl::Status& status);
  template <typename Predicate>
  void FailSendsIf(Predicate concerned, const absl::Status& status);

  // ---- What Python functions of the client hold up (group_callbacks.cc) ----
  // A launch behind a program that calls such a function takes no place in the order of the devices before
  // the function is through: other sessions' launches would wait for it there, and it may take for ever. It
  // is held until then, as those are whose bytes have not come from the client.
  static constexpr size_t kFewBehind = 64;
  // What has to be over before these have their places in the order, if anything.
  std::vector<async::CompletionRef> Behind(const std::vector<BufferNames>& buffers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PutBehind(const std::vector<BufferNames>& buffers, const std::vector<async::CompletionRef>& until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same for what is made of other buffers without a program.
  void PutBehind(const BufferNames& results, const BufferNames& sources) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One of the reasons why it is held is gone. Any thread; never waits.
  void DropReason(LaunchId id);
  // Around the taking of places for a launch and its sending to the workers, which only one thread does at a
  // time: a worker that finds a place too early in the session's stream reads on only when those before it
  // have come, so they must not come later in the same stream. The end also sends what was released
  // meanwhile.
  void BeginPlacing();
  void EndPlacing();
  // Between the two: the next place of each.
  std::vector<uint64_t> TakePlaces(const std::vector<Member>& members);

  // ---- Programs (group_programs.cc) ----
  // Compiles on a worker that lives, and loads the program if all its workers live.
  void CompileOnce(ExecutableId id, int attempts, CompileCallback done);
  // Loads a Python function on all its workers.
  void CompilePython(ExecutableId id, const std::shared_ptr<const CompileProgram>& source,
                     const EditionRef& edition, const std::vector<Member>& members, CompileCallback done);
  // What was compiled for several workers, and is no longer in `compiled` then.
  static LoadProgram WhatToLoad(const CompileProgram& source, CompiledProgram* compiled);
  // Loads what was compiled on all members, as an edition with a new name. `load`: but for what each worker
  // is told of itself and its peers.
  void LoadOn(const std::vector<Member>& members, PlacementRef placement, const LoadProgram& load,
              absl::AnyInvocable<void(absl::StatusOr<EditionRef>)> done);
  std::vector<Member> MembersOf(const Edition& edition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnloadEdition(const Edition& edition, std::optional<int64_t> stream = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A program's new edition takes the place of the old, unless one of its workers has been replaced
  // meanwhile.
  void PutEdition(ExecutableId id, EditionRef made);
  // Gives each worker its part of the launch.
  void Command(Launch launch, const Edition* edition, const std::vector<Member>& members,
               const std::vector<uint64_t>& places);
  // The same for a Python function. `over`: what its results are behind.
  void CommandPython(Launch launch, const Edition& edition, const std::vector<Member>& members,
                     const std::vector<uint64_t>& places, const async::CompletionRef& over);
  // Binds the results to an error, on all workers of the program.
  void FailLaunch(Launch launch, const Edition& edition, const std::vector<Member>& members,
                  const absl::Status& status);

  // ---- Workers that come back (group_return.cc) ----
  // Puts workers into their places that are ready. First thing in every command.
  void TakeReturned() {
    if (some_ready_.load(std::memory_order_acquire)) TakeReady();
  }
  void TakeReady();
  // Programs that are to be loaded before the worker is in its place.
  std::vector<ExecutableId> Missing(const Returning& returning) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Loads what is missing, or finds that nothing is.
  void Advance(const std::shared_ptr<Returning>& returning);
  void Reload(const std::shared_ptr<Returning>& returning, ExecutableId id);
  void Reloaded(const std::shared_ptr<Returning>& returning, ExecutableId id, EditionRef edition);
  void PutInPlace(Returning& returning) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  WorkerGroup* const group_;
  const SessionId id_;
  const std::shared_ptr<CallbackSink> callbacks_;
  std::vector<std::atomic<bool>> dirty_;  // by worker: has launches that wait for Flush
  std::atomic<bool> some_ready_{false};   // workers of returning_ may be put into their places
  // Names for buffers and programs that the proxy knows nothing of; those that it gives stay below.
  std::atomic<uint64_t> next_own_name_{uint64_t{1} << 63};

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mu_);  // by worker
  BufferMap buffers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExecutableId, Program> programs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<LaunchId, Held> held_ ABSL_GUARDED_BY(mu_);
  bool placing_ ABSL_GUARDED_BY(mu_) = false;            // some thread does
  std::vector<Released> released_ ABSL_GUARDED_BY(mu_);  // for that thread to send
  // By their first names; some may be done.
  struct BehindCallbacks {
    uint32_t count;
    std::vector<async::CompletionRef> until;
  };
  std::map<BufferId, BehindCallbacks> behind_ ABSL_GUARDED_BY(mu_);
  size_t behind_limit_ ABSL_GUARDED_BY(mu_) = kFewBehind;                // when to look which are done
  absl::flat_hash_map<uint64_t, Sending> sending_ ABSL_GUARDED_BY(mu_);  // by number
  uint64_t next_sending_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<WorkerIndex, std::shared_ptr<Returning>> returning_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_GROUP_SESSION_H_
