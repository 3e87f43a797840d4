// Only in builds with ThreadSanitizer: that it still sees what it must, and only that.

#include "helmway/base/thread_sanitizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include "helmway/base/happens_before.h"
#include "helmway/base/mutex.h"

namespace helmway::base {
namespace {

constexpr int kReported = 66;  // TSan's exit code

class ThreadSanitizerTest : public ::testing::Test {
 protected:
  ThreadSanitizerTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Runs both, each on its thread, and ends the process, as TSan wants it to end.
  [[noreturn]] static void RunAndExit(const std::function<void()>& here, const std::function<void()>& there) {
    std::thread other(there);
    here();
    other.join();
    std::exit(0);
  }

  static inline int shared_ = 0;
};

TEST_F(ThreadSanitizerTest, SeesARace) {
  EXPECT_EXIT(RunAndExit([] { ++shared_; }, [] { ++shared_; }), testing::ExitedWithCode(kReported),
              "data race");
}

TEST_F(ThreadSanitizerTest, SeesThatOurLocksOrderThreads) {
  static Mutex mu;
  const auto increment = [] {
    MutexLock lock(&mu);
    ++shared_;
  };
  EXPECT_EXIT(RunAndExit(increment, increment), testing::ExitedWithCode(0), "");
}

TEST_F(ThreadSanitizerTest, SeesThatNotificationsOrderThreads) {
  static Notification changed;
  EXPECT_EXIT(RunAndExit(
                  [] {
                    ++shared_;
                    changed.Notify();
                  },
                  [] {
                    changed.WaitForNotification();
                    ++shared_;
                  }),
              testing::ExitedWithCode(0), "");
}

TEST_F(ThreadSanitizerTest, SeesLocksTakenInTwoOrders) {
  static Mutex a, b;
  const auto take = [](Mutex* first, Mutex* second) {
    MutexLock one(first);
    MutexLock two(second);
  };
  EXPECT_EXIT(
      {
        std::thread([&] { take(&a, &b); }).join();
        take(&b, &a);
        std::exit(0);
      },
      testing::ExitedWithCode(kReported), "lock-order-inversion");
}

TEST_F(ThreadSanitizerTest, IsToldOfAnOrderThatALibraryMakes) {
  static int token;
  static std::atomic<bool> passed = false;  // Relaxed: orders nothing.
  const auto first = [](bool tell) {
    ++shared_;
    if (tell) HappensBefore(&token);
    passed.store(true, std::memory_order_relaxed);
  };
  const auto second = [](bool tell) {
    while (!passed.load(std::memory_order_relaxed)) std::this_thread::yield();
    if (tell) HappensAfter(&token);
    ++shared_;
  };
  EXPECT_EXIT(RunAndExit([&] { first(true); }, [&] { second(true); }), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RunAndExit([&] { first(false); }, [&] { second(true); }), testing::ExitedWithCode(kReported),
              "data race");
}

TEST_F(ThreadSanitizerTest, LooksAtOurCodeOnly) {
  const auto foreign = [] {
    ForeignCode outer;
    ForeignCode inner;
    ++shared_;
  };
  const auto called_back = [] {
    ForeignCode outer;
    ForeignCode inner;
    OwnCode own;
    ++shared_;
  };
  const auto returned = [] {
    {
      ForeignCode outer;
      OwnCode own;
    }
    ++shared_;
  };
  const auto increment = [] { ++shared_; };
  EXPECT_EXIT(RunAndExit(increment, foreign), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RunAndExit(increment, called_back), testing::ExitedWithCode(kReported), "data race");
  EXPECT_EXIT(RunAndExit(increment, returned), testing::ExitedWithCode(kReported), "data race");
}

}  // namespace
}  // namespace helmway::base
