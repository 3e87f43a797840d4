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
};

// Sends buffers and parts of collectives to other workers, over one stream to each that stays open until it
// breaks; a later buffer then opens another. Whoever shares in a launch with that worker is told.
std::unique_ptr<cluster::PeerSender> MakePeerSender(PeersOptions options);

}  // namespace helmway::net

#endif  // HELMWAY_NET_PEERS_H_
