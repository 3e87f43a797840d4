#ifndef HELMWAY_APPS_COMPILE_CACHE_H_
#define HELMWAY_APPS_COMPILE_CACHE_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/storage/store.h"

namespace helmway::apps {

// Where the compile cache of a scratch location lies. INVALID_ARGUMENT: the location is none. `environment`:
// how to reach it.
absl::StatusOr<std::shared_ptr<storage::Store>> OpenCompileCacheStore(
    const std::string& scratch_location, const std::map<std::string, std::string>& environment);

// The compile cache of a process with a worker: takes a part of the host's memory, and persists at the
// scratch location, unless that is empty.
absl::StatusOr<std::shared_ptr<cache::CompileCache>> MakeCompileCache(
    const std::string& scratch_location, const std::map<std::string, std::string>& environment);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_COMPILE_CACHE_H_
