// What waits for Python functions of the client, and when it goes on.
#include <algorithm>
#include <utility>

#include "helmway/cluster/group_session.h"

namespace helmway::cluster {
namespace {

bool AllDone(const std::vector<async::CompletionRef>& events) {
  return std::all_of(events.begin(), events.end(),
                     [](const async::CompletionRef& event) { return event->done(); });
}

// The names as runs of consecutive ones.
template <typename Function>
void ForEachRun(const BufferNames& names, Function function) {
  if (names.list.empty()) {
    if (names.count > 0) function(names.first, names.count);
    return;
  }
  for (const BufferId name : names.list) function(name, 1);
}

}  // namespace

std::vector<async::CompletionRef> GroupSession::Behind(const std::vector<BufferNames>& buffers) {
  std::vector<async::CompletionRef> behind;
  if (behind_.empty()) return behind;
  for (const BufferNames& names : buffers) {
    ForEachRun(names, [&](BufferId first, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      auto it = behind_.upper_bound(first);
      if (it != behind_.begin()) --it;
      for (; it != behind_.end() && it->first < first + count; ++it) {
        if (it->first + it->second.count <= first) continue;
        for (const async::CompletionRef& event : it->second.until) {
          const auto is_it = [&](const async::CompletionRef& other) { return other.get() == event.get(); };
          if (!event->done() && std::none_of(behind.begin(), behind.end(), is_it)) behind.push_back(event);
        }
      }
    });
  }
  return behind;
}

void GroupSession::PutBehind(const std::vector<BufferNames>& buffers,
                             const std::vector<async::CompletionRef>& until) {
  if (until.empty()) return;
  if (behind_.size() >= behind_limit_) {
    for (auto it = behind_.begin(); it != behind_.end();) {
      it = AllDone(it->second.until) ? behind_.erase(it) : std::next(it);
    }
    behind_limit_ = std::max(kFewBehind, 2 * behind_.size());
  }
  for (const BufferNames& names : buffers) {
    ForEachRun(names, [&](BufferId first, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      behind_[first] = {count, until};
    });
  }
}

void GroupSession::PutBehind(const BufferNames& results, const BufferNames& sources) {
  if (!behind_.empty()) PutBehind({results}, Behind({sources}));
}

void GroupSession::DropReason(LaunchId id) {
  {
    base::MutexLock lock(&mu_);
    const auto it = held_.find(id);
    if (it == held_.end() || --it->second.reasons > 0) return;
    released_.push_back({id, std::move(it->second.members)});
    held_.erase(it);
    if (std::exchange(placing_, true)) return;
  }
  EndPlacing();
}

void GroupSession::BeginPlacing() {
  auto nobody_does = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !placing_; };
  base::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&nobody_does));
  placing_ = true;
}

void GroupSession::EndPlacing() {
  while (true) {
    std::vector<Released> released;
    {
      base::MutexLock lock(&mu_);
      released.swap(released_);
      if (released.empty()) {
        placing_ = false;
        return;
      }
    }
    for (const auto& [id, members] : released) {
      const std::vector<uint64_t> places = TakePlaces(members);
      // One that is lost does nothing; the others learn of it when they meet there.
      for (size_t i = 0; i < members.size(); ++i) members[i].link->ReleaseLaunch(id, places[i]);
    }
  }
}

std::vector<uint64_t> GroupSession::TakePlaces(const std::vector<Member>& members) {
  std::vector<WorkerLife*> lives;
  lives.reserve(members.size());
  for (const Member& member : members) lives.push_back(member.life.get());
  return group_->TakePlaces(lives);
}

}  // namespace helmway::cluster
