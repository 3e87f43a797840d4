#ifndef HELMWAY_CLUSTER_CHANNEL_H_
#define HELMWAY_CLUSTER_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace helmway::cluster {

// A channel between roles: plain text, connections of its own, no HTTP proxy, no limit on messages; names are
// looked up anew; a peer that vanished without a word is noticed within 20 seconds. Never fails; calls do.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_CHANNEL_H_
