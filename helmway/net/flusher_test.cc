#include "helmway/net/flusher.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/time/clock.h"
#include "helmway/base/mutex.h"

namespace helmway::net {
namespace {

class Sender final : public Flusher::Sender {
 public:
  void Flush() override {
    base::MutexLock lock(&mu_);
    ++times_;
  }
  void WaitFor(int times) {
    auto so_often = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return times_ >= times; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&so_often));
    EXPECT_EQ(times_, times);
  }

 private:
  base::Mutex mu_;
  int times_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(Flusher, EachAddIsFollowedByAFlush) {
  auto one = std::make_shared<Sender>();
  auto other = std::make_shared<Sender>();
  Flusher flusher(absl::Milliseconds(1));
  flusher.Add(one);
  flusher.Add(other);
  one->WaitFor(1);
  other->WaitFor(1);
  flusher.Add(one);
  one->WaitFor(2);
}

TEST(Flusher, ItsEndDoesNotWaitForWhatIsDue) {
  auto sender = std::make_shared<Sender>();
  const std::weak_ptr<Sender> kept = sender;
  {
    Flusher flusher(absl::Hours(1));
    flusher.Add(std::move(sender));
  }
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace helmway::net
