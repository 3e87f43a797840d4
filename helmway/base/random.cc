#include "helmway/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace helmway::base {

uint64_t UnguessableId() {
  uint64_t value = 0;
  while (value == 0) {
    const ssize_t got = getrandom(&value, sizeof(value), 0);
    if (got == static_cast<ssize_t>(sizeof(value))) continue;
    if (got < 0 && errno == EINTR) continue;
    // A kernel without random bytes cannot give sessions names of their own; nothing safe is left to do.
    std::perror("getrandom");
    std::abort();
  }
  return value;
}

}  // namespace helmway::base
