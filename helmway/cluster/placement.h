#ifndef HELMWAY_CLUSTER_PLACEMENT_H_
#define HELMWAY_CLUSTER_PLACEMENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

using WorkerIndex = uint32_t;  // number of a worker in its group

// Which worker each of a row of positions (devices of an array, of a program) belongs to: runs of neighbours,
// so that it costs as much as there are workers. Immutable.
class Placement {
 public:
  struct Run {
    uint32_t begin;  // first position
    uint32_t end;    // one past the last
    WorkerIndex worker;
  };

  explicit Placement(absl::Span<const WorkerIndex> workers);

  size_t size() const { return runs_.empty() ? 0 : runs_.back().end; }
  absl::Span<const Run> runs() const { return runs_; }
  // Those of one worker, in order. Costs as little as if there were no others.
  absl::Span<const Run> runs_of(WorkerIndex worker) const;
  // The runs from that of the position on.
  absl::Span<const Run> runs_from(size_t position) const;
  WorkerIndex at(size_t position) const;

 private:
  absl::InlinedVector<Run, 2> runs_;
  absl::InlinedVector<Run, 2> by_worker_;  // the same; those of one worker together
};
using PlacementRef = std::shared_ptr<const Placement>;

// Where the buffers of a session are: ranges of names that were made together. Not thread-safe.
class BufferMap {
 public:
  // `count` names from `first` on, placed like the positions of `placement` from 0 on.
  void Add(BufferId first, uint32_t count, PlacementRef placement);
  // Calls visit(first, count, worker) for each piece of `names` that lies on one worker, in order, and
  // unknown(first, count) for what is not in the map.
  template <typename Visit, typename Unknown>
  void ForEach(const BufferNames& names, Visit visit, Unknown unknown) const {
    if (names.list.empty()) {
      ForEachInRange(names.first, names.count, visit, unknown);
    } else {
      for (const BufferId id : names.list) ForEachInRange(id, 1, visit, unknown);
    }
  }
  // Like ForEach, and forgets what is found.
  template <typename Visit, typename Unknown>
  void Remove(const BufferNames& names, Visit visit, Unknown unknown) {
    ForEach(names, visit, unknown);
    if (names.list.empty()) {
      Forget(names.first, names.count);
    } else {
      for (const BufferId id : names.list) Forget(id, 1);
    }
  }
  // Calls visit(first, count) for each row of names on that worker.
  template <typename Visit>
  void ForEachOf(WorkerIndex worker, Visit visit) const {
    for (const auto& [first, range] : ranges_) {
      for (const Placement::Run& run : range.placement->runs_of(worker)) {
        const uint32_t begin = std::max(run.begin, range.offset);
        const uint32_t end = std::min(run.end, range.offset + range.count);
        if (begin < end) visit(first + (begin - range.offset), end - begin);
      }
    }
  }
  size_t num_ranges() const { return ranges_.size(); }

 private:
  struct Range {
    uint32_t count;   // names
    uint32_t offset;  // position of the first in the placement
    PlacementRef placement;
  };
  using Ranges = std::map<BufferId, Range>;

  Ranges::const_iterator Find(BufferId id) const;
  void Forget(BufferId first, uint32_t count);

  template <typename Visit, typename Unknown>
  void ForEachInRange(BufferId first, uint32_t count, Visit& visit, Unknown& unknown) const {
    const BufferId end = first + count;
    auto it = Find(first);
    while (first < end) {
      if (it == ranges_.end() || it->first >= end) {
        unknown(first, static_cast<uint32_t>(end - first));
        return;
      }
      if (it->first > first) {
        unknown(first, static_cast<uint32_t>(it->first - first));
        first = it->first;
      }
      const Range& range = it->second;
      const BufferId range_end = std::min<BufferId>(end, it->first + range.count);
      const auto begin = static_cast<uint32_t>(first - it->first) + range.offset;
      for (const Placement::Run& run : range.placement->runs_from(begin)) {
        if (first >= range_end) break;
        const auto position = static_cast<uint32_t>(first - it->first) + range.offset;
        const auto piece = std::min(run.end - position, static_cast<uint32_t>(range_end - first));
        visit(first, piece, run.worker);
        first += piece;
      }
      ++it;
    }
  }

  Ranges ranges_;  // by first name; never empty ranges, never overlapping
};

// Collects names one after the other, as a range as long as they are neighbours.
void AppendNames(BufferId first, uint32_t count, BufferNames* names);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_PLACEMENT_H_
