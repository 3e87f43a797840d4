#include "helmway/storage/retry.h"

#include <gtest/gtest.h>

#include "helmway/storage/http_testing.h"

namespace helmway::storage {
namespace {

constexpr RetryPolicy kPolicy = {};

TEST(RetryTest, WaitsTwiceAsLongEachTimeUpToALimit) {
  RetryPolicy policy;
  policy.max_attempts = 100;
  policy.budget = absl::Hours(1);
  EXPECT_EQ(NextDelay(policy, 1, absl::ZeroDuration(), std::nullopt, 0), absl::Milliseconds(100));
  EXPECT_EQ(NextDelay(policy, 2, absl::ZeroDuration(), std::nullopt, 0), absl::Milliseconds(200));
  EXPECT_EQ(NextDelay(policy, 3, absl::ZeroDuration(), std::nullopt, 0), absl::Milliseconds(400));
  EXPECT_EQ(NextDelay(policy, 3, absl::ZeroDuration(), std::nullopt, 0.5), absl::Milliseconds(600));
  EXPECT_EQ(NextDelay(policy, 90, absl::ZeroDuration(), std::nullopt, 0), absl::Seconds(5));
}

TEST(RetryTest, GivesUpAfterTheLastAttemptOrWhenTheBudgetIsSpent) {
  EXPECT_FALSE(NextDelay(kPolicy, 6, absl::ZeroDuration(), std::nullopt, 0));
  EXPECT_TRUE(NextDelay(kPolicy, 5, absl::Seconds(50), std::nullopt, 0));
  EXPECT_FALSE(NextDelay(kPolicy, 5, absl::Seconds(59), std::nullopt, 0));
}

TEST(RetryTest, HonoursWhatTheServerAsksForWithinTheBudget) {
  EXPECT_EQ(NextDelay(kPolicy, 1, absl::ZeroDuration(), absl::Seconds(7), 0), absl::Seconds(7));
  EXPECT_EQ(NextDelay(kPolicy, 1, absl::ZeroDuration(), absl::Nanoseconds(1), 0), absl::Milliseconds(100));
  EXPECT_FALSE(NextDelay(kPolicy, 1, absl::ZeroDuration(), absl::Seconds(60), 0));
}

TEST(RetryTest, AnAttemptMayNotOutliveTheBudget) {
  EXPECT_EQ(AttemptTimeout(kPolicy, absl::ZeroDuration()), absl::Seconds(30));
  EXPECT_EQ(AttemptTimeout(kPolicy, absl::Seconds(55)), absl::Seconds(5));
  EXPECT_EQ(AttemptTimeout(kPolicy, absl::Seconds(61)), absl::ZeroDuration());
}

TEST(RetryTest, RepeatsTransientErrorsOnly) {
  for (const auto& [status, calls] :
       std::vector<std::pair<absl::Status, int>>{{absl::UnavailableError(""), 6},
                                                 {absl::DeadlineExceededError(""), 6},
                                                 {absl::AbortedError(""), 6},
                                                 {absl::DataLossError(""), 6},
                                                 {absl::NotFoundError(""), 1},
                                                 {absl::PermissionDeniedError(""), 1},
                                                 {absl::OkStatus(), 1}}) {
    FakeTime time;
    int made = 0;
    EXPECT_EQ(WithRetries(kPolicy, time.timing(),
                          [&, status = status](int number, absl::Duration) {
                            EXPECT_EQ(number, ++made);
                            return AttemptResult{status, std::nullopt};
                          }),
              status);
    EXPECT_EQ(made, calls) << status;
    EXPECT_EQ(time.sleeps.size(), static_cast<size_t>(calls - 1));
  }
}

TEST(RetryTest, StopsAtTheFirstSuccess) {
  FakeTime time;
  EXPECT_TRUE(
      WithRetries(kPolicy, time.timing(), [](int number, absl::Duration) {
        return AttemptResult{number < 3 ? absl::UnavailableError("") : absl::OkStatus(), std::nullopt};
      }).ok());
  EXPECT_EQ(time.sleeps.size(), 2U);
}

}  // namespace
}  // namespace helmway::storage
