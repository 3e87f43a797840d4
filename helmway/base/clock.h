#ifndef HELMWAY_BASE_CLOCK_H_
#define HELMWAY_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace helmway::base {

// A clock that never jumps: the time since the host started, written as a time after the epoch. It means
// nothing on another host or after a restart of this one. Any thread.
absl::Time SteadyNow();

}  // namespace helmway::base

#endif  // HELMWAY_BASE_CLOCK_H_
