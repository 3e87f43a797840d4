#include "helmway/wire/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"

namespace helmway::wire {
namespace {

using P = xla::ifrt::DTypeProto;

std::vector<DTypeKind> AllKinds() {
  std::vector<DTypeKind> kinds;
  const auto* descriptor = xla::ifrt::DTypeProto::Kind_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto kind = static_cast<DTypeKind>(descriptor->value(i)->number());
    if (kind != P::KIND_UNSPECIFIED) kinds.push_back(kind);
  }
  return kinds;
}

TEST(DTypeTest, EveryKindOfTheSchemaHasFactsThatAgreeWithItsName) {
  for (DTypeKind kind : AllKinds()) {
    auto facts = GetDTypeFacts(kind);
    ASSERT_TRUE(facts.ok()) << kind;
    EXPECT_EQ(facts->kind, kind);
    EXPECT_EQ("KIND_" + absl::AsciiStrToUpper(facts->name), P::Kind_Name(kind));
  }
}

TEST(DTypeTest, PrimitiveTypesAgreeByNameAndRoundTrip) {
  for (DTypeKind kind : AllKinds()) {
    auto type = ToPrimitiveType(kind);
    if (kind == P::KIND_STRING) {
      EXPECT_EQ(type.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(type.ok()) << type.status();
    const std::string name = kind == P::KIND_OPAQUE ? "OPAQUE_TYPE" : absl::AsciiStrToUpper(DTypeName(kind));
    EXPECT_EQ(xla::PrimitiveType_Name(*type), name);
    auto back = FromPrimitiveType(*type);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, kind);
    if (kind <= 29) {
      EXPECT_EQ(static_cast<int>(*type), static_cast<int>(kind));
    }
  }
  // Where a cast would name another type.
  EXPECT_EQ(*ToPrimitiveType(P::KIND_F4E2M1FN), 32);
  EXPECT_EQ(*ToPrimitiveType(P::KIND_S1), 30);
  EXPECT_EQ(*ToPrimitiveType(P::KIND_F6E3M2FN), 35);
  EXPECT_EQ(*ToPrimitiveType(P::KIND_F6E2M3FN), 36);
}

TEST(DTypeTest, WhatIsNoElementTypeIsRefused) {
  for (int type : {0, 13, 34, 37, 1000, -1}) {  // invalid, tuple, buffer, unknown
    EXPECT_EQ(FromPrimitiveType(static_cast<xla::PrimitiveType>(type)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << type;
  }
  for (int kind : {0, 13, 36, 98, 1000, -1}) {
    const auto k = static_cast<DTypeKind>(kind);
    EXPECT_EQ(GetDTypeFacts(k).status().code(), absl::StatusCode::kInvalidArgument) << kind;
    EXPECT_EQ(ToPrimitiveType(k).status().code(), absl::StatusCode::kInvalidArgument) << kind;
    EXPECT_EQ(HostBytesPerElement(k).status().code(), absl::StatusCode::kInvalidArgument) << kind;
  }
  EXPECT_EQ(DTypeName(static_cast<DTypeKind>(77)), "kind 77");
}

TEST(DTypeTest, HostSizes) {
  struct Case {
    DTypeKind kind;
    int bits, bytes;
  };
  const Case cases[] = {
      {P::KIND_PRED, 8, 1},      {P::KIND_S1, 1, 1},
      {P::KIND_U2, 2, 1},        {P::KIND_S4, 4, 1},
      {P::KIND_F4E2M1FN, 4, 1},  {P::KIND_F6E2M3FN, 6, 1},
      {P::KIND_F6E3M2FN, 6, 1},  {P::KIND_U8, 8, 1},
      {P::KIND_F8E8M0FNU, 8, 1}, {P::KIND_F8E4M3B11FNUZ, 8, 1},
      {P::KIND_BF16, 16, 2},     {P::KIND_F16, 16, 2},
      {P::KIND_S32, 32, 4},      {P::KIND_F64, 64, 8},
      {P::KIND_C64, 64, 8},      {P::KIND_C128, 128, 16},
      {P::KIND_TOKEN, 0, 0},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(GetDTypeFacts(c.kind)->bits, c.bits) << DTypeName(c.kind);
    EXPECT_EQ(*HostBytesPerElement(c.kind), c.bytes) << DTypeName(c.kind);
  }
  for (DTypeKind kind : {P::KIND_STRING, P::KIND_OPAQUE}) {
    EXPECT_EQ(HostBytesPerElement(kind).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DTypeTest, HostByteCount) {
  EXPECT_EQ(*HostByteCount(P::KIND_F32, {}), 4);
  EXPECT_EQ(*HostByteCount(P::KIND_F32, {2, 3}), 24);
  EXPECT_EQ(*HostByteCount(P::KIND_S4, {5}), 5);
  EXPECT_EQ(*HostByteCount(P::KIND_TOKEN, {7}), 0);
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*HostByteCount(P::KIND_U8, {kBig}), kBig);
  EXPECT_EQ(*HostByteCount(P::KIND_F32, {kBig, kBig, 0}), 0);
  EXPECT_EQ(HostByteCount(P::KIND_F32, {kBig}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HostByteCount(P::KIND_F32, {0, -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HostByteCount(P::KIND_STRING, {1}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace helmway::wire
