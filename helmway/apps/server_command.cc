#include "helmway/apps/server_command.h"

#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/instance_type.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/plugin_discovery.h"
#include "helmway/apps/python_environments.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/worker_identity.h"
#include "helmway/base/random.h"
#include "helmway/cluster/registration_client.h"

namespace helmway::apps {
namespace {

void WarnOfScratchLocation(const std::string& location, ParsedFlags& flags) {
  if (location.empty()) return;
  flags.Warn("gcs_scratch_location",
             "--gcs_scratch_location: no effect, this version keeps compiled programs in memory only");
}

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
  WarnOfScratchLocation(options.scratch_location, flags);
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

// Between the registration and the server. A worker that can't have devices ends: it wakes the main thread
// with SIGTERM.
class WorkerLife final : public cluster::RegistrationObserver {
 public:
  explicit WorkerLife(WorkerServer* server) : server_(server) {}

  absl::StatusOr<cluster::WorkerInfo> OnPlaced(const cluster::AssignedPlace& placement) override {
    LOG(INFO) << "placed in slice " << placement.slice << ", host " << placement.task << ", of "
              << placement.slices << " slice(s): a " << placement.instance_type << " with "
              << placement.devices_per_host << " device(s) on each of " << placement.hosts << " host(s)";
    return server_->Place(placement);
  }
  void OnFailed(const absl::Status& status) override {
    failure_ = status;
    failed_.store(true, std::memory_order_release);
    kill(getpid(), SIGTERM);
  }
  void OnRegistered(const cluster::AssignedPlace& /*placement*/) override {}
  void OnLost(const absl::Status& /*status*/) override {}

  // Null as long as there is none.
  const absl::Status* failure() const {
    return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr;
  }

 private:
  WorkerServer* const server_;
  absl::Status failure_;  // written once, before failed_
  std::atomic<bool> failed_{false};
};

// Ends the process at once on another signal while it lives.
class ImpatientExit {
 public:
  explicit ImpatientExit(BlockedSignals* signals)
      : thread_([this, signals] {
          const int signal = signals->Wait().si_signo;
          if (!over_.load()) _exit(ExitCodeOf(signal));
        }) {}
  ~ImpatientExit() {
    over_.store(true);
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

int RunWorker(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(WorkerFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(WorkerFlags()) << HelpText(ResourceManagerFlags()) << std::flush;
    return kExitOk;
  }
  const WorkerOptions options = ReadWorkerFlags(flags);
  WarnOfScratchLocation(options.scratch_location, flags);
  if (!options.sidecar_shm_directory.empty()) {
    flags.Warn("cloud_pathways_sidecar_shm_directory",
               "--cloud_pathways_sidecar_shm_directory: no effect, this version has no colocated Python");
  }
  if (options.debugging.peer_unreachable_timeout > absl::ZeroDuration()) {
    flags.Warn("temporary_flag_for_debugging_pipe_unreachable_timeout",
               "temporary_flag_for_debugging_pipe_unreachable_timeout: of use on the resource manager only");
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
  auto plugin = FindPlugin({options.plugin_path, context.executable_path, context.environment});
  if (!plugin.ok()) return fail(plugin.status(), kExitFailure);
  auto python = FindPython({options.python, *plugin, context.executable_path, context.environment});
  if (!python.ok()) return fail(python.status(), kExitFailure);
  auto address = ChooseListenAddress(ListenScope::kAllInterfaces, options.port, "server_port");
  if (!address.ok()) return fail(address.status(), kExitFailure);

  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/0));
  BlockedSignals signals({SIGINT, SIGTERM});
  const uint64_t incarnation = base::UnguessableId();
  auto server = context.start_worker(
      {.listen_address = *address, .plugin_path = *plugin, .python = *python, .incarnation = incarnation});
  if (!server.ok()) return fail(server.status(), kExitFailure);
  LogServing((*server)->port());

  const std::string host = HostName();
  cluster::RegistrationOptions registration;
  registration.manager_address = options.resource_manager_address;
  registration.incarnation = incarnation;
  registration.host = host;
  registration.pod = Lookup(context.environment, "POD_NAME").value_or(host);
  registration.port = (*server)->port();
  registration.advertise_address = AdvertisedAddress(context.environment, (*server)->port());
  registration.slice = identity->slice;
  registration.task = identity->host;
  registration.linear = identity->linear;
  registration.cpu_standin = Lookup(context.environment, "HELMWAY_CPU_STANDIN") == "1";
  LOG(INFO) << "worker of the cluster at " << options.resource_manager_address << "; its place is "
            << (identity->source.empty() ? "the manager's choice"
                                         : absl::StrCat("told by ", identity->source));
  WorkerLife life(server->get());
  auto client = cluster::RegistrationClient::Start(std::move(registration), &life);

  const int signal = signals.Wait().si_signo;
  if (const absl::Status* failure = life.failure(); failure != nullptr) return fail(*failure, kExitFailure);
  const absl::Duration remaining = DrainTime(context.environment);
  LOG(INFO) << "ending on " << NameOf(signal) << ", within " << remaining;
  ImpatientExit impatient(&signals);
  client->Drain(remaining);
  (*server)->Drain(remaining);
  client.reset();
  (*server)->Shutdown();
  return ExitCodeOf(signal);
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

absl::Duration DrainTime(const Environment& environment) {
  double grace = 30;
  if (const auto text = Lookup(environment, "HELMWAY_GRACE_SECONDS")) {
    double given;
    if (absl::SimpleAtod(*text, &given) && given >= 0 && given <= 1e6) {
      grace = given;
    } else {
      LOG(WARNING) << "HELMWAY_GRACE_SECONDS=" << *text << ": no number of seconds, 30 are taken";
    }
  }
  return absl::Seconds(grace * 0.8);
}

}  // namespace helmway::apps
