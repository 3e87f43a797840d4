#include "helmway/base/local_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace helmway::base {
namespace {

using Address = std::array<uint8_t, 16>;

Address Mapped(const in_addr& v4) {
  Address address{};
  address[10] = address[11] = 0xff;
  std::memcpy(&address[12], &v4, 4);
  return address;
}

std::optional<Address> ParseAddress(const std::string& text) {
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return Mapped(v4);
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    Address address;
    std::memcpy(address.data(), &v6, 16);
    return address;
  }
  return std::nullopt;
}

}  // namespace

bool IsLocalPeer(absl::string_view grpc_peer) {
  if (absl::StartsWith(grpc_peer, "unix:")) return true;
  std::string peer = absl::StrReplaceAll(grpc_peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  absl::string_view rest = peer;
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return false;
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return false;
  rest = rest.substr(0, colon);
  if (absl::ConsumePrefix(&rest, "[")) absl::ConsumeSuffix(&rest, "]");
  rest = rest.substr(0, rest.find('%'));  // a zone such as %eth0
  const std::optional<Address> address = ParseAddress(std::string(rest));
  if (!address) return false;
  Address loopback6{};
  loopback6[15] = 1;
  if (*address == loopback6) return true;
  in_addr loopback4;
  loopback4.s_addr = htonl(INADDR_LOOPBACK);
  const Address mapped_loopback = Mapped(loopback4);
  if (std::memcmp(address->data(), mapped_loopback.data(), 13) == 0) return true;  // 127.0.0.0/8

  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool found = false;
  for (ifaddrs* i = interfaces; i != nullptr && !found; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (i->ifa_addr->sa_family == AF_INET) {
      found = Mapped(reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr) == *address;
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      found = std::memcmp(&reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr, address->data(), 16) == 0;
    }
  }
  freeifaddrs(interfaces);
  return found;
}

}  // namespace helmway::base
