#include "helmway/apps/plugin_discovery.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "helmway/apps/python_environments.h"

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;

constexpr char kPluginInPackages[] = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
constexpr char kInstall[] = "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2";

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

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

  const PythonEnvironments environments = FindPythonEnvironments(search.executable_path, search.environment);
  for (const PackageDirectory& packages : environments.directories) {
    const fs::path plugin = fs::path(packages.path) / kPluginInPackages;
    if (IsFile(plugin)) return plugin.string();
  }
  return absl::NotFoundError(
      absl::StrCat("no PJRT plugin found. Install one with '", kInstall,
                   "', or name one with --pjrt_plugin=PATH or HELMWAY_PJRT_PLUGIN. Looked for ",
                   kPluginInPackages, " in: ",
                   environments.looked_at.empty() ? "nowhere (VIRTUAL_ENV and PATH name no Python)"
                                                  : absl::StrJoin(environments.looked_at, ", ")));
}

}  // namespace helmway::apps
