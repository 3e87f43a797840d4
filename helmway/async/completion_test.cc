#include "helmway/async/completion.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace helmway::async {
namespace {

TEST(Completion, ContinuationsRunOnceBeforeAndAfter) {
  CompletionRef c = base::MakeRef<Completion>();
  int before = 0, after = 0;
  c->OnDone([&](const absl::Status& s) { before += s.ok() ? 1 : 100; });
  EXPECT_FALSE(c->done());
  EXPECT_TRUE(c->Finish(absl::OkStatus()));
  c->OnDone([&](const absl::Status& s) { after += s.ok() ? 1 : 100; });
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
}

TEST(Completion, FirstOutcomeIsSticky) {
  CompletionRef c = base::MakeRef<Completion>();
  EXPECT_TRUE(c->Finish(absl::DataLossError("first")));
  EXPECT_FALSE(c->Finish(absl::InternalError("second")));
  EXPECT_EQ(c->Wait(), absl::DataLossError("first"));
}

TEST(Completion, MayBeDroppedByItsOwnContinuation) {
  CompletionRef c = base::MakeRef<Completion>();
  Completion* raw = c.get();
  absl::Status seen;
  c->OnDone([&](const absl::Status& s) {
    c.reset();
    seen = s;
  });
  raw->Finish(absl::AbortedError("x"));
  EXPECT_EQ(seen, absl::AbortedError("x"));
}

TEST(Completion, ManyThreadsSeeOneOutcome) {
  for (int round = 0; round < 200; ++round) {
    CompletionRef c = base::MakeRef<Completion>();
    std::atomic<int> runs{0}, wins{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        if (i % 2) {
          c->OnDone([&](const absl::Status&) { ++runs; });
          c->Wait();
        } else if (c->Finish(absl::OkStatus())) {
          ++wins;
        }
      });
    }
    for (auto& t : threads) t.join();
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(wins, 1);
  }
}

TEST(WhenAllDoneTest, RunsOnceAfterTheLast) {
  const CompletionRef first = base::MakeRef<Completion>();
  const CompletionRef second = base::MakeRef<Completion>();
  int runs = 0;
  WhenAllDone({first, DoneCompletion(), second}, [&] { ++runs; });
  second->Finish(absl::InternalError("failed"));
  EXPECT_EQ(runs, 0);
  first->Finish(absl::OkStatus());
  EXPECT_EQ(runs, 1);
}

TEST(WhenAllDoneTest, RunsInsideTheCallWhenNothingIsLeft) {
  int runs = 0;
  WhenAllDone({}, [&] { ++runs; });
  WhenAllDone({DoneCompletion(absl::InternalError("failed"))}, [&] { ++runs; });
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace helmway::async
