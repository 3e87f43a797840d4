#include "helmway/array/reshard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace helmway::array {
namespace {

using ::helmway::program::IndexDomain;
using ::helmway::program::Sharding;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::xla::OpSharding;

using Numbers = std::vector<int64_t>;
using ShardingRef = std::shared_ptr<const Sharding>;

std::vector<int32_t> Range(int32_t first, int32_t count) {
  std::vector<int32_t> devices(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), first);
  return devices;
}

// Tiles over `devices` in their order, `replicas` devices for each tile.
ShardingRef Tiled(const Numbers& tiles, const std::vector<int32_t>& devices, int64_t replicas = 1) {
  OpSharding op;
  op.set_type(OpSharding::OTHER);
  for (const int64_t tile : tiles) op.add_tile_assignment_dimensions(tile);
  if (replicas > 1) {
    op.add_tile_assignment_dimensions(replicas);
    op.set_replicate_on_last_tile_dim(true);
  }
  for (size_t i = 0; i < devices.size(); ++i) op.add_tile_assignment_devices(static_cast<int64_t>(i));
  auto sharding = Sharding::FromOpSharding(devices, op, std::nullopt);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  return *sharding;
}

ShardingRef Replicated(const std::vector<int32_t>& devices) {
  return *Sharding::Replicated(devices, std::nullopt);
}

ReshardPlan Plan(const ShardingRef& source, const ShardingRef& destination, const Numbers& dims,
                 bool allow_whole = true) {
  auto plan = PlanReshard(*source, *destination, dims, allow_whole);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(ReshardPlan());
}

std::vector<int64_t> Sources(const std::vector<ReshardPlan::Whole>& whole) {
  std::vector<int64_t> sources;
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].result, static_cast<int64_t>(i));
    sources.push_back(whole[i].source);
  }
  return sources;
}

TEST(PlanReshard, RowsBecomeColumns) {
  const ReshardPlan plan = Plan(Tiled({2, 1}, {0, 1}), Tiled({1, 2}, {0, 1}), {4, 6});
  EXPECT_THAT(plan.whole, IsEmpty());
  ASSERT_THAT(plan.assemblies, SizeIs(2));
  const ReshardPlan::Assembly& right = plan.assemblies[1];
  EXPECT_THAT(right.results, ElementsAre(1));
  EXPECT_THAT(right.dims, ElementsAre(4, 3));
  ASSERT_THAT(right.blocks, SizeIs(2));
  EXPECT_EQ(right.blocks[0].source, 0u);
  EXPECT_THAT(right.blocks[0].source_origin, ElementsAre(0, 3));
  EXPECT_THAT(right.blocks[0].result_origin, ElementsAre(0, 0));
  EXPECT_THAT(right.blocks[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(right.blocks[1].source, 1u);
  EXPECT_THAT(right.blocks[1].source_origin, ElementsAre(0, 3));
  EXPECT_THAT(right.blocks[1].result_origin, ElementsAre(2, 0));
}

TEST(PlanReshard, ReadsOnlyWhatOverlaps) {
  const ReshardPlan plan = Plan(Tiled({8}, Range(0, 8)), Tiled({2}, {10, 11}), {16});
  ASSERT_THAT(plan.assemblies, SizeIs(2));
  for (const ReshardPlan::Assembly& assembly : plan.assemblies) EXPECT_THAT(assembly.blocks, SizeIs(4));
}

TEST(PlanReshard, AnotherOrderOfDevicesMovesNothing) {
  const ReshardPlan plan = Plan(Tiled({4}, {0, 1, 2, 3}), Tiled({4}, {3, 2, 1, 0}), {8});
  EXPECT_THAT(plan.assemblies, IsEmpty());
  // Each result lies elsewhere; its contents are those of the source at the same position.
  EXPECT_THAT(Sources(plan.whole), ElementsAre(0, 1, 2, 3));
}

TEST(PlanReshard, TakesTheReplicaOnTheSameDevice) {
  const ReshardPlan plan = Plan(Replicated(Range(0, 4)), Replicated({9, 2, 0}), {8});
  EXPECT_THAT(Sources(plan.whole), ElementsAre(0, 2, 0));
  // For blocks too: the halves are on devices 0, 1 and 2, 3.
  const ReshardPlan halves = Plan(Tiled({2}, Range(0, 4), 2), Tiled({4}, {1, 5, 3, 6}), {8});
  std::vector<uint32_t> sources;
  for (const ReshardPlan::Assembly& assembly : halves.assemblies) {
    ASSERT_THAT(assembly.blocks, SizeIs(1));
    sources.push_back(assembly.blocks[0].source);
  }
  EXPECT_THAT(sources, ElementsAre(1, 0, 3, 2));
}

TEST(PlanReshard, SpreadsOverReplicas) {
  const ReshardPlan whole = Plan(Replicated(Range(0, 4)), Replicated(Range(10, 8)), {8});
  std::map<int64_t, int> used;
  for (const ReshardPlan::Whole& w : whole.whole) ++used[w.source];
  EXPECT_THAT(used, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 2), std::pair(3, 2)));

  const ReshardPlan blocks = Plan(Replicated(Range(0, 4)), Tiled({8}, Range(10, 8)), {64});
  used.clear();
  for (const ReshardPlan::Assembly& assembly : blocks.assemblies) ++used[assembly.blocks[0].source];
  EXPECT_THAT(used, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 2), std::pair(3, 2)));
}

TEST(PlanReshard, EqualResultsAreOneAssembly) {
  const ReshardPlan plan = Plan(Tiled({4}, Range(0, 4)), Replicated(Range(0, 4)), {8});
  ASSERT_THAT(plan.assemblies, SizeIs(1));
  EXPECT_THAT(plan.assemblies[0].results, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.assemblies[0].blocks, SizeIs(4));
}

TEST(PlanReshard, Scalars) {
  EXPECT_THAT(Sources(Plan(Replicated({0}), Replicated({1, 0}), {}).whole), ElementsAre(0, 0));
  const ReshardPlan plan = Plan(Replicated({0}), Replicated({1}), {}, /*allow_whole=*/false);
  ASSERT_THAT(plan.assemblies, SizeIs(1));
  ASSERT_THAT(plan.assemblies[0].blocks, SizeIs(1));
  EXPECT_THAT(plan.assemblies[0].blocks[0].shape, IsEmpty());
}

TEST(PlanReshard, ArraysWithoutElements) {
  EXPECT_THAT(Plan(Replicated({0}), Replicated({1}), {0, 4}).whole, SizeIs(1));
  const ReshardPlan plan = Plan(Tiled({1, 2}, {0, 1}), Replicated({1}), {0, 4});
  ASSERT_THAT(plan.assemblies, SizeIs(1));
  EXPECT_THAT(plan.assemblies[0].dims, ElementsAre(0, 4));
  EXPECT_THAT(plan.assemblies[0].blocks, IsEmpty());
  // Sizes whose product would not fit.
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(Plan(Tiled({2, 1, 1}, {0, 1}), Replicated({1}), {huge, huge, 0}).assemblies, SizeIs(1));
}

TEST(PlanReshard, ShardsPastTheEndAreEmpty) {
  // 5 in steps of 2: 2, 2, 1, 0.
  const ReshardPlan plan = Plan(Replicated({0}), Tiled({4}, Range(0, 4)), {5});
  ASSERT_THAT(plan.assemblies, SizeIs(4));
  EXPECT_THAT(plan.assemblies[2].dims, ElementsAre(1));
  EXPECT_THAT(plan.assemblies[3].dims, ElementsAre(0));
  EXPECT_THAT(plan.assemblies[3].blocks, IsEmpty());
  // And back.
  const ReshardPlan back = Plan(Tiled({4}, Range(0, 4)), Replicated({0}), {5});
  ASSERT_THAT(back.assemblies, SizeIs(1));
  EXPECT_THAT(back.assemblies[0].blocks, SizeIs(3));
}

TEST(PlanReshard, UnknownContentsKeepTheirPlace) {
  OpSharding unreduced;
  unreduced.set_type(OpSharding::UNREDUCED);
  const auto source = *Sharding::FromOpSharding({{0, 1}}, unreduced, std::nullopt);
  const auto moved = *Sharding::FromOpSharding({{1, 2}}, unreduced, "pinned_host");
  EXPECT_THAT(Sources(Plan(source, moved, {3}).whole), ElementsAre(0, 1));
  const ReshardPlan blocks = Plan(source, moved, {3}, /*allow_whole=*/false);
  ASSERT_THAT(blocks.assemblies, SizeIs(2));
  EXPECT_EQ(blocks.assemblies[1].blocks[0].source, 1u);

  const std::vector<std::vector<int64_t>> shards = {{1}, {3}};
  const auto concrete = *Sharding::Concrete({{0, 1}}, {4}, shards, std::nullopt);
  const auto concrete_elsewhere = *Sharding::Concrete({{4, 5}}, {4}, shards, std::nullopt);
  EXPECT_THAT(Sources(Plan(concrete, concrete_elsewhere, {4}).whole), ElementsAre(0, 1));

  for (const auto& [from, to] :
       {std::pair(source, Replicated({0, 1})), std::pair(Replicated({0, 1}), source),
        std::pair(source, *Sharding::FromOpSharding({0}, unreduced, std::nullopt))}) {
    const auto plan = PlanReshard(*from, *to, {3});
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnimplemented) << plan.status();
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("UNREDUCED"));
  }
  EXPECT_EQ(PlanReshard(*concrete, *Replicated({0}), {4}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(PlanReshard, RefusesDimsThatDoNotFit) {
  const auto rows = Tiled({2, 1}, {0, 1});
  const auto opaque = *Sharding::Opaque({{0, 1}}, std::nullopt);
  for (const auto& [from, to] :
       {std::pair(rows, Replicated({0})), std::pair(Replicated({0}), rows), std::pair(opaque, opaque)}) {
    EXPECT_EQ(PlanReshard(*from, *to, {8}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// ---- Any sharding to any other ---------------------------------------------------------------------------

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int64_t Number(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  ShardingRef MakeSharding(size_t rank) {
    int64_t count = 1;
    Numbers tiles;
    const int64_t replicas = Number(0, 2) == 0 ? Number(2, 3) : 1;
    for (size_t d = 0; d < rank; ++d) {
      tiles.push_back(Number(0, 1) == 0 ? 1 : Number(1, 4));
      count *= tiles.back();
    }
    count *= replicas;
    std::vector<int32_t> ids = Range(0, static_cast<int32_t>(count + Number(0, 8)));
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(static_cast<size_t>(count));
    OpSharding op;
    op.set_type(OpSharding::OTHER);
    for (const int64_t tile : tiles) op.add_tile_assignment_dimensions(tile);
    op.add_tile_assignment_dimensions(replicas);
    op.set_replicate_on_last_tile_dim(true);
    Numbers order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int64_t device : order) op.add_tile_assignment_devices(device);
    auto sharding = Sharding::FromOpSharding(ids, op, std::nullopt);
    EXPECT_TRUE(sharding.ok()) << sharding.status();
    return *sharding;
  }

 private:
  std::mt19937 random_;
};

// The number of an element, row-major.
int64_t Flat(absl::Span<const int64_t> dims, absl::Span<const int64_t> index) {
  int64_t flat = 0;
  for (size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}

template <typename Visit>
void ForEach(absl::Span<const int64_t> shape, const Visit& visit) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  Numbers index(shape.size());
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    visit(index);
  }
}

Numbers Sum(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  Numbers sum(a.begin(), a.end());
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += b[d];
  return sum;
}

// What each shard holds, if every element's value is its number in the whole array.
std::vector<Numbers> Contents(const Sharding& sharding, const Numbers& dims) {
  std::vector<Numbers> contents;
  const std::vector<IndexDomain> parts = *sharding.IndexDomains(dims);
  for (const IndexDomain& part : parts) {
    Numbers& shard = contents.emplace_back();
    ForEach(part.shape, [&](const Numbers& index) { shard.push_back(Flat(dims, Sum(part.origin, index))); });
  }
  return contents;
}

TEST(PlanReshard, GivesEveryShardItsContents) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const auto rank = static_cast<size_t>(random.Number(0, 4));
    Numbers dims;
    for (size_t d = 0; d < rank; ++d) dims.push_back(random.Number(0, 20) == 0 ? 0 : random.Number(1, 7));
    const ShardingRef source = random.MakeSharding(rank);
    const ShardingRef destination = random.Number(0, 9) == 0 ? source : random.MakeSharding(rank);
    const bool allow_whole = random.Number(0, 3) != 0;
    SCOPED_TRACE(::testing::Message() << source->DebugString() << " to " << destination->DebugString());
    const ReshardPlan plan = Plan(source, destination, dims, allow_whole);

    const std::vector<Numbers> have = Contents(*source, dims);
    const std::vector<Numbers> want = Contents(*destination, dims);
    const std::vector<IndexDomain> source_parts = *source->IndexDomains(dims);
    const auto holders = [&](int64_t position) {
      std::set<int32_t> devices;
      for (size_t i = 0; i < source_parts.size(); ++i) {
        if (source_parts[i] == source_parts[static_cast<size_t>(position)])
          devices.insert(source->devices()[i]);
      }
      return devices;
    };
    std::set<int64_t> results;
    for (const ReshardPlan::Whole& whole : plan.whole) {
      EXPECT_TRUE(allow_whole);
      EXPECT_TRUE(results.insert(whole.result).second);
      ASSERT_EQ(want.at(static_cast<size_t>(whole.result)), have.at(static_cast<size_t>(whole.source)));
      const int32_t device = destination->devices()[static_cast<size_t>(whole.result)];
      if (holders(whole.source).contains(device)) {
        EXPECT_EQ(source->devices()[static_cast<size_t>(whole.source)], device);
      }
    }
    for (const ReshardPlan::Assembly& assembly : plan.assemblies) {
      int64_t size = 1;
      for (const int64_t dim : assembly.dims) size *= dim;
      Numbers made(static_cast<size_t>(size), -1);
      std::set<int32_t> devices;
      for (const int64_t result : assembly.results) {
        devices.insert(destination->devices()[static_cast<size_t>(result)]);
      }
      for (const cluster::BufferBlock& block : assembly.blocks) {
        const Numbers& from = have.at(block.source);
        const Numbers& from_dims = source_parts[block.source].shape;
        ForEach(block.shape, [&](const Numbers& index) {
          const int64_t to = Flat(assembly.dims, Sum(block.result_origin, index));
          EXPECT_EQ(made.at(static_cast<size_t>(to)), -1) << "written twice";
          made.at(static_cast<size_t>(to)) =
              from.at(static_cast<size_t>(Flat(from_dims, Sum(block.source_origin, index))));
        });
        // On a device of the result if any replica is.
        std::vector<int32_t> near;
        for (const int32_t device : holders(block.source)) {
          if (devices.contains(device)) near.push_back(device);
        }
        EXPECT_TRUE(near.empty() || devices.contains(source->devices()[block.source]));
      }
      for (const int64_t result : assembly.results) {
        EXPECT_TRUE(results.insert(result).second);
        ASSERT_EQ(want.at(static_cast<size_t>(result)), made);
      }
    }
    ASSERT_EQ(results.size(), destination->devices().size());
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace helmway::array
