#include "helmway/async/growing_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "helmway/base/mutex.h"

namespace helmway::async {
namespace {

// Lets a number of tasks wait for each other.
class Barrier {
 public:
  explicit Barrier(int count) : missing_(count) {}
  void Arrive() {
    base::MutexLock lock(&mu_);
    --missing_;
    auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return missing_ <= 0; };
    mu_.Await(absl::Condition(&all));
  }

 private:
  base::Mutex mu_;
  int missing_ ABSL_GUARDED_BY(mu_);
};

TEST(GrowingPool, TasksMayWaitForEachOther) {
  constexpr int kTasks = 50;
  Barrier barrier(kTasks);
  std::atomic<int> passed{0};
  {
    GrowingPool pool({.name = "grow", .max_idle = 2});
    for (int i = 0; i < kTasks; ++i) {
      pool.Run([&] {
        barrier.Arrive();
        ++passed;
      });
    }
  }
  EXPECT_EQ(passed, kTasks);
}

TEST(GrowingPool, BeyondItsLimitTasksWaitTheirTurn) {
  base::Notification go;
  std::atomic<int> done{0};
  std::atomic<int> most{0}, now{0};
  {
    GrowingPool pool({.name = "limit", .max_threads = 3});
    for (int i = 0; i < 20; ++i) {
      pool.Run([&] {
        const int running = ++now;
        for (int seen = most; seen < running && !most.compare_exchange_weak(seen, running);) {
        }
        go.WaitForNotification();
        --now;
        ++done;
      });
    }
    EXPECT_EQ(pool.threads(), 3u);
    go.Notify();
  }
  EXPECT_EQ(done, 20);
  EXPECT_LE(most, 3);
}

TEST(GrowingPool, ThreadsBeyondTheIdleOnesEnd) {
  GrowingPool pool({.name = "shrink", .max_idle = 1});
  Barrier together(9);
  for (int i = 0; i < 8; ++i) pool.Run([&] { together.Arrive(); });
  EXPECT_EQ(pool.threads(), 8u);
  together.Arrive();
  while (pool.threads() > 1) std::this_thread::yield();
}

TEST(GrowingPool, ATaskMayPostAnother) {
  std::atomic<int> ran{0};
  {
    GrowingPool pool({.name = "nest", .max_threads = 2});
    pool.Run([&] {
      ++ran;
      pool.Run([&] { ++ran; });
    });
  }
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace helmway::async
