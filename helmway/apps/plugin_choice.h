// Which PJRT plugin a command runs, what kind of plugin that is, and the options that its user gives it.
#ifndef HELMWAY_APPS_PLUGIN_CHOICE_H_
#define HELMWAY_APPS_PLUGIN_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/apps/flags.h"
#include "helmway/pjrt/client_options.h"

namespace helmway::apps {

struct PluginChoice {
  std::string path;  // of a file that exports GetPjrtApi
  pjrt::PluginKind kind = pjrt::PluginKind::kCpu;
  std::vector<pjrt::Option> options;  // for its client, as they were given
};

// --pjrt_plugin, --pjrt_plugin_kind and --pjrt_option.
std::vector<FlagSpec> PluginFlags();

// What these flags say, or what is found without them (plugin_discovery.h). NOT_FOUND: no plugin;
// INVALID_ARGUMENT, naming the flag: a value that can't be, or an option that the place of a worker decides.
absl::StatusOr<PluginChoice> ChoosePlugin(const ParsedFlags& flags, const std::string& executable_path,
                                          const Environment& environment);

// The same choice if the number of devices can be told to such a plugin, where --devices is given; else
// INVALID_ARGUMENT.
absl::StatusOr<PluginChoice> CheckDevicesFlag(bool given, PluginChoice choice);

// The flags that make another process choose the same.
std::vector<std::string> FlagsOf(const ParsedFlags& flags, const PluginChoice& choice);

// What a worker of a slice of several hosts is told of its place by the environment of a TPU (TPU_WORKER_ID,
// CLOUD_TPU_TASK_ID, TPU_WORKER_HOSTNAMES), which the plugin reads for itself. FAILED_PRECONDITION if it is
// another than this one; what is not set is right.
absl::Status CheckTpuEnvironment(const Environment& environment, int task, int hosts);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_PLUGIN_CHOICE_H_
