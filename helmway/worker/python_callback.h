#ifndef HELMWAY_WORKER_PYTHON_CALLBACK_H_
#define HELMWAY_WORKER_PYTHON_CALLBACK_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "helmway/async/growing_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/pjrt/plugin.h"

namespace helmway::worker {

// One run of a program that calls its client, on all its devices: what its calls find (as run data) and
// leave. Any thread.
//
// With collectives of XLA a call that fails does not stop its device: the others may wait for that one, and
// XLA ends the process if it stays away. Instead the call's results are zeros, the run's later calls are left
// out, and the run's outcome is the first failure. So a loop whose end depends on a call might never end:
// after many calls that were left out, they fail all the same.
class CallbackRun {
 public:
  CallbackRun(cluster::CallbackSink* sink, async::GrowingPool* threads, bool must_go_on)
      : sink_(sink), threads_(threads), must_go_on_(must_go_on) {}

  void Call(cluster::CallbackCall call, absl::AnyInvocable<void(const absl::Status&)> finish);
  // Runs what ends a custom call of the run. The rest of the program runs on that thread, and may wait there
  // for other devices or call again: never on a thread that others need.
  void GoOn(absl::AnyInvocable<void()> end) { threads_->Run(std::move(end)); }
  // Once all devices are done: the first failure of a call that did not stop its device.
  absl::Status failure() const;

 private:
  absl::Status Outcome(const absl::Status& status, const std::vector<cluster::CallbackArray>& results);

  cluster::CallbackSink* const sink_;
  async::GrowingPool* const threads_;
  const bool must_go_on_;
  mutable base::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// Makes programs of the plugin able to call back. Their runs must have RunData with a CallbackRun.
// Once for each process and plugin is enough. UNIMPLEMENTED: the plugin has no custom calls.
absl::Status RegisterPythonCallback(const pjrt::Plugin& plugin);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_PYTHON_CALLBACK_H_
