#ifndef HELMWAY_WORKER_DEVICE_QUEUE_H_
#define HELMWAY_WORKER_DEVICE_QUEUE_H_

#include <pthread.h>

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "helmway/async/completion.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/launch.h"

namespace helmway::worker {

// Launches in flight on one device. XLA's CPU client stops at 32 and then blocks its caller, which with two
// or more devices dead-locks; ours stays well under it.
inline constexpr int kMaxLaunchesInFlight = 16;

// The order of launches on one device, and the one thread that hands them to the plugin: small programs run
// inside the plugin's Execute, so each device needs a thread of its own. Any thread may push.
//
// The queue itself has no bound; sessions bound what they have under way.
class DeviceQueue {
 public:
  explicit DeviceQueue(const pjrt::Device* device);
  // Runs what is queued and waits for what is in flight.
  ~DeviceQueue();

  const pjrt::Device* device() const { return device_; }

  void Push(LaunchRef launch, size_t part);
  // The same for a launch that may start at once, without waking the queue's thread: RunOrWake follows soon.
  void PushQuietly(LaunchRef launch, size_t part);
  // Runs what is queued on this thread if all of it may start at once and nothing stands in the way; else
  // wakes the queue's thread. Saves two switches between threads for each run of a short program.
  void RunOrWake();
  void Wake();

  // For the queue's own thread, while it runs a part.
  void WaitForRoom();
  void WaitUntilIdle();
  // Until a part whose collectives wait for other workers may be handed over. The plugin gives a thread to
  // each run that has begun, for as long as its collectives take, and may have no more threads than devices:
  // two such runs of one device could keep another device's from beginning, for which they wait. So this one
  // must be alone, or begin only when the last one is over, since it needs its results. `pending`: events of
  // its inputs.
  void WaitForTurnOf(absl::Span<const async::CompletionRef> pending);
  // `done`: of a part with such collectives; null for others.
  void LaunchStarted(async::CompletionRef done);
  // Any thread.
  void LaunchFinished();

 private:
  struct Item {
    LaunchRef launch;
    size_t part;
  };
  void Run();

  const pjrt::Device* const device_;
  base::Mutex mu_;
  base::CondVar pushed_;
  base::CondVar finished_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  // Of the part that was handed over last, if its collectives wait for other workers.
  async::CompletionRef last_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // some thread runs a part
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Puts all parts of a launch into the queues of their devices at once, so that any two launches are in the
// same order on every device they share. Any thread.
class Sequencer {
 public:
  void Enqueue(const LaunchRef& launch);

  // For launches that span workers, which must come in the order of the calls, since other workers have them
  // in that order too: puts `launch` into the queues once SetReady was called and those before it are in.
  // Others may pass it meanwhile.
  uint64_t Announce(LaunchRef launch);
  // The same at once for one that is ready, if no other waits. Otherwise does nothing.
  bool EnqueueUnlessSomeWait(const LaunchRef& launch);
  void SetReady(uint64_t announced);

  // An event for a launch that will be put into the queues later than it was commanded, to be finished when
  // it is.
  async::CompletionRef AddEntering();
  // Those that are not finished.
  void AppendEntering(std::vector<async::CompletionRef>* entering);

 private:
  struct Waiting {
    LaunchRef launch;
    bool ready = false;
  };
  // What launches give up when they enter the queues: the plugin may free buffers for it, with no lock held.
  struct GivenUp {
    std::vector<SlotRef> slots;
    std::vector<ReadHold> holds;
  };
  static void Push(const LaunchRef& launch, GivenUp* given_up);

  base::Mutex mu_;
  uint64_t first_ ABSL_GUARDED_BY(mu_) = 0;  // number of the first that waits
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<async::CompletionRef> entering_ ABSL_GUARDED_BY(mu_);  // some may be done
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_DEVICE_QUEUE_H_
