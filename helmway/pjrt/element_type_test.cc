#include "helmway/pjrt/element_type.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

TEST(ElementTypeTest, EveryNumberThatThePluginHasGoesThereAndBack) {
  for (int number = 1; number <= 35; ++number) {
    if (number == 13 || number == 14) continue;  // tuple and opaque
    auto type = static_cast<ElementType>(number);
    auto pjrt = ToPjrtBufferType(type);
    ASSERT_TRUE(pjrt.ok()) << pjrt.status();
    auto back = FromPjrtBufferType(*pjrt);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, type);
  }
}

TEST(ElementTypeTest, OthersAreUnimplemented) {
  EXPECT_EQ(ToPjrtBufferType(ElementType::kInvalid).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ToPjrtBufferType(static_cast<ElementType>(99)).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FromPjrtBufferType(0).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FromPjrtBufferType(-1).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FromPjrtBufferType(1000).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ElementTypeTest, Sizes) {
  EXPECT_EQ(HostElementBytes(ElementType::kPred), 1);
  EXPECT_EQ(HostElementBytes(ElementType::kS4), 1);
  EXPECT_EQ(HostElementBytes(ElementType::kF6E3M2FN), 1);
  EXPECT_EQ(HostElementBytes(ElementType::kBF16), 2);
  EXPECT_EQ(HostElementBytes(ElementType::kC128), 16);
  EXPECT_EQ(HostElementBytes(ElementType::kToken), 0);
  EXPECT_EQ(ElementBits(ElementType::kU2), 2);
  EXPECT_EQ(ElementTypeName(ElementType::kF8E4M3FN), "f8e4m3fn");
  EXPECT_EQ(ElementTypeName(static_cast<ElementType>(13)), "invalid");
}

// The plugin's own names for the types (those of MLIR) are the independent witness for our table.
struct MlirType {
  std::string name;
  ElementType type;
};

class ElementTypeOfPluginTest : public PjrtTest, public ::testing::WithParamInterface<MlirType> {};

TEST_P(ElementTypeOfPluginTest, AProgramReturnsIt) {
  auto client = MakeClient();
  const std::string tensor = absl::StrCat("tensor<2x", GetParam().name, ">");
  auto executable = Compile(*client, absl::StrCat("func.func public @main(%a: ", tensor, ") -> ", tensor,
                                                  " { return %a : ", tensor, " }"));
  ASSERT_NE(executable, nullptr);
  ASSERT_EQ(executable->num_outputs(), 1u);
  EXPECT_EQ(executable->output_element_types()[0], GetParam().type);

  std::vector<uint8_t> bytes(2 * HostElementBytes(GetParam().type), 1);
  Buffer in = MakeBuffer(*client, GetParam().type, bytes, {2});
  ASSERT_TRUE(in);
  EXPECT_EQ(in.element_type(), GetParam().type);
  Buffer* args[] = {&in};
  Buffer out[1];
  ASSERT_TRUE(executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[0].element_type(), GetParam().type);
  EXPECT_EQ(Read<uint8_t>(out[0]).size(), bytes.size());
  if (ElementBits(GetParam().type) >= 8) {
    EXPECT_EQ(Read<uint8_t>(out[0]), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ElementTypeOfPluginTest,
    ::testing::Values(
        MlirType{"i1", ElementType::kPred}, MlirType{"i8", ElementType::kS8},
        MlirType{"i16", ElementType::kS16}, MlirType{"i32", ElementType::kS32},
        MlirType{"i64", ElementType::kS64}, MlirType{"ui8", ElementType::kU8},
        MlirType{"ui16", ElementType::kU16}, MlirType{"ui32", ElementType::kU32},
        MlirType{"ui64", ElementType::kU64}, MlirType{"f16", ElementType::kF16},
        MlirType{"f32", ElementType::kF32}, MlirType{"f64", ElementType::kF64},
        MlirType{"complex<f32>", ElementType::kC64}, MlirType{"complex<f64>", ElementType::kC128},
        MlirType{"bf16", ElementType::kBF16}, MlirType{"f8E5M2", ElementType::kF8E5M2},
        MlirType{"f8E4M3FN", ElementType::kF8E4M3FN}, MlirType{"f8E4M3B11FNUZ", ElementType::kF8E4M3B11FNUZ},
        MlirType{"f8E5M2FNUZ", ElementType::kF8E5M2FNUZ}, MlirType{"f8E4M3FNUZ", ElementType::kF8E4M3FNUZ},
        MlirType{"f8E4M3", ElementType::kF8E4M3}, MlirType{"f8E3M4", ElementType::kF8E3M4},
        MlirType{"f8E8M0FNU", ElementType::kF8E8M0FNU}, MlirType{"f4E2M1FN", ElementType::kF4E2M1FN},
        MlirType{"i4", ElementType::kS4}, MlirType{"ui4", ElementType::kU4}, MlirType{"i2", ElementType::kS2},
        MlirType{"ui2", ElementType::kU2}, MlirType{"f6E2M3FN", ElementType::kF6E2M3FN},
        MlirType{"f6E3M2FN", ElementType::kF6E3M2FN}),
    [](const auto& param_info) { return std::string(ElementTypeName(param_info.param.type)); });

}  // namespace
}  // namespace helmway::pjrt
