#include "helmway/array/reshard_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::array {
namespace {

using ::helmway::program::IndexDomain;
using ::helmway::program::Sharding;

using Numbers = std::vector<int64_t>;

// Of a shape whose volume is known to fit; beside a 0 other sizes may be anything.
int64_t Volume(absl::Span<const int64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t volume = 1;
  for (const int64_t size : shape) volume *= size;
  return volume;
}

// Origin and shape of a part, as one key.
Numbers Key(const IndexDomain& part) {
  Numbers key = part.origin;
  key.insert(key.end(), part.shape.begin(), part.shape.end());
  return key;
}

struct Devices {
  std::vector<int32_t> ids;
  absl::flat_hash_set<int32_t> set;  // the same; not needed for one device

  void Add(int32_t device) {
    ids.push_back(device);
    set.insert(device);
  }
};

// The source shards that hold one part of the array.
class Tile {
 public:
  explicit Tile(IndexDomain part) : part_(std::move(part)) {}

  const IndexDomain& part() const { return part_; }

  void AddReplica(int64_t position, int32_t device) {
    at_device_[device] = position;
    given_.emplace(0, position);
  }

  // The replica to read `elements` from for results on any of `devices`.
  int64_t Choose(const Devices& devices, int64_t elements) {
    // The shorter list is searched: either may hold every device there is.
    if (devices.ids.size() <= at_device_.size()) {
      for (const int32_t device : devices.ids) {
        if (const auto it = at_device_.find(device); it != at_device_.end()) return it->second;
      }
    } else {
      for (const auto& [device, position] : at_device_) {
        if (devices.set.contains(device)) return position;
      }
    }
    const auto [given, position] = given_.top();
    given_.pop();
    given_.emplace(given + std::max<int64_t>(elements, 1), position);
    return position;
  }

 private:
  using Given = std::pair<int64_t, int64_t>;  // elements read for other devices so far, position

  IndexDomain part_;
  absl::flat_hash_map<int32_t, int64_t> at_device_;
  std::priority_queue<Given, std::vector<Given>, std::greater<>> given_;
};

// The parts into which a sharding cuts an array: a grid.
class Grid {
 public:
  Grid(const Sharding& sharding, const std::vector<IndexDomain>& parts, size_t rank) : starts_(rank) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto [it, is_new] = by_part_.try_emplace(Key(parts[i]), tiles_.size());
      if (is_new) tiles_.emplace_back(parts[i]);
      tiles_[it->second].AddReplica(static_cast<int64_t>(i), sharding.devices()[i]);
      if (!is_new || Volume(parts[i].shape) == 0) continue;
      by_origin_[parts[i].origin] = it->second;
      for (size_t d = 0; d < rank; ++d) starts_[d].push_back(parts[i].origin[d]);
    }
    for (Numbers& starts : starts_) {
      std::sort(starts.begin(), starts.end());
      starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    }
  }

  // The tile that is exactly this part, or null.
  Tile* Find(const IndexDomain& part) {
    const auto it = by_part_.find(Key(part));
    return it == by_part_.end() ? nullptr : &tiles_[it->second];
  }

  // Cuts a part that has elements into blocks of tiles, for results on `devices`.
  absl::StatusOr<std::vector<cluster::BufferBlock>> Cut(const IndexDomain& part, const Devices& devices) {
    const size_t rank = starts_.size();
    // In each dimension the tiles from first[d] to before last[d] overlap the part.
    Numbers first(rank), last(rank);
    for (size_t d = 0; d < rank; ++d) {
      const Numbers& starts = starts_[d];
      first[d] = std::upper_bound(starts.begin(), starts.end(), part.origin[d]) - starts.begin() - 1;
      last[d] =
          std::lower_bound(starts.begin(), starts.end(), part.origin[d] + part.shape[d]) - starts.begin();
      if (first[d] < 0) return Uncovered();
    }
    std::vector<cluster::BufferBlock> blocks;
    int64_t covered = 0;
    Numbers cell = first;
    Numbers origin(rank);
    while (true) {
      for (size_t d = 0; d < rank; ++d) origin[d] = starts_[d][static_cast<size_t>(cell[d])];
      const auto it = by_origin_.find(origin);
      if (it == by_origin_.end()) return Uncovered();
      Tile& tile = tiles_[it->second];
      cluster::BufferBlock block;
      for (size_t d = 0; d < rank; ++d) {
        const int64_t begin = std::max(part.origin[d], origin[d]);
        const int64_t end = std::min(part.origin[d] + part.shape[d], origin[d] + tile.part().shape[d]);
        if (end <= begin) return Uncovered();
        block.source_origin.push_back(begin - origin[d]);
        block.result_origin.push_back(begin - part.origin[d]);
        block.shape.push_back(end - begin);
      }
      const int64_t elements = Volume(block.shape);
      covered += elements;
      block.source = static_cast<uint32_t>(tile.Choose(devices, elements));
      blocks.push_back(std::move(block));
      // The next cell, last dimension fastest.
      size_t d = rank;
      while (d > 0 && ++cell[d - 1] == last[d - 1]) {
        cell[d - 1] = first[d - 1];
        --d;
      }
      if (d == 0) break;
    }
    if (covered != Volume(part.shape)) return Uncovered();
    return blocks;
  }

 private:
  static absl::Status Uncovered() {
    return absl::InternalError("the shards of an array do not cover it once");
  }

  std::vector<Tile> tiles_;
  absl::flat_hash_map<Numbers, size_t> by_part_;
  absl::flat_hash_map<Numbers, size_t> by_origin_;  // those with elements
  std::vector<Numbers> starts_;                     // per dimension, ascending
};

// Every shard keeps its position.
absl::StatusOr<ReshardPlan> PlanMove(const Sharding& source, absl::Span<const int64_t> dims,
                                     bool allow_whole) {
  ReshardPlan plan;
  for (int64_t i = 0; i < source.num_shards(); ++i) {
    if (allow_whole) {
      plan.whole.push_back({i, i});
      continue;
    }
    HELMWAY_ASSIGN_OR_RETURN(const Numbers shape, source.ShardShapeAt(dims, i));
    ReshardPlan::Assembly assembly;
    assembly.results = {i};
    assembly.dims.assign(shape.begin(), shape.end());
    if (Volume(shape) > 0) {
      cluster::BufferBlock& block = assembly.blocks.emplace_back();
      block.source = static_cast<uint32_t>(i);
      block.source_origin.assign(shape.size(), 0);
      block.result_origin.assign(shape.size(), 0);
      block.shape = assembly.dims;
    }
    plan.assemblies.push_back(std::move(assembly));
  }
  return plan;
}

}  // namespace

absl::StatusOr<ReshardPlan> PlanReshard(const Sharding& source, const Sharding& destination,
                                        absl::Span<const int64_t> dims, bool allow_whole) {
  HELMWAY_RETURN_IF_ERROR(source.ShardShapeAt(dims, 0).status());
  HELMWAY_RETURN_IF_ERROR(destination.ShardShapeAt(dims, 0).status());
  if (!source.ReplicasAgree() || !destination.ReplicasAgree()) {
    absl::StatusOr<std::shared_ptr<const Sharding>> moved =
        source.WithDevicesAndMemoryKind(destination.devices(), destination.memory_kind().value_or(""));
    if (moved.ok() && **moved == destination) return PlanMove(source, dims, allow_whole);
    return absl::UnimplementedError(
        absl::StrCat("resharding from ", source.DebugString(), " to ", destination.DebugString(),
                     ": one of them does not say which part of the array each shard holds"));
  }
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<IndexDomain> source_parts, source.IndexDomains(dims));
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<IndexDomain> result_parts, destination.IndexDomains(dims));
  Grid grid(source, source_parts, dims.size());

  ReshardPlan plan;
  absl::flat_hash_map<Numbers, size_t> by_part;
  for (size_t i = 0; i < result_parts.size(); ++i) {
    const IndexDomain& part = result_parts[i];
    const auto result = static_cast<int64_t>(i);
    if (Tile* tile = allow_whole ? grid.Find(part) : nullptr; tile != nullptr) {
      plan.whole.push_back({result, tile->Choose({{destination.devices()[i]}, {}}, Volume(part.shape))});
      continue;
    }
    const auto [it, is_new] = by_part.try_emplace(Key(part), plan.assemblies.size());
    if (is_new) plan.assemblies.emplace_back();
    plan.assemblies[it->second].results.push_back(result);
  }
  for (ReshardPlan::Assembly& assembly : plan.assemblies) {
    const IndexDomain& part = result_parts[static_cast<size_t>(assembly.results[0])];
    assembly.dims.assign(part.shape.begin(), part.shape.end());
    if (Volume(part.shape) == 0) continue;
    Devices devices;
    for (const int64_t result : assembly.results) {
      devices.Add(destination.devices()[static_cast<size_t>(result)]);
    }
    HELMWAY_ASSIGN_OR_RETURN(assembly.blocks, grid.Cut(part, devices));
  }
  return plan;
}

}  // namespace helmway::array
