#ifndef HELMWAY_NET_LAUNCH_ORDER_H_
#define HELMWAY_NET_LAUNCH_ORDER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>

#include "absl/status/status.h"

namespace helmway::net {

// The order in which a worker takes the launches of one proxy (cluster::Launch::place), which come on a
// stream for each session and so at different times. A launch that comes too early waits, and the rest of its
// session with it, until those before it have come, or are known never to come. One thread.
class LaunchOrder {
 public:
  // Whose next command is a launch that must wait.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // It is the launch's turn. May call back into the order.
    virtual void OnTurn() = 0;
    // There will be none.
    virtual void OnOrderEnd(const absl::Status& status) = 0;
  };

  bool IsTurnOf(uint64_t place) const { return place == next_; }
  // Taken, or skipped.
  bool IsOver(uint64_t place) const { return place < next_ || skipped_.count(place) > 0; }

  // The launch whose turn it is has been taken. Calls those that can go on.
  void Take();
  // No launch will come with this place. Calls those that can go on.
  void Skip(uint64_t place);

  // False, and nothing is done, if another waits with this place, or all has ended.
  bool Wait(uint64_t place, Waiter* waiter);
  // Waits no more. Does nothing if it did not.
  void StopWaiting(uint64_t place, const Waiter* waiter);

  // The proxy is gone.
  void End(const absl::Status& status);

 private:
  void Advance();

  uint64_t next_ = 1;
  std::set<uint64_t> skipped_;  // from next_ on
  std::map<uint64_t, Waiter*> waiting_;
  bool advancing_ = false;
  bool ended_ = false;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_LAUNCH_ORDER_H_
