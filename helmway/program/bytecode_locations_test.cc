#include "helmway/program/bytecode_locations.h"

#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/program/testdata_testing.h"

namespace helmway::program {
namespace {

std::string Program(const std::string& name) {
  return ReadTestdata(absl::StrCat("locations_", name, ".mlirbc"));
}

TEST(BytecodeLocationsTest, LeavesOutFilesLinesAndColumnsOnly) {
  const std::string here = Program("here");
  const std::string bare = WithoutSourceLocations(here);
  EXPECT_TRUE(absl::StrContains(here, "/tmp/here/train.py"));
  EXPECT_FALSE(absl::StrContains(bare, "train.py"));
  EXPECT_TRUE(absl::StrContains(bare, "jit__lambda"));
  EXPECT_NE(here, Program("elsewhere"));
  EXPECT_EQ(bare, WithoutSourceLocations(Program("elsewhere")));
  EXPECT_NE(here, Program("lower"));
  EXPECT_EQ(bare, WithoutSourceLocations(Program("lower")));
  EXPECT_NE(bare, WithoutSourceLocations(Program("other_program")));
}

TEST(BytecodeLocationsTest, ATextThatTheProgramUsesToo) {
  // The name of the file stands for the name of a result as well: both are then texts of the program.
  std::string here = Program("here");
  const std::string bare = WithoutSourceLocations(here);
  // VHLO's string attributes: their code, 14, and the number of a text, as the format writes small numbers.
  const auto code = [](int number) { return static_cast<char>(number << 1 | 1); };
  bool found = false;
  for (int text = 0; text < 40 && !found; ++text) {
    for (int other = 0; other < 40 && !found; ++other) {
      std::string changed = here;
      const size_t place = changed.find(std::string{code(14), code(other)});
      if (place == std::string::npos) continue;
      changed[place + 1] = code(text);
      found = absl::StrContains(WithoutSourceLocations(changed), "train.py");
    }
  }
  EXPECT_TRUE(found);
}

TEST(BytecodeLocationsTest, EverythingElseCounts) {
  // Any other byte that changes changes the result, or the bytes are not understood.
  const std::string here = Program("here");
  const std::string bare = WithoutSourceLocations(here);
  int without_effect = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    std::string changed = here;
    changed[i] = static_cast<char>(changed[i] ^ 0x40);
    if (WithoutSourceLocations(changed) == bare) ++without_effect;
  }
  // The 18 characters of the path, and four numbers in each of six locations.
  EXPECT_EQ(without_effect, 18 + 6 * 4);
}

TEST(BytecodeLocationsTest, TakesAnyBytes) {
  EXPECT_EQ(WithoutSourceLocations(""), "");
  EXPECT_EQ(WithoutSourceLocations("module {}"), "module {}");
  const int seed = GTEST_FLAG_GET(random_seed);
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(static_cast<uint32_t>(seed));
  const std::string here = Program("here");
  for (int round = 0; round < 20000; ++round) {
    std::string changed = here.substr(0, random() % 4 == 0 ? random() % here.size() : here.size());
    for (uint32_t i = random() % 4; i-- > 0 && !changed.empty();) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    EXPECT_LE(WithoutSourceLocations(changed).size(), 80 * (changed.size() + 1));
  }
}

}  // namespace
}  // namespace helmway::program
