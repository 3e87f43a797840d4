#ifndef HELMWAY_PJRT_KEY_VALUE_STORE_H_
#define HELMWAY_PJRT_KEY_VALUE_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace helmway::pjrt {

// Where the clients of one plugin in several processes meet: what one puts the others get. A GPU plugin tells
// its peers in this way which devices it has, and later how its collectives find each other (NCCL ids). Keys
// and values are bytes.
//
// Any thread, also threads of the plugin, as long as the client lives. Calls may block.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Waits until somebody has put the key. DEADLINE_EXCEEDED, naming the key, if nobody has in that time;
  // CANCELLED if this process ends meanwhile.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
  // NOT_FOUND if nobody has put the key yet.
  virtual absl::StatusOr<std::string> TryGet(const std::string& key) = 0;
  // ALREADY_EXISTS if the key has another value.
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_KEY_VALUE_STORE_H_
