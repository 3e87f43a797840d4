#include "helmway/apps/plugin_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PluginDiscoveryTest : public ::testing::Test {
 protected:
  PluginDiscoveryTest() {
    std::string pattern = (fs::temp_directory_path() / "helmway_plugin_test.XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~PluginDiscoveryTest() override { fs::remove_all(root_); }

  std::string File(const std::string& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "x";
    return Path(path);
  }
  std::string Plugin(const std::string& packages) {
    return File(packages + "/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
  }
  std::string Path(const std::string& path) { return (root_ / path).string(); }
  void Expect(const PluginSearch& search, const std::string& plugin) {
    const auto found = FindPlugin(search);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, plugin);
  }

  fs::path root_;
};

TEST_F(PluginDiscoveryTest, FlagThenVariableThenEnvironment) {
  const std::string by_flag = File("flag.so");
  const std::string by_variable = File("variable.so");
  const std::string by_venv = Plugin("venv/lib/python3.12/site-packages");
  Environment environment = {{"VIRTUAL_ENV", Path("venv")}, {"HELMWAY_PJRT_PLUGIN", by_variable}};
  Expect({by_flag, "", environment}, by_flag);
  Expect({"", "", environment}, by_variable);
  environment.erase("HELMWAY_PJRT_PLUGIN");
  Expect({"", "", environment}, by_venv);
}

TEST_F(PluginDiscoveryTest, ANamedPluginThatIsNotThereIsAnError) {
  Plugin("venv/lib/python3.12/site-packages");
  Environment environment = {{"VIRTUAL_ENV", Path("venv")}};
  const auto flag = FindPlugin({Path("none.so"), "", environment});
  EXPECT_EQ(flag.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(flag.status().message()), HasSubstr("--pjrt_plugin=" + Path("none.so")));
  environment["HELMWAY_PJRT_PLUGIN"] = root_.string();
  const auto variable = FindPlugin({"", "", environment});
  EXPECT_EQ(variable.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(variable.status().message()), HasSubstr("HELMWAY_PJRT_PLUGIN="));
}

TEST_F(PluginDiscoveryTest, NewestPythonOfAnEnvironmentFirst) {
  Plugin("venv/lib/python3.9/site-packages");
  const std::string newest = Plugin("venv/lib/python3.13/site-packages");
  fs::create_directories(root_ / "venv/lib/python3.14/site-packages");
  Plugin("venv/lib/python3.x/site-packages");
  Expect({"", "", {{"VIRTUAL_ENV", Path("venv")}}}, newest);
}

TEST_F(PluginDiscoveryTest, BesideTheProgram) {
  const std::string in_prefix = Plugin("a/lib/python3.12/site-packages");
  Expect({"", Path("a/bin/helmway"), {}}, in_prefix);
  const std::string in_packages = Plugin("b/lib/python3.11/site-packages");
  Expect({"", Path("b/lib/python3.11/site-packages/helmway/bin/helmway"), {}}, in_packages);
}

TEST_F(PluginDiscoveryTest, FirstPythonOnPath) {
  const std::string plugin = Plugin("py/lib/python3.12/site-packages");
  File("py/bin/python3");
  fs::create_directories(root_ / "empty");
  Expect({"", "", {{"PATH", Path("empty") + ":" + Path("py/bin")}}}, plugin);
  // A later Python is not the one that `python3` starts.
  File("other/bin/python3");
  EXPECT_FALSE(FindPlugin({"", "", {{"PATH", Path("other/bin") + ":" + Path("py/bin")}}}).ok());
}

TEST_F(PluginDiscoveryTest, PythonOfAVirtualEnvironmentIsNotItsBase) {
  const std::string base = Plugin("base/lib/python3.12/site-packages");
  File("base/bin/python3");
  fs::create_directories(root_ / "venv/bin");
  fs::create_symlink(root_ / "base/bin/python3", root_ / "venv/bin/python3");
  const PluginSearch search = {"", "", {{"PATH", Path("venv/bin")}}};
  Expect(search, base);
  const std::string own = Plugin("venv/lib/python3.12/site-packages");
  Expect(search, own);
}

TEST_F(PluginDiscoveryTest, PackagesOfTheUserLast) {
  const std::string plugin = Plugin("home/.local/lib/python3.12/site-packages");
  Expect({"", "", {{"HOME", Path("home")}}}, plugin);
}

TEST_F(PluginDiscoveryTest, TheErrorNamesPlacesAndTheCure) {
  fs::create_directories(root_ / "venv/lib/python3.12/site-packages");
  const auto found =
      FindPlugin({"", Path("a/bin/helmway"), {{"VIRTUAL_ENV", Path("venv")}, {"PATH", Path("nothing")}}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  const std::string message(found.status().message());
  EXPECT_THAT(message, HasSubstr("pip install --no-deps lammps-jax-pjrt-cpu==0.11.2"));
  EXPECT_THAT(message, HasSubstr(Path("venv/lib/python3.12/site-packages")));
  EXPECT_THAT(message, HasSubstr(Path("a/lib/python3*/site-packages")));
  EXPECT_THAT(std::string(FindPlugin({}).status().message()), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace helmway::apps
