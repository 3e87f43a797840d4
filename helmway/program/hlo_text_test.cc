#include "helmway/program/hlo_text.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/program/testdata_testing.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& name) { return ReadTestdata("hlo_text_" + name); }

constexpr const char* kPrograms[] = {
    "add",          "aliases",        "all_gather", "all_reduce",
    "all_to_all",   "async",          "branches",   "collective_permute",
    "convolution",  "donation",       "dot_reduce", "gather",
    "instructions", "reduce_scatter", "scan",       "scatter",
    "sharded_step", "solve",          "sort",       "source_locations",
    "while",
};

class HloTextOfProgram : public testing::TestWithParam<const char*> {};

TEST_P(HloTextOfProgram, IsThatOfJaxlib) {
  std::string name = GetParam();
  absl::StatusOr<std::string> text = HloText("hlo_with_config", ReadFile(name + ".pb"));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, ReadFile(name + ".txt"));
}

// Whatever a byte is turned into, there is a text or an INVALID_ARGUMENT, but no crash.
TEST_P(HloTextOfProgram, SurvivesChangedBytes) {
  std::string bytes = ReadFile(absl::StrCat(GetParam(), ".pb"));
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string changed = bytes;
    for (int k = 0; k <= i % 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    absl::StatusOr<std::string> text = HloText("hlo_with_config", changed);
    if (!text.ok()) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(All, HloTextOfProgram, testing::ValuesIn(kPrograms),
                         [](const auto& program) { return std::string(program.param); });

// f32[2,2] -> f32[2,2], with a constant and an add.
class HloTextTest : public testing::Test {
 protected:
  HloTextTest() {
    module_.set_name("m");
    module_.set_entry_computation_id(1);
    computation_ = module_.add_computations();
    computation_->set_name("main");
    computation_->set_id(1);
    computation_->set_root_id(3);
    for (int id = 1; id <= 3; ++id) {
      xla::HloInstructionProto* instruction = computation_->add_instructions();
      instruction->set_id(id);
      instruction->set_name(absl::StrCat("i", id));
      SetShape(instruction->mutable_shape());
    }
    parameter()->set_opcode("parameter");
    constant()->set_opcode("constant");
    SetShape(constant()->mutable_literal()->mutable_shape());
    for (float value : {1, 2, 3, 4}) constant()->mutable_literal()->add_f32s(value);
    root()->set_opcode("add");
    root()->add_operand_ids(1);
    root()->add_operand_ids(2);
  }

  static void SetShape(xla::ShapeProto* shape) {
    shape->set_element_type(xla::F32);
    shape->add_dimensions(2);
    shape->add_dimensions(2);
    shape->mutable_layout()->add_minor_to_major(1);
    shape->mutable_layout()->add_minor_to_major(0);
  }

  xla::HloInstructionProto* parameter() { return computation_->mutable_instructions(0); }
  xla::HloInstructionProto* constant() { return computation_->mutable_instructions(1); }
  xla::HloInstructionProto* root() { return computation_->mutable_instructions(2); }

  absl::StatusOr<std::string> Text() const { return HloText("hlo", module_.SerializeAsString()); }

  void ExpectMalformed(const std::string& what) const {
    absl::StatusOr<std::string> text = Text();
    ASSERT_FALSE(text.ok()) << *text;
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(what));
  }

  xla::HloModuleProto module_;
  xla::HloComputationProto* computation_;
};

TEST_F(HloTextTest, PrintsAModuleWithoutConfig) {
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "HloModule m, entry_computation_layout={()->invalid[]}\n\n"
            "ENTRY %main (i1: f32[2,2]) -> f32[2,2] {\n"
            "  %i1 = f32[2,2]{1,0} parameter(0)\n"
            "  %i2 = f32[2,2]{1,0} constant({ { 1, 2 }, { 3, 4 } })\n"
            "  ROOT %i3 = f32[2,2]{1,0} add(%i1, %i2)\n"
            "}\n\n");
}

TEST_F(HloTextTest, PrintsTheDeviceCountsThatAModuleHolds) {
  module_.mutable_device_assignment()->set_replica_count(2);
  module_.mutable_device_assignment()->set_computation_count(4);
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr(", replica_count=2, num_partitions=4\n"));
}

TEST_F(HloTextTest, PrintsUnknownOpcodesInTheGeneralForm) {
  root()->set_opcode("no-such-opcode");
  root()->add_dimensions(1);
  root()->set_backend_config("{\"a\":1}");
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("ROOT %i3 = f32[2,2]{1,0} no-such-opcode(%i1, %i2), dimensions={1}, "
                               "backend_config={\"a\":1}\n"));
}

TEST_F(HloTextTest, FollowsTheLayoutOfALiteral) {
  xla::LayoutProto* layout = constant()->mutable_literal()->mutable_shape()->mutable_layout();
  layout->set_minor_to_major(0, 0);
  layout->set_minor_to_major(1, 1);
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("constant({ { 1, 3 }, { 2, 4 } })"));
}

TEST_F(HloTextTest, PrintsInTheOrderOfTheSchedule) {
  for (int64_t id : {2, 1, 3}) (*module_.mutable_schedule()->mutable_sequences())[1].add_instruction_ids(id);
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("HloModule m, is_scheduled=true"));
  EXPECT_LT(text->find("%i2 ="), text->find("%i1 ="));
}

TEST_F(HloTextTest, RefusesOtherFormats) {
  EXPECT_EQ(HloText("mlir", "").status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(HloTextTest, RefusesOtherBytes) {
  EXPECT_EQ(HloText("hlo", "\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HloText("hlo_with_config", "\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HloText("hlo", "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HloTextTest, RefusesIdsOfNothing) {
  root()->set_operand_ids(0, 17);
  ExpectMalformed("id 17");
  root()->set_operand_ids(0, 1);
  root()->add_control_predecessor_ids(18);
  ExpectMalformed("id 18");
  root()->clear_control_predecessor_ids();
  root()->add_called_computation_ids(19);
  ExpectMalformed("computation 19");
  root()->clear_called_computation_ids();
  computation_->set_root_id(20);
  ExpectMalformed("20");
  computation_->set_root_id(3);
  module_.set_entry_computation_id(21);
  ExpectMalformed("21");
  module_.set_entry_computation_id(1);
  (*module_.mutable_schedule()->mutable_sequences())[1].add_instruction_ids(22);
  ExpectMalformed("instruction 22");
}

TEST_F(HloTextTest, RefusesRepeatedIds) {
  root()->set_id(1);
  ExpectMalformed("have the id 1");
  root()->set_id(3);
  module_.add_computations()->CopyFrom(*module_.mutable_computations(0));
  ExpectMalformed("have the id 1");
}

TEST_F(HloTextTest, RefusesCirclesOfCalls) {
  root()->add_called_computation_ids(1);
  ExpectMalformed("circle");
}

TEST_F(HloTextTest, EndsCirclesOfAsyncOperations) {
  root()->set_opcode("async-update");
  root()->set_operand_ids(0, 3);
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("async-update(%i3, %i2)"));
}

TEST_F(HloTextTest, RefusesLiteralsThatDoNotFit) {
  constant()->mutable_literal()->add_f32s(5);
  ExpectMalformed("5 units");
  constant()->mutable_literal()->mutable_f32s()->Truncate(3);
  ExpectMalformed("3 units");
  constant()->mutable_literal()->add_f32s(4);
  constant()->mutable_literal()->mutable_shape()->mutable_layout()->set_minor_to_major(0, 0);
  ExpectMalformed("permutation");
  constant()->mutable_literal()->mutable_shape()->set_dimensions(0, 1);
  ExpectMalformed("f32[1,2]");
  constant()->mutable_shape()->set_dimensions(0, -1);
  ExpectMalformed("-1");
}

TEST_F(HloTextTest, ElidesHugeConstants) {
  for (xla::ShapeProto* shape :
       {constant()->mutable_shape(), constant()->mutable_literal()->mutable_shape()}) {
    shape->set_dimensions(0, int64_t{1} << 62);
    shape->set_dimensions(1, int64_t{1} << 62);
  }
  absl::StatusOr<std::string> text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("constant({...})"));
  // No elements, but more rows than anybody reads.
  for (xla::ShapeProto* shape :
       {constant()->mutable_shape(), constant()->mutable_literal()->mutable_shape()}) {
    shape->set_dimensions(1, 0);
  }
  text = Text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("constant({...})"));
}

TEST_F(HloTextTest, RefusesConstantsOfHugeRank) {
  for (xla::ShapeProto* shape :
       {constant()->mutable_shape(), constant()->mutable_literal()->mutable_shape()}) {
    for (int i = 0; i < 100000; ++i) shape->add_dimensions(1);
  }
  ExpectMalformed("100002 dimensions");
}

TEST_F(HloTextTest, RefusesDimensionNumbersOutOfRange) {
  root()->set_opcode("convolution");
  root()->mutable_convolution_dimension_numbers()->set_input_batch_dimension(int64_t{1} << 40);
  ExpectMalformed("out of range");
  root()->mutable_convolution_dimension_numbers()->set_input_batch_dimension(-1);
  ExpectMalformed("out of range");
}

TEST_F(HloTextTest, RefusesAxesThatTheMeshDoesNotHave) {
  root()->set_opcode("all-reduce");
  root()->mutable_mesh_axes_replica_group_list()->add_axes()->set_mesh_axis_index(3);
  ExpectMalformed("axis 3");
}

TEST_F(HloTextTest, RefusesTextsThatAreFarLongerThanTheirProgram) {
  parameter()->set_name(std::string(1 << 20, 'x'));
  for (int i = 0; i < 2000; ++i) root()->add_operand_ids(1);
  absl::StatusOr<std::string> text = Text();
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace helmway::program
