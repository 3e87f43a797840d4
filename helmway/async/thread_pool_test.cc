#include "helmway/async/thread_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "helmway/base/mutex.h"

namespace helmway::async {
namespace {

TEST(ThreadPool, OneThreadKeepsTheOrderAndDrainsAtTheEnd) {
  std::vector<int> seen;
  {
    ThreadPool pool({.name = "order", .threads = 1});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.Post([&seen, i] { seen.push_back(i); }));
  }
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(ThreadPool, RefusesOnceStopped) {
  int runs = 0;
  ThreadPool pool({.name = "stopped", .threads = 1});
  ASSERT_TRUE(pool.Post([&] { ++runs; }));
  pool.Stop();
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(pool.Post([&] { ++runs; }));
  pool.Stop();
  EXPECT_EQ(runs, 1);
}

TEST(ThreadPool, RefusesBeyondItsBound) {
  base::Notification started, go;
  ThreadPool pool({.name = "bound", .threads = 1, .max_queued = 2});
  ASSERT_TRUE(pool.Post([&] {
    started.Notify();
    go.WaitForNotification();
  }));
  started.WaitForNotification();
  EXPECT_TRUE(pool.Post([] {}));
  EXPECT_TRUE(pool.Post([] {}));
  EXPECT_FALSE(pool.Post([] {}));
  go.Notify();
}

TEST(ThreadPool, RunsWhatMustRunWhenItRefuses) {
  ThreadPool pool({.name = "test"});
  std::thread::id there;
  pool.PostOrRun([&there, alone = std::make_unique<int>(1)] { there = std::this_thread::get_id(); });
  pool.Stop();
  EXPECT_TRUE(there != std::thread::id());
  EXPECT_TRUE(there != std::this_thread::get_id());
  pool.PostOrRun([&there, alone = std::make_unique<int>(1)] { there = std::this_thread::get_id(); });
  EXPECT_TRUE(there == std::this_thread::get_id());
}

}  // namespace
}  // namespace helmway::async
