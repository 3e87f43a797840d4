#include "helmway/async/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "helmway/base/clock.h"

namespace helmway::async {
namespace {

using ::testing::ElementsAre;

TEST(EventLoopTest, RunsTasksInOrderOnOneThread) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  base::Notification done;
  EventLoop loop("test", [] {});
  loop.Post([&] {
    for (int i = 0; i < 3; ++i) {
      loop.Post([&, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
        if (i == 2) done.Notify();
      });
    }
  });
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_NE(threads[0], std::this_thread::get_id());
  EXPECT_THAT(threads, ElementsAre(threads[0], threads[0], threads[0]));
}

TEST(EventLoopTest, ADeadlineComesOnce) {
  int calls = 0;
  base::Notification second;
  EventLoop* self = nullptr;
  EventLoop loop("test", [&] {
    if (++calls == 2) {
      second.Notify();
    } else {
      self->SetDeadline(base::SteadyNow() + absl::Milliseconds(1));
    }
  });
  self = &loop;
  loop.SetDeadline(base::SteadyNow());
  second.WaitForNotification();
  base::Notification later;
  loop.Post([&] { later.Notify(); });
  later.WaitForNotification();
  EXPECT_EQ(calls, 2);
}

TEST(EventLoopTest, AnEarlierDeadlineReplacesALaterOne) {
  base::Notification due;
  EventLoop loop("test", [&] { due.Notify(); });
  loop.SetDeadline(base::SteadyNow() + absl::Hours(1));
  base::Notification waits;
  loop.Post([&] { waits.Notify(); });
  waits.WaitForNotification();
  loop.SetDeadline(base::SteadyNow());
  due.WaitForNotification();
}

TEST(EventLoopTest, ADeadlineThatWasTakenOffDoesNotCome) {
  int calls = 0;
  {
    EventLoop loop("test", [&] { ++calls; });
    base::Notification set;
    loop.Post([&] {
      loop.SetDeadline(base::SteadyNow());
      loop.SetDeadline(absl::InfiniteFuture());
      set.Notify();
    });
    set.WaitForNotification();
    base::Notification later;
    loop.Post([&] { later.Notify(); });
    later.WaitForNotification();
  }
  EXPECT_EQ(calls, 0);
}

TEST(EventLoopTest, EndsAfterTheRunningTaskAndDropsTheOthers) {
  bool finished = false;
  bool ran = false;
  base::Notification inside;
  {
    EventLoop loop("test", [] {});
    loop.SetDeadline(base::SteadyNow() + absl::Hours(1));
    loop.Post([&] {
      inside.Notify();
      loop.Post([&] { ran = true; });
      // What is posted here is dropped once the loop ends; until then this task holds it up.
      const auto token = std::make_shared<int>();
      for (long kept = 0; kept < token.use_count(); std::this_thread::yield()) {
        kept = token.use_count();
        loop.Post([token] {});
      }
      finished = true;
    });
    inside.WaitForNotification();
  }
  EXPECT_TRUE(finished);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace helmway::async
