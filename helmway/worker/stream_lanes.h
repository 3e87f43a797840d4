#ifndef HELMWAY_WORKER_STREAM_LANES_H_
#define HELMWAY_WORKER_STREAM_LANES_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "helmway/async/growing_pool.h"
#include "helmway/base/mutex.h"

namespace helmway::worker {

// Runs launches of one session that wait for Python, outside the queues of the devices, since each holds a
// thread until it is over. Those of one stream (a thread of the client's program) run one after the other, as
// they would in its own process, so that what they print is in order and the last one is the last to end;
// those of different streams run at the same time, so that a Python function that is called may itself run
// such programs. Any thread.
//
// The number of launches is bounded by what a session may have under way.
class StreamLanes : public std::enable_shared_from_this<StreamLanes> {
 public:
  // `threads` must outlive all that is pushed. At most `max_running` streams run at one time, others wait.
  StreamLanes(async::GrowingPool* threads, int max_running);

  void Push(int64_t stream, absl::AnyInvocable<void()> task);

 private:
  void StartLocked(int64_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drain(int64_t stream);

  async::GrowingPool* const threads_;
  const int max_running_;
  base::Mutex mu_;
  // A stream is here while it has tasks that run or wait.
  absl::flat_hash_map<int64_t, std::deque<absl::AnyInvocable<void()>>> lanes_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<int64_t> waiting_ ABSL_GUARDED_BY(mu_);  // streams that have no thread yet
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_STREAM_LANES_H_
