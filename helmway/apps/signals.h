#ifndef HELMWAY_APPS_SIGNALS_H_
#define HELMWAY_APPS_SIGNALS_H_

#include <signal.h>

#include <initializer_list>
#include <optional>

#include "absl/time/time.h"

namespace helmway::apps {

// Signals that are waited for instead of handled. While it lives they are blocked in the thread that made it
// and in all threads started from then on, so make it before there are other threads. SIGHUP is left alone
// where it is ignored (nohup). SIGCHLD gets its default action, without which children can't be waited for.
// One thread.
class BlockedSignals {
 public:
  explicit BlockedSignals(std::initializer_list<int> signals);
  ~BlockedSignals();  // restores mask and action
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Waits for the next of the signals.
  siginfo_t Wait();
  // The same, until the deadline (base::SteadyNow) at most.
  std::optional<siginfo_t> WaitUntil(absl::Time deadline);

  // The mask from before, for a child to start with.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  sigset_t signals_;
  sigset_t original_mask_;
  struct sigaction original_child_action_;
};

// True if the signal must be passed on to a child of the same process group: what a terminal sends (Ctrl-C)
// has reached the child already.
bool ShouldForward(const siginfo_t& info);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_SIGNALS_H_
