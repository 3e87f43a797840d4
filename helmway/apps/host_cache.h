#ifndef HELMWAY_APPS_HOST_CACHE_H_
#define HELMWAY_APPS_HOST_CACHE_H_

#include <cstdint>

namespace helmway::apps {

// How many bytes of idle host blocks a process keeps for its next transfers: a part of the host's memory,
// with a limit.
int64_t CachedHostBytes();
// How many bytes of compiled programs it keeps in memory.
int64_t CompileCacheBytes();

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_HOST_CACHE_H_
