#include "helmway/apps/plugin_choice.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "helmway/apps/plugin_discovery.h"
#include "helmway/base/status.h"

namespace helmway::apps {
namespace {

constexpr char kPlugin[] = "pjrt_plugin";
constexpr char kKind[] = "pjrt_plugin_kind";
constexpr char kOption[] = "pjrt_option";

}  // namespace

std::vector<FlagSpec> PluginFlags() {
  return {
      {.name = kPlugin,
       .help =
           "Shared library that exports GetPjrtApi. Default: HELMWAY_PJRT_PLUGIN, else the CPU plugin of the "
           "Python environment."},
      {.name = kKind,
       .help = "What the plugin is for, which decides the options that tell it its place: cpu, gpu, tpu, or "
               "other "
               "(none). Default: by the name of its file."},
      {.name = kOption,
       .type = FlagType::kList,
       .help = "Options for the plugin's client, as NAME=VALUE joined by semicolons or in several flags. The "
               "type is "
               "that of a known option (memory_fraction, visible_devices, ... of XLA's GPU plugins), else by "
               "the look "
               "of the value: true or false, a whole number, a number, whole numbers joined by commas, text. "
               "NAME:TYPE=VALUE says it: int, float, bool, string, ints.",
       .separator = ";"}};
}

absl::StatusOr<PluginChoice> ChoosePlugin(const ParsedFlags& flags, const std::string& executable_path,
                                          const Environment& environment) {
  PluginChoice choice;
  HELMWAY_ASSIGN_OR_RETURN(choice.path, FindPlugin({flags.String(kPlugin), executable_path, environment}));
  choice.kind = pjrt::PluginKindOfFile(choice.path);
  if (const std::string kind = flags.String(kKind); !kind.empty()) {
    const std::optional<pjrt::PluginKind> parsed = pjrt::ParsePluginKind(kind);
    if (!parsed.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", kKind, "=", kind, ": must be cpu, gpu, tpu or other"));
    }
    choice.kind = *parsed;
  }
  for (const std::string& text : flags.List(kOption)) {
    absl::StatusOr<pjrt::Option> option = pjrt::ParseOption(choice.kind, text);
    if (!option.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", kOption, ": ", option.status().message()));
    }
    if (pjrt::OptionIsOfThePlace(choice.kind, option->name)) {
      return absl::InvalidArgumentError(absl::StrCat("--", kOption, "=", text, ": ", option->name,
                                                     " follows from the number of devices and the place of "
                                                     "the worker in its cluster"));
    }
    choice.options.push_back(*std::move(option));
  }
  return choice;
}

absl::StatusOr<PluginChoice> CheckDevicesFlag(bool given, PluginChoice choice) {
  if (given && (choice.kind == pjrt::PluginKind::kTpu || choice.kind == pjrt::PluginKind::kOther)) {
    return absl::InvalidArgumentError(absl::StrCat("--devices: ", choice.path, " is a plugin of the kind '",
                                                   pjrt::PluginKindName(choice.kind),
                                                   "', which has the devices that it finds (--", kKind,
                                                   "=cpu if it is XLA's CPU plugin by another name)"));
  }
  return choice;
}

std::vector<std::string> FlagsOf(const ParsedFlags& flags, const PluginChoice& choice) {
  std::vector<std::string> result = {absl::StrCat("--", kPlugin, "=", choice.path),
                                     absl::StrCat("--", kKind, "=", pjrt::PluginKindName(choice.kind))};
  for (const std::string& text : flags.List(kOption))
    result.push_back(absl::StrCat("--", kOption, "=", text));
  return result;
}

absl::Status CheckTpuEnvironment(const Environment& environment, int task, int hosts) {
  for (const char* name : {"TPU_WORKER_ID", "CLOUD_TPU_TASK_ID"}) {
    const std::optional<std::string> text = Lookup(environment, name);
    if (!text.has_value()) continue;
    int number;
    if (!absl::SimpleAtoi(StripMatchingQuotes(*text), &number) || number != task) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, "=", *text, " in the environment, but the resource manager has made this worker host ", task,
          " of its slice; give both the same number (--host_id, JOB_COMPLETION_INDEX)"));
    }
  }
  if (const std::optional<std::string> names = Lookup(environment, "TPU_WORKER_HOSTNAMES")) {
    const auto count =
        static_cast<int>(std::vector<std::string>(absl::StrSplit(StripMatchingQuotes(*names), ',')).size());
    if (count != hosts) {
      return absl::FailedPreconditionError(absl::StrCat("TPU_WORKER_HOSTNAMES in the environment names ",
                                                        count, " host(s), but the slice has ", hosts,
                                                        "; change --instance_type of the resource manager"));
    }
  }
  return absl::OkStatus();
}

}  // namespace helmway::apps
