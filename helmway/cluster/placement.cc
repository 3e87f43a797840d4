#include "helmway/cluster/placement.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace helmway::cluster {

Placement::Placement(absl::Span<const WorkerIndex> workers) {
  for (size_t i = 0; i < workers.size(); ++i) {
    if (runs_.empty() || runs_.back().worker != workers[i]) {
      runs_.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i), workers[i]});
    }
    ++runs_.back().end;
  }
  by_worker_ = runs_;
  std::stable_sort(by_worker_.begin(), by_worker_.end(),
                   [](const Run& a, const Run& b) { return a.worker < b.worker; });
}

absl::Span<const Placement::Run> Placement::runs_of(WorkerIndex worker) const {
  const auto begin = std::lower_bound(by_worker_.begin(), by_worker_.end(), worker,
                                      [](const Run& run, WorkerIndex w) { return run.worker < w; });
  const auto end = std::upper_bound(begin, by_worker_.end(), worker,
                                    [](WorkerIndex w, const Run& run) { return w < run.worker; });
  return absl::MakeConstSpan(by_worker_)
      .subspan(static_cast<size_t>(begin - by_worker_.begin()), static_cast<size_t>(end - begin));
}

absl::Span<const Placement::Run> Placement::runs_from(size_t position) const {
  const auto it = std::upper_bound(runs_.begin(), runs_.end(), position,
                                   [](size_t p, const Run& run) { return p < run.end; });
  return absl::MakeConstSpan(runs_).subspan(static_cast<size_t>(it - runs_.begin()));
}

WorkerIndex Placement::at(size_t position) const { return runs_from(position).front().worker; }

BufferMap::Ranges::const_iterator BufferMap::Find(BufferId id) const {
  auto it = ranges_.upper_bound(id);
  if (it == ranges_.begin()) return it;
  const auto before = std::prev(it);
  return id < before->first + before->second.count ? before : it;
}

void BufferMap::Add(BufferId first, uint32_t count, PlacementRef placement) {
  if (count > 0) ranges_.insert_or_assign(first, Range{count, 0, std::move(placement)});
}

void BufferMap::Forget(BufferId first, uint32_t count) {
  const BufferId end = first + count;
  auto it = ranges_.find(first);
  if (it == ranges_.end()) {
    const auto found = Find(first);
    if (found == ranges_.end()) return;
    it = ranges_.find(found->first);
  }
  while (it != ranges_.end() && it->first < end) {
    const BufferId range_first = it->first;
    const Range range = it->second;
    const BufferId range_end = range_first + range.count;
    it = ranges_.erase(it);
    if (range_first < first) {
      ranges_.emplace(range_first,
                      Range{static_cast<uint32_t>(first - range_first), range.offset, range.placement});
    }
    if (range_end > end) {
      ranges_.emplace(end, Range{static_cast<uint32_t>(range_end - end),
                                 range.offset + static_cast<uint32_t>(end - range_first), range.placement});
      return;
    }
  }
}

void AppendNames(BufferId first, uint32_t count, BufferNames* names) {
  if (count == 0) return;
  if (names->list.empty()) {
    if (names->count == 0) {
      names->first = first;
      names->count = count;
      return;
    }
    if (names->first + names->count == first) {
      names->count += count;
      return;
    }
    for (uint32_t i = 0; i < names->count; ++i) names->list.push_back(names->first + i);
    names->first = names->count = 0;
  }
  for (uint32_t i = 0; i < count; ++i) names->list.push_back(first + i);
}

}  // namespace helmway::cluster
