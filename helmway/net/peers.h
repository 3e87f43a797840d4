#ifndef HELMWAY_NET_PEERS_H_
#define HELMWAY_NET_PEERS_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/message_stream.h"

namespace helmway::net {

struct PeersOptions {
  std::string software;       // of this process, for messages
  cluster::PeerAddress self;  // where this worker takes what others send, so that they know who speaks
  // A peer that gives no sign of life for so long is lost.
  absl::Duration timeout = absl::InfiniteDuration();
  // Must outlive the sender.
  MessageStreamClient* streams = nullptr;
  std::shared_ptr<base::HostMemoryPool> host_memory;
  // What it may take for bytes that are shared with workers on this host; 0: they go over the streams.
  int64_t shared_memory_bytes = int64_t{256} << 20;
};

// Sends buffers and parts of collectives to other workers, over one stream to each that stays open until it
// breaks; a later buffer then opens another. Whoever shares in a launch with that worker is told. Large bytes
// for a worker on this host go through memory that both map (shared_memory.h) as long as there is some, and
// over the stream where it cannot be had or is full.
std::unique_ptr<cluster::PeerSender> MakePeerSender(PeersOptions options);

}  // namespace helmway::net

#endif  // HELMWAY_NET_PEERS_H_
