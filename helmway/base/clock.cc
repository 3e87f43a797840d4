#include "helmway/base/clock.h"

#include <time.h>

namespace helmway::base {

absl::Time SteadyNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace helmway::base
