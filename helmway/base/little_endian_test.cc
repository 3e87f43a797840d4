#include "helmway/base/little_endian.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace helmway::base {
namespace {

using ::testing::ElementsAre;

TEST(LittleEndian, TheLowestByteIsFirst) {
  std::array<uint8_t, 5> bytes = {9, 9, 9, 9, 9};
  StoreLittleEndian(0x8877665544332211, 4, bytes.data());
  EXPECT_THAT(bytes, ElementsAre(0x11, 0x22, 0x33, 0x44, 9));
  EXPECT_EQ(LoadLittleEndian(bytes.data(), 4), 0x44332211U);
  std::array<uint8_t, 8> all;
  StoreLittleEndian(0x8877665544332211, 8, all.data());
  EXPECT_EQ(LoadLittleEndian(all.data(), 8), 0x8877665544332211U);
}

}  // namespace
}  // namespace helmway::base
