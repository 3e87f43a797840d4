#include "helmway/program/sharding.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/wire/serialized.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::xla::OpSharding;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

std::vector<int32_t> FirstDevices(int count) {
  std::vector<int32_t> devices(count);
  for (int i = 0; i < count; ++i) devices[i] = i;
  return devices;
}

// OTHER with an explicit device order.
OpSharding Tiled(const std::vector<int64_t>& tiles, const std::vector<int64_t>& devices) {
  OpSharding op;
  op.set_type(OpSharding::OTHER);
  for (int64_t tile : tiles) op.add_tile_assignment_dimensions(tile);
  for (int64_t device : devices) op.add_tile_assignment_devices(device);
  return op;
}

// OTHER with an iota device order.
OpSharding Iota(const std::vector<int64_t>& tiles, const std::vector<int64_t>& reshape,
                const std::vector<int32_t>& perm) {
  OpSharding op = Tiled(tiles, {});
  for (int64_t dim : reshape) op.add_iota_reshape_dims(dim);
  for (int32_t dim : perm) op.add_iota_transpose_perm(dim);
  return op;
}

std::shared_ptr<const Sharding> Make(int devices, const OpSharding& op) {
  const auto sharding = Sharding::FromOpSharding(FirstDevices(devices), op, std::nullopt);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  return sharding.ok() ? *sharding : nullptr;
}

template <typename Payload>
xla::ifrt::ShardingProto Wrap(const Payload& payload, absl::string_view type_name) {
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, type_name);
  return proto;
}

std::vector<std::vector<int64_t>> Origins(const std::vector<IndexDomain>& domains) {
  std::vector<std::vector<int64_t>> origins;
  for (const IndexDomain& domain : domains) origins.push_back(domain.origin);
  return origins;
}

std::vector<std::vector<int64_t>> Shapes(const std::vector<IndexDomain>& domains) {
  std::vector<std::vector<int64_t>> shapes;
  for (const IndexDomain& domain : domains) shapes.push_back(domain.shape);
  return shapes;
}

// What JAX 0.11.2 makes of these partition specs, and where it says that each device's shard lies
// (NamedSharding.devices_indices_map), device by device. The mesh is 2x4 (a, b) or 2x2x2 (a, b, c).
TEST(Sharding, PlacesShardsAsJaxDoes) {
  struct Case {
    const char* name;
    std::vector<int32_t> devices;
    std::vector<int64_t> tiles;
    bool replicate_on_last;
    std::vector<int64_t> iota_reshape;
    std::vector<int32_t> iota_perm;
    std::vector<int64_t> shape;
    std::vector<int64_t> shard_shape;
    std::vector<std::vector<int64_t>> origins;
  };
  const Case cases[] = {
      {"P(a, b)",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {2, 4},
       false,
       {8},
       {0},
       {4, 8},
       {2, 2},
       {{0, 0}, {0, 2}, {0, 4}, {0, 6}, {2, 0}, {2, 2}, {2, 4}, {2, 6}}},
      {"P(b, a)",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {4, 2},
       false,
       {2, 4},
       {1, 0},
       {8, 4},
       {2, 2},
       {{0, 0}, {2, 0}, {4, 0}, {6, 0}, {0, 2}, {2, 2}, {4, 2}, {6, 2}}},
      {"P(b), rest replicated",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {4, 1, 2},
       true,
       {2, 4},
       {1, 0},
       {8, 3},
       {2, 3},
       {{0, 0}, {2, 0}, {4, 0}, {6, 0}, {0, 0}, {2, 0}, {4, 0}, {6, 0}}},
      {"P((b, a))",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {8},
       false,
       {2, 4},
       {1, 0},
       {16},
       {2},
       {{0}, {4}, {8}, {12}, {2}, {6}, {10}, {14}}},
      {"P((a, b))",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {8},
       false,
       {8},
       {0},
       {16},
       {2},
       {{0}, {2}, {4}, {6}, {8}, {10}, {12}, {14}}},
      {"P(c, -, a) of 2x2x2",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {2, 1, 2, 2},
       true,
       {4, 2},
       {1, 0},
       {4, 3, 6},
       {2, 3, 3},
       {{0, 0, 0}, {2, 0, 0}, {0, 0, 0}, {2, 0, 0}, {0, 0, 3}, {2, 0, 3}, {0, 0, 3}, {2, 0, 3}}},
      {"P((c, a), b), devices out of order",
       {3, 1, 0, 2, 7, 4, 6, 5},
       {4, 2},
       false,
       {4, 2},
       {1, 0},
       {8, 2},
       {2, 1},
       {{0, 0}, {4, 0}, {0, 1}, {4, 1}, {2, 0}, {6, 0}, {2, 1}, {6, 1}}},
      {"P(-, b) of 2x2x2",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {1, 2, 4},
       true,
       {2, 2, 2},
       {1, 0, 2},
       {3, 4},
       {3, 2},
       {{0, 0}, {0, 0}, {0, 2}, {0, 2}, {0, 0}, {0, 0}, {0, 2}, {0, 2}}},
      {"P((a, c), b)",
       {0, 1, 2, 3, 4, 5, 6, 7},
       {4, 2},
       false,
       {2, 2, 2},
       {0, 2, 1},
       {8, 2},
       {2, 1},
       {{0, 0}, {2, 0}, {0, 1}, {2, 1}, {4, 0}, {6, 0}, {4, 1}, {6, 1}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    xla::ifrt::HloShardingProto payload;
    for (int32_t device : c.devices) payload.mutable_devices()->add_device_ids(device);
    *payload.mutable_xla_op_sharding() = Iota(c.tiles, c.iota_reshape, c.iota_perm);
    payload.mutable_xla_op_sharding()->set_replicate_on_last_tile_dim(c.replicate_on_last);
    const auto sharding = Sharding::Parse(Wrap(payload, wire::kHloSharding));
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ((*sharding)->kind(), Sharding::Kind::kHlo);
    EXPECT_EQ((*sharding)->devices(), absl::MakeConstSpan(c.devices));
    EXPECT_EQ((*sharding)->memory_kind(), std::nullopt);
    EXPECT_FALSE((*sharding)->IsFullyReplicated());
    EXPECT_EQ(*(*sharding)->ShardShape(c.shape), c.shard_shape);
    EXPECT_EQ(*(*sharding)->GlobalShape(c.shard_shape), c.shape);
    const auto domains = (*sharding)->IndexDomains(c.shape);
    ASSERT_TRUE(domains.ok()) << domains.status();
    EXPECT_EQ(Origins(*domains), c.origins);
    for (const IndexDomain& domain : *domains) EXPECT_EQ(domain.shape, c.shard_shape);

    // The same order as a list.
    OpSharding listed = payload.xla_op_sharding();
    listed.clear_iota_reshape_dims();
    listed.clear_iota_transpose_perm();
    std::vector<std::pair<int64_t, size_t>> by_tile;
    const auto first = (*sharding)->IndexDomains(c.shape);
    // Row-major tile number of each position; replicas of a tile may come in any order.
    for (size_t position = 0; position < c.devices.size(); ++position) {
      int64_t tile = 0;
      for (size_t i = 0; i < c.shape.size(); ++i) {
        tile = tile * c.tiles[i] + (*first)[position].origin[i] / c.shard_shape[i];
      }
      by_tile.emplace_back(tile, position);
    }
    std::sort(by_tile.begin(), by_tile.end());
    for (const auto& [tile, position] : by_tile) listed.add_tile_assignment_devices(position);
    const auto again = Sharding::FromOpSharding(c.devices, listed, std::nullopt);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(**again, **sharding);
    EXPECT_EQ(*(*again)->IndexDomains(c.shape), *domains);
  }
}

TEST(Sharding, ReplicatedForms) {
  struct Case {
    const char* name;
    OpSharding op;
  };
  OpSharding last = Iota({1, 1, 4}, {4}, {0});
  last.set_replicate_on_last_tile_dim(true);
  OpSharding last_dims = Iota({1, 1, 2, 2}, {4}, {0});
  last_dims.add_last_tile_dims(OpSharding::REPLICATED);
  last_dims.add_last_tile_dims(OpSharding::REPLICATED);
  const Case cases[] = {
      {"empty", OpSharding()}, {"last tile dimension", last}, {"last_tile_dims", last_dims}};
  const auto plain = *Sharding::Replicated(FirstDevices(4), std::nullopt);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto sharding = Make(4, c.op);
    ASSERT_NE(sharding, nullptr);
    EXPECT_TRUE(sharding->IsFullyReplicated());
    EXPECT_FALSE(sharding->IsSingleDevice());
    EXPECT_THAT(*sharding->ShardShape({3, 5}), ElementsAre(3, 5));
    const auto domains = *sharding->IndexDomains({3, 5});
    ASSERT_EQ(domains.size(), 4u);
    for (const IndexDomain& domain : domains) EXPECT_EQ(domain, (IndexDomain{{0, 0}, {3, 5}}));
    EXPECT_EQ(*sharding, *plain);
  }
  // A scalar too.
  EXPECT_EQ(*plain->IndexDomains({}), std::vector<IndexDomain>(4));
}

TEST(Sharding, OneDevice) {
  const auto single = *Sharding::SingleDevice(7, "pinned_host");
  EXPECT_EQ(single->kind(), Sharding::Kind::kSingleDevice);
  EXPECT_TRUE(single->IsSingleDevice());
  EXPECT_TRUE(single->IsFullyReplicated());
  EXPECT_THAT(single->devices(), ElementsAre(7));
  EXPECT_EQ(single->memory_kind(), "pinned_host");
  EXPECT_THAT(*single->ShardShape({4, 0}), ElementsAre(4, 0));
  EXPECT_THAT(*single->IndexDomains({2}), ElementsAre(IndexDomain{{0}, {2}}));

  // The empty message is device 0 in its default memory.
  const auto empty =
      Sharding::Parse(Wrap(xla::ifrt::SingleDeviceShardingProto(), wire::kSingleDeviceSharding));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(**empty, **Sharding::SingleDevice(0, std::nullopt));
  EXPECT_EQ(**empty, **Sharding::SingleDevice(0, ""));

  OpSharding maximal;
  maximal.set_type(OpSharding::MAXIMAL);
  maximal.add_tile_assignment_dimensions(1);
  maximal.add_tile_assignment_devices(0);
  for (const OpSharding& op : {OpSharding(), maximal, Iota({1, 1}, {1}, {0}), Tiled({1, 1}, {0})}) {
    const auto sharding = Make(1, op);
    ASSERT_NE(sharding, nullptr);
    EXPECT_TRUE(sharding->IsFullyReplicated());
    EXPECT_THAT(*sharding->IndexDomains({2, 3}), ElementsAre(IndexDomain{{0, 0}, {2, 3}}));
    EXPECT_NE(*sharding, *single);
  }
}

TEST(Sharding, WholeArrayEverywhereWithoutBeingReplicated) {
  for (OpSharding::Type type : {OpSharding::MANUAL, OpSharding::UNREDUCED, OpSharding::MAXIMAL}) {
    SCOPED_TRACE(OpSharding::Type_Name(type));
    OpSharding op;
    op.set_type(type);
    if (type == OpSharding::MAXIMAL) op.add_tile_assignment_devices(1);
    const auto sharding = Make(2, op);
    ASSERT_NE(sharding, nullptr);
    EXPECT_FALSE(sharding->IsFullyReplicated());
    EXPECT_EQ(*sharding->IndexDomains({3}), std::vector<IndexDomain>(2, IndexDomain{{0}, {3}}));
    EXPECT_NE(*sharding, **Sharding::Replicated(FirstDevices(2), std::nullopt));
  }
  // {devices=[2,2] last_tile_dims={unreduced}}: two tiles, the two shards of each are to be summed.
  OpSharding op = Iota({2, 2}, {4}, {0});
  op.add_last_tile_dims(OpSharding::UNREDUCED);
  const auto partly = Make(4, op);
  EXPECT_FALSE(partly->IsFullyReplicated());
  EXPECT_EQ(Origins(*partly->IndexDomains({6})), (std::vector<std::vector<int64_t>>{{0}, {0}, {3}, {3}}));
  OpSharding replicated = Iota({2, 2}, {4}, {0});
  replicated.set_replicate_on_last_tile_dim(true);
  EXPECT_NE(*partly, *Make(4, replicated));
  // Unreduced over everything is not replicated.
  OpSharding all = Iota({1, 4}, {4}, {0});
  all.add_last_tile_dims(OpSharding::UNREDUCED);
  EXPECT_FALSE(Make(4, all)->IsFullyReplicated());
}

TEST(Sharding, SaysWhereReplicasAgree) {
  const auto agree = [](const auto& sharding) { return (*sharding)->ReplicasAgree(); };
  OpSharding partly = Iota({2, 2}, {4}, {0});
  partly.add_last_tile_dims(OpSharding::REPLICATED);
  EXPECT_TRUE(Make(4, partly)->ReplicasAgree());
  EXPECT_TRUE(Make(4, Iota({4}, {4}, {0}))->ReplicasAgree());
  EXPECT_TRUE(agree(Sharding::Replicated(FirstDevices(3), std::nullopt)));
  EXPECT_TRUE(agree(Sharding::SingleDevice(7, std::nullopt)));
  EXPECT_TRUE(agree(Sharding::ConcreteEven(FirstDevices(2), {4}, {4}, true, std::nullopt)));
  EXPECT_TRUE(agree(Sharding::Concrete(FirstDevices(1), {4}, {{4}}, std::nullopt)));

  EXPECT_FALSE(agree(Sharding::ConcreteEven(FirstDevices(2), {4}, {2}, false, std::nullopt)));
  EXPECT_FALSE(agree(Sharding::Concrete(FirstDevices(2), {4}, {{1}, {3}}, std::nullopt)));
  EXPECT_FALSE(agree(Sharding::Opaque(FirstDevices(2), std::nullopt)));
  for (OpSharding::Type type : {OpSharding::MANUAL, OpSharding::UNREDUCED, OpSharding::MAXIMAL}) {
    SCOPED_TRACE(OpSharding::Type_Name(type));
    OpSharding whole;
    whole.set_type(type);
    EXPECT_FALSE(Make(2, whole)->ReplicasAgree());
    EXPECT_TRUE(Make(1, whole)->ReplicasAgree());
    if (type == OpSharding::MAXIMAL) continue;
    OpSharding subgroup = Iota({2, 2}, {4}, {0});
    subgroup.add_last_tile_dims(type);
    EXPECT_FALSE(Make(4, subgroup)->ReplicasAgree());
  }
}

TEST(Sharding, SeveralSubgroups) {
  // Tiles 2, manual 2, replicated 2.
  OpSharding op = Iota({2, 2, 2}, {8}, {0});
  op.add_last_tile_dims(OpSharding::MANUAL);
  op.add_last_tile_dims(OpSharding::REPLICATED);
  const auto sharding = Make(8, op);
  ASSERT_NE(sharding, nullptr);
  EXPECT_THAT(*sharding->ShardShape({10}), ElementsAre(5));
  EXPECT_EQ(Origins(*sharding->IndexDomains({10})),
            (std::vector<std::vector<int64_t>>{{0}, {0}, {0}, {0}, {5}, {5}, {5}, {5}}));
}

TEST(Sharding, UnevenShardsEndWithTheArray) {
  const auto sharding = Make(4, Iota({4}, {4}, {0}));
  // ceil(5 / 4) = 2: 2, 2, 1, and none.
  EXPECT_THAT(*sharding->ShardShape({5}), ElementsAre(2));
  const auto domains = *sharding->IndexDomains({5});
  EXPECT_EQ(Origins(domains), (std::vector<std::vector<int64_t>>{{0}, {2}, {4}, {5}}));
  EXPECT_EQ(Shapes(domains), (std::vector<std::vector<int64_t>>{{2}, {2}, {1}, {0}}));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(*sharding->ShardShapeAt({5}, i), domains[i].shape);
  EXPECT_EQ(sharding->ShardShapeAt({5}, 4).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(sharding->ShardShapeAt({5}, -1).status().code(), absl::StatusCode::kOutOfRange);

  EXPECT_EQ(Shapes(*sharding->IndexDomains({0})), (std::vector<std::vector<int64_t>>(4, {0})));
  const auto huge = *sharding->IndexDomains({kMax});
  EXPECT_EQ(huge[3].origin[0] + huge[3].shape[0], kMax);
  EXPECT_EQ(sharding->GlobalShape({kMax / 2}).status().code(), kInvalid);
}

TEST(Sharding, NamedShardingBecomesTiles) {
  OpSharding op;
  auto& named = *op.mutable_named_sharding();
  for (int64_t size : {2, 2}) named.mutable_mesh()->add_axes()->set_size(size);
  named.add_dim_shardings()->add_axes()->set_mesh_axis_index(1);
  const auto sharding = Make(4, op);
  ASSERT_NE(sharding, nullptr);
  EXPECT_FALSE(sharding->op_sharding().has_named_sharding());
  EXPECT_EQ(Origins(*sharding->IndexDomains({4})), (std::vector<std::vector<int64_t>>{{0}, {2}, {0}, {2}}));
  EXPECT_EQ(**Sharding::Parse(sharding->Encode()), *sharding);
}

TEST(Sharding, Concrete) {
  const auto even = *Sharding::ConcreteEven({4, 5}, {8, 4}, {4, 4}, false, "device");
  EXPECT_THAT(*even->ShardShape({8, 4}), ElementsAre(4, 4));
  EXPECT_THAT(*even->ShardShapeAt({8, 4}, 1), ElementsAre(4, 4));
  EXPECT_EQ(even->ShardShape({8, 8}).status().code(), kInvalid);
  EXPECT_EQ(even->IndexDomains({8, 4}).status().code(), kInvalid);
  EXPECT_THAT(*even->GlobalShape({4, 4}), ElementsAre(8, 4));

  const auto replicated = *Sharding::ConcreteEven({4, 5}, {8}, {8}, true, std::nullopt);
  EXPECT_TRUE(replicated->IsFullyReplicated());
  EXPECT_EQ(*replicated->IndexDomains({8}), std::vector<IndexDomain>(2, IndexDomain{{0}, {8}}));

  const auto concrete = *Sharding::Concrete({4, 5}, {8}, {{5}, {3}}, std::nullopt);
  EXPECT_THAT(*concrete->ShardShapeAt({8}, 1), ElementsAre(3));
  EXPECT_EQ(concrete->ShardShape({8}).status().code(), kInvalid);
  EXPECT_EQ(concrete->IndexDomains({8}).status().code(), kInvalid);
  EXPECT_THAT(*(*Sharding::Concrete({4, 5}, {8}, {{4}, {4}}, std::nullopt))->ShardShape({8}), ElementsAre(4));

  EXPECT_EQ(Sharding::ConcreteEven({4, 5}, {8}, {4}, true, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::ConcreteEven({4}, {-8}, {4}, false, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::Concrete({4, 5}, {8}, {{4}}, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::Concrete({4}, {8}, {{-4}}, std::nullopt).status().code(), kInvalid);
}

TEST(Sharding, Opaque) {
  const auto opaque = *Sharding::Opaque({1, 2}, "device");
  EXPECT_FALSE(opaque->IsFullyReplicated());
  EXPECT_EQ(opaque->ShardShape({2}).status().code(), kInvalid);
  EXPECT_EQ(opaque->ShardShapeAt({2}, 0).status().code(), kInvalid);
  EXPECT_EQ(opaque->IndexDomains({2}).status().code(), kInvalid);
  EXPECT_EQ(opaque->GlobalShape({2}).status().code(), kInvalid);
}

TEST(Sharding, EncodeAndParseAreInverse) {
  OpSharding op = Iota({2, 1, 2}, {2, 2}, {1, 0});
  op.set_replicate_on_last_tile_dim(true);
  const std::shared_ptr<const Sharding> cases[] = {
      *Sharding::SingleDevice(3, std::nullopt),
      *Sharding::SingleDevice(0, "pinned_host"),
      *Sharding::Replicated({4, 2}, "device"),
      *Sharding::FromOpSharding({9, 8, 7, 6}, op, std::nullopt),
      *Sharding::ConcreteEven({1, 2}, {8}, {4}, false, "device"),
      *Sharding::ConcreteEven({1, 2}, {8}, {8}, true, std::nullopt),
      *Sharding::Concrete({1, 2}, {8}, {{5}, {3}}, std::nullopt),
      *Sharding::Opaque({1, 2}, std::nullopt),
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(cases[i]->DebugString());
    const auto parsed = Sharding::Parse(cases[i]->Encode());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ((*parsed)->Encode().SerializeAsString(), cases[i]->Encode().SerializeAsString());
    for (size_t j = 0; j < std::size(cases); ++j) EXPECT_EQ(**parsed == *cases[j], i == j) << j;
  }
}

TEST(Sharding, MetadataIsDropped) {
  OpSharding op = Iota({2}, {2}, {0});
  op.add_metadata()->set_op_name("a long name");
  EXPECT_EQ(Make(2, op)->op_sharding().metadata_size(), 0);
}

TEST(Sharding, HowShardsAreToBeCombinedIsKept) {
  const auto make = [](const char* reduction) {
    OpSharding op = Iota({1, 2}, {2}, {0});
    op.add_last_tile_dims(OpSharding::UNREDUCED);
    op.add_metadata()->set_op_name("a long name");
    xla::OpMetadata& metadata = *op.add_metadata();
    metadata.set_op_type("sdy::reduction_op");
    metadata.set_op_name(reduction);
    return Make(2, op);
  };
  const auto max = make("MAX");
  ASSERT_NE(max, nullptr);
  ASSERT_EQ(max->op_sharding().metadata_size(), 1);
  EXPECT_EQ(max->op_sharding().metadata(0).op_name(), "MAX");
  EXPECT_EQ(**Sharding::Parse(max->Encode()), *max);
  EXPECT_EQ((*max->WithDevicesAndMemoryKind(std::vector<int32_t>{4, 5}, std::nullopt))
                ->op_sharding()
                .metadata_size(),
            1);
  EXPECT_THAT(max->DebugString(), ::testing::HasSubstr("UNREDUCED over 2, to be combined by MAX"));
  EXPECT_FALSE(*max == *make("MIN"));
  EXPECT_FALSE(*max == *make("SUM"));
  // A sum needs no words.
  OpSharding sum = Iota({1, 2}, {2}, {0});
  sum.add_last_tile_dims(OpSharding::UNREDUCED);
  EXPECT_EQ(*make("SUM"), *Make(2, sum));
  EXPECT_EQ(make("SUM")->op_sharding().metadata_size(), 0);
}

TEST(Sharding, MovesElsewhere) {
  const auto from = *Sharding::FromOpSharding({0, 1}, Iota({2}, {2}, {0}), "device");
  const auto to = from->WithDevicesAndMemoryKind(std::vector<int32_t>{5, 4}, std::nullopt);
  ASSERT_TRUE(to.ok()) << to.status();
  EXPECT_THAT((*to)->devices(), ElementsAre(5, 4));
  EXPECT_EQ((*to)->memory_kind(), "device");
  EXPECT_EQ(*(*to)->IndexDomains({4}), *from->IndexDomains({4}));

  EXPECT_EQ((*from->WithDevicesAndMemoryKind(std::nullopt, "pinned_host"))->memory_kind(), "pinned_host");
  EXPECT_EQ((*from->WithDevicesAndMemoryKind(std::nullopt, ""))->memory_kind(), std::nullopt);
  EXPECT_EQ(**from->WithDevicesAndMemoryKind(std::nullopt, std::nullopt), *from);
  EXPECT_EQ(from->WithDevicesAndMemoryKind(std::vector<int32_t>{5}, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(from->WithDevicesAndMemoryKind(std::vector<int32_t>{5, 5}, std::nullopt).status().code(),
            kInvalid);
  EXPECT_EQ(from->WithDevicesAndMemoryKind(std::vector<int32_t>{5, -1}, std::nullopt).status().code(),
            kInvalid);
}

TEST(Sharding, DimsThatDoNotFit) {
  const auto tiled = Make(4, Iota({2, 2}, {4}, {0}));
  EXPECT_EQ(tiled->ShardShape({4}).status().code(), kInvalid);
  EXPECT_EQ(tiled->IndexDomains({4, 4, 4}).status().code(), kInvalid);
  EXPECT_EQ(tiled->IndexDomains({4, -4}).status().code(), kInvalid);
  EXPECT_EQ(tiled->GlobalShape({4}).status().code(), kInvalid);
  EXPECT_EQ(
      (*Sharding::SingleDevice(0, std::nullopt))->ShardShape(std::vector<int64_t>(65, 1)).status().code(),
      kInvalid);
}

TEST(Sharding, DeviceLists) {
  EXPECT_EQ(Sharding::Replicated({}, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::Replicated({0, 1, 0}, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::Replicated({0, -1}, std::nullopt).status().code(), kInvalid);
  EXPECT_EQ(Sharding::SingleDevice(-1, std::nullopt).status().code(), kInvalid);
}

TEST(Sharding, BadOpShardings) {
  struct Case {
    const char* name;
    OpSharding op;
    absl::StatusCode code;
  };
  const auto with = [](OpSharding op, auto change) {
    change(op);
    return op;
  };
  const Case cases[] = {
      {"tuple", with({}, [](auto& op) { op.set_type(OpSharding::TUPLE); }), kUnimplemented},
      {"unknown", with({}, [](auto& op) { op.set_type(OpSharding::UNKNOWN); }), kUnimplemented},
      {"a type of the future", with({}, [](auto& op) { op.set_type(static_cast<OpSharding::Type>(77)); }),
       kUnimplemented},
      {"no tiles", Tiled({}, {}), kInvalid},
      {"too few tiles", Tiled({2}, {0, 1}), kInvalid},
      {"too many tiles", Iota({2, 4}, {8}, {0}), kInvalid},
      {"tiles overflow", Iota({kMax, kMax, 2}, {4}, {0}), kInvalid},
      {"zero tile dimension", Iota({0, 4}, {4}, {0}), kInvalid},
      {"negative tile dimensions", Iota({-2, -2}, {4}, {0}), kInvalid},
      {"device out of range", Tiled({4}, {0, 1, 2, 4}), kInvalid},
      {"negative device", Tiled({4}, {0, 1, 2, -1}), kInvalid},
      {"device twice", Tiled({4}, {0, 1, 2, 2}), kInvalid},
      {"too few devices", Tiled({4}, {0, 1, 2}), kInvalid},
      {"no devices", Tiled({4}, {}), kInvalid},
      {"iota of another size", Iota({4}, {8}, {0}), kInvalid},
      {"iota overflows", Iota({4}, {kMax, 4}, {0, 1}), kInvalid},
      {"iota of zero", Iota({4}, {4, 0}, {0, 1}), kInvalid},
      {"negative iota", Iota({4}, {-2, -2}, {0, 1}), kInvalid},
      {"no permutation", Iota({4}, {2, 2}, {}), kInvalid},
      {"permutation too long", Iota({4}, {4}, {0, 1}), kInvalid},
      {"permutation repeats", Iota({4}, {2, 2}, {1, 1}), kInvalid},
      {"permutation out of range", Iota({4}, {2, 2}, {0, 2}), kInvalid},
      {"negative permutation", Iota({4}, {2, 2}, {0, -1}), kInvalid},
      {"list and iota", with(Iota({4}, {4}, {0}), [](auto& op) { op.add_tile_assignment_devices(0); }),
       kInvalid},
      {"replicas and subgroups",
       with(Iota({2, 2}, {4}, {0}),
            [](auto& op) {
              op.set_replicate_on_last_tile_dim(true);
              op.add_last_tile_dims(OpSharding::REPLICATED);
            }),
       kInvalid},
      {"more subgroups than tile dimensions",
       with(Iota({4}, {4}, {0}),
            [](auto& op) {
              op.add_last_tile_dims(OpSharding::MANUAL);
              op.add_last_tile_dims(OpSharding::MANUAL);
            }),
       kInvalid},
      {"subgroup of tuples",
       with(Iota({2, 2}, {4}, {0}), [](auto& op) { op.add_last_tile_dims(OpSharding::TUPLE); }), kInvalid},
      {"maximal on a device that is not there",
       with(Tiled({1}, {4}), [](auto& op) { op.set_type(OpSharding::MAXIMAL); }), kInvalid},
      {"maximal on two devices", with(Tiled({2}, {0, 1}), [](auto& op) { op.set_type(OpSharding::MAXIMAL); }),
       kInvalid},
      {"a hundred tile dimensions", Iota(std::vector<int64_t>(100, 1), {4}, {0}), kInvalid},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(Sharding::FromOpSharding(FirstDevices(4), c.op, std::nullopt).status().code(), c.code);
  }
}

TEST(Sharding, BadMessages) {
  const auto code = [](const xla::ifrt::ShardingProto& proto) {
    return Sharding::Parse(proto).status().code();
  };
  EXPECT_EQ(code({}), kInvalid);
  // Nothing but a name: no devices.
  for (absl::string_view name :
       {wire::kHloSharding, wire::kConcreteSharding, wire::kConcreteEvenSharding, wire::kOpaqueSharding}) {
    EXPECT_EQ(code(Wrap(xla::ifrt::OpaqueShardingProto(), name)), kInvalid) << name;
  }
  const absl::Status param =
      Sharding::Parse(Wrap(xla::ifrt::OpaqueShardingProto(), wire::kShardingParamSharding)).status();
  EXPECT_EQ(param.code(), kUnimplemented);
  EXPECT_THAT(std::string(param.message()), HasSubstr("ShardingParamSharding"));

  xla::ifrt::ShardingProto garbage;
  garbage.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
  garbage.mutable_serialized_sharding()->set_data("\xff\xff\xff");
  EXPECT_EQ(code(garbage), kInvalid);

  xla::ifrt::HloShardingProto newer;
  newer.mutable_devices()->add_device_ids(0);
  newer.set_version_number(1);
  EXPECT_EQ(code(Wrap(newer, wire::kHloSharding)), kUnimplemented);
  newer.set_version_number(0);
  newer.mutable_devices()->set_version_number(1);
  EXPECT_EQ(code(Wrap(newer, wire::kHloSharding)), kUnimplemented);

  xla::ifrt::ConcreteShardingProto dynamic;
  dynamic.mutable_devices()->add_device_ids(0);
  dynamic.mutable_dynamic_shape();
  EXPECT_EQ(code(Wrap(dynamic, wire::kConcreteSharding)), kUnimplemented);
}

}  // namespace
}  // namespace helmway::program
