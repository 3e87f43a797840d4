#include "helmway/apps/host_cache.h"

#include <unistd.h>

#include <algorithm>

namespace helmway::apps {

int64_t CachedHostBytes() {
  constexpr int64_t kMax = int64_t{1} << 30;
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::min(kMax, memory / 16);
}

}  // namespace helmway::apps
