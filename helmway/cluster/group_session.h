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
#include "helmway/base/mutex.h"
#include "helmway/cluster/placement.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// The commands of one client session to a group of workers. Three files: group_session.cc (buffers),
// group_programs.cc (programs and launches), group_return.cc (workers that were lost and come back).
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
  void Unload(ExecutableId executable) override;
  void CostAnalysis(ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) override;
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) override {}
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost /*lost*/) override {}
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

  // ---- Programs (group_programs.cc) ----
  // Compiles on a worker that lives, and loads the program if all its workers live.
  void CompileOnce(ExecutableId id, int attempts, CompileCallback done);
  // Loads what was compiled on all members, as an edition with a new name.
  void LoadOn(const std::vector<Member>& members, const CompileProgram& source, PlacementRef placement,
              bool has_collectives, std::string serialized,
              absl::AnyInvocable<void(absl::StatusOr<EditionRef>)> done);
  std::vector<Member> MembersOf(const Edition& edition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnloadEdition(const Edition& edition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  // Launches that are held, with the workers that know of them.
  absl::flat_hash_map<LaunchId, std::vector<Member>> held_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Sending> sending_ ABSL_GUARDED_BY(mu_);  // by number
  uint64_t next_sending_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<WorkerIndex, std::shared_ptr<Returning>> returning_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_GROUP_SESSION_H_
