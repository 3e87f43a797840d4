// The IFRT proxy service in front of workers: one in this process, with no network between them, or several
// in processes of their own, or those of a cluster that a resource manager knows.
#ifndef HELMWAY_APPS_EMBEDDED_SERVER_H_
#define HELMWAY_APPS_EMBEDDED_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/cluster/membership_client.h"

namespace helmway::apps {

// A worker in a process of its own.
struct RemoteWorkerAddress {
  std::string address;  // host:port
  std::string name;     // for messages: "worker 1"
  uint64_t incarnation = 0;
};

struct EmbeddedServerOptions {
  std::string listen_address;                // "127.0.0.1:0", "[::]:29000"
  std::vector<RemoteWorkerAddress> workers;  // empty: the worker is in this process
  // host:port of the resource manager whose cluster is served; empty: none. `workers` is empty then.
  std::string resource_manager_address;
  cluster::LeaseRequest lease;  // of that cluster's slices
  int64_t elastic_slices = 0;   // how many of them may be missing when a session begins
  std::string name;             // of this process, for the manager's messages
  // Told when one of `workers` is lost, by its number and the incarnation that is meant; on any thread, and
  // must not block. It may still run.
  std::function<void(size_t number, uint64_t incarnation)> on_worker_lost;
  // Of other processes: one without a sign of life for so long is lost.
  absl::Duration worker_timeout = absl::InfiniteDuration();
  // The next three are of the worker in this process:
  std::optional<int> devices;  // CPU: virtual ones, 1 if not given; GPU: the first of the host, or all
  PluginChoice plugin;
  std::string python;                  // command whose jaxlib has JAX's custom calls; empty = none
  bool allow_remote_clients = false;   // admit peers that are not on this host
  std::vector<std::string> xla_flags;  // "--xla_...=..."; of two for one option the later counts
  std::string scratch_location;        // where compiled programs persist; empty = in memory only
  int compile_cache_days = 0;          // how long they are kept there; 0 = for ever
  std::map<std::string, std::string> environment;  // how to reach it
  std::string large_transfer_directory;            // shared-directory transfers; empty = refused
};

// Does not wait for a cluster: it serves, and refuses sessions with UNAVAILABLE as long as its workers are
// not there.
class EmbeddedServer {
 public:
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Start(const EmbeddedServerOptions& options);
  virtual ~EmbeddedServer() = default;  // shuts down
  virtual int port() const = 0;
  // One of `workers` that was lost has started again. Blocks until it is connected. UNAVAILABLE, DATA_LOSS:
  // it is not there. FAILED_PRECONDITION: it is not what it was.
  virtual absl::Status ReturnWorker(size_t number, const RemoteWorkerAddress& address) = 0;
  virtual void Shutdown() = 0;  // ends sessions, idempotent
};

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_EMBEDDED_SERVER_H_
