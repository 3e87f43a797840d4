#ifndef HELMWAY_PJRT_CLIENT_OPTIONS_H_
#define HELMWAY_PJRT_CLIENT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/pjrt/attribute.h"

namespace helmway::pjrt {

// An option for the making of a client, by name, e.g. {"cpu_device_count", int64_t{4}}. The plugin refuses
// names it does not know.
struct Option {
  std::string name;
  AttributeValue value;

  friend bool operator==(const Option&, const Option&) = default;
};

// What a plugin is for, before there is a client that could say its platform: it decides which options say
// where in its cluster a process is.
enum class PluginKind {
  kCpu,    // XLA's CPU plugin: as many virtual devices as it is asked for
  kGpu,    // XLA's CUDA and ROCm plugins, and what takes their options
  kTpu,    // libtpu: takes its place from the environment
  kOther,  // takes no option that is not given by the user
};

// "cpu", "gpu", "tpu", "other".
absl::string_view PluginKindName(PluginKind kind);
std::optional<PluginKind> ParsePluginKind(absl::string_view name);

// By the name of the file alone: pjrt_c_api_cpu_plugin.so, xla_cuda_plugin.so, xla_rocm_plugin.so, libtpu.so
// and the like; kOther for any other name.
PluginKind PluginKindOfFile(absl::string_view path);

// An option as people write it: NAME=VALUE or NAME:TYPE=VALUE, with the types int, float, bool, string and
// ints (integers joined by commas). Without a type it is that of a known option of this kind of plugin
// (those of XLA's CPU and GPU plugins), else the first that VALUE is in this order: bool (true or false),
// int, float, ints (with at least one comma), string. INVALID_ARGUMENT for what is not of that form or type.
absl::StatusOr<Option> ParseOption(PluginKind kind, absl::string_view text);

// Options that say where in its cluster a process is. Not for users to give.
bool OptionIsOfThePlace(PluginKind kind, absl::string_view name);

// Where a process is in its cluster, as far as its plugin has to know.
struct ClientPlace {
  // Number of this process in its cluster. CPU only: its devices get the ids 2048 * number + i.
  int number = 0;
  // How many devices to make, on CPU; the first so many of the host, or those from `first_device` on, on GPU.
  // nullopt: all that there are (CPU: one).
  std::optional<int> devices;
  int first_device = 0;
  // The processes whose clients are one, with collectives of the plugin between them, and which of them this
  // is. GPU only.
  int nodes = 1;
  int node = 0;
};

// The options that tell a plugin of this kind its place, before those that `given` has; what is given wins.
std::vector<Option> OptionsFor(PluginKind kind, const ClientPlace& place, std::vector<Option> given);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_CLIENT_OPTIONS_H_
