#ifndef HELMWAY_STORAGE_OPEN_H_
#define HELMWAY_STORAGE_OPEN_H_

#include <map>
#include <memory>
#include <string>

#include "helmway/storage/retry.h"
#include "helmway/storage/store.h"

namespace helmway::storage {

// The store at a location. Touches nothing yet: what is missing or forbidden shows at the first call.
// `environment` says which Cloud Storage is meant and who asks (ConnectToGcs); `retry` is for services, not
// for local files.
std::shared_ptr<Store> OpenStore(const Location& location,
                                 const std::map<std::string, std::string>& environment,
                                 const RetryPolicy& retry = {});

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_OPEN_H_
