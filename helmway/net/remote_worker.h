#ifndef HELMWAY_NET_REMOTE_WORKER_H_
#define HELMWAY_NET_REMOTE_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/message_stream.h"

namespace helmway::net {

struct RemoteWorkerOptions {
  std::string address;       // host:port
  std::string name;          // of the worker, for messages: "worker 1 of slice 0"
  uint64_t incarnation = 0;  // the one that is meant; 0: any
  // A worker that gives no sign of life for so long is lost.
  absl::Duration timeout = absl::InfiniteDuration();
  std::string software;  // of this process, for messages
  // Told once when the connection is lost, on any thread, maybe inside a call of the link; not when the link
  // goes first. Must not block.
  std::function<void(const absl::Status&)> on_lost;
  // Both must outlive the link and its sessions.
  MessageStreamClient* streams = nullptr;
  std::shared_ptr<base::HostMemoryPool> host_memory;
};

// The link to a worker in another process. When the connection is lost, everything that waits for the worker,
// and everything that is asked of its sessions afterwards, fails with DATA_LOSS, naming the worker; commands
// do nothing. Any thread.
//
// Connect blocks until the worker has described itself. UNAVAILABLE: it is not there. FAILED_PRECONDITION: it
// speaks another version, or is another incarnation.
absl::StatusOr<std::unique_ptr<cluster::WorkerLink>> ConnectToWorker(const RemoteWorkerOptions& options);
// To several at the same time, so that one that is slow to answer keeps no other waiting. In their order.
std::vector<absl::StatusOr<std::unique_ptr<cluster::WorkerLink>>> ConnectToWorkers(
    const std::vector<RemoteWorkerOptions>& workers);

}  // namespace helmway::net

#endif  // HELMWAY_NET_REMOTE_WORKER_H_
