#include "helmway/async/backoff.h"

#include <algorithm>

namespace helmway::async {

absl::Duration Backoff::Next() {
  if (next_ == absl::ZeroDuration()) next_ = options_.first;
  const absl::Duration wait = next_;
  next_ = std::min(next_ * options_.factor, options_.longest);
  return wait * std::uniform_real_distribution<double>(1 - options_.jitter, 1 + options_.jitter)(random_);
}

}  // namespace helmway::async
