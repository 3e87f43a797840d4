#include "helmway/program/executable_spec.h"

#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "helmway/program/testdata_testing.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::xla::OpSharding;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

xla::HloModuleProto Module(const std::string& text) {
  xla::HloModuleProto module;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &module)) << text;
  return module;
}

// Everything of a spec but what its shapes and shardings say.
auto Facts(const ExecutableSpec& spec) {
  return std::make_tuple(spec.name, spec.donated_parameters, spec.has_cross_device_ops,
                         spec.custom_call_targets, spec.python_callbacks, spec.is_short,
                         spec.parameters.size(), spec.outputs.size());
}

// An outline says the same as its program.
void ExpectSameOutline(const std::string& format, const std::string& bytes,
                       const std::vector<int32_t>& devices, int replicas,
                       const absl::StatusOr<ExecutableSpec>& spec) {
  const auto outline = OutlineOf(format, bytes);
  if (!outline.ok()) {
    EXPECT_EQ(outline.status().code(), spec.status().code());
    return;
  }
  const auto again = FromOptimizedHlo(kOutlineFormat, *outline, devices, replicas,
                                      static_cast<int>(devices.size()) / replicas);
  ASSERT_EQ(again.status(), spec.status());
  if (!spec.ok()) return;
  EXPECT_EQ(Facts(*again), Facts(*spec));
  const auto expect_same = [](const std::vector<ValueSpec>& a, const std::vector<ValueSpec>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].element_type, b[i].element_type);
      EXPECT_EQ(a[i].shard_dims, b[i].shard_dims);
      EXPECT_EQ(a[i].global_dims, b[i].global_dims);
      EXPECT_EQ(a[i].layout.ToText(), b[i].layout.ToText());
      EXPECT_EQ(a[i].op_sharding.has_value(), b[i].op_sharding.has_value());
    }
  };
  expect_same(again->parameters, spec->parameters);
  expect_same(again->outputs, spec->outputs);
}

absl::StatusOr<ExecutableSpec> Read(const xla::HloModuleProto& module, const std::vector<int32_t>& devices,
                                    int replicas = 1) {
  const std::string bytes = module.SerializeAsString();
  auto spec = FromOptimizedHlo("hlo", bytes, devices, replicas, static_cast<int>(devices.size()) / replicas);
  ExpectSameOutline("hlo", bytes, devices, replicas, spec);
  return spec;
}

TEST(ExecutableSpec, ShardedStepOfJax) {
  xla::HloModuleProtoWithConfig with_config;
  const std::string hlo = ReadTestdata("sharded_step.hlo.pb");
  ASSERT_TRUE(with_config.mutable_hlo_module()->ParseFromString(hlo));
  with_config.mutable_config()->set_num_partitions(4);

  for (const auto& [format, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"hlo", hlo}, {"hlo_with_config", with_config.SerializeAsString()}}) {
    SCOPED_TRACE(format);
    const auto spec = FromOptimizedHlo(format, bytes, {4, 5, 6, 7}, 1, 4);
    ASSERT_TRUE(spec.ok()) << spec.status();
    ExpectSameOutline(format, bytes, {4, 5, 6, 7}, 1, spec);
    EXPECT_LT(OutlineOf(format, bytes)->size(), bytes.size() / 4);
    EXPECT_EQ(spec->name, "jit_sharded_step");
    EXPECT_THAT(spec->donated_parameters, ElementsAre(0));
    EXPECT_TRUE(spec->has_cross_device_ops);
    EXPECT_THAT(spec->custom_call_targets, IsEmpty());

    ASSERT_EQ(spec->parameters.size(), 3u);
    EXPECT_EQ(spec->parameters[0].element_type, xla::F32);
    EXPECT_THAT(spec->parameters[0].shard_dims, ElementsAre(4, 2));
    EXPECT_THAT(spec->parameters[0].global_dims, ElementsAre(8, 4));
    EXPECT_EQ(spec->parameters[0].layout.ToText(), "{1,0}");
    EXPECT_THAT(spec->parameters[1].shard_dims, ElementsAre(2, 6));
    EXPECT_THAT(spec->parameters[1].global_dims, ElementsAre(4, 6));
    EXPECT_THAT(spec->parameters[2].shard_dims, IsEmpty());

    ASSERT_EQ(spec->outputs.size(), 3u);
    EXPECT_THAT(spec->outputs[0].global_dims, ElementsAre(8, 4));
    EXPECT_THAT(spec->outputs[0].sharding->devices(), ElementsAre(4, 5, 6, 7));
    EXPECT_EQ(spec->outputs[0].sharding->op_sharding().ShortDebugString(),
              "type: OTHER tile_assignment_dimensions: 2 tile_assignment_dimensions: 2 iota_reshape_dims: 4 "
              "iota_transpose_perm: 0");
    // P("x") of a 2x2 mesh: two tiles, each on two devices.
    EXPECT_THAT(spec->outputs[1].shard_dims, ElementsAre(4));
    EXPECT_THAT(spec->outputs[1].global_dims, ElementsAre(8));
    EXPECT_TRUE(spec->outputs[1].op_sharding->replicate_on_last_tile_dim());
    EXPECT_FALSE(spec->outputs[1].op_sharding->has_named_sharding());
    EXPECT_THAT(*spec->outputs[1].sharding->IndexDomains({8}),
                ElementsAre(IndexDomain{{0}, {4}}, IndexDomain{{0}, {4}}, IndexDomain{{4}, {4}},
                            IndexDomain{{4}, {4}}));
    EXPECT_TRUE(spec->outputs[2].sharding->IsFullyReplicated());
    EXPECT_EQ(spec->outputs[2].layout.ToText(), "{}");
  }
}

TEST(ExecutableSpec, FactorOfJax) {
  const auto spec = FromOptimizedHlo("hlo", ReadTestdata("factor.hlo.pb"), {3}, 1, 1);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "jit_factor");
  EXPECT_THAT(spec->donated_parameters, IsEmpty());
  EXPECT_FALSE(spec->has_cross_device_ops);
  EXPECT_THAT(spec->custom_call_targets, ElementsAre("lapack_spotrf_ffi"));
  ASSERT_EQ(spec->parameters.size(), 1u);
  ASSERT_EQ(spec->outputs.size(), 1u);
  EXPECT_THAT(spec->outputs[0].shard_dims, ElementsAre(3, 3));
  EXPECT_THAT(spec->outputs[0].global_dims, ElementsAre(3, 3));
  EXPECT_EQ(spec->outputs[0].op_sharding, std::nullopt);
  EXPECT_TRUE(spec->outputs[0].sharding->IsSingleDevice());
}

// f32[2,4] -> (f32[2,4], token, s4[3]) on two devices, with tile shardings.
constexpr char kTwoDevices[] = R"pb(
  name: "m"
  host_program_shape {
    parameters {
      element_type: F32
      dimensions: [ 2, 4 ]
      layout { minor_to_major: [ 0, 1 ] }
    }
    parameters { element_type: F32 }
    result {
      element_type: TUPLE
      tuple_shapes {
        element_type: F32
        dimensions: [ 2, 4 ]
        layout { minor_to_major: [ 1, 0 ] }
      }
      tuple_shapes { element_type: TOKEN }
      tuple_shapes {
        element_type: S4
        dimensions: 3
        layout { minor_to_major: 0 element_size_in_bits: 4 }
      }
    }
  }
  spmd_output_sharding {
    type: TUPLE
    tuple_shardings {
      type: OTHER
      tile_assignment_dimensions: [ 2, 1 ]
      tile_assignment_devices: [ 1, 0 ]
    }
    tuple_shardings {}
    tuple_shardings { type: OTHER tile_assignment_dimensions: 2 iota_reshape_dims: 2 iota_transpose_perm: 0 }
  }
  spmd_parameters_shardings {
    type: OTHER
    tile_assignment_dimensions: [ 1, 2 ]
    iota_reshape_dims: 2
    iota_transpose_perm: 0
    metadata { op_name: "w" }
  }
  spmd_parameters_shardings {}
)pb";

TEST(ExecutableSpec, TileShardingsTokensAndLayouts) {
  const auto spec = Read(Module(kTwoDevices), {8, 9});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->parameters[0].global_dims, ElementsAre(2, 8));
  EXPECT_EQ(spec->parameters[0].layout.ToText(), "{0,1}");
  EXPECT_EQ(spec->parameters[0].op_sharding->metadata_size(), 0);
  EXPECT_THAT(spec->outputs[0].global_dims, ElementsAre(4, 4));
  EXPECT_THAT(*spec->outputs[0].sharding->IndexDomains({4, 4}),
              ElementsAre(IndexDomain{{2, 0}, {2, 4}}, IndexDomain{{0, 0}, {2, 4}}));
  EXPECT_TRUE(spec->outputs[1].is_token);
  EXPECT_THAT(spec->outputs[1].shard_dims, IsEmpty());
  EXPECT_FALSE(spec->outputs[2].is_token);
  EXPECT_EQ(spec->outputs[2].element_type, xla::S4);
  EXPECT_EQ(spec->outputs[2].layout.ToText(), "{0:E(4)}");
  EXPECT_THAT(spec->outputs[2].global_dims, ElementsAre(6));
}

TEST(ExecutableSpec, NoShardingsMeansReplicated) {
  xla::HloModuleProto module = Module(kTwoDevices);
  module.clear_spmd_output_sharding();
  module.clear_spmd_parameters_shardings();
  const auto spec = Read(module, {8, 9});
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const auto* values : {&spec->parameters, &spec->outputs}) {
    for (const ValueSpec& value : *values) {
      EXPECT_EQ(value.op_sharding, std::nullopt);
      EXPECT_TRUE(value.sharding->IsFullyReplicated());
      EXPECT_EQ(value.global_dims, value.shard_dims);
    }
  }
}

TEST(ExecutableSpec, OneShardingForAllOutputs) {
  xla::HloModuleProto module = Module(kTwoDevices);
  module.mutable_spmd_output_sharding()->Clear();
  const auto spec = Read(module, {8, 9});
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const ValueSpec& value : spec->outputs) EXPECT_TRUE(value.sharding->IsFullyReplicated());
}

TEST(ExecutableSpec, ReplicasDiffer) {
  xla::HloModuleProto module = Module(kTwoDevices);
  const auto spec = Read(module, {0, 1, 2, 3}, /*replicas=*/2);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const Sharding& sharding = *spec->outputs[0].sharding;
  EXPECT_EQ(sharding.kind(), Sharding::Kind::kConcreteEven);
  EXPECT_THAT(sharding.devices(), ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(sharding.IsFullyReplicated());
  EXPECT_THAT(*sharding.ShardShape({4, 4}), ElementsAre(2, 4));
}

TEST(ExecutableSpec, NoOutputs) {
  xla::HloModuleProto module = Module(kTwoDevices);
  module.mutable_host_program_shape()->mutable_result()->clear_tuple_shapes();
  const auto spec = Read(module, {8, 9});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->outputs, IsEmpty());
}

TEST(ExecutableSpec, Donations) {
  struct Case {
    const char* name;
    const char* text;
    std::vector<int32_t> donated;
  };
  const Case cases[] = {
      {"none", "", {}},
      {"may and must alias",
       "input_output_alias { entries { parameter_number: 1 kind: MUST_ALIAS } "
       "entries { parameter_number: 0 kind: MAY_ALIAS } }",
       {0, 1}},
      {"an undefined alias is none", "input_output_alias { entries { parameter_number: 1 } }", {}},
      {"a donor that no output took", "buffer_donor { entries { parameter_number: 1 } }", {}},
      {"twice",
       "input_output_alias { entries { parameter_number: 1 kind: MAY_ALIAS } "
       "entries { parameter_number: 1 kind: MUST_ALIAS } }",
       {1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto spec = Read(Module(std::string(kTwoDevices) + c.text), {8, 9});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->donated_parameters, c.donated);
  }
  for (const char* bad : {"parameter_number: 2", "parameter_number: -1", "parameter_number: 4294967296",
                          "parameter_number: 0 parameter_shape_index: 0"}) {
    SCOPED_TRACE(bad);
    const std::string alias = absl::StrCat("input_output_alias { entries { kind: MAY_ALIAS ", bad, " } }");
    EXPECT_EQ(Read(Module(kTwoDevices + alias), {8, 9}).status().code(), kInvalid);
  }
}

constexpr char kTupled[] = R"pb(
  host_program_shape {
    parameters {
      element_type: TUPLE
      tuple_shapes {
        element_type: F32
        dimensions: 2
        layout { minor_to_major: 0 }
      }
      tuple_shapes { element_type: S32 }
    }
    result { element_type: F32 }
  }
  spmd_parameters_shardings {
    type: TUPLE
    tuple_shardings { type: OTHER tile_assignment_dimensions: 2 iota_reshape_dims: 2 iota_transpose_perm: 0 }
    tuple_shardings {}
  }
)pb";

TEST(ExecutableSpec, TupledParameters) {
  const auto alias = [](const char* text) {
    return absl::StrCat(kTupled, "input_output_alias { entries { kind: MAY_ALIAS ", text, " } }");
  };
  const auto spec = Read(Module(alias("parameter_shape_index: 1")), {0, 1});
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->parameters.size(), 2u);
  EXPECT_THAT(spec->parameters[0].global_dims, ElementsAre(4));
  EXPECT_EQ(spec->parameters[1].element_type, xla::S32);
  EXPECT_THAT(spec->donated_parameters, ElementsAre(1));
  for (const char* bad : {"", "parameter_shape_index: 2", "parameter_number: 1 parameter_shape_index: 0"}) {
    EXPECT_EQ(Read(Module(alias(bad)), {0, 1}).status().code(), kInvalid) << bad;
  }
}

TEST(ExecutableSpec, CrossDeviceOps) {
  struct Case {
    const char* instruction;
    bool crosses;
  };
  const Case cases[] = {
      {"opcode: 'add'", false},
      {"opcode: 'all-reduce'", true},
      {"opcode: 'all-reduce-start'", true},
      {"opcode: 'all-reduce-done'", true},
      {"opcode: 'all-gather'", true},
      {"opcode: 'all-gather-start'", true},
      {"opcode: 'all-to-all'", true},
      {"opcode: 'ragged-all-to-all'", true},
      {"opcode: 'reduce-scatter'", true},
      {"opcode: 'collective-permute'", true},
      {"opcode: 'collective-permute-start'", true},
      {"opcode: 'collective-broadcast'", true},
      {"opcode: 'send'", true},
      {"opcode: 'recv-done'", true},
      {"opcode: 'send' is_host_transfer: true", false},
      {"opcode: 'partition-id'", false},
      {"opcode: 'reduce'", false},
      {"opcode: 'async-start'", false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.instruction);
    // Not in the entry: in a loop's body, say.
    const auto spec =
        Read(Module(std::string(kTwoDevices) + "computations { instructions { opcode: 'while' } } " +
                    "computations { instructions { " + c.instruction + " } }"),
             {8, 9});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->has_cross_device_ops, c.crosses);
  }
}

TEST(ExecutableSpec, CustomCalls) {
  const auto spec =
      Read(Module(std::string(kTwoDevices) +
                  "computations { instructions { opcode: 'custom-call' custom_call_target: 'b' } "
                  "instructions { opcode: 'custom-call' custom_call_target: 'a' } } "
                  "computations { instructions { opcode: 'custom-call' custom_call_target: 'b' } }"),
           {8, 9});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->custom_call_targets, ElementsAre("a", "b"));
}

TEST(ExecutableSpec, PythonCallbacks) {
  const std::string call =
      "instructions { opcode: 'custom-call' custom_call_target: 'xla_ffi_python_cpu_callback' ";
  const auto read = [&](const std::string& calls) {
    return Read(Module(std::string(kTwoDevices) + "payloads: '{callback = 7 : ui64, client = 1 : ui64}' " +
                       "computations { " + calls + " }"),
                {8, 9});
  };
  const auto spec = read(
      call + "backend_config: '{callback = 18446744073709551615 : ui64, client = 12 : ui64}' }" + call +
      "backend_config_payload { id: 0 } }" + call + "backend_config: '{client = 8 : ui64, callback = 7}' }");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->python_callbacks, ElementsAre(7, ~uint64_t{0}));
  EXPECT_EQ(read(call + "}").status().code(), kInvalid);
  EXPECT_EQ(read(call + "backend_config: '{callback = x}' }").status().code(), kInvalid);
  EXPECT_EQ(read(call + "backend_config_payload { id: 1 } }").status().code(), kInvalid);
}

TEST(ExecutableSpec, Refusals) {
  const auto status = [](auto change) {
    xla::HloModuleProto module = Module(kTwoDevices);
    change(module, *module.mutable_host_program_shape());
    return Read(module, {8, 9}).status();
  };
  EXPECT_EQ(status([](auto& m, auto&) { m.clear_host_program_shape(); }).code(), kInvalid);
  EXPECT_EQ(status([](auto&, auto& s) { s.clear_result(); }).code(), kInvalid);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(1)->set_element_type(xla::TUPLE); }).code(),
            kUnimplemented);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(1)->clear_element_type(); }).code(),
            kUnimplemented);
  EXPECT_EQ(status([](auto&, auto& s) {
              s.mutable_result()->mutable_tuple_shapes(0)->set_element_type(xla::TUPLE);
            }).code(),
            kUnimplemented);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(0)->add_is_dynamic_dimension(true); }).code(),
            kUnimplemented);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(0)->set_dimensions(0, -1); }).code(), kInvalid);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(0)->set_dimensions(1, INT64_MAX); }).code(),
            kInvalid);
  EXPECT_EQ(status([](auto&, auto& s) { s.mutable_parameters(0)->add_dimensions(1); }).code(), kInvalid);
  EXPECT_EQ(status([](auto& m, auto&) { m.add_spmd_parameters_shardings(); }).code(), kInvalid);
  EXPECT_EQ(status([](auto& m, auto&) { m.mutable_spmd_output_sharding()->add_tuple_shardings(); }).code(),
            kInvalid);
  // Tells which value it is.
  EXPECT_THAT(std::string(status([](auto& m, auto&) {
                            m.mutable_spmd_output_sharding()->mutable_tuple_shardings(2)->set_type(
                                OpSharding::UNKNOWN);
                          }).message()),
              HasSubstr("output 2"));

  const std::string bytes = Module(kTwoDevices).SerializeAsString();
  EXPECT_EQ(FromOptimizedHlo("mlir", bytes, {0, 1}, 1, 2).status().code(), kUnimplemented);
  EXPECT_EQ(FromOptimizedHlo("hlo", "\xff\xff", {0, 1}, 1, 2).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo", "", {0, 1}, 1, 2).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo_with_config", "", {0, 1}, 1, 2).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo", bytes, {0, 1}, 1, 1).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo", bytes, {0, 1}, 0, 2).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo", bytes, {0, 0}, 1, 2).status().code(), kInvalid);
  EXPECT_EQ(FromOptimizedHlo("hlo", bytes, {0, 1}, -1, -2).status().code(), kInvalid);
}

}  // namespace
}  // namespace helmway::program
