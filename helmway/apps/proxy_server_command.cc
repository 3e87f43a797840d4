#include "helmway/apps/proxy_server_command.h"

#include <glog/logging.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/plugin_discovery.h"
#include "helmway/apps/python_environments.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/xla_flags.h"

namespace helmway::apps {
namespace {

// Refuses the flags of a cluster and warns of what is taken without effect.
void CheckSupported(const ProxyOptions& options, ParsedFlags& flags) {
  const auto refuse = [&flags](const std::string& name, const std::string& why) {
    flags.Error(name, absl::StrCat("--", name, ": UNIMPLEMENTED: ", why));
  };
  if (flags.Has("resource_manager_address")) {
    refuse("resource_manager_address",
           "this version can't join a cluster; without the flag it serves the devices of this host");
  }
  if (flags.Has("virtual_slices")) refuse("virtual_slices", "this version can't lease slices");
  if (flags.Has("num_elastic_slices")) refuse("num_elastic_slices", "this version has no elastic slices");
  if (flags.Has("sidecar_name")) refuse("sidecar_name", "this version has no colocated Python");
  if (options.debugging.missing_slices >= 0) {
    refuse("temporary_flag_for_debugging_experimental_num_ok_missing_slices",
           "this version has no elastic slices");
  }
  if (options.debugging.peer_unreachable_timeout > absl::ZeroDuration()) {
    flags.Warn("temporary_flag_for_debugging_pipe_unreachable_timeout",
               "temporary_flag_for_debugging_pipe_unreachable_timeout: no effect, this server has no peers");
  }
  for (const char* name :
       {"cloud_pathways_external_sidecar_port", "cloud_pathways_external_sidecar_connect_timeout"}) {
    if (flags.Has(name)) {
      flags.Warn(name, absl::StrCat("--", name, ": no effect, this version has no colocated Python"));
    }
  }
}

}  // namespace

int RunProxyServer(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(ProxyFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(ProxyFlags()) << std::flush;
    return kExitOk;
  }
  ProxyOptions options = ReadProxyFlags(flags);
  CheckSupported(options, flags);
  PrintNotes(ProxyFlags(), flags, context.err);
  if (!flags.ok()) return kExitUsage;
  const auto fail = [&context](const absl::Status& status) {
    context.err << "helmway proxy_server: " << status.message() << std::endl;
    return kExitFailure;
  };

  auto plugin = FindPlugin({options.plugin_path, context.executable_path, context.environment});
  if (!plugin.ok()) return fail(plugin.status());
  auto python = FindPython({options.python, *plugin, context.executable_path, context.environment});
  if (!python.ok()) return fail(python.status());
  auto address = ChooseListenAddress(ListenScope::kAllInterfaces, options.port, "server_port");
  if (!address.ok()) return fail(address.status());

  std::vector<std::string> xla_flags = AllXlaFlags(context.environment, flags.xla_flags, context.err);
  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/0));
  BlockedSignals signals({SIGINT, SIGTERM});
  auto server =
      context.start_server({.listen_address = *address,
                            .devices = options.devices,
                            .plugin_path = *plugin,
                            .python = *python,
                            .allow_remote_clients = options.allow_remote_clients,
                            .xla_flags = std::move(xla_flags),
                            .scratch_location = options.scratch_location,
                            .compile_cache_days = options.compile_cache_days,
                            .environment = context.environment,
                            .large_transfer_directory = LargeTransferDirectory(context.environment)});
  if (!server.ok()) return fail(server.status());
  LOG(INFO) << "serving " << options.devices << " device(s) of " << *plugin << " on port "
            << (*server)->port();
  LOG_IF(WARNING, options.allow_remote_clients)
      << "--allow_remote_clients: clients of any host are admitted, and the link is not encrypted";
  LogForTools("IFRT proxy server started with status OK");

  const int signal = signals.Wait().si_signo;
  LOG(INFO) << "ending on " << (signal == SIGINT ? "SIGINT" : "SIGTERM");
  (*server)->Shutdown();
  return kExitOk;
}

}  // namespace helmway::apps
