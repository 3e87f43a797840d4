#include "helmway/manager/health_check.h"

#include <gtest/gtest.h>

namespace helmway::manager {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();
const absl::Status kNoAnswer = absl::DeadlineExceededError("no answer");

class HealthCheckTest : public ::testing::Test {
 protected:
  HealthSettings settings_ = {.initial_delay = absl::Seconds(7),
                              .period = absl::Seconds(3),
                              .timeout = absl::Seconds(5),
                              .failure_threshold = 3};
  HealthCheck check_{&settings_, 10, kStart};

  // Starts the probe that is due at `now` and answers it at once.
  void Probe(absl::Time now, const absl::Status& status) {
    ASSERT_TRUE(check_.Start(now));
    check_.OnAnswer(now, check_.probe(), status);
  }
};

TEST_F(HealthCheckTest, WaitsForTheInitialDelay) {
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(7));
  EXPECT_FALSE(check_.Start(kStart + absl::Seconds(6)));
  EXPECT_TRUE(check_.Start(kStart + absl::Seconds(7)));
  EXPECT_EQ(check_.probe(), 10u);
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kUnknown);
}

TEST_F(HealthCheckTest, OneProbeAtATimeAndOnePerPeriod) {
  ASSERT_TRUE(check_.Start(kStart + absl::Seconds(7)));
  EXPECT_EQ(check_.next(), absl::InfiniteFuture());
  EXPECT_FALSE(check_.Start(kStart + absl::Seconds(100)));
  check_.OnAnswer(kStart + absl::Seconds(8), 10, absl::OkStatus());
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(10));
  // An answer that comes later than the period is followed at once.
  ASSERT_TRUE(check_.Start(kStart + absl::Seconds(10)));
  check_.OnAnswer(kStart + absl::Seconds(15), 11, kNoAnswer);
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(15));
}

TEST_F(HealthCheckTest, LostAfterTheThresholdAndBackWithOneAnswer) {
  absl::Time now = kStart + absl::Seconds(7);
  Probe(now, absl::OkStatus());
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kHealthy);
  Probe(now += settings_.period, kNoAnswer);
  Probe(now += settings_.period, kNoAnswer);
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kHealthy);
  Probe(now += settings_.period, absl::OkStatus());
  Probe(now += settings_.period, kNoAnswer);
  Probe(now += settings_.period, kNoAnswer);
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kHealthy);
  Probe(now += settings_.period, kNoAnswer);
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kUnhealthy);
  EXPECT_EQ(check_.last_failure(), kNoAnswer);
  Probe(now += settings_.period, absl::OkStatus());
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kHealthy);
}

TEST_F(HealthCheckTest, AWorkerThatWasNeverReachedIsLostToo) {
  absl::Time now = kStart + absl::Seconds(7);
  for (int i = 0; i < 3; ++i, now += settings_.period) Probe(now, kNoAnswer);
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kUnhealthy);
}

TEST_F(HealthCheckTest, OtherAnswersAreIgnored) {
  check_.OnAnswer(kStart, 9, absl::OkStatus());
  ASSERT_TRUE(check_.Start(kStart + absl::Seconds(7)));
  check_.OnAnswer(kStart + absl::Seconds(7), 9, absl::OkStatus());
  EXPECT_EQ(check_.verdict(), HealthCheck::Verdict::kUnknown);
}

TEST_F(HealthCheckTest, ADoubtIsNotPutOff) {
  check_.ProbeSoon(kStart + absl::Seconds(1));
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(1));
  ASSERT_TRUE(check_.Start(kStart + absl::Seconds(1)));
  // The one that is under way may have been answered before the doubt came up.
  check_.ProbeSoon(kStart + absl::Seconds(2));
  EXPECT_EQ(check_.next(), absl::InfiniteFuture());
  check_.OnAnswer(kStart + absl::Seconds(2), check_.probe(), absl::OkStatus());
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(2));
  ASSERT_TRUE(check_.Start(kStart + absl::Seconds(2)));
  check_.OnAnswer(kStart + absl::Seconds(2), check_.probe(), absl::OkStatus());
  EXPECT_EQ(check_.next(), kStart + absl::Seconds(5));
}

}  // namespace
}  // namespace helmway::manager
