#include "helmway/apps/plugin_discovery.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;

constexpr char kPluginInPackages[] = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
constexpr char kInstall[] = "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2";

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// 12 of "python3.12", 0 of "python3", nullopt of anything else.
std::optional<int> PythonMinor(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "python3")) return std::nullopt;
  if (name.empty()) return 0;
  int minor;
  if (!absl::ConsumePrefix(&name, ".") || !absl::SimpleAtoi(name, &minor)) return std::nullopt;
  return minor;
}

// Looks for the plugin and remembers where.
class Search {
 public:
  // In one directory of packages.
  std::optional<std::string> InPackages(const fs::path& packages) {
    Remember(packages.string());
    const fs::path plugin = packages / kPluginInPackages;
    if (IsFile(plugin)) return plugin.string();
    return std::nullopt;
  }

  // In <prefix>/lib/python3*/{site,dist}-packages, newest Python first.
  std::optional<std::string> InPrefix(const fs::path& prefix) {
    std::vector<std::pair<int, fs::path>> pythons;
    std::error_code error;
    for (fs::directory_iterator it(prefix / "lib", error), end; !error && it != end; it.increment(error)) {
      if (const auto minor = PythonMinor(it->path().filename().string()))
        pythons.emplace_back(*minor, it->path());
    }
    std::sort(pythons.rbegin(), pythons.rend());
    bool any = false;
    for (const auto& [minor, python] : pythons) {
      for (const char* name : {"site-packages", "dist-packages"}) {
        const fs::path packages = python / name;
        if (!fs::is_directory(packages, error)) continue;
        any = true;
        if (auto plugin = InPackages(packages)) return plugin;
      }
    }
    if (!any) Remember((prefix / "lib/python3*/site-packages").string());
    return std::nullopt;
  }

  const std::vector<std::string>& looked_at() const { return looked_at_; }

 private:
  void Remember(std::string place) {
    if (std::find(looked_at_.begin(), looked_at_.end(), place) == looked_at_.end()) {
      looked_at_.push_back(std::move(place));
    }
  }
  std::vector<std::string> looked_at_;
};

absl::StatusOr<std::string> Given(absl::string_view origin, const std::string& path) {
  if (IsFile(path)) return path;
  return absl::NotFoundError(absl::StrCat(origin, "=", path, ": there is no such file"));
}

}  // namespace

absl::StatusOr<std::string> FindPlugin(const PluginSearch& search) {
  if (!search.flag_path.empty()) return Given("--pjrt_plugin", search.flag_path);
  if (const auto path = Lookup(search.environment, "HELMWAY_PJRT_PLUGIN")) {
    return Given("HELMWAY_PJRT_PLUGIN", *path);
  }

  Search places;
  if (const auto venv = Lookup(search.environment, "VIRTUAL_ENV")) {
    if (auto plugin = places.InPrefix(*venv)) return *plugin;
  }
  if (!search.executable_path.empty()) {
    const fs::path directory = fs::path(search.executable_path).parent_path();
    if (directory.filename() == "bin") {
      const fs::path above = directory.parent_path();
      const std::string packages = above.parent_path().filename().string();
      const bool in_packages =
          above.filename() == "helmway" && (packages == "site-packages" || packages == "dist-packages");
      auto plugin = in_packages ? places.InPackages(above.parent_path()) : places.InPrefix(above);
      if (plugin) return *plugin;
    }
  }
  if (const auto path = Lookup(search.environment, "PATH")) {
    for (const absl::string_view directory : absl::StrSplit(*path, ':', absl::SkipEmpty())) {
      const fs::path python = fs::path(std::string(directory)) / "python3";
      if (!IsFile(python)) continue;
      if (auto plugin = places.InPrefix(python.parent_path().parent_path())) return *plugin;
      std::error_code error;
      const fs::path target = fs::canonical(python, error);
      if (!error) {
        if (auto plugin = places.InPrefix(target.parent_path().parent_path())) return *plugin;
      }
      break;
    }
  }
  if (const auto home = Lookup(search.environment, "HOME")) {
    if (auto plugin = places.InPrefix(fs::path(*home) / ".local")) return *plugin;
  }
  return absl::NotFoundError(
      absl::StrCat("no PJRT plugin found. Install one with '", kInstall,
                   "', or name one with --pjrt_plugin=PATH or HELMWAY_PJRT_PLUGIN. Looked for ",
                   kPluginInPackages, " in: ",
                   places.looked_at().empty() ? "nowhere (VIRTUAL_ENV and PATH name no Python)"
                                              : absl::StrJoin(places.looked_at(), ", ")));
}

}  // namespace helmway::apps
