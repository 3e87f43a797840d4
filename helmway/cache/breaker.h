#ifndef HELMWAY_CACHE_BREAKER_H_
#define HELMWAY_CACHE_BREAKER_H_

#include <algorithm>

#include "absl/time/time.h"

namespace helmway::cache {

// Whether a service that failed is to be asked: not for a while, which grows with each failure in a row. One
// thread.
class Breaker {
 public:
  static constexpr absl::Duration kFirstPause = absl::Seconds(30);
  static constexpr absl::Duration kLongestPause = absl::Minutes(10);

  bool Allows(absl::Time now) const { return now >= closed_until_; }

  // True if the service had not failed before: the time to tell somebody.
  bool Failed(absl::Time now) {
    const bool first = pause_ == absl::ZeroDuration();
    pause_ = first ? kFirstPause : std::min(pause_ * 2, kLongestPause);
    closed_until_ = now + pause_;
    return first;
  }

  // True if it had failed before.
  bool Succeeded() {
    const bool recovered = pause_ != absl::ZeroDuration();
    pause_ = absl::ZeroDuration();
    closed_until_ = absl::InfinitePast();
    return recovered;
  }

 private:
  absl::Duration pause_ = absl::ZeroDuration();
  absl::Time closed_until_ = absl::InfinitePast();
};

}  // namespace helmway::cache

#endif  // HELMWAY_CACHE_BREAKER_H_
