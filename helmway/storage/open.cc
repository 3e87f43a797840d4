#include "helmway/storage/open.h"

#include <utility>

#include "helmway/storage/gcs_store.h"
#include "helmway/storage/local_store.h"
#include "helmway/storage/memory_store.h"

namespace helmway::storage {

std::shared_ptr<Store> OpenStore(const Location& location,
                                 const std::map<std::string, std::string>& environment,
                                 const RetryPolicy& retry) {
  switch (location.kind) {
    case Location::Kind::kLocal:
      return std::make_shared<LocalStore>(location.path);
    case Location::Kind::kMemory:
      return std::make_shared<MemoryStore>();
    case Location::Kind::kGcs:
      break;
  }
  GcsConnection connection = ConnectToGcs(environment);
  GcsOptions options;
  options.endpoint = connection.endpoint;
  options.retry = retry;
  return std::make_shared<GcsStore>(location.bucket, location.path, std::move(connection.transport),
                                    std::move(connection.tokens), std::move(options));
}

}  // namespace helmway::storage
