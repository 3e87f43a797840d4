#ifndef HELMWAY_ASYNC_BACKOFF_H_
#define HELMWAY_ASYNC_BACKOFF_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace helmway::async {

// How long to wait before the next of several attempts: longer each time, with some chance in it so that
// many who lost the same peer do not come back together. One thread.
class Backoff {
 public:
  struct Options {
    absl::Duration first = absl::Milliseconds(100);
    absl::Duration longest = absl::Seconds(5);
    double factor = 1.6;
    double jitter = 0.2;  // each wait is up to this part shorter or longer
  };
  Backoff(const Options& options, uint64_t seed) : options_(options), random_(seed) {}

  absl::Duration Next();
  // An attempt went well: the next wait is the first again.
  void Reset() { next_ = absl::ZeroDuration(); }

 private:
  const Options options_;
  std::mt19937_64 random_;
  absl::Duration next_ = absl::ZeroDuration();  // zero: the first
};

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_BACKOFF_H_
