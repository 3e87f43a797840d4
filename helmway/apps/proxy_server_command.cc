#include "helmway/apps/proxy_server_command.h"

#include <glog/logging.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/apps/python_environments.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/worker_identity.h"
#include "helmway/apps/xla_flags.h"

namespace helmway::apps {
namespace {

// Refuses the flags of a cluster and warns of what is taken without effect.
void CheckSupported(const ProxyOptions& options, ParsedFlags& flags) {
  const auto refuse = [&flags](const std::string& name, const std::string& why) {
    flags.Error(name, absl::StrCat("--", name, ": UNIMPLEMENTED: ", why));
  };
  const bool cluster = !options.resource_manager_address.empty();
  if (!cluster && flags.Has("virtual_slices")) {
    flags.Error("virtual_slices", "--virtual_slices needs --resource_manager_address");
  }
  if (cluster && flags.Has("devices")) {
    flags.Error("devices", "--devices: with --resource_manager_address the workers have the devices");
  }
  if (!cluster && flags.Has(kWorkerTimeout)) {
    flags.Error(kWorkerTimeout, absl::StrCat("--", kWorkerTimeout, " needs --resource_manager_address"));
  }
  if (flags.Has("sidecar_name"))
    refuse("sidecar_name",
           "sidecars in containers of their own are not supported; without it each worker runs colocated "
           "Python in a "
           "process beside it");
  if (!cluster && options.elastic_slices > 0) {
    flags.Error("num_elastic_slices", "--num_elastic_slices needs --resource_manager_address");
  }
  if (!cluster && options.debugging.peer_unreachable_timeout > absl::ZeroDuration()) {
    flags.Warn("temporary_flag_for_debugging_pipe_unreachable_timeout",
               "temporary_flag_for_debugging_pipe_unreachable_timeout: no effect, this server has no peers");
  }
  for (const char* name :
       {"cloud_pathways_external_sidecar_port", "cloud_pathways_external_sidecar_connect_timeout"}) {
    if (flags.Has(name)) {
      flags.Warn(name, absl::StrCat("--", name, ": no effect, sidecars are processes of the workers"));
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

  EmbeddedServerOptions server_options;
  const bool cluster = !options.resource_manager_address.empty();
  if (cluster) {
    server_options.resource_manager_address = options.resource_manager_address;
    server_options.lease.all = options.virtual_slices.empty();
    server_options.elastic_slices = std::max<int64_t>(options.elastic_slices, 0);
    server_options.lease.may_be_missing = static_cast<int32_t>(server_options.elastic_slices);
    for (const InstanceType& slice : options.virtual_slices) {
      server_options.lease.instance_types.push_back(CanonicalText(slice));
    }
    server_options.name = ProcessName(context.environment);
    server_options.worker_timeout = WorkerTimeoutFrom(flags, options.debugging);
  } else {
    auto plugin = ChoosePlugin(flags, context.executable_path, context.environment);
    if (plugin.ok()) plugin = CheckDevicesFlag(options.devices.has_value(), *std::move(plugin));
    if (!plugin.ok()) {
      fail(plugin.status());
      return UsageOrFailure(plugin.status());
    }
    auto python = FindPython({options.python, plugin->path, context.executable_path, context.environment});
    if (!python.ok()) return fail(python.status());
    server_options.devices = options.devices;
    server_options.plugin = *std::move(plugin);
    server_options.python = *python;
  }
  auto address = ChooseListenAddress(ListenScope::kAllInterfaces, options.port, "server_port");
  if (!address.ok()) return fail(address.status());

  std::vector<std::string> xla_flags = AllXlaFlags(context.environment, flags.xla_flags, context.err);
  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/0));
  BlockedSignals signals({SIGINT, SIGTERM});
  server_options.listen_address = *address;
  server_options.allow_remote_clients = options.allow_remote_clients;
  server_options.xla_flags = std::move(xla_flags);
  server_options.scratch_location = options.scratch_location;
  server_options.compile_cache_days = options.compile_cache_days;
  server_options.environment = context.environment;
  server_options.large_transfer_directory = LargeTransferDirectory(context.environment);
  auto server = context.start_server(server_options);
  if (!server.ok()) return fail(server.status());
  if (cluster) {
    LOG(INFO) << "serving the cluster at " << options.resource_manager_address << " on port "
              << (*server)->port();
  } else {
    LOG(INFO) << "serving the devices of " << server_options.plugin.path << " on port " << (*server)->port();
  }
  LOG_IF(WARNING, options.allow_remote_clients)
      << "--allow_remote_clients: clients of any host are admitted, and the link is not encrypted";
  LogForTools("IFRT proxy server started with status OK");

  const int signal = signals.Wait().si_signo;
  LOG(INFO) << "ending on " << (signal == SIGINT ? "SIGINT" : "SIGTERM");
  (*server)->Shutdown();
  return kExitOk;
}

}  // namespace helmway::apps
