// One worker of a cluster with its gRPC server.
#ifndef HELMWAY_APPS_WORKER_SERVER_H_
#define HELMWAY_APPS_WORKER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/cluster/registration_client.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::apps {

struct WorkerServerOptions {
  std::string listen_address;  // "127.0.0.1:0", "[::]:29005"
  std::string plugin_path;     // shared library that exports GetPjrtApi
  std::string python;          // command whose jaxlib has JAX's custom calls; empty = none
  uint64_t incarnation = 0;    // of this process, as the manager knows it
};

// Listens from the start, since liveness must not depend on peers; has devices once it has a place.
class WorkerServer {
 public:
  virtual ~WorkerServer() = default;  // shuts down
  virtual int port() const = 0;
  // Makes the devices for the place that the manager has given to this worker. Once. Blocks while the plugin
  // starts. An error names the plugin.
  virtual absl::StatusOr<cluster::WorkerInfo> Place(const cluster::AssignedPlace& placement) = 0;
  // Takes no new work and returns when what runs is over, or after `remaining`.
  virtual void Drain(absl::Duration remaining) = 0;
  virtual void Shutdown() = 0;  // ends sessions, idempotent
};

// Errors: the address can't be bound, or the plugin can't be loaded.
absl::StatusOr<std::unique_ptr<WorkerServer>> StartWorkerServer(const WorkerServerOptions& options);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_WORKER_SERVER_H_
