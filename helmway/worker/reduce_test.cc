#include "helmway/worker/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <vector>

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;

using pjrt::ElementType;
using program::Reduction;

template <typename T>
std::vector<T> Reduced(Reduction reduction, ElementType type, const std::vector<std::vector<T>>& inputs) {
  std::vector<const uint8_t*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const uint8_t*>(input.data()));
  std::vector<T> result(inputs[0].size());
  EXPECT_TRUE(CanReduce(reduction, type));
  Reduce(reduction, type, pointers, reinterpret_cast<uint8_t*>(result.data()),
         static_cast<int64_t>(result.size() * sizeof(T)));
  return result;
}

TEST(ReduceTest, Integers) {
  const std::vector<std::vector<int8_t>> inputs = {{100, -7}, {100, 3}, {2, 5}};
  EXPECT_THAT(Reduced(Reduction::kSum, ElementType::kS8, inputs), ElementsAre(-54, 1));
  EXPECT_THAT(Reduced(Reduction::kProduct, ElementType::kS8, inputs), ElementsAre(32, -105));
  EXPECT_THAT(Reduced(Reduction::kMin, ElementType::kS8, inputs), ElementsAre(2, -7));
  EXPECT_THAT(Reduced(Reduction::kMax, ElementType::kS8, inputs), ElementsAre(100, 5));
  EXPECT_THAT(Reduced(Reduction::kAnd, ElementType::kS8, inputs), ElementsAre(0, 1));
  EXPECT_THAT(Reduced(Reduction::kOr, ElementType::kS8, inputs), ElementsAre(102, -1));
  EXPECT_THAT(Reduced<uint16_t>(Reduction::kXor, ElementType::kU16, {{5}, {3}, {1}}), ElementsAre(7));
  EXPECT_THAT(Reduced<uint16_t>(Reduction::kProduct, ElementType::kU16, {{65535}, {65535}}), ElementsAre(1));
}

TEST(ReduceTest, Predicates) {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 1, 1}, {0, 0, 1}};
  EXPECT_THAT(Reduced(Reduction::kSum, ElementType::kPred, inputs), ElementsAre(0, 1, 1));
  EXPECT_THAT(Reduced(Reduction::kProduct, ElementType::kPred, inputs), ElementsAre(0, 0, 1));
  EXPECT_THAT(Reduced(Reduction::kXor, ElementType::kPred, inputs), ElementsAre(0, 1, 0));
}

TEST(ReduceTest, InOrderAndRoundedAtEachStep) {
  EXPECT_THAT(Reduced<float>(Reduction::kSum, ElementType::kF32, {{1e8F}, {1}, {-1e8F}}), ElementsAre(0));
  EXPECT_THAT(Reduced<float>(Reduction::kSum, ElementType::kF32, {{1e8F}, {-1e8F}, {1}}), ElementsAre(1));
  // 2048 + 1 is a tie in half precision, and 2050 + 1 too.
  EXPECT_THAT(Reduced<uint16_t>(Reduction::kSum, ElementType::kF16, {{0x6800, 0x6801}, {0x3c00, 0x3c00}}),
              ElementsAre(0x6800, 0x6802));
  EXPECT_THAT(Reduced<uint16_t>(Reduction::kSum, ElementType::kBF16, {{0x4380, 0x4381}, {0x3f80, 0x3f80}}),
              ElementsAre(0x4380, 0x4382));
}

TEST(ReduceTest, MinimumPassesOverNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Reduced<float>(Reduction::kMax, ElementType::kF32, {{nan, 1}, {2, nan}}), ElementsAre(2, 1));
  EXPECT_THAT(Reduced<float>(Reduction::kMin, ElementType::kF32, {{nan}, {nan}}),
              ElementsAre(std::numeric_limits<float>::infinity()));
}

TEST(ReduceTest, Complex) {
  using C = std::complex<float>;
  EXPECT_THAT(Reduced<C>(Reduction::kProduct, ElementType::kC64, {{C(0, 1)}, {C(0, 1)}}),
              ElementsAre(C(-1, 0)));
  EXPECT_FALSE(CanReduce(Reduction::kMax, ElementType::kC64));
  EXPECT_FALSE(CanReduce(Reduction::kAnd, ElementType::kF32));
  EXPECT_FALSE(CanReduce(Reduction::kSum, ElementType::kF8E5M2));
}

// Every half to a float and back, through a sum with zero; NaNs stay NaNs.
TEST(ReduceTest, AllHalves) {
  std::vector<uint16_t> all(65536), zero(65536, 0);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<uint16_t> sums = Reduced<uint16_t>(Reduction::kSum, ElementType::kF16, {all, zero});
  for (size_t i = 0; i < all.size(); ++i) {
    const bool nan = (all[i] & 0x7c00) == 0x7c00 && (all[i] & 0x3ff) != 0;
    if (nan) {
      EXPECT_GT(sums[i] & 0x7fff, 0x7c00) << i;
    } else {
      EXPECT_EQ(sums[i], all[i] == 0x8000 ? 0 : all[i]) << i;
    }
  }
}

// More than a tile, and no multiple of one.
TEST(ReduceTest, LongInputs) {
  std::vector<double> a(10001), b(10001);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i), b[i] = static_cast<double>(2 * i);
  const std::vector<double> sums = Reduced<double>(Reduction::kSum, ElementType::kF64, {a, b});
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(sums[i], static_cast<double>(3 * i));
}

}  // namespace
}  // namespace helmway::worker
