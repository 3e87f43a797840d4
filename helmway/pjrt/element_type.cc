#include "helmway/pjrt/element_type.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

// Numbers of PJRT_Buffer_Type that came after the vendored header.
constexpr int kPjrtS1 = PJRT_Buffer_Type_F4E2M1FN + 1;
constexpr int kPjrtU1 = PJRT_Buffer_Type_F4E2M1FN + 2;
constexpr int kPjrtF6E2M3FN = PJRT_Buffer_Type_F4E2M1FN + 3;
constexpr int kPjrtF6E3M2FN = PJRT_Buffer_Type_F4E2M1FN + 4;

struct Row {
  ElementType type;
  int pjrt;
  std::string_view name;
  int bits;
};

constexpr Row kRows[] = {
    {ElementType::kPred, PJRT_Buffer_Type_PRED, "pred", 8},
    {ElementType::kS8, PJRT_Buffer_Type_S8, "s8", 8},
    {ElementType::kS16, PJRT_Buffer_Type_S16, "s16", 16},
    {ElementType::kS32, PJRT_Buffer_Type_S32, "s32", 32},
    {ElementType::kS64, PJRT_Buffer_Type_S64, "s64", 64},
    {ElementType::kU8, PJRT_Buffer_Type_U8, "u8", 8},
    {ElementType::kU16, PJRT_Buffer_Type_U16, "u16", 16},
    {ElementType::kU32, PJRT_Buffer_Type_U32, "u32", 32},
    {ElementType::kU64, PJRT_Buffer_Type_U64, "u64", 64},
    {ElementType::kF16, PJRT_Buffer_Type_F16, "f16", 16},
    {ElementType::kF32, PJRT_Buffer_Type_F32, "f32", 32},
    {ElementType::kF64, PJRT_Buffer_Type_F64, "f64", 64},
    {ElementType::kC64, PJRT_Buffer_Type_C64, "c64", 64},
    {ElementType::kBF16, PJRT_Buffer_Type_BF16, "bf16", 16},
    {ElementType::kToken, PJRT_Buffer_Type_TOKEN, "token", 0},
    {ElementType::kC128, PJRT_Buffer_Type_C128, "c128", 128},
    {ElementType::kF8E5M2, PJRT_Buffer_Type_F8E5M2, "f8e5m2", 8},
    {ElementType::kF8E4M3FN, PJRT_Buffer_Type_F8E4M3FN, "f8e4m3fn", 8},
    {ElementType::kS4, PJRT_Buffer_Type_S4, "s4", 4},
    {ElementType::kU4, PJRT_Buffer_Type_U4, "u4", 4},
    {ElementType::kF8E4M3B11FNUZ, PJRT_Buffer_Type_F8E4M3B11FNUZ, "f8e4m3b11fnuz", 8},
    {ElementType::kF8E5M2FNUZ, PJRT_Buffer_Type_F8E5M2FNUZ, "f8e5m2fnuz", 8},
    {ElementType::kF8E4M3FNUZ, PJRT_Buffer_Type_F8E4M3FNUZ, "f8e4m3fnuz", 8},
    {ElementType::kS2, PJRT_Buffer_Type_S2, "s2", 2},
    {ElementType::kU2, PJRT_Buffer_Type_U2, "u2", 2},
    {ElementType::kF8E4M3, PJRT_Buffer_Type_F8E4M3, "f8e4m3", 8},
    {ElementType::kF8E3M4, PJRT_Buffer_Type_F8E3M4, "f8e3m4", 8},
    {ElementType::kF4E2M1FN, PJRT_Buffer_Type_F4E2M1FN, "f4e2m1fn", 4},
    {ElementType::kF8E8M0FNU, PJRT_Buffer_Type_F8E8M0FNU, "f8e8m0fnu", 8},
    {ElementType::kS1, kPjrtS1, "s1", 1},
    {ElementType::kU1, kPjrtU1, "u1", 1},
    {ElementType::kF6E2M3FN, kPjrtF6E2M3FN, "f6e2m3fn", 6},
    {ElementType::kF6E3M2FN, kPjrtF6E3M2FN, "f6e3m2fn", 6},
};

const Row* Find(ElementType type) {
  for (const Row& row : kRows) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

}  // namespace

std::string_view ElementTypeName(ElementType type) {
  const Row* row = Find(type);
  return row == nullptr ? "invalid" : row->name;
}

int ElementBits(ElementType type) {
  const Row* row = Find(type);
  return row == nullptr ? 0 : row->bits;
}

int HostElementBytes(ElementType type) { return (ElementBits(type) + 7) / 8; }

absl::StatusOr<int> ToPjrtBufferType(ElementType type) {
  const Row* row = Find(type);
  if (row == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("element type ", static_cast<int>(type), " is not one that PJRT plugins have"));
  }
  return row->pjrt;
}

absl::StatusOr<ElementType> FromPjrtBufferType(int pjrt_buffer_type) {
  for (const Row& row : kRows) {
    if (row.pjrt == pjrt_buffer_type) return row.type;
  }
  return absl::UnimplementedError(
      absl::StrCat("the plugin uses PJRT buffer type ", pjrt_buffer_type, ", which is not known here"));
}

}  // namespace helmway::pjrt
