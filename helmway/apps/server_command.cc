#include "helmway/apps/server_command.h"

#include <glog/logging.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/instance_type.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/apps/python_environments.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/worker_identity.h"
#include "helmway/base/random.h"
#include "helmway/cluster/registration_client.h"

namespace helmway::apps {
namespace {

constexpr absl::Duration kPatienceAtTheEnd = absl::Seconds(5);

void LogServing(int port) { LogForTools(absl::StrCat("Pathways Server serving on [::]:", port)); }

int ExitCodeOf(int signal) { return 128 + signal; }

const char* NameOf(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

// ---- The resource manager -----------------------------------------------------------------------------

int RunResourceManager(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(ResourceManagerFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(ResourceManagerFlags()) << std::flush;
    return kExitOk;
  }
  const ResourceManagerOptions options = ReadResourceManagerFlags(flags);
  if (!options.scratch_location.empty()) {
    flags.Warn("gcs_scratch_location",
               "--gcs_scratch_location: no effect here, a resource manager keeps nothing");
  }
  manager::ManagerSettings settings;
  if (flags.ok()) {
    settings = ClusterSettings(options, context.environment);
    if (absl::Status status = manager::CheckSettings(settings); !status.ok()) {
      flags.Error("instance_type",
                  absl::StrCat("--instance_type=", flags.String("instance_type"), ": ", status.message()));
    }
  }
  PrintNotes(ResourceManagerFlags(), flags, context.err);
  if (!flags.ok()) return kExitUsage;
  const auto fail = [&context](const absl::Status& status) {
    context.err << "helmway server: " << status.message() << std::endl;
    return kExitFailure;
  };

  auto address = ChooseListenAddress(ListenScope::kAllInterfaces, options.port, "server_port");
  if (!address.ok()) return fail(address.status());
  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/0));
  BlockedSignals signals({SIGINT, SIGTERM});
  auto server = context.start_manager({.listen_address = *address, .settings = settings});
  if (!server.ok()) return fail(server.status());
  LOG(INFO) << "resource manager for " << manager::DescribeSlices(settings.slices)
            << "; slice 0: " << settings.slices[0].hosts << " host(s) of "
            << settings.slices[0].devices_per_host << " device(s)";
  LogServing((*server)->port());

  const int signal = signals.Wait().si_signo;
  LOG(INFO) << "ending on " << NameOf(signal) << "; workers and proxies go on";
  (*server)->Shutdown();
  return ExitCodeOf(signal);
}

// ---- A worker -----------------------------------------------------------------------------------------

// Where CPU devices that stand in for a TPU slice would be on it. Real ones know for themselves.
std::vector<std::map<std::string, cluster::AttributeValue>> TopologyAttributes(
    const cluster::AssignedPlace& placement) {
  std::vector<std::map<std::string, cluster::AttributeValue>> attributes;
  const auto instance = ParseInstanceType(placement.instance_type);
  if (!instance.ok()) return attributes;
  for (int device = 0; device < placement.devices_per_host; ++device) {
    const std::optional<ChipPosition> position = PositionOf(*instance, placement.task, device);
    if (!position.has_value()) return {};
    attributes.push_back({{"coords", {position->coords}}, {"core_on_chip", {position->core_on_chip}}});
  }
  return attributes;
}

// Between the registration and the server. Made in the main thread. A worker that can't have devices ends: it
// wakes the main thread with SIGTERM.
class WorkerLife final : public cluster::RegistrationObserver {
 public:
  WorkerLife(WorkerServer* server, pjrt::PluginKind kind, const Environment& environment)
      : server_(server), kind_(kind), environment_(environment) {}

  absl::StatusOr<cluster::WorkerInfo> OnPlaced(const cluster::AssignedPlace& placement) override {
    LOG(INFO) << "placed in slice " << placement.slice << ", host " << placement.task << ", of "
              << placement.slices << " slice(s): a " << placement.instance_type << " with "
              << placement.devices_per_host << " device(s) on each of " << placement.hosts << " host(s)";
    if (kind_ == pjrt::PluginKind::kTpu) {
      absl::Status fits = CheckTpuEnvironment(environment_, placement.task, placement.hosts);
      if (!fits.ok()) return fits;
    }
    return server_->Place({.number = placement.worker,
                           .slice = placement.slice,
                           .task = placement.task,
                           .hosts = placement.hosts,
                           .devices = placement.devices_per_host,
                           .manager_incarnation = placement.manager_incarnation,
                           .attributes = TopologyAttributes(placement)},
                          placement.address);
  }
  uint64_t slice_generation() const override { return server_->slice_generation(); }
  void OnSliceRestarted(const absl::Status& why) override {
    slice_restarted_.store(true, std::memory_order_relaxed);
    OnFailed(why);
  }
  void OnFailed(const absl::Status& status) override {
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = status;
    failed_.store(true, std::memory_order_release);
    pthread_kill(main_thread_, SIGTERM);
  }
  void OnRegistered(const cluster::AssignedPlace& /*placement*/) override {}
  void OnLost(const absl::Status& /*status*/) override {}

  // Null as long as there is none.
  const absl::Status* failure() const {
    return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr;
  }
  // The failure is that of another worker: this one has devices, and maybe programs that hang.
  bool slice_restarted() const { return slice_restarted_.load(std::memory_order_relaxed); }

 private:
  WorkerServer* const server_;
  const pjrt::PluginKind kind_;
  const Environment& environment_;
  const pthread_t main_thread_ = pthread_self();
  absl::Status failure_;  // written once, before failed_
  std::atomic<bool> failed_{false};
  std::atomic<bool> slice_restarted_{false};
};

int RunWorker(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(WorkerFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(WorkerFlags()) << HelpText(ResourceManagerFlags()) << std::flush;
    return kExitOk;
  }
  const WorkerOptions options = ReadWorkerFlags(flags);
  if (!options.sidecar_shm_directory.empty()) {
    flags.Warn(
        "cloud_pathways_sidecar_shm_directory",
        "--cloud_pathways_sidecar_shm_directory: no effect, sidecars share memory without a directory");
  }
  if (options.resource_manager_address.empty()) {
    flags.Error(
        "resource_manager_address",
        "--resource_manager_address is missing: a worker belongs to a cluster ('helmway proxy_server' "
        "serves the devices of one host; --node_type=resource_manager makes a manager)");
  }
  PrintNotes(WorkerFlags(), flags, context.err);
  if (!flags.ok()) return kExitUsage;
  const auto fail = [&context](const absl::Status& status, int code) {
    context.err << "helmway server: " << status.message() << std::endl;
    return code;
  };

  const auto identity = ReadWorkerIdentity(options, context.environment);
  if (!identity.ok()) return fail(identity.status(), kExitUsage);
  auto plugin = ChoosePlugin(flags, context.executable_path, context.environment);
  if (!plugin.ok()) return fail(plugin.status(), UsageOrFailure(plugin.status()));
  auto python = FindPython({options.python, plugin->path, context.executable_path, context.environment});
  if (!python.ok()) return fail(python.status(), kExitFailure);
  auto address = ChooseListenAddress(ListenScope::kAllInterfaces, options.port, "server_port");
  if (!address.ok()) return fail(address.status(), kExitFailure);
  if (options.message_port != 0) {
    auto messages = ChooseListenAddress(ListenScope::kAllInterfaces, options.message_port, "message_port");
    if (!messages.ok()) return fail(messages.status(), kExitFailure);
  }

  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/0));
  BlockedSignals signals({SIGINT, SIGTERM});
  const uint64_t incarnation = base::UnguessableId();
  auto server = context.start_worker({.listen_address = *address,
                                      .message_port = static_cast<uint16_t>(options.message_port),
                                      .plugin = *plugin,
                                      .python = *python,
                                      .scratch_location = options.scratch_location,
                                      .environment = context.environment,
                                      .incarnation = incarnation,
                                      .software = Software(),
                                      .timeouts = TimeoutsFrom(flags, options.debugging),
                                      .manager_address = options.resource_manager_address});
  if (!server.ok()) return fail(server.status(), kExitFailure);
  LogServing((*server)->port());

  cluster::RegistrationOptions registration;
  registration.manager_address = options.resource_manager_address;
  registration.queue = (*server)->queue();
  registration.incarnation = incarnation;
  registration.host = HostName();
  registration.pod = ProcessName(context.environment);
  registration.port = (*server)->port();
  registration.advertise_address = AdvertisedAddress(context.environment, (*server)->port());
  registration.slice = identity->slice;
  registration.task = identity->host;
  registration.linear = identity->linear;
  registration.cpu_standin = Lookup(context.environment, "HELMWAY_CPU_STANDIN") == "1";
  LOG(INFO) << "worker of the cluster at " << options.resource_manager_address << "; its place is "
            << (identity->source.empty() ? "the manager's choice"
                                         : absl::StrCat("told by ", identity->source));
  WorkerLife life(server->get(), plugin->kind, context.environment);
  auto client = cluster::RegistrationClient::Start(std::move(registration), &life);

  const int signal = signals.Wait().si_signo;
  int exit_code = ExitCodeOf(signal);
  if (const absl::Status* failure = life.failure(); failure != nullptr) {
    exit_code = fail(*failure, kExitFailure);
    if (!life.slice_restarted()) return exit_code;
  } else {
    LOG(INFO) << "ending on " << NameOf(signal);
    client->Drain(absl::ZeroDuration());
  }
  (*server)->StopWaiting();
  client.reset();
  (*server)->FinishWriting(kPatienceAtTheEnd);
  (*server)->EndProcess(exit_code);
  return exit_code;
}

}  // namespace

int RunServer(const std::vector<std::string>& arguments, const CommandContext& context) {
  // The role is a flag like others. What the workers' table does not know are errors of no interest here.
  const ParsedFlags peek = ParseFlags(WorkerFlags(), arguments, context.environment);
  return peek.String("node_type") == "resource_manager" ? RunResourceManager(arguments, context)
                                                        : RunWorker(arguments, context);
}

manager::ManagerSettings ClusterSettings(const ResourceManagerOptions& options,
                                         const Environment& environment) {
  manager::ManagerSettings settings;
  for (int64_t i = 0; i < options.slices; ++i) {
    const InstanceType& instance =
        options.instances.size() == 1 ? options.instances[0] : options.instances[static_cast<size_t>(i)];
    settings.slices.push_back({.instance_type = CanonicalText(instance),
                               .platform = PlatformOf(instance),
                               .hosts = instance.hosts,
                               .devices_per_host = instance.devices_per_host});
  }
  settings.advertised_host = StripMatchingQuotes(Lookup(environment, "HOST_ADDRESS").value_or(""));
  manager::HealthSettings& health = settings.health;
  health.initial_delay = options.health_initial_delay;
  if (options.health_period > absl::ZeroDuration()) health.period = options.health_period;
  if (options.health_timeout > absl::ZeroDuration()) health.timeout = options.health_timeout;
  const absl::Duration unreachable = options.debugging.peer_unreachable_timeout;
  if (options.health_failure_threshold > 0) {
    health.failure_threshold = options.health_failure_threshold;
  } else if (unreachable > absl::ZeroDuration()) {
    // Of a worker that is silent, so many questions fit into that time.
    const double probes =
        std::max(1.0, absl::FDivDuration(unreachable, std::max(health.period, health.timeout)));
    health.failure_threshold = static_cast<int>(std::min(probes, 1e6));
  }
  return settings;
}

}  // namespace helmway::apps
