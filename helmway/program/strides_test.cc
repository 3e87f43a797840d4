#include "helmway/program/strides.h"

#include <limits>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using Strides = std::optional<std::vector<int64_t>>;

Strides Some(std::vector<int64_t> strides) { return strides; }

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

absl::StatusOr<int64_t> Region(const std::vector<int64_t>& dims, int64_t element_bytes,
                               const Strides& strides) {
  if (!strides.has_value()) return RegionSizeBytes(dims, element_bytes, std::nullopt);
  return RegionSizeBytes(dims, element_bytes, absl::MakeConstSpan(*strides));
}

TEST(RegionSizeBytes, Sizes) {
  struct Case {
    const char* name;
    std::vector<int64_t> dims;
    int64_t element_bytes;
    Strides strides;
    int64_t expected;
  };
  const Case cases[] = {
      {"scalar without strides", {}, 4, std::nullopt, 4},
      {"scalar with an empty list", {}, 8, Some({}), 8},
      {"dense without strides", {2, 3}, 4, std::nullopt, 24},
      {"dense with strides", {2, 3}, 4, Some({12, 4}), 24},
      {"column-major", {2, 3}, 4, Some({4, 8}), 24},
      {"a 4x4 shard of an 8x8 array", {4, 4}, 4, Some({32, 4}), 112},
      {"a dim of size 1 with a wild stride", {1, 3}, 4, Some({-999, 4}), 12},
      {"a dim of size 1 with a huge stride", {3, 1}, 4, Some({4, kMax}), 12},
      {"no elements", {0, 3}, 4, Some({12, 4}), 0},
      {"no elements, wild strides", {5, 0}, 4, Some({-1, 0}), 0},
      {"no elements beside a size that overflows", {kMax, kMax, 0}, 8, std::nullopt, 0},
      {"token", {}, 0, std::nullopt, 0},
      {"4-bit type, one byte each", {3, 5}, 1, std::nullopt, 15},
      {"largest", {kMax}, 1, std::nullopt, kMax},
      {"largest with strides", {2}, 1, Some({kMax - 1}), kMax},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const absl::StatusOr<int64_t> size = Region(c.dims, c.element_bytes, c.strides);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(*size, c.expected);
  }
}

TEST(RegionSizeBytes, Refusals) {
  struct Case {
    const char* name;
    std::vector<int64_t> dims;
    int64_t element_bytes;
    Strides strides;
    absl::StatusCode code;
  };
  const Case cases[] = {
      {"negative dim", {2, -1}, 4, std::nullopt, absl::StatusCode::kInvalidArgument},
      {"negative dim beside no elements", {0, -1}, 4, std::nullopt, absl::StatusCode::kInvalidArgument},
      {"negative element size", {2}, -4, std::nullopt, absl::StatusCode::kInvalidArgument},
      {"too few strides", {2, 3}, 4, Some({4}), absl::StatusCode::kInvalidArgument},
      {"too many strides", {}, 4, Some({4}), absl::StatusCode::kInvalidArgument},
      {"zero stride", {2, 3}, 4, Some({0, 4}), absl::StatusCode::kUnimplemented},
      {"negative stride", {2, 3}, 4, Some({12, -4}), absl::StatusCode::kUnimplemented},
      {"product overflows", {kMax, 2}, 1, std::nullopt, absl::StatusCode::kInvalidArgument},
      {"element size overflows", {kMax / 2}, 4, std::nullopt, absl::StatusCode::kInvalidArgument},
      {"stride overflows", {3}, 1, Some({kMax / 2 + 1}), absl::StatusCode::kInvalidArgument},
      {"sum overflows", {2}, 2, Some({kMax - 1}), absl::StatusCode::kInvalidArgument},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(Region(c.dims, c.element_bytes, c.strides).status().code(), c.code);
  }
}

TEST(ElementCount, Counts) {
  EXPECT_EQ(*ElementCount({}), 1);
  EXPECT_EQ(*ElementCount({2, 3, 4}), 24);
  EXPECT_EQ(*ElementCount({2, 0}), 0);
  EXPECT_EQ(ElementCount({-1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ElementCount({kMax, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*ElementCount(std::vector<int64_t>(kMaxRank, 1)), 1);
  EXPECT_EQ(ElementCount(std::vector<int64_t>(kMaxRank + 1, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DenseByteStrides, RowMajor) {
  EXPECT_THAT(*DenseByteStrides({2, 3, 4}, 4), ElementsAre(48, 16, 4));
  EXPECT_THAT(*DenseByteStrides({}, 4), ElementsAre());
  EXPECT_THAT(*DenseByteStrides({2, 0, 3}, 8), ElementsAre(24, 24, 8));
  EXPECT_EQ(DenseByteStrides({kMax, 2}, 8).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IsDense, Cases) {
  EXPECT_TRUE(IsDense({}, 4, {}));
  EXPECT_TRUE(IsDense({2, 3}, 4, {12, 4}));
  EXPECT_TRUE(IsDense({2, 1, 3}, 4, {12, 77, 4}));
  EXPECT_TRUE(IsDense({0, 3}, 4, {1, 1}));
  EXPECT_FALSE(IsDense({2, 3}, 4, {4, 8}));
  EXPECT_FALSE(IsDense({4, 4}, 4, {32, 4}));
  EXPECT_FALSE(IsDense({2, 3}, 4, {12}));
  EXPECT_FALSE(IsDense({-2, 3}, 4, {12, 4}));
}

}  // namespace
}  // namespace helmway::program
