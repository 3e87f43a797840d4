#include "helmway/wire/versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace helmway::wire {
namespace {

using ::testing::HasSubstr;
using xla::ifrt::proxy::GrpcGetVersionRequest;
using xla::ifrt::proxy::IfrtProxyVersion;

IfrtProxyVersion Pair(int protocol, int serdes) {
  IfrtProxyVersion version;
  version.set_protocol_version(protocol);
  version.set_ifrt_serdes_version_number(serdes);
  return version;
}

GrpcGetVersionRequest Range(IfrtProxyVersion min, IfrtProxyVersion max) {
  GrpcGetVersionRequest request;
  *request.mutable_min_version() = min;
  *request.mutable_max_version() = max;
  return request;
}

TEST(ChooseVersionTest, EachJaxlibGetsTheHighestPairBothKnow) {
  struct Case {
    const char* jaxlib;
    int min_serdes, max_serdes, want_serdes;
  };
  for (const Case& c : {Case{"0.10.2", 0, 3, 3}, Case{"0.11.2", 0, 6, 6}, Case{"0.12.0.1", 2, 6, 6}}) {
    auto chosen = ChooseVersion(Range(Pair(16, c.min_serdes), Pair(25, c.max_serdes)));
    ASSERT_TRUE(chosen.ok()) << c.jaxlib << ": " << chosen.status();
    EXPECT_EQ(chosen->protocol_version(), 25) << c.jaxlib;
    EXPECT_EQ(chosen->ifrt_serdes_version_number(), c.want_serdes) << c.jaxlib;
  }
}

TEST(ChooseVersionTest, TheNumbersAreChosenApart) {
  auto chosen = ChooseVersion(Range(Pair(10, 3), Pair(18, 40)));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->protocol_version(), 18);
  EXPECT_EQ(chosen->ifrt_serdes_version_number(), 6);
}

TEST(ChooseVersionTest, ANewerClientThatStillKnowsOurMaximumIsServed) {
  auto chosen = ChooseVersion(Range(Pair(25, 6), Pair(99, 99)));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->protocol_version(), 25);
  EXPECT_EQ(chosen->ifrt_serdes_version_number(), 6);
}

TEST(ChooseVersionTest, RangesThatDoNotMeetAreRefusedWithTheWindow) {
  struct Case {
    IfrtProxyVersion min, max;
    const char* text;
  };
  const Case cases[] = {
      {Pair(26, 3), Pair(30, 6), "protocol version 26 to 30"},  // too new
      {Pair(1, 3), Pair(15, 6), "protocol version 1 to 15"},    // too old
      {Pair(16, 7), Pair(25, 9), "serdes version 7 to 9"},
      {Pair(16, 0), Pair(25, 2), "serdes version 0 to 2"},
      {Pair(20, 3), Pair(18, 6), "protocol version 20 to 18"},  // empty range
      {Pair(0, 0), Pair(0, 0), "protocol version 0 to 0"},      // absent
      {Pair(-5, 3), Pair(-1, 6), "protocol version -5 to -1"},
  };
  for (const Case& c : cases) {
    auto chosen = ChooseVersion(Range(c.min, c.max));
    ASSERT_FALSE(chosen.ok()) << c.text;
    EXPECT_EQ(chosen.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(chosen.status().message()), HasSubstr(c.text));
    EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("jaxlib 0.10.2 to 0.12.0.1"));
  }
  EXPECT_THAT(std::string(ChooseVersion(Range(Pair(26, 3), Pair(30, 6))).status().message()),
              HasSubstr("16 to 25"));
  EXPECT_THAT(std::string(ChooseVersion(Range(Pair(16, 7), Pair(25, 9))).status().message()),
              HasSubstr("3 to 6"));
}

TEST(ChooseVersionTest, TheAnswerIsInsideBothRangesOrAnError) {
  for (int min = 14; min <= 27; ++min) {
    for (int max = min; max <= 28; ++max) {
      auto chosen = ChooseVersion(Range(Pair(min, 3), Pair(max, 6)));
      const bool meet = max >= kMinProtocolVersion && min <= kMaxProtocolVersion;
      ASSERT_EQ(chosen.ok(), meet) << min << ".." << max;
      if (!meet) continue;
      EXPECT_GE(chosen->protocol_version(), min);
      EXPECT_LE(chosen->protocol_version(), max);
      EXPECT_GE(chosen->protocol_version(), kMinProtocolVersion);
      EXPECT_LE(chosen->protocol_version(), kMaxProtocolVersion);
    }
  }
}

TEST(CheckVersionTest, AcceptsOurRangesOnly) {
  EXPECT_TRUE(CheckVersion(Pair(16, 3)).ok());
  EXPECT_TRUE(CheckVersion(Pair(25, 6)).ok());
  for (const IfrtProxyVersion& bad : {Pair(15, 3), Pair(26, 6), Pair(25, 2), Pair(25, 7), Pair(0, 0)}) {
    EXPECT_EQ(CheckVersion(bad).code(), absl::StatusCode::kInvalidArgument) << bad.ShortDebugString();
  }
}

}  // namespace
}  // namespace helmway::wire
