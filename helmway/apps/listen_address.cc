#include "helmway/apps/listen_address.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace helmway::apps {
namespace {

// errno of binding a TCP socket there, 0 if that works.
int TryBind(const sockaddr* address, socklen_t size) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int yes = 1;
  const int no = 0;
  // As gRPC does, so that connections of a server that has just ended don't count.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  const int error = bind(fd, address, size) == 0 ? 0 : errno;
  close(fd);
  return error;
}

int TryBindV4(in_addr_t host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return TryBind(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int TryBindV6(int port) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  return TryBind(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

absl::StatusOr<std::string> ChooseListenAddress(ListenScope scope, int port, const std::string& port_flag) {
  std::string host;
  int error;
  if (scope == ListenScope::kLoopback) {
    host = "127.0.0.1";
    error = TryBindV4(INADDR_LOOPBACK, port);
  } else if (TryBindV6(0) == 0) {
    host = "[::]";
    error = TryBindV6(port);
  } else {
    host = "0.0.0.0";
    error = TryBindV4(INADDR_ANY, port);
  }
  switch (error) {
    case 0:
      return absl::StrCat(host, ":", port);
    case EADDRINUSE:
      return absl::AlreadyExistsError(
          absl::StrCat("port ", port,
                       " is already in use (another server on this host, or on this node with "
                       "hostNetwork); choose another with --",
                       port_flag));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat("port ", port,
                                                      " needs more rights than this process has; choose ",
                                                      "one from 1024 up with --", port_flag));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", host, ":", port));
  }
}

}  // namespace helmway::apps
