#include "helmway/base/local_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

// "10.0.0.1", "::1", "fe80::1%eth0"; empty for what is no name of a peer with an address.
std::string AddressText(absl::string_view grpc_peer) {
  std::string peer = absl::StrReplaceAll(grpc_peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  absl::string_view rest = peer;
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return "";
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return "";
  rest = rest.substr(0, colon);
  if (absl::ConsumePrefix(&rest, "[")) absl::ConsumeSuffix(&rest, "]");
  return std::string(rest);
}

std::optional<Address> ParseWithoutZone(absl::string_view text) {
  return ParseAddress(std::string(text.substr(0, text.find('%'))));  // a zone such as %eth0
}

bool IsLoopback(const Address& address) {
  Address loopback6{};
  loopback6[15] = 1;
  if (address == loopback6) return true;
  in_addr loopback4;
  loopback4.s_addr = htonl(INADDR_LOOPBACK);
  const Address mapped_loopback = Mapped(loopback4);
  return std::memcmp(address.data(), mapped_loopback.data(), 13) == 0;  // 127.0.0.0/8
}

}  // namespace

std::string HostOfPeer(absl::string_view grpc_peer) {
  if (absl::StartsWith(grpc_peer, "unix:")) return "localhost";
  const std::string text = AddressText(grpc_peer);
  const std::optional<Address> address = ParseWithoutZone(text);
  if (!address) return "";
  const Address mapped = Mapped(in_addr{});
  if (std::memcmp(address->data(), mapped.data(), 12) != 0) return absl::StrCat("[", text, "]");
  return absl::StrCat((*address)[12], ".", (*address)[13], ".", (*address)[14], ".", (*address)[15]);
}

socklen_t SocketAddressOfPeer(absl::string_view grpc_peer, uint16_t port, sockaddr_storage* address) {
  const std::string text = AddressText(grpc_peer);
  *address = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(address);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    return sizeof(*v4);
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(address);
  const size_t zone = text.find('%');
  if (inet_pton(AF_INET6, text.substr(0, zone).c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    if (zone != std::string::npos) v6->sin6_scope_id = if_nametoindex(text.c_str() + zone + 1);
    return sizeof(*v6);
  }
  return 0;
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost") return true;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const std::optional<Address> address = ParseWithoutZone(host);
  return address && IsLoopback(*address);
}

bool IsLocalPeer(absl::string_view grpc_peer) {
  if (absl::StartsWith(grpc_peer, "unix:")) return true;
  const std::optional<Address> address = ParseWithoutZone(AddressText(grpc_peer));
  if (!address) return false;
  if (IsLoopback(*address)) return true;

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
