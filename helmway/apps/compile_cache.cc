#include "helmway/apps/compile_cache.h"

#include <utility>

#include "helmway/apps/host_cache.h"
#include "helmway/base/status.h"
#include "helmway/storage/open.h"

namespace helmway::apps {

absl::StatusOr<std::shared_ptr<storage::Store>> OpenCompileCacheStore(
    const std::string& scratch_location, const std::map<std::string, std::string>& environment) {
  HELMWAY_ASSIGN_OR_RETURN(const storage::Location location, storage::ParseLocation(scratch_location));
  return storage::OpenStore(location.Below(cache::kCacheDirectory), environment, cache::CacheRetryPolicy());
}

absl::StatusOr<std::shared_ptr<cache::CompileCache>> MakeCompileCache(
    const std::string& scratch_location, const std::map<std::string, std::string>& environment) {
  cache::CompileCacheOptions options;
  options.max_memory_bytes = CompileCacheBytes();
  if (!scratch_location.empty()) {
    HELMWAY_ASSIGN_OR_RETURN(options.store, OpenCompileCacheStore(scratch_location, environment));
  }
  return std::make_shared<cache::CompileCache>(std::move(options));
}

}  // namespace helmway::apps
