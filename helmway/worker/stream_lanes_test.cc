#include "helmway/worker/stream_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;

TEST(StreamLanesTest, OneStreamIsInOrder) {
  std::vector<int> order;  // of the one lane
  {
    async::GrowingPool threads({.name = "test"});
    const auto lanes = std::make_shared<StreamLanes>(&threads, 8);
    for (int i = 0; i < 5; ++i) lanes->Push(3, [&order, i] { order.push_back(i); });
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

TEST(StreamLanesTest, OthersRunMeanwhileUpToTheLimit) {
  // Outlive the threads.
  base::Notification two, go;
  std::atomic<int> running{0}, most{0}, ran{0};
  {
    async::GrowingPool threads({.name = "test"});
    const auto lanes = std::make_shared<StreamLanes>(&threads, 2);
    for (int stream = 0; stream < 4; ++stream) {
      lanes->Push(stream, [&] {
        const int now = ++running;
        for (int before = most; now > before && !most.compare_exchange_weak(before, now);) {
        }
        if (now == 2 && !two.HasBeenNotified()) two.Notify();
        go.WaitForNotification();
        --running;
        ++ran;
      });
    }
    // Each waits for the end of both.
    two.WaitForNotification();
    go.Notify();
  }
  EXPECT_EQ(ran, 4);
  EXPECT_EQ(most, 2);
}

}  // namespace
}  // namespace helmway::worker
