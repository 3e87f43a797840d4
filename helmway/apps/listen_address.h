#ifndef HELMWAY_APPS_LISTEN_ADDRESS_H_
#define HELMWAY_APPS_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace helmway::apps {

enum class ListenScope {
  kLoopback,      // 127.0.0.1
  kAllInterfaces  // [::], or 0.0.0.0 on a host without IPv6
};

// The address to listen on, as gRPC wants it ("[::]:29000"). Binds the port (0 to 65535) for a moment, since
// gRPC does not say why it can't listen: ALREADY_EXISTS if the port is in use, PERMISSION_DENIED if we may
// not have it; both name the port and `port_flag`.
absl::StatusOr<std::string> ChooseListenAddress(ListenScope scope, int port, const std::string& port_flag);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_LISTEN_ADDRESS_H_
