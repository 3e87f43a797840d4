#include "helmway/program/cost_analysis.h"

#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/program/testdata_testing.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using ::testing::HasSubstr;

// testdata/make_costs.py asked jaxlib.
TEST(CostAnalysis, CountsAsJaxlibDoes) {
  std::istringstream expected(ReadTestdata("costs.txt"));
  std::string name;
  Costs wanted;
  int programs = 0;
  while (expected >> name >> wanted.flops >> wanted.transcendentals >> wanted.bytes_accessed) {
    const absl::StatusOr<Costs> costs =
        CostsOf(absl::StartsWith(name, "hlo_text_") ? "hlo_with_config" : "hlo", ReadTestdata(name));
    ASSERT_TRUE(costs.ok()) << name << ": " << costs.status();
    EXPECT_FLOAT_EQ(costs->flops, wanted.flops) << name;
    EXPECT_FLOAT_EQ(costs->transcendentals, wanted.transcendentals) << name;
    EXPECT_FLOAT_EQ(costs->bytes_accessed, wanted.bytes_accessed) << name;
    ++programs;
  }
  EXPECT_GT(programs, 40);
}

// A module of one computation, which adds two numbers.
xla::HloModuleProto Add() {
  xla::HloModuleProto module;
  module.set_entry_computation_id(1);
  auto& computation = *module.add_computations();
  computation.set_id(1);
  computation.set_root_id(3);
  for (const int64_t id : {1, 2, 3}) {
    auto& instruction = *computation.add_instructions();
    instruction.set_id(id);
    instruction.set_name(absl::StrCat("i", id));
    instruction.set_opcode(id == 3 ? "add" : "parameter");
    instruction.mutable_shape()->set_element_type(xla::F32);
    if (id == 3) {
      instruction.add_operand_ids(1);
      instruction.add_operand_ids(2);
    }
  }
  return module;
}

TEST(CostAnalysis, ModulesThatContradictThemselves) {
  const auto status_of = [](const xla::HloModuleProto& module) {
    return CostsOf("hlo", module.SerializeAsString()).status();
  };
  EXPECT_TRUE(status_of(Add()).ok());
  xla::HloModuleProto module = Add();
  module.mutable_computations(0)->mutable_instructions(2)->set_operand_ids(0, 9);
  EXPECT_THAT(std::string(status_of(module).message()), HasSubstr("operand"));
  module = Add();
  module.set_entry_computation_id(5);
  EXPECT_THAT(std::string(status_of(module).message()), HasSubstr("computation 5"));
  for (const char* opcode : {"call", "while", "conditional", "fusion", "reduce", "map", "scatter", "sort",
                             "dot", "convolution", "triangular-solve", "cholesky", "reduce-window",
                             "select-and-scatter", "transpose", "dynamic-slice", "gather", "fft"}) {
    module = Add();
    auto* instruction = module.mutable_computations(0)->mutable_instructions(2);
    instruction->set_opcode(opcode);
    instruction->mutable_dot_dimension_numbers()->add_lhs_contracting_dimensions(7);
    instruction->mutable_window()->add_dimensions();
    (void)status_of(module);  // any answer
    instruction->clear_operand_ids();
    (void)status_of(module);
    instruction->add_called_computation_ids(1);
    const absl::Status status = status_of(module);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  }
  module = Add();
  module.mutable_computations(0)->mutable_instructions(2)->set_opcode("call");
  module.mutable_computations(0)->mutable_instructions(2)->add_called_computation_ids(1);
  EXPECT_THAT(std::string(status_of(module).message()), HasSubstr("circle"));
  // A chain of calls that is longer than a stack.
  module = Add();
  for (int64_t id = 2; id <= 100'000; ++id) {
    auto& caller = *module.add_computations();
    caller.set_id(id);
    auto& call = *caller.add_instructions();
    call.set_id(1);
    call.set_opcode("call");
    call.add_called_computation_ids(id - 1);
  }
  module.set_entry_computation_id(100'000);
  EXPECT_TRUE(absl::IsInvalidArgument(status_of(module)));
  EXPECT_TRUE(absl::IsInvalidArgument(CostsOf("hlo", "\xff").status()));
  EXPECT_TRUE(absl::IsUnimplemented(CostsOf("text", "").status()));
}

}  // namespace
}  // namespace helmway::program
