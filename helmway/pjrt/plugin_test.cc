#include "helmway/pjrt/plugin.h"

#include <cstdio>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PluginLoadTest, MissingFile) {
  auto plugin = Plugin::Load("/nowhere/plugin.so");
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(plugin.status().message()),
              AllOf(HasSubstr("'/nowhere/plugin.so'"), HasSubstr("No such file"),
                    HasSubstr("pip install --no-deps lammps-jax-pjrt-cpu==0.11.2")));
}

TEST(PluginLoadTest, FileThatIsNoLibrary) {
  const std::string path = ::testing::TempDir() + "/helmway_not_a_library.so";
  std::ofstream(path) << "text";
  auto plugin = Plugin::Load(path);
  std::remove(path.c_str());
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()), AllOf(HasSubstr(path), HasSubstr("pip install")));
}

TEST(PluginLoadTest, LibraryThatIsNoPlugin) {
  auto plugin = Plugin::Load(HELMWAY_PJRT_TEST_EMPTY_LIBRARY);
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()),
              AllOf(HasSubstr(HELMWAY_PJRT_TEST_EMPTY_LIBRARY), HasSubstr("does not export GetPjrtApi")));
}

TEST(PluginLoadTest, OlderInterface) {
  auto plugin = Plugin::Load(HELMWAY_PJRT_TEST_OLD_PLUGIN);
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()),
              AllOf(HasSubstr(HELMWAY_PJRT_TEST_OLD_PLUGIN), HasSubstr("0.80"), HasSubstr("at least 0.81"),
                    HasSubstr("pip install")));
}

class PluginTest : public PjrtTest {};

TEST_F(PluginTest, VersionAndAttributes) {
  EXPECT_EQ(plugin_->api_version().major, 0);
  EXPECT_GE(plugin_->api_version().minor, kOldestApi.minor);
  const auto& attributes = plugin_->attributes();
  ASSERT_TRUE(attributes.count("stablehlo_current_version"));
  const auto* version = std::get_if<std::vector<int64_t>>(&attributes.at("stablehlo_current_version"));
  ASSERT_NE(version, nullptr);
  EXPECT_EQ(version->size(), 3u);
  EXPECT_TRUE(std::holds_alternative<int64_t>(attributes.at("xla_version")));
}

TEST_F(PluginTest, LoadingTwiceIsHarmless) {
  auto again = Plugin::Load(plugin_->path());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->api(), plugin_->api());
}

// Our declarations of the extensions fit the plugin's: the sizes in its chain equal those of our structs.
TEST_F(PluginTest, ExtensionsHaveTheDeclaredForm) {
  ASSERT_NE(plugin_->layouts(), nullptr);
  EXPECT_EQ(plugin_->layouts()->base.struct_size, sizeof(LayoutsExtension));
  ASSERT_NE(plugin_->shardings(), nullptr);
  EXPECT_EQ(plugin_->shardings()->base.struct_size, sizeof(ShardingsExtension));
  ASSERT_NE(plugin_->ffi(), nullptr);
  EXPECT_EQ(plugin_->ffi()->base.struct_size, sizeof(FfiExtension));
  ASSERT_NE(plugin_->xla_transform(), nullptr);
  EXPECT_EQ(plugin_->xla_transform()->base.struct_size, sizeof(XlaTransformExtension));
}

}  // namespace
}  // namespace helmway::pjrt
