#include "helmway/cache/key.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

namespace helmway::cache {
namespace {

constexpr KeyParts kParts = {.program = "p", .options = "o", .plugin = "g", .devices = "d", .host = "h"};

TEST(KeyTest, EachPartCounts) {
  std::set<std::string> keys = {MakeKey(kParts)};
  for (absl::string_view KeyParts::*part :
       {&KeyParts::program, &KeyParts::options, &KeyParts::plugin, &KeyParts::devices, &KeyParts::host}) {
    KeyParts other = kParts;
    other.*part = "x";
    EXPECT_TRUE(keys.insert(MakeKey(other)).second);
    other.*part = "";
    EXPECT_TRUE(keys.insert(MakeKey(other)).second);
  }
  EXPECT_EQ(MakeKey(kParts), MakeKey(kParts));
  EXPECT_EQ(MakeKey(kParts).size(), 64U);
}

TEST(KeyTest, PartsDoNotRunTogether) {
  EXPECT_NE(MakeKey({.program = "ab", .options = "c"}), MakeKey({.program = "a", .options = "bc"}));
  EXPECT_NE(MakeKey({.program = "1:a"}), MakeKey({.program = "", .options = "a"}));
}

TEST(KeyTest, StaysTheSameFromOneReleaseToTheNext) {
  // Caches of others would be of no use if this changed unnoticed.
  EXPECT_EQ(MakeKey(kParts), "83af3d40eca9e9d3e375294bd513578e06b5cceaea9325808dd0c529c42fef3a");
}

TEST(KeyTest, Sha256) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(KeyTest, APluginIsItsContentsAndItsVersion) {
  const std::string path = testing::TempDir() + "/helmway-key-test";
  std::ofstream(path) << "abc";
  const absl::StatusOr<std::string> identity = PluginIdentity(path, "v1");
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(*identity, "v1 " + Sha256("abc"));
  std::remove(path.c_str());
  EXPECT_EQ(PluginIdentity(path, "v1").status().code(), absl::StatusCode::kNotFound);
}

TEST(KeyTest, TheHostHasInstructions) { EXPECT_FALSE(HostInstructionSet().empty()); }

}  // namespace
}  // namespace helmway::cache
