#include "helmway/apps/python_environments.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool IsDirectory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// 12 of "python3.12", 0 of "python3", nullopt of anything else.
std::optional<int> PythonMinor(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "python3")) return std::nullopt;
  if (name.empty()) return 0;
  int minor;
  if (!absl::ConsumePrefix(&name, ".") || !absl::SimpleAtoi(name, &minor)) return std::nullopt;
  return minor;
}

bool IsPackages(const fs::path& directory) {
  return directory.filename() == "site-packages" || directory.filename() == "dist-packages";
}

// The command of <prefix>/lib/python3.N/site-packages.
std::string PythonOf(const fs::path& packages) {
  const fs::path version = packages.parent_path();
  const fs::path bin = version.parent_path().parent_path() / "bin";
  for (const fs::path& python : {bin / version.filename(), bin / "python3"}) {
    if (IsFile(python)) return python.string();
  }
  return "";
}

class Search {
 public:
  void AddPackages(const fs::path& packages) {
    LookAt(packages.string());
    found_.directories.push_back({packages.string(), PythonOf(packages)});
  }

  // <prefix>/lib/python3*/{site,dist}-packages.
  void AddPrefix(const fs::path& prefix) {
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
        if (!IsDirectory(python / name)) continue;
        any = true;
        AddPackages(python / name);
      }
    }
    if (!any) LookAt((prefix / "lib/python3*/site-packages").string());
  }

  PythonEnvironments Take() { return std::move(found_); }

 private:
  void LookAt(std::string place) {
    if (std::find(found_.looked_at.begin(), found_.looked_at.end(), place) == found_.looked_at.end()) {
      found_.looked_at.push_back(std::move(place));
    }
  }
  PythonEnvironments found_;
};

absl::StatusOr<std::string> Given(absl::string_view origin, const std::string& path) {
  if (path == "none") return "";
  if (!IsFile(path)) return absl::NotFoundError(absl::StrCat(origin, "=", path, ": there is no such file"));
  // Python finds its environment from the place of its command.
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return error ? path : absolute.string();
}

bool HasJaxlib(const fs::path& packages) { return IsDirectory(packages / "jaxlib"); }

}  // namespace

PythonEnvironments FindPythonEnvironments(const std::string& executable_path,
                                          const Environment& environment) {
  Search search;
  if (const auto venv = Lookup(environment, "VIRTUAL_ENV")) search.AddPrefix(*venv);
  if (!executable_path.empty()) {
    const fs::path directory = fs::path(executable_path).parent_path();
    if (directory.filename() == "bin") {
      const fs::path above = directory.parent_path();
      if (above.filename() == "helmway" && IsPackages(above.parent_path())) {
        search.AddPackages(above.parent_path());
      } else {
        search.AddPrefix(above);
      }
    }
  }
  if (const auto path = Lookup(environment, "PATH")) {
    for (const absl::string_view directory : absl::StrSplit(*path, ':', absl::SkipEmpty())) {
      const fs::path python = fs::path(std::string(directory)) / "python3";
      if (!IsFile(python)) continue;
      search.AddPrefix(python.parent_path().parent_path());
      std::error_code error;
      const fs::path target = fs::canonical(python, error);
      if (!error) search.AddPrefix(target.parent_path().parent_path());
      break;
    }
  }
  if (const auto home = Lookup(environment, "HOME")) search.AddPrefix(fs::path(*home) / ".local");
  return search.Take();
}

absl::StatusOr<std::string> FindPython(const PythonSearch& search) {
  if (!search.flag_path.empty()) return Given("--python", search.flag_path);
  if (const auto path = Lookup(search.environment, "HELMWAY_PYTHON")) return Given("HELMWAY_PYTHON", *path);
  const fs::path plugin_packages = fs::path(search.plugin_path).parent_path().parent_path();
  if (IsPackages(plugin_packages) && HasJaxlib(plugin_packages)) {
    if (std::string python = PythonOf(plugin_packages); !python.empty()) return python;
  }
  for (const PackageDirectory& packages :
       FindPythonEnvironments(search.executable_path, search.environment).directories) {
    if (!packages.python.empty() && HasJaxlib(packages.path)) return packages.python;
  }
  return "";
}

}  // namespace helmway::apps
