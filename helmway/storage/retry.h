#ifndef HELMWAY_STORAGE_RETRY_H_
#define HELMWAY_STORAGE_RETRY_H_

#include <functional>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace helmway::storage {

// When a call that failed is tried again.
struct RetryPolicy {
  int max_attempts = 6;
  absl::Duration first_delay = absl::Milliseconds(200);
  double growth = 2;
  absl::Duration max_delay = absl::Seconds(10);
  // Of the whole call, all its attempts and waits.
  absl::Duration budget = absl::Seconds(60);
  // Of one attempt, at most.
  absl::Duration attempt_timeout = absl::Seconds(30);
};

// Whether a later attempt may succeed: UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED, and DATA_LOSS on the way.
bool IsTransient(const absl::Status& status);

// How long to wait before the next attempt, or nullopt: give up. `attempts`: those made, >= 1. `elapsed`:
// since the call began. `server_wish`: what the service asked for (Retry-After), which is honoured where the
// budget allows it. `uniform`: a random number in [0, 1) that spreads callers over the upper half of the
// wait.
std::optional<absl::Duration> NextDelay(const RetryPolicy& policy, int attempts, absl::Duration elapsed,
                                        std::optional<absl::Duration> server_wish, double uniform);

// How long attempt number `attempts` + 1 may take. Zero: no time is left.
absl::Duration AttemptTimeout(const RetryPolicy& policy, absl::Duration elapsed);

// Where time and chance come from.
struct Timing {
  std::function<absl::Time()> now;
  std::function<void(absl::Duration)> sleep;
  std::function<double()> uniform;  // [0, 1)

  static Timing Real();
};

struct AttemptResult {
  absl::Status status;
  std::optional<absl::Duration> server_wish;
};

// Runs `attempt(number from 1, timeout)` until it succeeds, fails for good, or the policy gives up; the last
// status.
absl::Status WithRetries(const RetryPolicy& policy, const Timing& timing,
                         absl::FunctionRef<AttemptResult(int, absl::Duration)> attempt);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_RETRY_H_
