#include "helmway/base/local_addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace helmway::base {
namespace {

TEST(IsLocalPeer, Loopback) {
  for (const char* peer :
       {"ipv4:127.0.0.1:4711", "ipv4:127.3.2.1:1", "ipv6:[::1]:4711", "ipv6:%5B::1%5D:4711",
        "ipv6:[::ffff:127.0.0.1]:80", "unix:/tmp/socket", "unix:"}) {
    EXPECT_TRUE(IsLocalPeer(peer)) << peer;
  }
}

TEST(IsLocalPeer, OthersAndNonsense) {
  // 192.0.2.0/24 and 2001:db8::/32 are reserved for documentation, so no interface has them.
  for (const char* peer : {"ipv4:192.0.2.1:80", "ipv6:[2001:db8::1]:80", "ipv6:[::ffff:192.0.2.1]:80", "",
                           "ipv4:", "ipv4:nonsense:1", "127.0.0.1:80", "ipv4:127.0.0.1"}) {
    EXPECT_FALSE(IsLocalPeer(peer)) << peer;
  }
}

TEST(HostOfPeer, IsWrittenAsBeforeAPort) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:[2001:db8::1]:80"), "[2001:db8::1]");
  EXPECT_EQ(HostOfPeer("ipv6:%5B2001:db8::1%5D:80"), "[2001:db8::1]");
  EXPECT_EQ(HostOfPeer("ipv6:[::ffff:192.0.2.1]:80"), "192.0.2.1");
  EXPECT_EQ(HostOfPeer("unix:/tmp/socket"), "localhost");
  for (const char* peer : {"", "ipv4:", "ipv4:nonsense:1", "127.0.0.1:80", "ipv4:127.0.0.1"}) {
    EXPECT_EQ(HostOfPeer(peer), "") << peer;
  }
}

TEST(SocketAddressOfPeer, IsAnotherPortOfTheSameHost) {
  sockaddr_storage address;
  char text[INET6_ADDRSTRLEN];
  ASSERT_EQ(SocketAddressOfPeer("ipv4:10.0.0.1:4711", 80, &address), sizeof(sockaddr_in));
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  EXPECT_EQ(v4->sin_family, AF_INET);
  EXPECT_EQ(ntohs(v4->sin_port), 80);
  EXPECT_EQ(std::string(inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text))), "10.0.0.1");
  for (const char* peer :
       {"ipv6:[2001:db8::1]:4711", "ipv6:%5B2001:db8::1%5D:4711", "ipv6:[2001:db8::1%lo]:1"}) {
    ASSERT_EQ(SocketAddressOfPeer(peer, 80, &address), sizeof(sockaddr_in6)) << peer;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    EXPECT_EQ(v6->sin6_family, AF_INET6);
    EXPECT_EQ(ntohs(v6->sin6_port), 80);
    EXPECT_EQ(std::string(inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text))), "2001:db8::1");
  }
  for (const char* peer : {"", "unix:/tmp/socket", "ipv4:nonsense:1", "10.0.0.1:80"}) {
    EXPECT_EQ(SocketAddressOfPeer(peer, 80, &address), 0U) << peer;
  }
}

TEST(IsLoopbackHost, TellsLoopbackFromOthers) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "[::1]", "localhost"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "[2001:db8::1]", "", "head"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace helmway::base
