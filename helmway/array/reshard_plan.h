#ifndef HELMWAY_ARRAY_RESHARD_PLAN_H_
#define HELMWAY_ARRAY_RESHARD_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/program/sharding.h"

namespace helmway::array {

// How the shards of an array under one sharding become its shards under another. Positions are those of the
// shardings' devices().
struct ReshardPlan {
  // A result shard that equals a source shard.
  struct Whole {
    int64_t result;
    int64_t source;
  };
  // Result shards with the same contents, made of blocks of source shards; without blocks if they have no
  // elements. BufferBlock::source is a position.
  struct Assembly {
    std::vector<int64_t> results;  // ascending
    cluster::Dims dims;            // of the shard
    std::vector<cluster::BufferBlock> blocks;
  };
  // Each result position is in one of them, once.
  std::vector<Whole> whole;  // by result, ascending
  std::vector<Assembly> assemblies;
};

// Plans the way of an array of `dims` from `source` to `destination`; device sets may differ. No shard is
// read that does not overlap what it is read for. Of several source shards with the same contents one on a
// device of the result is taken, else the one that has given least so far. With `allow_whole` false every
// result is an assembly (for copies that change the layout).
//
// Shards that do not say what they hold (concrete and opaque shardings over several devices), and those whose
// replicas differ (MANUAL, UNREDUCED, MAXIMAL), can only keep their partitioning, each shard at its position:
// else UNIMPLEMENTED. INVALID_ARGUMENT for dims that do not fit a sharding.
//
// Pure; any thread. Costs about as much as the plan is long, plus the number of source shards.
absl::StatusOr<ReshardPlan> PlanReshard(const program::Sharding& source, const program::Sharding& destination,
                                        absl::Span<const int64_t> dims, bool allow_whole = true);

}  // namespace helmway::array

#endif  // HELMWAY_ARRAY_RESHARD_PLAN_H_
