#ifndef HELMWAY_WORKER_CALLBACK_LANES_H_
#define HELMWAY_WORKER_CALLBACK_LANES_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "helmway/async/growing_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/launch.h"

namespace helmway::worker {

// Runs the launches of one session whose programs call back, outside the queues of the devices, since each
// holds a thread until it is over. Launches of one stream (a thread of the client's program) run one after
// the other, as they would in its own process, so that what they print is in order and the last one is the
// last to end; those of different streams run at the same time, so that a Python function that is called may
// itself run such programs. Any thread.
//
// The number of launches is bounded by what a session may have under way.
class CallbackLanes : public std::enable_shared_from_this<CallbackLanes> {
 public:
  // `threads` must outlive all that is pushed.
  CallbackLanes(std::shared_ptr<cluster::CallbackSink> sink, async::GrowingPool* threads);

  void Push(int64_t stream, LaunchRef launch);
  // For a program that spans workers: runs when all that were pushed like this for the same client are over,
  // and takes no notice of others.
  void PushInOrder(CallbackClient& client, LaunchRef launch);

 private:
  void StartLocked(int64_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drain(int64_t stream);

  const std::shared_ptr<cluster::CallbackSink> sink_;
  async::GrowingPool* const threads_;
  base::Mutex mu_;
  // A stream is here while it has launches that run or wait.
  absl::flat_hash_map<int64_t, std::deque<LaunchRef>> lanes_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<int64_t> waiting_ ABSL_GUARDED_BY(mu_);  // streams that have no thread yet
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_CALLBACK_LANES_H_
