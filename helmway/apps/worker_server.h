// One worker of a cluster with its gRPC server: what a process of its own has around it.
#ifndef HELMWAY_APPS_WORKER_SERVER_H_
#define HELMWAY_APPS_WORKER_SERVER_H_

#include <grpcpp/completion_queue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::apps {

// For how long other workers are waited for.
struct WorkerTimeouts {
  absl::Duration peer = absl::InfiniteDuration();        // without a sign of life: lost
  absl::Duration collective = absl::InfiniteDuration();  // waited for in a collective: its launch fails
};

struct WorkerServerOptions {
  std::string listen_address;  // "127.0.0.1:0", "[::]:29005"
  uint16_t message_port = 0;   // TCP, for messages from other hosts; 0: any
  PluginChoice plugin;
  std::string python;            // command whose jaxlib has JAX's custom calls; empty = none
  std::string scratch_location;  // where compiled programs persist; empty = in memory only
  std::map<std::string, std::string> environment;  // how to reach it
  uint64_t incarnation = 0;                        // of this process, random
  std::string software;                            // of this process, for messages
  WorkerTimeouts timeouts;
  std::string manager_address;  // host:port, where the workers of a slice meet; empty: there is none
};

// Where a worker belongs.
struct WorkerPlace {
  int number = 0;  // over all slices: its devices have the ids 2048 * number + i
  int slice = 0;
  int task = 0;     // number within the slice
  int hosts = 1;    // of the slice: so many workers
  int devices = 1;  // virtual ones, on the CPU platform
  // Of a GPU plugin: the worker has `devices` of the host's GPUs, from this one on. nullopt: all.
  std::optional<int> first_device;
  uint64_t manager_incarnation = 0;  // of the manager's life that gave this place; 0: none did
  // Added to those of its devices, in their order, that the plugin does not give.
  std::vector<std::map<std::string, cluster::AttributeValue>> attributes;
};

// Listens from the start, and answers health checks; has devices, and takes proxies and peers, once it has a
// place. Any thread.
class WorkerServer {
 public:
  // Errors: the address can't be bound, or the plugin can't be loaded.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerServerOptions& options);
  virtual ~WorkerServer() = default;  // shuts down
  virtual int port() const = 0;
  // Makes the devices. Once. Blocks while the plugin starts, which with other plugins than the CPU's may wait
  // for the other workers of the slice. `peer_address`: host:port where the other workers reach this one. An
  // error names the plugin.
  virtual absl::StatusOr<cluster::WorkerInfo> Place(const WorkerPlace& place,
                                                    const std::string& peer_address) = 0;
  // Ends the wait for other workers in Place, which then fails with CANCELLED.
  virtual void StopWaiting() = 0;
  // After Place: cluster::RegistrationObserver::slice_generation.
  virtual uint64_t slice_generation() const = 0;
  // Where the calls of this process come back (RegistrationOptions::queue).
  virtual grpc::CompletionQueue* queue() = 0;
  // Waits until compiled programs and dumps that are to be kept are kept, or the time is up.
  virtual void FinishWriting(absl::Duration patience) = 0;
  virtual void Shutdown() = 0;  // ends sessions, idempotent
  // Ends the process at once. What the worker has is gone with it; no plugin and no peer can keep it.
  virtual void EndProcess(int exit_code) = 0;
};

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_WORKER_SERVER_H_
