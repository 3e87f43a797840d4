#ifndef HELMWAY_ASYNC_EVENT_LOOP_H_
#define HELMWAY_ASYNC_EVENT_LOOP_H_

#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"

namespace helmway::async {

// One thread for a state machine: it runs tasks one after the other, in the order of Post, and calls
// `on_deadline` when the deadline has come. What only its tasks touch needs no lock.
//
// The queue has no limit of its own: whoever posts keeps few tasks outstanding (a stream that is not read on
// until the last message was taken, one answer per question). Any thread.
class EventLoop {
 public:
  // `on_deadline` runs on the loop, with the deadline taken off.
  EventLoop(std::string name, absl::AnyInvocable<void()> on_deadline);
  ~EventLoop();  // stops
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Lets the running task end, drops the others and the deadline, joins. Idempotent; not from a task.
  void Stop();

  // Dropped once the loop is told to stop.
  void Post(absl::AnyInvocable<void()> task);
  // By base::SteadyNow(). Replaces the deadline before; InfiniteFuture takes it off.
  void SetDeadline(absl::Time deadline);

 private:
  void Run();

  const std::string name_;
  absl::AnyInvocable<void()> on_deadline_;  // the loop's thread only
  base::Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool rearmed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_EVENT_LOOP_H_
