#include "helmway/array/remap_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace helmway::array {
namespace {

using ::helmway::program::Layout;
using ::helmway::program::Sharding;
using ::testing::HasSubstr;
using ::xla::ifrt::DTypeProto;
using ::xla::ifrt::RemapPlanProto;

// An array of 2 numbers on each of `devices`.
ArraySpec Array(const std::vector<int32_t>& devices, DType dtype = DTypeProto::KIND_F32,
                int64_t shard_size = 2) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  op.add_tile_assignment_dimensions(static_cast<int64_t>(devices.size()));
  for (size_t i = 0; i < devices.size(); ++i) op.add_tile_assignment_devices(static_cast<int64_t>(i));
  ArraySpec spec;
  spec.dtype = dtype;
  spec.dims = {shard_size * static_cast<int64_t>(devices.size())};
  auto sharding = Sharding::FromOpSharding(devices, op, std::nullopt);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  spec.sharding = *sharding;
  return spec;
}

struct Interval {
  int64_t start, end, step;
};

RemapPlanProto::MappingProto& AddMapping(RemapPlanProto& plan, int in_array, int out_array,
                                         const std::vector<Interval>& from, const std::vector<Interval>& to) {
  auto& mapping = *plan.add_mappings();
  mapping.set_in_array(in_array);
  mapping.set_out_array(out_array);
  for (const Interval& i : from) {
    mapping.add_from_start(i.start);
    mapping.add_from_end(i.end);
    mapping.add_from_step(i.step);
  }
  for (const Interval& i : to) {
    mapping.add_to_start(i.start);
    mapping.add_to_end(i.end);
    mapping.add_to_step(i.step);
  }
  return mapping;
}

void AddDevices(RemapPlanProto& plan, int in_array, int out_array, const std::vector<int32_t>& devices) {
  auto& output = *plan.add_input_devices_for_output();
  output.set_out_array(out_array);
  auto& input = *output.add_input_devices();
  input.set_in_array(in_array);
  for (const int32_t device : devices) input.mutable_device_list()->add_device_ids(device);
}

std::string Text(const absl::StatusOr<std::vector<std::vector<RemapSource>>>& resolved) {
  if (!resolved.ok()) return resolved.status().ToString();
  std::string text;
  for (const auto& output : *resolved) {
    for (const RemapSource& source : output) {
      text += std::to_string(source.array) + ":" + std::to_string(source.position) + " ";
    }
    text += "| ";
  }
  return text;
}

TEST(ResolveRemap, ReadsIntervals) {
  // Every other shard of a mesh of four, and a concatenation in another order.
  RemapPlanProto split;
  AddMapping(split, 0, 0, {{0, 4, 2}}, {{0, 2, 1}});
  AddMapping(split, 0, 1, {{1, 4, 2}}, {{0, 2, 1}});
  EXPECT_EQ(Text(ResolveRemap(split, {Array({10, 11, 12, 13})}, {Array({10, 12}), Array({11, 13})})),
            "0:0 0:2 | 0:1 0:3 | ");
  RemapPlanProto joined;
  AddMapping(joined, 0, 0, {{0, 1, 1}, {1, 2, 1}}, {{2, 3, 1}, {0, 1, 1}});
  AddMapping(joined, 1, 0, {{0, 2, 1}}, {{1, 5, 2}});
  EXPECT_EQ(Text(ResolveRemap(joined, {Array({4, 5}), Array({6, 7})}, {Array({5, 6, 4, 7})})),
            "0:1 1:0 0:0 1:1 | ");
}

TEST(ResolveRemap, ReadsDeviceLists) {
  for (const int version : {0, 6}) {
    RemapPlanProto plan;
    plan.set_version_number(version);
    AddDevices(plan, 0, 0, {4, 5});
    AddDevices(plan, 1, 0, {7, 6});
    EXPECT_EQ(Text(ResolveRemap(plan, {Array({4, 5}), Array({6, 7})}, {Array({5, 6, 4, 7})})),
              "0:1 1:0 0:0 1:1 | ");
  }
}

TEST(ResolveRemap, TheVersionDecidesWhichFormCounts) {
  RemapPlanProto plan;
  AddMapping(plan, 0, 0, {{0, 1, 1}}, {{0, 1, 1}});
  AddDevices(plan, 1, 0, {3});
  const std::vector<ArraySpec> inputs = {Array({3}), Array({3})};
  EXPECT_EQ(Text(ResolveRemap(plan, inputs, {Array({3})})), "0:0 | ");
  plan.set_version_number(6);
  EXPECT_EQ(Text(ResolveRemap(plan, inputs, {Array({3})})), "1:0 | ");
  plan.set_version_number(7);
  EXPECT_EQ(ResolveRemap(plan, inputs, {Array({3})}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ResolveRemap, InputsMayBeLeftOver) {
  RemapPlanProto plan;
  AddMapping(plan, 0, 0, {{1, 2, 1}, {5, 5, 1}}, {{0, 1, 1}, {0, 0, 1}});
  EXPECT_EQ(Text(ResolveRemap(plan, {Array({0, 1}), Array({2})}, {Array({1})})), "0:1 | ");
}

TEST(ResolveRemap, LayoutsMayBeSpelledOut) {
  RemapPlanProto plan;
  AddMapping(plan, 0, 0, {{0, 1, 1}}, {{0, 1, 1}});
  ArraySpec spelled = Array({0}, DTypeProto::KIND_S4);
  spelled.layout = *Layout::ParseText("{0:E(4)}");
  EXPECT_EQ(Text(ResolveRemap(plan, {Array({0}, DTypeProto::KIND_S4)}, {spelled})), "0:0 | ");
}

TEST(ResolveRemap, OpaqueShardingsTakeAnyShape) {
  RemapPlanProto plan;
  AddDevices(plan, 0, 0, {0, 1});
  ArraySpec opaque = Array({0, 1});
  opaque.sharding = *Sharding::Opaque({{0, 1}}, std::nullopt);
  EXPECT_EQ(Text(ResolveRemap(plan, {opaque}, {Array({1, 0})})), "0:1 0:0 | ");
}

TEST(ResolveRemap, RefusesBadPlans) {
  constexpr int64_t kMax = INT64_MAX;
  const std::vector<ArraySpec> inputs = {Array({0, 1}), Array({2, 3})};
  const std::vector<ArraySpec> outputs = {Array({0, 1})};
  struct Case {
    const char* name;
    const char* says;
    std::vector<Interval> from, to;
    int in_array = 0, out_array = 0;
  };
  const Case cases[] = {
      {"nothing", "nothing is given for shard 0 of output 0", {}, {}},
      {"half", "nothing is given for shard 1", {{0, 1, 1}}, {{0, 1, 1}}},
      {"output twice", "shard 0 of output 0 is given twice", {{0, 1, 1}, {0, 1, 1}}, {{0, 1, 1}, {0, 1, 1}}},
      {"another device", "shard 0 of input 0 lies on device 0", {{0, 1, 1}}, {{1, 2, 1}}},
      {"start", "interval from 2", {{2, 3, 1}}, {{0, 1, 1}}},
      {"end", "to 3 in steps of 1 of an array of 2", {{0, 3, 1}}, {{0, 2, 1}}},
      {"last step", "in steps of 2", {{1, 4, 2}}, {{0, 2, 1}}},
      {"negative", "interval from -1", {{-1, 1, 1}}, {{0, 2, 1}}},
      {"no step", "in steps of 0", {{0, 1, 0}}, {{0, 1, 1}}},
      {"huge", "of an array of 2 shards", {{0, kMax, 1}}, {{0, kMax, 1}}},
      {"huge step", "an interval of 1 shards for one of 2", {{0, kMax, kMax}}, {{0, 2, 1}}},
      {"counts", "an interval of 1 shards for one of 2", {{0, 1, 1}}, {{0, 2, 1}}},
      {"no such input", "input 2 of 2", {{0, 2, 1}}, {{0, 2, 1}}, 2, 0},
      {"negative input", "input -1 of 2", {{0, 2, 1}}, {{0, 2, 1}}, -1, 0},
      {"no such output", "output 1 of 1", {{0, 2, 1}}, {{0, 2, 1}}, 0, 1},
      {"wrong devices", "lies on device 2", {{0, 2, 1}}, {{0, 2, 1}}, 1, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RemapPlanProto plan;
    AddMapping(plan, c.in_array, c.out_array, c.from, c.to);
    const auto resolved = ResolveRemap(plan, inputs, outputs);
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(resolved), HasSubstr(c.says));
  }
  RemapPlanProto plan;
  AddMapping(plan, 0, 0, {{0, 2, 1}}, {{0, 2, 1}}).add_to_step(1);
  EXPECT_THAT(Text(ResolveRemap(plan, inputs, outputs)), HasSubstr("differ in length"));
}

TEST(ResolveRemap, RefusesBadDeviceLists) {
  const std::vector<ArraySpec> inputs = {Array({0, 1}), Array({0, 3})};
  const auto says = [&](const RemapPlanProto& plan) {
    return Text(ResolveRemap(plan, inputs, {Array({0, 1})}));
  };
  RemapPlanProto elsewhere;
  AddDevices(elsewhere, 0, 0, {0, 7});
  EXPECT_THAT(says(elsewhere), HasSubstr("device 7 has no shard"));
  RemapPlanProto not_in_output;
  AddDevices(not_in_output, 1, 0, {3});
  EXPECT_THAT(says(not_in_output), HasSubstr("device 3 has no shard"));
  RemapPlanProto twice;
  AddDevices(twice, 0, 0, {0, 1});
  AddDevices(twice, 1, 0, {0});
  EXPECT_THAT(says(twice), HasSubstr("shard 0 of output 0 is given twice"));
  RemapPlanProto no_output;
  AddDevices(no_output, 0, 3, {0});
  EXPECT_THAT(says(no_output), HasSubstr("output 3 of 1"));
}

TEST(ResolveRemap, AnInputShardHasOneUse) {
  RemapPlanProto plan;
  AddDevices(plan, 0, 0, {0});
  AddDevices(plan, 0, 1, {0});
  EXPECT_THAT(Text(ResolveRemap(plan, {Array({0})}, {Array({0}), Array({0})})),
              HasSubstr("shard 0 of input 0 is used twice"));
}

TEST(ResolveRemap, RefusesArraysThatDiffer) {
  RemapPlanProto plan;
  AddMapping(plan, 0, 0, {{0, 1, 1}}, {{0, 1, 1}});
  const auto says = [&](const ArraySpec& output) { return Text(ResolveRemap(plan, {Array({0})}, {output})); };
  EXPECT_THAT(says(Array({0}, DTypeProto::KIND_S32)), HasSubstr("of type f32 for output 0 of type s32"));
  EXPECT_THAT(says(Array({0}, DTypeProto::KIND_F32, 3)), HasSubstr("has the shape [2]"));
  ArraySpec scalar = Array({0});
  scalar.dims = {};
  scalar.sharding = *Sharding::SingleDevice(0, std::nullopt);
  EXPECT_THAT(says(scalar), HasSubstr("rank or layout"));
  ArraySpec tiled = Array({0});
  tiled.layout = *Layout::ParseText("{0:T(128)}");
  EXPECT_THAT(says(tiled), HasSubstr("rank or layout"));
}

}  // namespace
}  // namespace helmway::array
