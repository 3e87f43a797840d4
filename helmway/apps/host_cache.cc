#include "helmway/apps/host_cache.h"

#include <unistd.h>

#include <algorithm>

namespace helmway::apps {

namespace {
int64_t MachineBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE); }
}  // namespace

int64_t CachedHostBytes() { return std::min(int64_t{1} << 30, MachineBytes() / 16); }
int64_t CompileCacheBytes() { return std::min(int64_t{512} << 20, MachineBytes() / 32); }

}  // namespace helmway::apps
