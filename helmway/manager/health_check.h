#ifndef HELMWAY_MANAGER_HEALTH_CHECK_H_
#define HELMWAY_MANAGER_HEALTH_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "helmway/manager/settings.h"

namespace helmway::manager {

// When one worker is to be probed, and what the answers say. One thread.
class HealthCheck {
 public:
  enum class Verdict { kUnknown, kHealthy, kUnhealthy };

  // `settings` outlives this. `first_probe` is the number of the first probe.
  HealthCheck(const HealthSettings* settings, uint64_t first_probe, absl::Time now)
      : settings_(settings), probe_(first_probe - 1), next_(now + settings->initial_delay) {}

  // True if a probe, number probe(), is to be started now; it is then under way.
  bool Start(absl::Time now);
  // The answer to that probe; others are ignored.
  void OnAnswer(absl::Time now, uint64_t probe, const absl::Status& status);
  // There is a doubt: does not wait for the period, nor trust an answer that is on its way.
  void ProbeSoon(absl::Time now);

  // Never while a probe is under way.
  absl::Time next() const { return under_way_ ? absl::InfiniteFuture() : next_; }
  uint64_t probe() const { return probe_; }
  Verdict verdict() const { return verdict_; }
  const absl::Status& last_failure() const { return last_failure_; }
  int failures() const { return failures_; }  // in a row

 private:
  const HealthSettings* settings_;
  uint64_t probe_;
  bool under_way_ = false;
  bool again_ = false;  // once more, when the one under way has been answered
  absl::Time started_;
  absl::Time next_;
  int failures_ = 0;
  absl::Status last_failure_;
  Verdict verdict_ = Verdict::kUnknown;
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_HEALTH_CHECK_H_
