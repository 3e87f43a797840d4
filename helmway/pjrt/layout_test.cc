#include "helmway/pjrt/layout.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(LayoutTest, RowMajor) {
  EXPECT_THAT(RowMajorMinorToMajor(3), ElementsAre(2, 1, 0));
  EXPECT_TRUE(RowMajorMinorToMajor(0).empty());
  EXPECT_TRUE((MemoryLayout{.minor_to_major = {1, 0}}).IsDenseRowMajor());
  EXPECT_TRUE(MemoryLayout{}.IsDenseRowMajor());
  EXPECT_FALSE((MemoryLayout{.minor_to_major = {0, 1}}).IsDenseRowMajor());
  EXPECT_FALSE((MemoryLayout{.minor_to_major = {1, 0}, .tiles = {{8, 128}}}).IsDenseRowMajor());
}

TEST(LayoutTest, MinorToMajorMustBeAPermutation) {
  EXPECT_TRUE(CheckMinorToMajor({}, 0).ok());
  EXPECT_TRUE(CheckMinorToMajor({0, 2, 1}, 3).ok());
  EXPECT_EQ(CheckMinorToMajor({0, 0}, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckMinorToMajor({0}, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckMinorToMajor({1, 2}, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckMinorToMajor({-1, 0}, 2).code(), absl::StatusCode::kInvalidArgument);
}

TEST(LayoutTest, StridesOfDenseArrays) {
  EXPECT_THAT(DenseMinorToMajor({2, 3}, {12, 4}, 4), Optional(ElementsAre(1, 0)));
  EXPECT_THAT(DenseMinorToMajor({2, 3}, {4, 8}, 4), Optional(ElementsAre(0, 1)));
  EXPECT_THAT(DenseMinorToMajor({2, 3, 4}, {4, 32, 8}, 4), Optional(ElementsAre(0, 2, 1)));
  EXPECT_THAT(DenseMinorToMajor({}, {}, 4), Optional(ElementsAre()));
  // Sizes of one and arrays without elements do not care.
  EXPECT_THAT(DenseMinorToMajor({2, 1, 3}, {12, -77, 4}, 4), Optional(ElementsAre(2, 1, 0)));
  EXPECT_THAT(DenseMinorToMajor({0, 3}, {5, 6}, 4), Optional(ElementsAre(1, 0)));
}

TEST(LayoutTest, StridesOfOtherArrays) {
  EXPECT_EQ(DenseMinorToMajor({2, 3}, {16, 4}, 4), std::nullopt);  // a gap
  EXPECT_EQ(DenseMinorToMajor({3}, {-4}, 4), std::nullopt);        // backwards
  EXPECT_EQ(DenseMinorToMajor({2, 2}, {4, 4}, 4), std::nullopt);   // overlap
  EXPECT_EQ(DenseMinorToMajor({2, 3}, {0, 4}, 4), std::nullopt);   // broadcast
  EXPECT_EQ(DenseMinorToMajor({2, 3}, {24, 8}, 4), std::nullopt);  // every other element
}

TEST(LayoutTest, HostBytes) {
  EXPECT_EQ(*DenseHostBytes(ElementType::kF32, {2, 3}), 24u);
  EXPECT_EQ(*DenseHostBytes(ElementType::kS4, {3}), 3u);
  EXPECT_EQ(*DenseHostBytes(ElementType::kF64, {}), 8u);
  EXPECT_EQ(*DenseHostBytes(ElementType::kF64, {int64_t{1} << 40, 0}), 0u);
  EXPECT_EQ(DenseHostBytes(ElementType::kF64, {-1, 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DenseHostBytes(ElementType::kF64, {int64_t{1} << 40, int64_t{1} << 40}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DenseHostBytes(ElementType::kToken, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace helmway::pjrt
