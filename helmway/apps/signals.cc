#include "helmway/apps/signals.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>

#include "helmway/base/clock.h"

namespace helmway::apps {

BlockedSignals::BlockedSignals(std::initializer_list<int> signals) {
  sigemptyset(&signals_);
  for (const int signal : signals) {
    struct sigaction action;
    PCHECK(sigaction(signal, nullptr, &action) == 0);
    if (signal == SIGHUP && action.sa_handler == SIG_IGN) continue;
    sigaddset(&signals_, signal);
  }
  struct sigaction child_action = {};
  child_action.sa_handler = SIG_DFL;
  PCHECK(sigaction(SIGCHLD, &child_action, &original_child_action_) == 0);
  PCHECK(pthread_sigmask(SIG_BLOCK, &signals_, &original_mask_) == 0);
}

BlockedSignals::~BlockedSignals() {
  pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
  sigaction(SIGCHLD, &original_child_action_, nullptr);
}

siginfo_t BlockedSignals::Wait() {
  siginfo_t info;
  while (sigwaitinfo(&signals_, &info) < 0) PCHECK(errno == EINTR);
  return info;
}

std::optional<siginfo_t> BlockedSignals::WaitUntil(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return Wait();
  while (true) {
    siginfo_t info;
    const timespec left = absl::ToTimespec(std::max(deadline - base::SteadyNow(), absl::ZeroDuration()));
    if (sigtimedwait(&signals_, &info, &left) > 0) return info;
    if (errno == EAGAIN) return std::nullopt;
    PCHECK(errno == EINTR);
  }
}

bool ShouldForward(const siginfo_t& info) { return info.si_code != SI_KERNEL; }

}  // namespace helmway::apps
