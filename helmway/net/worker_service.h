#ifndef HELMWAY_NET_WORKER_SERVICE_H_
#define HELMWAY_NET_WORKER_SERVICE_H_

#include <cstdint>
#include <memory>

#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/message_stream.h"

namespace helmway::net {

struct WorkerServiceOptions {
  // One life of this worker, random. A proxy that means another is refused.
  uint64_t incarnation = 0;
  std::shared_ptr<base::HostMemoryPool> host_memory;
};

// Serves a worker to proxies in other processes (cluster/worker.proto): what comes on the streams of a
// session becomes calls of its SessionLink. A session ends with its stream of commands. `worker` must outlive
// the server.
//
// What does not parse, or breaks the rules of the streams, ends the session with INVALID_ARGUMENT; nothing
// ends the process.
std::unique_ptr<MessageStreamService> MakeWorkerService(cluster::WorkerLink* worker,
                                                        WorkerServiceOptions options);

}  // namespace helmway::net

#endif  // HELMWAY_NET_WORKER_SERVICE_H_
