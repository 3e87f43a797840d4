#ifndef HELMWAY_WORKER_COLLECTIVES_H_
#define HELMWAY_WORKER_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/ffi_call.h"
#include "helmway/pjrt/plugin.h"
#include "helmway/pjrt/run_context.h"
#include "helmway/program/collectives.h"

// Programs that span workers, whose devices talk to each other: by our own collectives, or by those of a
// plugin whose client spans the same workers. Of the latter only the start is ours
// (LaunchShare::StartWithOthers).
//
// Our collectives are custom calls (program/collectives.h): each hands
// over what the other workers need, and ends, on a thread of the engine, when the devices of this worker have
// all come to it and the parts of the others have arrived. No thread waits.

namespace helmway::worker {

// While it lives, what this thread compiles with the plugin gets our collectives instead of XLA's.
class ReplaceCollectivesHere {
 public:
  // Must be called once for a plugin before a program with our collectives is compiled or loaded.
  // UNIMPLEMENTED: the plugin lacks what this needs.
  static absl::Status Prepare(const pjrt::Plugin& plugin);

  explicit ReplaceCollectivesHere(program::ProgramSize size);
  ~ReplaceCollectivesHere();
  ReplaceCollectivesHere(const ReplaceCollectivesHere&) = delete;
  ReplaceCollectivesHere& operator=(const ReplaceCollectivesHere&) = delete;

  // Whether a program that had any was compiled.
  bool replaced() const { return replaced_; }
  // Why one could not be replaced, with its own code; OK if nothing was in the way.
  const absl::Status& status() const { return status_; }

 private:
  friend struct CollectiveTransform;
  const program::ProgramSize size_;
  bool replaced_ = false;
  absl::Status status_;
};

class CallbackRun;
struct CollectivePlan;

// A loaded program whose devices talk to each other, by our collectives or the plugin's, and who they are.
// Any thread.
class CollectiveProgram {
 public:
  // INVALID_ARGUMENT: the command contradicts itself.
  static absl::StatusOr<std::shared_ptr<CollectiveProgram>> Create(const cluster::LoadProgram& command);

  const std::vector<cluster::DeviceId>& devices() const { return devices_; }
  const std::vector<cluster::ProgramWorker>& workers() const { return workers_; }
  size_t self() const { return self_; }
  // The worker of a position.
  size_t worker_of(int32_t position) const { return worker_of_[static_cast<size_t>(position)]; }

  // What an instruction does; null before Add.
  std::shared_ptr<const CollectivePlan> Find(int64_t instruction) const;
  // The first one stays.
  std::shared_ptr<const CollectivePlan> Add(int64_t instruction, std::shared_ptr<const CollectivePlan> plan);

 private:
  CollectiveProgram() = default;
  std::vector<cluster::DeviceId> devices_;
  std::vector<cluster::ProgramWorker> workers_;
  size_t self_ = 0;
  std::vector<size_t> worker_of_;
  mutable base::Mutex mu_;
  absl::flat_hash_map<int64_t, std::shared_ptr<const CollectivePlan>> plans_ ABSL_GUARDED_BY(mu_);
};

class Collectives;
struct CollectiveLaunch;

// This worker's share in a launch of a CollectiveProgram. Any thread.
class LaunchShare {
 public:
  LaunchShare(std::shared_ptr<Collectives> engine, std::shared_ptr<CollectiveLaunch> launch, size_t parts);
  // The launch is over here: what still comes for it is dropped.
  ~LaunchShare();
  LaunchShare(const LaunchShare&) = delete;
  LaunchShare& operator=(const LaunchShare&) = delete;

  // What the run of part `index`, on the device at `position`, needs in its ExecuteOptions; lives as long as
  // this. `callbacks`: of a program that calls back too.
  absl::StatusOr<const pjrt::RunContext*> Context(const pjrt::Plugin& plugin, size_t index, int32_t position,
                                                  CallbackRun* callbacks = nullptr);

  // Why the launch cannot succeed; OK as long as nothing is known.
  absl::Status status() const;

  // For programs with the plugin's own collectives, which wait for ever for devices that do not come: says to
  // all workers of the launch that every part of this one can start now, and waits until all have said so.
  // After OK the parts must be run, whatever happens; after an error, the first cause, none runs on any
  // worker. Every part calls it, all with the same answer; blocks.
  absl::Status StartWithOthers();

  // What a part of this worker has ended with, or why it cannot begin. An error is told to all workers, so
  // that none waits for this one; the first cause comes back.
  absl::Status Settle(const absl::Status& outcome);

 private:
  friend class Collectives;
  struct Part;
  const std::shared_ptr<Collectives> engine_;
  const std::shared_ptr<CollectiveLaunch> launch_;
  std::vector<std::unique_ptr<Part>> parts_;
};

struct CollectivesOptions {
  cluster::PeerSender* peers = nullptr;  // must outlive it; null: a worker without peers
  std::shared_ptr<base::HostMemoryPool> host_memory;
  int threads = 1;  // on which programs go on after a collective: one for each device at least
  // A collective, or a start, for which devices of this worker have waited so long, without any other coming
  // to it meanwhile, fails its launch. Must be longer than programs compute between two collectives.
  absl::Duration wait_limit = absl::InfiniteDuration();
  // A worker that has said that it starts a launch with the plugin's collectives can't take that back: the
  // others may have all that they wait for. When its session has ended meanwhile, those that have not said it
  // in this time never will.
  absl::Duration start_after_end = absl::Seconds(10);
};

// The engine of one worker. Any thread.
class Collectives final : public cluster::CollectiveReceiver,
                          public std::enable_shared_from_this<Collectives> {
 public:
  explicit Collectives(const CollectivesOptions& options);
  ~Collectives() override;
  // Waits for its threads, when nothing runs any more; not to be called on one of them. What still holds this
  // may drop it afterwards, anywhere.
  void Stop();

  // A launch is commanded. Launches of one session come in the order of their ids, which go round at 2^31
  // - 1.
  std::unique_ptr<LaunchShare> Begin(cluster::SessionId session, cluster::LaunchId launch,
                                     std::shared_ptr<CollectiveProgram> program, size_t parts);
  // Fails what is under way for a session that ends here, but for what other workers may be starting. Other
  // workers, should it go on there, hear that this one is lost to it.
  void AbortSession(cluster::SessionId session, const absl::Status& status);
  // What comes for the session from now on is dropped.
  void ForgetSession(cluster::SessionId session);

  void TakePart(cluster::CollectivePart part) override;
  void TakeAbort(cluster::SessionId session, cluster::LaunchId launch, const absl::Status& status) override;
  void PeerLost(const cluster::PeerAddress& peer, const absl::Status& status) override;
  // Tells the session of every loss of a peer, until AbortSession.
  void WhenPeerLost(cluster::SessionId session, cluster::SessionLink::PeerLost lost);

  // Fails the launches whose collectives have waited too long at `now`, with DEADLINE_EXCEEDED, on all their
  // workers. Called by a thread of this, every now and then.
  void FailOverdue(absl::Time now);

  // The custom call.
  static absl::Status Call(pjrt::FfiCall& call);

 private:
  friend class LaunchShare;
  struct Exchange;
  // A device's program that is in a collective.
  struct Waiting {
    pjrt::FfiPromise promise;
    CallbackRun* callbacks = nullptr;  // if it calls back too
  };
  using LaunchKey = std::pair<cluster::SessionId, cluster::LaunchId>;

  bool AllStart(const CollectiveLaunch& launch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Start(CollectiveLaunch& launch);
  absl::Status Join(CollectiveLaunch& launch, LaunchShare::Part& part, pjrt::FfiCall& call);
  void Ended(CollectiveLaunch& launch);
  // Fails a launch here and, unless `told` is OK, with that on the other workers of its program; gives the
  // first cause.
  absl::Status Abort(CollectiveLaunch& launch, const absl::Status& status, const absl::Status& told);
  std::shared_ptr<CollectiveLaunch> FindOrExpect(const LaunchKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsOver(const LaunchKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts it on another thread, if everything is there. What it returns, because it costs less than another
  // thread, the caller runs once the lock is released; null: nothing.
  [[nodiscard]] std::shared_ptr<Exchange> StartIfReady(const std::shared_ptr<CollectiveLaunch>& launch,
                                                       const std::shared_ptr<Exchange>& exchange)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `goes_on`: a program that waited for it may go on on this thread, for as long as it likes.
  void Run(const std::shared_ptr<CollectiveLaunch>& launch, const std::shared_ptr<Exchange>& exchange,
           bool goes_on);
  absl::Status Compute(Exchange& exchange, size_t stage);
  absl::Status SendToOthers(CollectiveLaunch& launch, const Exchange& exchange, size_t member,
                            int64_t instruction, int64_t occurrence);
  absl::Status SendReduced(CollectiveLaunch& launch, const Exchange& exchange);
  void Finish(std::vector<Waiting> ended, const absl::Status& status, bool goes_on = false);
  void Post(absl::AnyInvocable<void()> task);

  const CollectivesOptions options_;
  base::Mutex mu_;
  absl::flat_hash_map<LaunchKey, std::shared_ptr<CollectiveLaunch>> launches_ ABSL_GUARDED_BY(mu_);
  // The youngest launch that was begun.
  absl::flat_hash_map<cluster::SessionId, cluster::LaunchId> youngest_ ABSL_GUARDED_BY(mu_);
  std::deque<cluster::SessionId> ended_ ABSL_GUARDED_BY(mu_);  // the last ones
  // Who is told of lost peers; called one at a time.
  base::Mutex telling_;
  absl::flat_hash_map<cluster::SessionId, cluster::SessionLink::PeerLost> peer_lost_
      ABSL_GUARDED_BY(telling_);
  std::unique_ptr<async::ThreadPool> threads_;  // null after Stop
  base::Notification stopping_;
  std::thread watch_;  // only if there is a limit

  friend struct CollectiveLaunch;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_COLLECTIVES_H_
