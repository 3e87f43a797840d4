#include "helmway/program/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "helmway/program/testdata_testing.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using xla::HloInstructionProto;
using xla::HloModuleProto;

constexpr ProgramSize kEight = {1, 8};

HloModuleProto Load(const std::string& name) {
  xla::HloModuleProtoWithConfig with_config;
  EXPECT_TRUE(with_config.ParseFromString(ReadTestdata(name))) << name;
  EXPECT_GT(with_config.hlo_module().computations_size(), 0) << name;
  return with_config.hlo_module();
}

HloInstructionProto* Find(HloModuleProto& module, const std::string& name) {
  for (auto& computation : *module.mutable_computations()) {
    for (auto& instruction : *computation.mutable_instructions()) {
      if (instruction.name() == name) return &instruction;
    }
  }
  return nullptr;
}

// The attributes of the only collective of a program that XLA compiled for eight devices.
HloInstructionProto Replaced(const std::string& file, const std::string& name) {
  HloModuleProto module = Load(file);
  const HloInstructionProto before = *Find(module, name);
  absl::StatusOr<bool> changed = ReplaceCollectives(kEight, &module);
  EXPECT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(changed.value_or(false));
  const HloInstructionProto after = *Find(module, name);
  EXPECT_EQ(after.opcode(), "custom-call");
  EXPECT_EQ(after.custom_call_target(), kCollectiveTarget);
  EXPECT_EQ(after.id(), before.id());
  EXPECT_EQ(after.shape().SerializeAsString(), before.shape().SerializeAsString());
  EXPECT_EQ(after.operand_ids_size(), before.operand_ids_size());
  EXPECT_EQ(after.called_computation_ids_size(), 0);
  return after;
}

TEST(CollectivesTest, APartitionedDotIsSummed) {
  const HloInstructionProto call = Replaced("hlo_text_all_reduce.pb", "all-reduce");
  EXPECT_THAT(call.backend_config(), HasSubstr("kind = array<i64: 0>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("members = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("sizes = array<i64: 4, 4>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("reduction = array<i64: 1>"));
}

TEST(CollectivesTest, GatherOverAnAxisOfAMesh) {
  const HloInstructionProto call = Replaced("hlo_text_all_gather.pb", "all_gather.7");
  EXPECT_THAT(call.backend_config(), HasSubstr("kind = array<i64: 1>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("members = array<i64: 0, 1, 2, 3, 4, 5, 6, 7>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("blocks = array<i64: 1>"));
}

TEST(CollectivesTest, AllToAllAsTuple) {
  const HloInstructionProto call = Replaced("hlo_text_all_to_all.pb", "all-to-all");
  EXPECT_THAT(call.backend_config(), HasSubstr("kind = array<i64: 4>"));
  EXPECT_THAT(call.backend_config(), HasSubstr("blocks = array<i64: 1, 1, 1, 1>"));
}

TEST(CollectivesTest, PermutationIsPairs) {
  const HloInstructionProto call = Replaced("hlo_text_collective_permute.pb", "ppermute.3");
  EXPECT_THAT(call.backend_config(), HasSubstr("members = array<i64: 0, 1, 1, 2, 2, 3, 3, 0"));
  EXPECT_THAT(call.backend_config(), HasSubstr("sizes = array<i64: 2, 2, 2, 2, 2, 2, 2, 2>"));
}

TEST(CollectivesTest, ReduceScatter) {
  HloModuleProto module = Load("hlo_text_reduce_scatter.pb");
  absl::StatusOr<bool> changed = ReplaceCollectives(kEight, &module);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(*changed);
}

TEST(CollectivesTest, OtherProgramsStay) {
  HloModuleProto module = Load("hlo_text_add.pb");
  const std::string before = module.SerializeAsString();
  EXPECT_FALSE(ReplaceCollectives(kEight, &module).value());
  EXPECT_EQ(module.SerializeAsString(), before);
}

TEST(CollectivesTest, TheRuntimesOwnCallsAreNotForClients) {
  HloModuleProto module = Load("hlo_text_all_reduce.pb");
  ASSERT_TRUE(ReplaceCollectives(kEight, &module).value_or(false));
  const absl::Status status = ReplaceCollectives(kEight, &module).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("helmway_collective"));
  EXPECT_TRUE(CheckTargetOfClient("lapack_spotrf_ffi").ok());
}

class OneInstruction : public ::testing::Test {
 protected:
  HloModuleProto module_ = Load("hlo_text_instructions.pb");
  absl::StatusOr<Collective> Read(const std::string& name, ProgramSize size = kEight) {
    const HloInstructionProto* instruction = Find(module_, name);
    if (instruction == nullptr) return absl::NotFoundError(name);
    return ReadCollective(size, module_, *instruction);
  }
};

TEST_F(OneInstruction, EveryEncodingOfGroups) {
  EXPECT_THAT(Read("x65")->groups, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(Read("x66")->groups, ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(Read("x67")->groups, ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(Read("x69")->groups, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(Read("x133")->groups,
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  // Of a mesh with its own order of devices, the axis x and the major half of y.
  EXPECT_THAT(Read("x191")->groups, ElementsAre(ElementsAre(1, 2, 4, 6), ElementsAre(0, 3, 5, 7)));
}

TEST_F(OneInstruction, ReplicasAndPartitions) {
  // Without a channel the numbers are replicas, and each partition has its own groups.
  EXPECT_THAT(Read("x64", {4, 2})->groups,
              ElementsAre(ElementsAre(0, 2), ElementsAre(4, 6), ElementsAre(1, 3), ElementsAre(5, 7)));
  // With a channel and no use of global numbers: all partitions of the replicas.
  EXPECT_THAT(Read("x148", {2, 2})->groups, ElementsAre(ElementsAre(0, 1, 2, 3)));
  // Of partitions, in each replica.
  EXPECT_THAT(Read("x72", {2, 2})->groups,
              ElementsAre(ElementsAre(0, 1), ElementsAre(1, 0), ElementsAre(2, 3), ElementsAre(3, 2)));
  EXPECT_THAT(Read("x177", {2, 2})->groups, ElementsAre());
}

TEST_F(OneInstruction, TheMemoryBeforeTheDimension) {
  HloInstructionProto* gather = Find(module_, "x68");
  ASSERT_NE(gather, nullptr);
  HloInstructionProto* operand = nullptr;
  for (auto& computation : *module_.mutable_computations()) {
    for (auto& one : *computation.mutable_instructions()) {
      if (one.id() == gather->operand_ids(0)) operand = &one;
    }
  }
  ASSERT_NE(operand, nullptr);
  auto set = [](xla::ShapeProto* shape, std::vector<int64_t> dims, std::vector<int64_t> layout) {
    shape->mutable_dimensions()->Assign(dims.begin(), dims.end());
    shape->mutable_layout()->mutable_minor_to_major()->Assign(layout.begin(), layout.end());
  };
  gather->set_dimensions(0, 1);
  set(operand->mutable_shape(), {3, 4, 5}, {2, 1, 0});
  set(gather->mutable_shape(), {3, 8, 5}, {2, 1, 0});
  EXPECT_THAT(Read("x68")->blocks, ElementsAre(3));
  set(operand->mutable_shape(), {3, 4, 5}, {0, 1, 2});
  set(gather->mutable_shape(), {3, 8, 5}, {0, 1, 2});
  EXPECT_THAT(Read("x68")->blocks, ElementsAre(5));
  set(operand->mutable_shape(), {3, 4, 5}, {0, 2, 1});
  set(gather->mutable_shape(), {3, 8, 5}, {0, 2, 1});
  EXPECT_THAT(Read("x68")->blocks, ElementsAre(1));
  // Another layout of the result.
  set(gather->mutable_shape(), {3, 8, 5}, {2, 1, 0});
  EXPECT_EQ(Read("x68").status().code(), absl::StatusCode::kUnimplemented);
  // Packed types only if parts are whole bytes.
  set(operand->mutable_shape(), {3, 1, 5}, {2, 1, 0});
  set(gather->mutable_shape(), {3, 2, 5}, {2, 1, 0});
  operand->mutable_shape()->set_element_type(xla::S4);
  gather->mutable_shape()->set_element_type(xla::S4);
  EXPECT_EQ(Read("x68").status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(OneInstruction, WhatIsMissingIsNamed) {
  for (const char* name : {"x137", "x143", "x145", "x178"}) {
    const absl::Status status = Read(name, {8, 8}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  // The whole module has such instructions.
  EXPECT_EQ(ReplaceCollectives({8, 8}, &module_).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(OneInstruction, ContradictionsAreRefused) {
  EXPECT_EQ(Read("x65", {1, 4}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("x65", {0, 4}).status().code(), absl::StatusCode::kInvalidArgument);
  Find(module_, "x69")->set_dimensions(0, 7);
  EXPECT_EQ(Read("x69").status().code(), absl::StatusCode::kInvalidArgument);
  auto* groups = Find(module_, "x72")->mutable_source_target_pairs();
  groups->Mutable(0)->set_target(0);
  EXPECT_EQ(Read("x72").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace helmway::program
