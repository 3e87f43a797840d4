#include "helmway/net/launch_order.h"

#include <utility>

namespace helmway::net {

void LaunchOrder::Take() {
  ++next_;
  Advance();
}

void LaunchOrder::Skip(uint64_t place) {
  if (place < next_) return;
  skipped_.insert(place);
  Advance();
}

void LaunchOrder::Advance() {
  while (skipped_.erase(next_) > 0) ++next_;
  // One loop for all, however many go on one after the other.
  if (std::exchange(advancing_, true)) return;
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first <= next_; it = waiting_.begin()) {
    Waiter* const waiter = it->second;
    waiting_.erase(it);
    waiter->OnTurn();
  }
  advancing_ = false;
}

bool LaunchOrder::Wait(uint64_t place, Waiter* waiter) {
  return !ended_ && waiting_.emplace(place, waiter).second;
}

void LaunchOrder::StopWaiting(uint64_t place, const Waiter* waiter) {
  const auto it = waiting_.find(place);
  if (it != waiting_.end() && it->second == waiter) waiting_.erase(it);
}

void LaunchOrder::End(const absl::Status& status) {
  ended_ = true;
  while (!waiting_.empty()) {
    Waiter* const waiter = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    waiter->OnOrderEnd(status);
  }
}

}  // namespace helmway::net
