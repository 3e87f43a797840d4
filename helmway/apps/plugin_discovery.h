#ifndef HELMWAY_APPS_PLUGIN_DISCOVERY_H_
#define HELMWAY_APPS_PLUGIN_DISCOVERY_H_

#include <string>

#include "absl/status/statusor.h"
#include "helmway/apps/flags.h"

namespace helmway::apps {

struct PluginSearch {
  std::string flag_path;        // --pjrt_plugin; empty: not given
  std::string executable_path;  // of this program, absolute; empty: unknown
  Environment environment;
};

// The PJRT plugin to load, as the path of a file that exists. The first of:
//   1. flag_path, 2. HELMWAY_PJRT_PLUGIN: no other place is then looked at;
//   3. lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so in the packages of this program's Python environments
//      (python_environments.h).
// NOT_FOUND names what was looked at and what to install. Runs no other program; reads directories only.
absl::StatusOr<std::string> FindPlugin(const PluginSearch& search);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_PLUGIN_DISCOVERY_H_
