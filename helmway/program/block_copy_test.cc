#include "helmway/program/block_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Dims = std::vector<int64_t>;

TEST(BlockFits, KnowsTheEdges) {
  EXPECT_TRUE(BlockFits({4, 3}, {1, 0}, {3, 3}));
  EXPECT_TRUE(BlockFits({4, 3}, {4, 0}, {0, 3}));
  EXPECT_TRUE(BlockFits({}, {}, {}));
  EXPECT_FALSE(BlockFits({4, 3}, {2, 0}, {3, 3}));
  EXPECT_FALSE(BlockFits({4, 3}, {5, 0}, {0, 3}));
  EXPECT_FALSE(BlockFits({4, 3}, {-1, 0}, {1, 1}));
  EXPECT_FALSE(BlockFits({4, 3}, {0, 0}, {-1, 1}));
  EXPECT_FALSE(BlockFits({4, 3}, {1, INT64_MAX}, {1, 1}));
  EXPECT_FALSE(BlockFits({4, 3}, {1, 1}, {1, INT64_MAX}));
  EXPECT_FALSE(BlockFits({4, 3}, {0}, {1, 1}));
  EXPECT_FALSE(BlockFits({4, 3}, {0, 0}, {1}));
}

TEST(CopyBlock, PutsColumnsIntoAWiderArray) {
  const std::vector<uint8_t> source = {1, 2, 3, 4, 5, 6};  // 2 x 3
  std::vector<uint8_t> target(8);                          // 2 x 4
  CopyBlock(source.data(), {{2, 3}, {0, 1}}, target.data(), {{2, 4}, {0, 2}}, {2, 2}, 1);
  EXPECT_THAT(target, ElementsAre(0, 0, 2, 3, 0, 0, 5, 6));
}

TEST(CopyBlock, CopiesAScalar) {
  const uint8_t source[] = {1, 2, 3};
  uint8_t target[] = {0, 0, 0, 9};
  CopyBlock(source, {{}, {}}, target, {{}, {}}, {}, 3);
  EXPECT_THAT(target, ElementsAre(1, 2, 3, 9));
}

TEST(CopyBlock, TouchesNothingWithoutElements) {
  CopyBlock(nullptr, {{0, 4}, {0, 0}}, nullptr, {{3, 4}, {3, 0}}, {0, 4}, 4);
  CopyBlock(nullptr, {{4, 0}, {1, 0}}, nullptr, {{4, 0}, {0, 0}}, {2, 0}, 4);
}

int64_t Count(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

TEST(CopyBlock, EqualsCopyingElementByElement) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const auto rank = static_cast<size_t>(number(0, 5));
    const int64_t element_bytes = std::vector<int64_t>{1, 2, 3, 4, 8, 16}[static_cast<size_t>(number(0, 5))];
    Dims source_dims, target_dims, shape, source_origin, target_origin;
    for (size_t d = 0; d < rank; ++d) {
      // Often the whole of a dimension, so that runs join.
      shape.push_back(number(0, 9) == 0 ? 0 : number(1, 4));
      const int64_t more_source = number(0, 1) * number(0, 3);
      const int64_t more_target = number(0, 1) * number(0, 3);
      source_dims.push_back(shape[d] + more_source);
      target_dims.push_back(shape[d] + more_target);
      source_origin.push_back(number(0, more_source));
      target_origin.push_back(number(0, more_target));
    }
    std::vector<uint8_t> source(static_cast<size_t>(Count(source_dims) * element_bytes));
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(number(1, 255));
    std::vector<uint8_t> expected(static_cast<size_t>(Count(target_dims) * element_bytes), 0);
    std::vector<uint8_t> target = expected;
    for (int64_t n = 0; n < Count(shape); ++n) {
      int64_t rest = n, from = 0, to = 0, source_step = 1, target_step = 1;
      for (size_t d = rank; d-- > 0;) {
        const int64_t at = rest % shape[d];
        rest /= shape[d];
        from += (source_origin[d] + at) * source_step;
        to += (target_origin[d] + at) * target_step;
        source_step *= source_dims[d];
        target_step *= target_dims[d];
      }
      std::memcpy(&expected[static_cast<size_t>(to * element_bytes)],
                  &source[static_cast<size_t>(from * element_bytes)], static_cast<size_t>(element_bytes));
    }
    CopyBlock(source.data(), {source_dims, source_origin}, target.data(), {target_dims, target_origin}, shape,
              element_bytes);
    ASSERT_THAT(target, ElementsAreArray(expected)) << "round " << round;
  }
}

}  // namespace
}  // namespace helmway::program
