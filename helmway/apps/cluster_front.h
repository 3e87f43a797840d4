// The proxy of a cluster: what stands between the network and the proxies that come and go with the
// cluster's workers.
#ifndef HELMWAY_APPS_CLUSTER_FRONT_H_
#define HELMWAY_APPS_CLUSTER_FRONT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "helmway/cluster/membership_client.h"
#include "helmway/net/callback_service.h"
#include "helmway/net/completion_thread.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/proxy.h"

namespace helmway::apps {

struct ClusterFrontOptions {
  net::CompletionThread* calls = nullptr;  // of its streams; outlives it
  std::string manager_address;             // host:port of the resource manager; need not resolve yet
  std::string name;                        // of this process, for the manager's messages
  cluster::LeaseRequest lease;
  // So many slices may be missing when a session begins. They are listed, and lost until they come.
  int64_t elastic_slices = 0;
  absl::Duration worker_timeout =
      absl::InfiniteDuration();  // a worker without a sign of life for so long is lost
  proxy::ProxyOptions proxy;
  // The options for programs that these workers take; asked once for each set of connections. May block.
  std::function<program::XlaOptions(cluster::WorkerLink& workers)> xla_options;
};

// Leases slices, for ever, and connects to their workers. As long as more of them are missing than may be,
// new sessions are refused with UNAVAILABLE and the reason; clients try again. On a worker that is lost a
// session's work fails with DATA_LOSS, on the others it goes on; one that comes back, or comes late, is taken
// into the sessions that are open. Sessions end when the lease is lost. Any thread.
class ClusterFront : public net::SessionManager, public net::CallbackStreamManager {
 public:
  // Starts at once; waits for nothing.
  static std::unique_ptr<ClusterFront> Start(const ClusterFrontOptions& options);
  // All streams have ended. Gives the lease back.
  ~ClusterFront() override = default;
};

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_CLUSTER_FRONT_H_
