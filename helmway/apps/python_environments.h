#ifndef HELMWAY_APPS_PYTHON_ENVIRONMENTS_H_
#define HELMWAY_APPS_PYTHON_ENVIRONMENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "helmway/apps/flags.h"

namespace helmway::apps {

// A directory of installed Python packages.
struct PackageDirectory {
  std::string path;
  std::string python;  // the command whose packages these are; empty: not there
};

struct PythonEnvironments {
  std::vector<PackageDirectory> directories;  // those that exist, best first
  std::vector<std::string> looked_at;         // where packages were looked for, for messages
};

// The Python environments that belong to this program: VIRTUAL_ENV, the one that it is installed in
// (<prefix>/bin or <packages>/helmway/bin), that of the first python3 on PATH (first without following links,
// then with), and the user's packages (~/.local). Within one, the newest Python first. `executable_path` is
// absolute, or empty if unknown. Runs no other program; reads directories only.
PythonEnvironments FindPythonEnvironments(const std::string& executable_path, const Environment& environment);

struct PythonSearch {
  std::string flag_path;        // --python; empty: not given
  std::string plugin_path;      // the PJRT plugin, which may lie in the packages of an environment
  std::string executable_path;  // of this program, absolute; empty: unknown
  Environment environment;
};

// The Python command whose jaxlib the server may use, or "" if there is none. The first of: flag_path,
// HELMWAY_PYTHON (for both: "none" is none, and one that is not there is NOT_FOUND), the environment that the
// plugin lies in, and those of FindPythonEnvironments; of environments only those with jaxlib count.
absl::StatusOr<std::string> FindPython(const PythonSearch& search);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_PYTHON_ENVIRONMENTS_H_
