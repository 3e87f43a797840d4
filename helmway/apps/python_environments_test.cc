#include "helmway/apps/python_environments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PythonEnvironmentsTest : public ::testing::Test {
 protected:
  PythonEnvironmentsTest() {
    std::string pattern = (fs::temp_directory_path() / "helmway_python_test.XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~PythonEnvironmentsTest() override { fs::remove_all(root_); }

  std::string Path(const std::string& path) { return (root_ / path).string(); }
  std::string File(const std::string& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "x";
    return Path(path);
  }
  // An environment with packages, and its command.
  std::string Make(const std::string& prefix, const std::string& version, bool jaxlib) {
    fs::create_directories(root_ / prefix / "lib" / version / "site-packages" /
                           (jaxlib ? "jaxlib" : "other"));
    return File(prefix + "/bin/" + version);
  }
  std::string Find(const PythonSearch& search) {
    const auto found = FindPython(search);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or("error");
  }

  fs::path root_;
};

TEST_F(PythonEnvironmentsTest, ListsEveryPlaceOnceInOrder) {
  Make("venv", "python3.12", true);
  Make("venv", "python3.13", true);
  Make("base", "python3.11", false);
  File("base/bin/python3");
  const PythonEnvironments found = FindPythonEnvironments(
      Path("venv/bin/helmway"),
      {{"VIRTUAL_ENV", Path("venv")}, {"PATH", Path("base/bin")}, {"HOME", Path("home")}});
  ASSERT_GE(found.directories.size(), 3U);
  EXPECT_EQ(found.directories[0].path, Path("venv/lib/python3.13/site-packages"));
  EXPECT_EQ(found.directories[0].python, Path("venv/bin/python3.13"));
  EXPECT_EQ(found.directories[1].python, Path("venv/bin/python3.12"));
  EXPECT_EQ(found.directories.back().python, Path("base/bin/python3.11"));
  EXPECT_THAT(
      found.looked_at,
      ElementsAre(Path("venv/lib/python3.13/site-packages"), Path("venv/lib/python3.12/site-packages"),
                  Path("base/lib/python3.11/site-packages"), Path("home/.local/lib/python3*/site-packages")));
}

TEST_F(PythonEnvironmentsTest, FlagThenVariableThenThePluginsOwnEnvironment) {
  const std::string flag = File("flag/python");
  const std::string variable = File("variable/python");
  const std::string of_plugin = Make("plugin", "python3.12", true);
  const std::string of_venv = Make("venv", "python3.13", true);
  PythonSearch search = {flag,
                         Path("plugin/lib/python3.12/site-packages/lammps_jax_pjrt_cpu/plugin.so"),
                         "",
                         {{"HELMWAY_PYTHON", variable}, {"VIRTUAL_ENV", Path("venv")}}};
  EXPECT_EQ(Find(search), flag);
  search.flag_path.clear();
  EXPECT_EQ(Find(search), variable);
  search.environment.erase("HELMWAY_PYTHON");
  EXPECT_EQ(Find(search), of_plugin);
  search.plugin_path = Path("elsewhere/plugin.so");
  EXPECT_EQ(Find(search), of_venv);
}

TEST_F(PythonEnvironmentsTest, OnlyAnEnvironmentWithJaxlibCounts) {
  Make("venv", "python3.13", false);
  const std::string with_jaxlib = Make("app", "python3.12", true);
  EXPECT_EQ(Find({"", "", Path("app/bin/helmway"), {{"VIRTUAL_ENV", Path("venv")}}}), with_jaxlib);
  EXPECT_EQ(Find({"", "", "", {{"VIRTUAL_ENV", Path("venv")}}}), "");
}

TEST_F(PythonEnvironmentsTest, NoneIsNoneAndAWrongPathIsAnError) {
  Make("venv", "python3.13", true);
  Environment environment = {{"VIRTUAL_ENV", Path("venv")}};
  EXPECT_EQ(Find({"none", "", "", environment}), "");
  const auto flag = FindPython({Path("nowhere"), "", "", environment});
  EXPECT_EQ(flag.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(flag.status().message()), HasSubstr("--python=" + Path("nowhere")));
  environment["HELMWAY_PYTHON"] = Path("nowhere");
  EXPECT_THAT(std::string(FindPython({"", "", "", environment}).status().message()),
              HasSubstr("HELMWAY_PYTHON="));
}

}  // namespace
}  // namespace helmway::apps
