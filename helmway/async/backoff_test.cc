#include "helmway/async/backoff.h"

#include <gtest/gtest.h>

namespace helmway::async {
namespace {

TEST(BackoffTest, GrowsToTheLongestAndStartsAgain) {
  Backoff backoff(
      {.first = absl::Milliseconds(100), .longest = absl::Milliseconds(300), .factor = 2, .jitter = 0}, 1);
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(100));
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(200));
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(300));
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(300));
  backoff.Reset();
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(100));
}

TEST(BackoffTest, JitterStaysInItsPartAndFollowsTheSeed) {
  const Backoff::Options options = {
      .first = absl::Seconds(1), .longest = absl::Seconds(1), .factor = 1, .jitter = 0.2};
  Backoff a(options, 7);
  Backoff b(options, 7);
  Backoff c(options, 8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const absl::Duration wait = a.Next();
    EXPECT_GE(wait, absl::Milliseconds(800));
    EXPECT_LE(wait, absl::Milliseconds(1200));
    EXPECT_EQ(wait, b.Next());
    differs = differs || wait != c.Next();
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace helmway::async
