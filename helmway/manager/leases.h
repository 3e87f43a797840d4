#ifndef HELMWAY_MANAGER_LEASES_H_
#define HELMWAY_MANAGER_LEASES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace helmway::manager {

// Which proxy has which slices. A slice belongs to one proxy at a time.
//
// Requests are granted as a whole or not at all, in the order of asking: one that waits keeps as many free
// slices of its kind from later ones as it needs, so that it comes to its turn, and later ones may have what
// it cannot use. One thread.
class Leases {
 public:
  struct Request {
    std::string name;                         // of the proxy, for messages
    bool all = false;                         // every slice, and at least one of them ready
    std::vector<std::string> instance_types;  // else one ready slice for each
    int32_t may_be_missing = 0;               // so many of these need not be ready
    std::vector<int32_t> held;                // what it had before, in the order of the request
    uint64_t held_number = 0;                 // the number of that lease
  };
  struct State {
    bool granted = false;
    std::vector<int32_t> slices;  // if granted, in the order of the request
    std::string waits_for;        // else
    uint64_t number = 0;          // if granted; later ones are higher
  };

  // Leases are numbered from `first_number` on, or from the highest that a proxy comes back with: of two that
  // claim a slice the one with the later lease is right, whoever comes first.
  Leases(std::vector<std::string> slice_types, uint64_t first_number);

  // The proxy (its incarnation) wants slices. What it held is granted at once, ready or not, unless somebody
  // has it by a later lease. One that has a lease keeps it. FAILED_PRECONDITION if the cluster could not even
  // be enough when all of it were free.
  absl::Status Ask(uint64_t proxy, Request request);
  // Gives back what it has, forgets what it asked for. Unknown proxies are none.
  void End(uint64_t proxy);
  void SetReady(int32_t slice, bool ready);
  // While true nobody gets what he did not hold before.
  void SetOnHold(bool on_hold) { on_hold_ = on_hold; }

  // Grants what can be granted now. Returns the proxies whose state has changed since the last call.
  std::vector<uint64_t> Assign();
  // Null if it has asked for nothing.
  const State* state(uint64_t proxy) const;
  // 0: nobody.
  uint64_t holder(int32_t slice) const { return slices_.at(static_cast<size_t>(slice)).holder; }

 private:
  struct Slice {
    std::string type;
    bool ready = false;
    uint64_t holder = 0;
    uint64_t last_number = 0;  // of the last lease of it
  };
  struct Client {
    Request request;
    State state;
    bool changed = true;
  };

  bool CanHave(const Request& request, const std::vector<int32_t>& slices) const;
  bool Reclaim(uint64_t proxy, Client& client);
  void Grant(uint64_t proxy, Client& client, std::vector<int32_t> slices, uint64_t number);
  void Wait(Client& client, std::string reason);
  // Grants or claims what the request would take.
  void TryAll(uint64_t proxy, Client& client, std::vector<bool>& claimed);
  void TryTypes(uint64_t proxy, Client& client, std::vector<bool>& claimed);
  std::string NameOf(uint64_t proxy) const;

  std::vector<Slice> slices_;
  std::map<uint64_t, Client> clients_;
  std::deque<uint64_t> queue_;  // those that wait
  uint64_t next_number_;
  bool on_hold_ = false;
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_LEASES_H_
