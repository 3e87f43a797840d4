#include "helmway/base/local_addresses.h"

#include <gtest/gtest.h>

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
