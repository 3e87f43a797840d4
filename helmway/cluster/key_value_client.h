#ifndef HELMWAY_CLUSTER_KEY_VALUE_CLIENT_H_
#define HELMWAY_CLUSTER_KEY_VALUE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace helmway::cluster {

struct KeyValueClientOptions {
  std::string manager_address;       // host:port
  uint64_t incarnation = 0;          // of this worker
  uint64_t manager_incarnation = 0;  // AssignedPlace::manager_incarnation
};

// The keys that the workers of one slice share, in the resource manager (KeyValueRequest in manager.proto).
// For workers that have a place. Any thread; calls block, each with its thread.
//
// A manager that is not reached is tried again as long as there is time. One that has started again has lost
// the keys: a worker that has not made its client yet gets ABORTED and has to start again; later calls are
// about other keys, and go on.
class KeyValueClient {
 public:
  static std::unique_ptr<KeyValueClient> Create(KeyValueClientOptions options);
  // Cancels; no call may be under way or come any more.
  virtual ~KeyValueClient() = default;

  // Waits until a worker of the slice has put the key. Errors: manager.proto; CANCELLED.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
  // nullopt: nobody has put it yet.
  virtual absl::StatusOr<std::optional<std::string>> GetIfThere(const std::string& key) = 0;
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;

  // The plugin has made its client. Returns the generation of the slice that it was made in; 0: it has made
  // no call that was answered, so it has no peers.
  virtual uint64_t SetFormed() = 0;
  // Ends the calls under way, and those that come, with CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_KEY_VALUE_CLIENT_H_
