#include "helmway/async/outstanding.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace helmway::async {
namespace {

TEST(Outstanding, NothingIsNotWaitedFor) {
  Outstanding outstanding;
  outstanding.WaitForNone();
  {
    const Outstanding::Token none;
    const Outstanding::Token copy = none;  // NOLINT(performance-unnecessary-copy-initialization)
    outstanding.WaitForNone();
  }
}

TEST(Outstanding, CopiesCountAndWhatWasMovedFromDoesNot) {
  Outstanding outstanding;
  Outstanding::Token first = outstanding.Begin();
  Outstanding::Token copy = first;
  Outstanding::Token moved = std::move(first);
  copy = Outstanding::Token();
  bool last_dropped = false;
  std::thread other([&] {
    last_dropped = true;
    moved = Outstanding::Token();
  });
  outstanding.WaitForNone();
  EXPECT_TRUE(last_dropped);
  other.join();
}

TEST(Outstanding, MayGoWhenTheLastTokenIsDropped) {
  for (int round = 0; round < 100; ++round) {
    auto outstanding = std::make_unique<Outstanding>();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([token = outstanding->Begin()] {});
    outstanding->WaitForNone();
    outstanding.reset();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace helmway::async
