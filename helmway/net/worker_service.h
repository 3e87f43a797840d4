#ifndef HELMWAY_NET_WORKER_SERVICE_H_
#define HELMWAY_NET_WORKER_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/message_stream.h"

namespace helmway::net {

// Takes what peers send. Any thread.
using ReceiveFromPeer = std::function<void(cluster::SessionId session, cluster::BufferId buffer,
                                           absl::StatusOr<cluster::HostContents> contents)>;

struct WorkerServiceOptions {
  // One life of this worker, random. A proxy that means another is refused.
  uint64_t incarnation = 0;
  std::shared_ptr<base::HostMemoryPool> host_memory;
  std::string peer_address;           // where other workers reach this one; empty: they don't
  ReceiveFromPeer receive_from_peer;  // not called if there is no address
  std::weak_ptr<cluster::CollectiveReceiver> collectives;
};

// Serves a worker to proxies in other processes (cluster/worker.proto): what comes on the streams of a
// session becomes calls of its SessionLink. A session ends with its stream of commands. `worker` must outlive
// the server.
//
// What does not parse, or breaks the rules of the streams, ends the session with INVALID_ARGUMENT; nothing
// ends the process.
std::unique_ptr<MessageStreamService> MakeWorkerService(cluster::WorkerLink* worker,
                                                        WorkerServiceOptions options);

// The same for a worker that is made only when the server listens already.
struct LateWorkerService {
  std::unique_ptr<MessageStreamService> service;
  // To be called once, on any thread. Streams that come before are refused with UNAVAILABLE.
  std::function<void(cluster::WorkerLink* worker, WorkerServiceOptions options)> bind;
};
LateWorkerService MakeLateWorkerService();

}  // namespace helmway::net

#endif  // HELMWAY_NET_WORKER_SERVICE_H_
