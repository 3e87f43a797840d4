// The resource manager with its gRPC server.
#ifndef HELMWAY_APPS_MANAGER_SERVER_H_
#define HELMWAY_APPS_MANAGER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "helmway/manager/settings.h"

namespace helmway::apps {

struct ManagerServerOptions {
  std::string listen_address;  // "127.0.0.1:0", "[::]:29001"
  manager::ManagerSettings settings;
};

class ManagerServer {
 public:
  // INVALID_ARGUMENT for a cluster that can't be (manager::CheckSettings), UNAVAILABLE if the address can't
  // be bound.
  static absl::StatusOr<std::unique_ptr<ManagerServer>> Start(const ManagerServerOptions& options);
  virtual ~ManagerServer() = default;  // shuts down
  virtual int port() const = 0;
  virtual void Shutdown() = 0;  // ends all streams, idempotent
};

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_MANAGER_SERVER_H_
