#include "helmway/storage/retry.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/time/clock.h"

namespace helmway::storage {

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status) ||
         absl::IsDataLoss(status);
}

std::optional<absl::Duration> NextDelay(const RetryPolicy& policy, int attempts, absl::Duration elapsed,
                                        std::optional<absl::Duration> server_wish, double uniform) {
  if (attempts >= policy.max_attempts) return std::nullopt;
  const absl::Duration full =
      std::min(policy.max_delay, policy.first_delay * std::pow(policy.growth, std::min(attempts - 1, 64)));
  absl::Duration delay = full / 2 + full / 2 * uniform;
  if (server_wish) delay = std::max(delay, *server_wish);
  if (elapsed + delay >= policy.budget) return std::nullopt;
  return delay;
}

absl::Duration AttemptTimeout(const RetryPolicy& policy, absl::Duration elapsed) {
  return std::max(absl::ZeroDuration(), std::min(policy.attempt_timeout, policy.budget - elapsed));
}

Timing Timing::Real() {
  return {.now = absl::Now, .sleep = absl::SleepFor, .uniform = [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          }};
}

absl::Status WithRetries(const RetryPolicy& policy, const Timing& timing,
                         absl::FunctionRef<AttemptResult(int, absl::Duration)> attempt) {
  const absl::Time start = timing.now();
  for (int number = 1;; ++number) {
    const AttemptResult result = attempt(number, AttemptTimeout(policy, timing.now() - start));
    if (result.status.ok() || !IsTransient(result.status)) return result.status;
    const std::optional<absl::Duration> delay =
        NextDelay(policy, number, timing.now() - start, result.server_wish, timing.uniform());
    if (!delay) return result.status;
    timing.sleep(*delay);
  }
}

}  // namespace helmway::storage
