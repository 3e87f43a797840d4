#include "helmway/net/launch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace helmway::net {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A session that has launches with these places, one after the other.
class Session final : public LaunchOrder::Waiter {
 public:
  Session(LaunchOrder* order, std::vector<uint64_t>* taken) : order_(order), taken_(taken) {}

  void Come(std::vector<uint64_t> places) {
    const bool waits = !left_.empty();
    left_.insert(left_.end(), places.begin(), places.end());
    if (!waits) OnTurn();
  }
  void OnTurn() override {
    while (!left_.empty()) {
      const uint64_t place = left_.front();
      if (!order_->IsTurnOf(place)) {
        if (order_->IsOver(place)) {
          over = true;
          left_.clear();
        } else {
          EXPECT_TRUE(order_->Wait(place, this));
        }
        return;
      }
      left_.erase(left_.begin());
      taken_->push_back(place);
      order_->Take();
    }
  }
  void OnOrderEnd(const absl::Status& status) override { ended = status; }

  bool over = false;  // had a place that was skipped
  absl::Status ended;

 private:
  LaunchOrder* const order_;
  std::vector<uint64_t>* const taken_;
  std::vector<uint64_t> left_;
};

class LaunchOrderTest : public ::testing::Test {
 protected:
  LaunchOrder order_;
  std::vector<uint64_t> taken_;
  Session a_{&order_, &taken_}, b_{&order_, &taken_}, c_{&order_, &taken_};
};

TEST_F(LaunchOrderTest, WhatComesInOrderIsTakenAtOnce) {
  a_.Come({1, 2});
  b_.Come({3});
  EXPECT_THAT(taken_, ElementsAre(1, 2, 3));
}

TEST_F(LaunchOrderTest, WhatComesEarlyWaitsForThoseBeforeIt) {
  b_.Come({2, 4, 6});
  c_.Come({5});
  EXPECT_THAT(taken_, IsEmpty());
  a_.Come({1, 3});
  EXPECT_THAT(taken_, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(LaunchOrderTest, NobodyWaitsForPlacesOfSessionsThatHaveEnded) {
  b_.Come({3, 6});
  c_.Come({5});
  order_.Skip(4);
  order_.Skip(1);
  EXPECT_THAT(taken_, IsEmpty());
  order_.Skip(2);
  EXPECT_THAT(taken_, ElementsAre(3, 5, 6));
  order_.Skip(5);  // it had come
  a_.Come({7});
  EXPECT_THAT(taken_, ElementsAre(3, 5, 6, 7));
}

TEST_F(LaunchOrderTest, ALaunchThatComesAfterItsPlaceWasSkippedIsNotTaken) {
  order_.Skip(1);
  order_.Skip(3);
  a_.Come({1});
  b_.Come({3});
  EXPECT_TRUE(a_.over);
  EXPECT_TRUE(b_.over);
  c_.Come({2, 4});
  EXPECT_THAT(taken_, ElementsAre(2, 4));
}

TEST_F(LaunchOrderTest, AWaiterMayLeave) {
  b_.Come({2});
  order_.StopWaiting(2, &a_);  // does not wait
  order_.StopWaiting(2, &b_);
  order_.Skip(2);
  a_.Come({1, 3});
  EXPECT_THAT(taken_, ElementsAre(1, 3));
}

TEST_F(LaunchOrderTest, TheEndOfTheProxyIsToldToAll) {
  b_.Come({2});
  c_.Come({3});
  EXPECT_FALSE(order_.Wait(2, &a_));
  order_.End(absl::UnavailableError("gone"));
  EXPECT_EQ(b_.ended, absl::UnavailableError("gone"));
  EXPECT_EQ(c_.ended, absl::UnavailableError("gone"));
  EXPECT_FALSE(order_.Wait(7, &a_));
}

}  // namespace
}  // namespace helmway::net
