#include "helmway/manager/health_check.h"

#include <algorithm>

namespace helmway::manager {

bool HealthCheck::Start(absl::Time now) {
  if (now < next()) return false;
  under_way_ = true;
  started_ = now;
  ++probe_;
  return true;
}

void HealthCheck::OnAnswer(absl::Time now, uint64_t probe, const absl::Status& status) {
  if (!under_way_ || probe != probe_) return;
  under_way_ = false;
  next_ = again_ ? now : std::max(now, started_ + settings_->period);
  again_ = false;
  if (status.ok()) {
    failures_ = 0;
    verdict_ = Verdict::kHealthy;
    return;
  }
  last_failure_ = status;
  ++failures_;
  if (failures_ >= settings_->failure_threshold) verdict_ = Verdict::kUnhealthy;
}

void HealthCheck::ProbeSoon(absl::Time now) {
  next_ = std::min(next_, now);
  again_ = under_way_;
}

}  // namespace helmway::manager
