#include "helmway/manager/leases.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace helmway::manager {

Leases::Leases(std::vector<std::string> slice_types, uint64_t first_number) : next_number_(first_number) {
  for (std::string& type : slice_types) slices_.push_back({.type = std::move(type)});
}

absl::Status Leases::Ask(uint64_t proxy, Request request) {
  if (!request.all) {
    if (request.instance_types.empty()) return absl::FailedPreconditionError("a lease of no slices");
    std::map<std::string, std::pair<int, int>> counts;  // by type: asked for, there
    for (const std::string& type : request.instance_types) ++counts[type].first;
    for (const Slice& slice : slices_) ++counts[slice.type].second;
    for (const auto& [type, count] : counts) {
      if (count.first > count.second) {
        return absl::FailedPreconditionError(absl::StrCat(
            "--virtual_slices asks for ", count.first, " slice(s) of ", type, ", and the cluster has ",
            count.second, " of ", slices_.size(), "; change --instance_count or --instance_type"));
      }
    }
  }
  const auto known = clients_.find(proxy);
  if (known != clients_.end()) {
    const Request& before = known->second.request;
    if (before.all == request.all && before.instance_types == request.instance_types &&
        before.may_be_missing == request.may_be_missing) {
      return absl::OkStatus();
    }
    End(proxy);
  }
  Client& client = clients_[proxy];
  client.request = std::move(request);
  if (!Reclaim(proxy, client)) queue_.push_back(proxy);
  return absl::OkStatus();
}

// Gives the client what it held, if it is right in wanting it.
bool Leases::Reclaim(uint64_t proxy, Client& client) {
  const std::vector<int32_t>& held = client.request.held;
  const uint64_t number = client.request.held_number;
  if (held.empty() || !CanHave(client.request, held)) return false;
  next_number_ = std::max(next_number_, number + 1);
  std::set<uint64_t> earlier;
  for (const int32_t slice : held) {
    const Slice& wanted = slices_[static_cast<size_t>(slice)];
    if (wanted.last_number > number || (wanted.holder != 0 && wanted.last_number == number)) return false;
    if (wanted.holder != 0) earlier.insert(wanted.holder);
  }
  for (const uint64_t other : earlier) {
    Client& loser = clients_.at(other);
    for (const int32_t slice : loser.state.slices) slices_[static_cast<size_t>(slice)].holder = 0;
    loser.state = {};
    loser.changed = true;
    queue_.push_front(other);
  }
  Grant(proxy, client, held, number);
  return true;
}

void Leases::End(uint64_t proxy) {
  if (clients_.erase(proxy) == 0) return;
  for (Slice& slice : slices_) {
    if (slice.holder == proxy) slice.holder = 0;
  }
  queue_.erase(std::remove(queue_.begin(), queue_.end(), proxy), queue_.end());
}

void Leases::SetReady(int32_t slice, bool ready) { slices_.at(static_cast<size_t>(slice)).ready = ready; }

std::vector<uint64_t> Leases::Assign() {
  std::vector<bool> claimed;
  if (!queue_.empty()) {
    for (const Slice& slice : slices_) claimed.push_back(slice.holder != 0);
  }
  const std::deque<uint64_t> waiting = queue_;
  for (const uint64_t proxy : waiting) {
    Client& client = clients_.at(proxy);
    if (on_hold_) {
      Wait(client, "leases from before the resource manager's restart, which come first");
    } else if (client.request.all) {
      TryAll(proxy, client, claimed);
    } else {
      TryTypes(proxy, client, claimed);
    }
  }
  std::vector<uint64_t> changed;
  for (auto& [proxy, client] : clients_) {
    if (std::exchange(client.changed, false)) changed.push_back(proxy);
  }
  return changed;
}

const Leases::State* Leases::state(uint64_t proxy) const {
  const auto it = clients_.find(proxy);
  return it == clients_.end() ? nullptr : &it->second.state;
}

// Whether these slices, were they free, are what the request asks for.
bool Leases::CanHave(const Request& request, const std::vector<int32_t>& slices) const {
  std::set<int32_t> seen;
  for (const int32_t slice : slices) {
    if (slice < 0 || static_cast<size_t>(slice) >= slices_.size() || !seen.insert(slice).second) return false;
  }
  if (request.all) return slices.size() == slices_.size();
  if (slices.size() != request.instance_types.size()) return false;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices_[static_cast<size_t>(slices[i])].type != request.instance_types[i]) return false;
  }
  return true;
}

void Leases::Grant(uint64_t proxy, Client& client, std::vector<int32_t> slices, uint64_t number) {
  for (const int32_t slice : slices) {
    slices_[static_cast<size_t>(slice)].holder = proxy;
    slices_[static_cast<size_t>(slice)].last_number = number;
  }
  queue_.erase(std::remove(queue_.begin(), queue_.end(), proxy), queue_.end());
  client.state = {.granted = true, .slices = std::move(slices), .number = number};
  client.changed = true;
}

void Leases::Wait(Client& client, std::string reason) {
  if (client.state.waits_for == reason) return;
  client.state.waits_for = std::move(reason);
  client.changed = true;
}

void Leases::TryAll(uint64_t proxy, Client& client, std::vector<bool>& claimed) {
  std::set<std::string> holders;
  bool free = true;
  bool ready = false;
  std::vector<int32_t> all;
  for (size_t i = 0; i < slices_.size(); ++i) {
    all.push_back(static_cast<int32_t>(i));
    if (slices_[i].holder != 0) holders.insert(NameOf(slices_[i].holder));
    free = free && !claimed[i];
    ready = ready || slices_[i].ready;
    claimed[i] = true;
  }
  if (free && ready) {
    Grant(proxy, client, std::move(all), next_number_++);
  } else if (!holders.empty()) {
    Wait(client, absl::StrCat("slices that ", absl::StrJoin(holders, ", "), " has"));
  } else if (!free) {
    Wait(client, "slices that others were there first for");
  } else {
    Wait(client, "a first slice to be ready");
  }
}

void Leases::TryTypes(uint64_t proxy, Client& client, std::vector<bool>& claimed) {
  std::vector<int32_t> slices;
  std::map<std::string, int> missing;
  int unready = 0;
  for (const std::string& type : client.request.instance_types) {
    std::optional<size_t> best;
    for (size_t i = 0; i < slices_.size(); ++i) {
      if (claimed[i] || slices_[i].type != type) continue;
      if (!best.has_value() || (slices_[i].ready && !slices_[*best].ready)) best = i;
    }
    if (best.has_value()) claimed[*best] = true;
    if (best.has_value()) slices.push_back(static_cast<int32_t>(*best));
    if (best.has_value() && slices_[*best].ready) continue;
    ++missing[type];
    ++unready;
  }
  const int wanted = static_cast<int>(client.request.instance_types.size());
  const bool enough = static_cast<int>(slices.size()) == wanted &&
                      unready <= std::min(client.request.may_be_missing, wanted - 1);
  if (missing.empty() || enough) {
    Grant(proxy, client, std::move(slices), next_number_++);
    return;
  }
  Wait(client, absl::StrJoin(missing, ", ", [](std::string* out, const auto& each) {
         absl::StrAppend(out, each.second, " more ready slice(s) of ", each.first);
       }));
}

std::string Leases::NameOf(uint64_t proxy) const {
  const auto it = clients_.find(proxy);
  return it == clients_.end() ? "another proxy" : it->second.request.name;
}

}  // namespace helmway::manager
