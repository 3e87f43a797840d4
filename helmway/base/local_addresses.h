#ifndef HELMWAY_BASE_LOCAL_ADDRESSES_H_
#define HELMWAY_BASE_LOCAL_ADDRESSES_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace helmway::base {

// True if a gRPC peer name ("ipv4:10.0.0.1:4711", "ipv6:[::1]:4711", percent-encoded brackets too,
// "unix:...") is this host: loopback, a unix socket, or an address of one of our interfaces right now. An
// IPv4 address inside IPv6 counts as the IPv4 address. Any thread; reads the interface list on each call.
bool IsLocalPeer(absl::string_view grpc_peer);

// The host of a gRPC peer name as it is written before ":port": "10.0.0.1", "[::1]" (an IPv4 address inside
// IPv6 as the IPv4 address), "localhost" for a unix socket; "" for what is no peer name. Any thread.
std::string HostOfPeer(absl::string_view grpc_peer);

// The address of another port of a gRPC peer's host, in `address`. Its size; 0 for what is no peer name with
// an address. Any thread.
socklen_t SocketAddressOfPeer(absl::string_view grpc_peer, uint16_t port, sockaddr_storage* address);

// True for what HostOfPeer says of a peer that came through the loopback interface or a unix socket.
bool IsLoopbackHost(absl::string_view host);

}  // namespace helmway::base

#endif  // HELMWAY_BASE_LOCAL_ADDRESSES_H_
