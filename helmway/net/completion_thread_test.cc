#include "helmway/net/completion_thread.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"

namespace helmway::net {
namespace {

// Runs a function on the thread, as the end of an operation.
class Operation {
 public:
  Operation(CompletionThread& thread, std::function<void()> over) : over_(std::move(over)) {
    alarm_.Set(thread.queue(), std::chrono::system_clock::now(), cluster::Arm(&tag_));
  }

 private:
  void OnOver(bool ok) {
    EXPECT_TRUE(ok);
    over_();
  }
  const std::function<void()> over_;
  cluster::Tag tag_ = cluster::MakeTag<&Operation::OnOver>(this);
  grpc::Alarm alarm_;
};

TEST(CompletionThread, TasksRunOnItWhenItIsIdle) {
  std::vector<std::string> order;
  base::Notification done;
  std::thread::id inside;
  CompletionThread thread;
  const Operation operation(thread, [&] {
    inside = std::this_thread::get_id();
    EXPECT_TRUE(thread.WhenIdle([&] {
      EXPECT_EQ(std::this_thread::get_id(), inside);
      order.push_back("task");
      EXPECT_TRUE(thread.WhenIdle([&] {
        order.push_back("task of a task");
        done.Notify();
      }));
    }));
    EXPECT_TRUE(thread.WhenIdle([&] { order.push_back("second task"); }));
    order.push_back("call");
  });
  done.WaitForNotification();
  EXPECT_EQ(order, (std::vector<std::string>{"call", "task", "second task", "task of a task"}));
  EXPECT_NE(inside, std::this_thread::get_id());
}

TEST(CompletionThread, OtherThreadsAreTurnedAway) {
  CompletionThread thread;
  EXPECT_FALSE(thread.WhenIdle([] { ADD_FAILURE(); }));
}

TEST(CompletionThread, CallsThatNeverEndDoNotKeepTasksWaiting) {
  CompletionThread thread;
  base::Notification done;
  bool has_run = false;
  int calls = 0;
  std::vector<std::unique_ptr<Operation>> operations;
  std::function<void()> go_on = [&] {
    if (has_run) return done.Notify();
    if (++calls == 1) {
      thread.WhenIdle([&] { has_run = true; });
    }
    operations.push_back(std::make_unique<Operation>(thread, go_on));
  };
  operations.push_back(std::make_unique<Operation>(thread, go_on));
  done.WaitForNotification();
}

TEST(CompletionThread, ItsEndLeavesNoTask) {
  bool has_run = false;
  {
    CompletionThread thread;
    base::Notification called;
    const Operation operation(thread, [&] {
      thread.WhenIdle([&] { has_run = true; });
      called.Notify();
    });
    called.WaitForNotification();
  }
  EXPECT_TRUE(has_run);
}

}  // namespace
}  // namespace helmway::net
