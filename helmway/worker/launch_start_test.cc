// Launches with the plugin's own collectives start on all workers or on none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/worker/collectives.h"

namespace helmway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr cluster::SessionId kSession = 5;
constexpr cluster::LaunchId kLaunch = 7;

// What workers send each other. Kept back while it is held.
class Wires {
 public:
  void Attach(const std::string& address, std::weak_ptr<cluster::CollectiveReceiver> receiver) {
    receivers_[address] = std::move(receiver);
  }
  void Deliver(const std::string& to, std::function<void(cluster::CollectiveReceiver&)> message) {
    {
      base::MutexLock lock(&mu_);
      if (held_) {
        queue_.emplace_back(to, std::move(message));
        return;
      }
    }
    if (const auto receiver = receivers_.at(to).lock()) message(*receiver);
  }
  void Hold() {
    base::MutexLock lock(&mu_);
    held_ = true;
  }
  void Release() {
    std::vector<std::pair<std::string, std::function<void(cluster::CollectiveReceiver&)>>> queue;
    {
      base::MutexLock lock(&mu_);
      held_ = false;
      queue.swap(queue_);
    }
    for (auto& [to, message] : queue) Deliver(to, std::move(message));
  }
  // Waits until so many messages are kept back.
  void AwaitHeld(size_t count) {
    base::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return queue_.size() >= count; };
    mu_.Await(absl::Condition(&there));
  }

 private:
  base::Mutex mu_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::pair<std::string, std::function<void(cluster::CollectiveReceiver&)>>> queue_
      ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::weak_ptr<cluster::CollectiveReceiver>> receivers_;
};

class Sender final : public cluster::PeerSender {
 public:
  explicit Sender(Wires* wires) : wires_(wires) {}
  void SetReceiver(std::weak_ptr<cluster::CollectiveReceiver> /*receiver*/) override {}
  void Connect(const cluster::PeerAddress& /*to*/) override {}
  absl::StatusOr<base::HostBlock> Allocate(const cluster::PeerAddress& /*to*/, int64_t /*bytes*/) override {
    return absl::UnimplementedError("nothing large is sent");
  }
  void SendPart(const cluster::PeerAddress& to, cluster::CollectivePart part) override {
    wires_->Deliver(to.address, [part](cluster::CollectiveReceiver& receiver) { receiver.TakePart(part); });
  }
  void SendAbort(const cluster::PeerAddress& to, cluster::SessionId session, cluster::LaunchId launch,
                 const absl::Status& status) override {
    wires_->Deliver(to.address, [=](cluster::CollectiveReceiver& receiver) {
      receiver.TakeAbort(session, launch, status);
    });
  }
  void Send(const cluster::PeerAddress& /*to*/, cluster::SessionId /*session*/, cluster::BufferId /*result*/,
            absl::StatusOr<cluster::HostContents> /*contents*/) override {}

 private:
  Wires* const wires_;
};

// Three workers with two devices each; one launch of a program on all of them.
class LaunchStartTest : public ::testing::Test {
 protected:
  static constexpr size_t kWorkers = 3;

  explicit LaunchStartTest(absl::Duration start_after_end = absl::Hours(1)) : sender_(&wires_) {
    cluster::LoadProgram load;
    for (size_t w = 0; w < kWorkers; ++w) {
      const auto first = static_cast<int32_t>(2 * w);
      load.devices.insert(load.devices.end(), {first + 100, first + 101});
      load.workers.push_back({.address = Address(w), .positions = {first, first + 1}});
    }
    for (size_t w = 0; w < kWorkers; ++w) {
      engines_.push_back(std::make_shared<Collectives>(CollectivesOptions{
          .peers = &sender_, .wait_limit = absl::Hours(2), .start_after_end = start_after_end}));
      wires_.Attach(Address(w).address, engines_.back());
      load.self = static_cast<int32_t>(w);
      programs_.push_back(*CollectiveProgram::Create(load));
    }
  }
  ~LaunchStartTest() override {
    shares_.clear();
    for (const auto& engine : engines_) engine->Stop();
  }

  static cluster::PeerAddress Address(size_t w) { return {absl::StrCat("worker-", w), w + 1}; }
  void Begin(size_t w) { shares_[w] = engines_[w]->Begin(kSession, kLaunch, programs_[w], 2); }
  void BeginAll() {
    for (size_t w = 0; w < kWorkers; ++w) Begin(w);
  }
  std::future<absl::Status> Start(size_t w) {
    return std::async(std::launch::async, [this, w] { return shares_.at(w)->StartWithOthers(); });
  }

  Wires wires_;
  Sender sender_;
  std::vector<std::shared_ptr<Collectives>> engines_;
  std::vector<std::shared_ptr<CollectiveProgram>> programs_;
  std::map<size_t, std::unique_ptr<LaunchShare>> shares_;
};

TEST_F(LaunchStartTest, AllStart) {
  Begin(0);
  auto first = Start(0);
  // Its word may come before the launch.
  Begin(1);
  auto second = Start(1);
  auto second_again = Start(1);
  Begin(2);
  EXPECT_TRUE(Start(2).get().ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(second_again.get().ok());
  EXPECT_TRUE(Start(0).get().ok());
}

TEST_F(LaunchStartTest, OneThatCannotStartKeepsTheOthersFromIt) {
  BeginAll();
  auto first = Start(0);
  EXPECT_EQ(shares_[1]->Settle(absl::InternalError("an input has failed")).message(), "an input has failed");
  const absl::Status waited = first.get();
  EXPECT_EQ(waited.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(waited.message(), "an input has failed");
  EXPECT_EQ(Start(2).get().message(), "an input has failed");
  // And that is what it stays, whatever comes.
  EXPECT_EQ(Start(0).get().message(), "an input has failed");
}

TEST_F(LaunchStartTest, WhatAllHaveSaidHolds) {
  BeginAll();
  wires_.Hold();
  auto first = Start(0);
  auto second = Start(1);
  auto third = Start(2);
  wires_.AwaitHeld(6);
  // All have said it and nobody has heard it, when one fails by itself.
  for (size_t w = 0; w < kWorkers; ++w) engines_[w]->AbortSession(kSession, absl::CancelledError("closed"));
  wires_.Release();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(LaunchStartTest, ASessionThatEndsBeforeAllHaveSaidIt) {
  BeginAll();
  auto first = Start(0);
  auto second = Start(1);
  engines_[2]->AbortSession(kSession, absl::CancelledError("closed"));
  EXPECT_EQ(Start(2).get().code(), absl::StatusCode::kCancelled);
  for (auto* waits : {&first, &second}) {
    EXPECT_THAT(std::string(waits->get().message()), HasSubstr("it has ended the session"));
  }
}

class GivesUpAtOnceTest : public LaunchStartTest {
 protected:
  GivesUpAtOnceTest() : LaunchStartTest(absl::ZeroDuration()) {}
};

TEST_F(GivesUpAtOnceTest, ASessionThatEndsWhileOthersHaveNotHeardOfTheLaunch) {
  Begin(0);
  wires_.Hold();
  auto first = Start(0);
  wires_.AwaitHeld(2);
  engines_[0]->AbortSession(kSession, absl::CancelledError("closed"));
  EXPECT_EQ(first.get().code(), absl::StatusCode::kCancelled);
  wires_.Release();
  // Should the others hear of it after all, they know.
  Begin(1);
  EXPECT_THAT(std::string(Start(1).get().message()), HasSubstr("it has ended the session"));
}

TEST_F(LaunchStartTest, APeerThatIsLost) {
  BeginAll();
  auto first = Start(0);
  engines_[0]->PeerLost(Address(2), absl::UnavailableError("cut off"));
  const absl::Status lost = first.get();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(lost.message()), AllOf(HasSubstr("worker-2"), HasSubstr("cut off")));
  EXPECT_EQ(Start(1).get().code(), absl::StatusCode::kDataLoss);
}

TEST_F(LaunchStartTest, APeerThatDoesNotCome) {
  BeginAll();
  wires_.Hold();
  auto first = Start(0);
  wires_.AwaitHeld(2);
  wires_.Release();
  auto second = Start(1);
  engines_[0]->FailOverdue(absl::Now() + absl::Hours(1));
  engines_[0]->FailOverdue(absl::Now() + absl::Hours(3));
  const absl::Status overdue = first.get();
  EXPECT_EQ(overdue.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(overdue.message()),
      AllOf(HasSubstr("the start of launch 7"), HasSubstr("the devices 104, 105 of the worker at worker-2")));
  EXPECT_EQ(second.get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace helmway::worker
