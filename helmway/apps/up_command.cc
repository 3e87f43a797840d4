#include "helmway/apps/up_command.h"

#include <glog/logging.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/child_process.h"
#include "helmway/apps/listen_address.h"
#include "helmway/apps/local_cluster.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/apps/python_environments.h"
#include "helmway/apps/role_flags.h"
#include "helmway/apps/signals.h"
#include "helmway/apps/xla_flags.h"

namespace helmway::apps {
namespace {

std::vector<std::pair<std::string, std::string>> ClientVariables(int port) {
  return {{"JAX_PLATFORMS", "proxy"},
          {"JAX_BACKEND_TARGET", absl::StrCat("grpc://127.0.0.1:", port)},
          {"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"}};
}

// The next signal. Meanwhile sees to the workers.
siginfo_t NextSignal(BlockedSignals& signals, LocalCluster* workers) {
  if (workers == nullptr) return signals.Wait();
  while (true) {
    const std::optional<siginfo_t> info = signals.WaitUntil(workers->next_wake_up());
    if (!info) {
      workers->WakeUp();
      continue;
    }
    if (info->si_signo == SIGCHLD) workers->Reap();
    return *info;
  }
}

// Passes signals on to the child until it ends. Returns the exit code.
int WaitForChild(pid_t child, BlockedSignals& signals, LocalCluster* workers) {
  while (true) {
    const siginfo_t info = NextSignal(signals, workers);
    if (info.si_signo != SIGCHLD) {
      if (ShouldForward(info)) kill(child, info.si_signo);
      continue;
    }
    // SIGCHLD also tells of a child that was stopped or goes on.
    int status;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return ShellExitCode(status);
    PCHECK(ended == 0 || errno == EINTR);
  }
}

void CheckShape(ParsedFlags& flags) {
  if (!flags.Has("workers")) {
    for (const char* name : {"devices_per_worker", "slices", "max_worker_restarts", "chaos", "chaos_interval",
                             kWorkerTimeout, kCollectiveTimeout}) {
      if (flags.Has(name)) flags.Error(name, absl::StrCat("--", name, " needs --workers"));
    }
    return;
  }
  if (flags.Has("chaos_interval") && !flags.Has("chaos")) {
    flags.Error("chaos_interval", "--chaos_interval needs --chaos");
  }
  if (flags.Has("devices")) {
    flags.Error("devices", "--devices is for a single worker; with --workers say --devices_per_worker");
  }
  if (flags.ok() && flags.Int("workers") % flags.Int("slices") != 0) {
    flags.Error("slices", absl::StrCat("--slices=", flags.Int("slices"), ": ", flags.Int("workers"),
                                       " workers do not make up so many slices of one size"));
  }
}

// Processes of one host share its devices: each has to be told which are its own.
absl::StatusOr<PluginChoice> CheckForSeveralWorkers(PluginChoice choice) {
  if (choice.kind == pjrt::PluginKind::kTpu || choice.kind == pjrt::PluginKind::kOther) {
    return absl::UnimplementedError(absl::StrCat(
        "--workers with ", choice.path, ", a plugin of the kind '", pjrt::PluginKindName(choice.kind),
        "': this version can't divide its devices among processes (--pjrt_plugin_kind=cpu if it is "
        "XLA's CPU plugin by another name)"));
  }
  for (const pjrt::Option& option : choice.options) {
    if (option.name == "visible_devices") {
      return absl::InvalidArgumentError(
          "--pjrt_option: visible_devices would give all --workers the same devices; say "
          "--devices_per_worker");
    }
  }
  return choice;
}

std::optional<uint64_t> ChaosSeed(const ParsedFlags& flags) {
  if (!flags.Has("chaos")) return std::nullopt;
  return static_cast<uint64_t>(flags.Int("chaos"));
}

// The flags of logging and timeouts that were given, for the processes of the workers.
std::vector<std::string> FlagsForWorkers(const ParsedFlags& flags) {
  std::vector<std::string> given;
  if (flags.Has("v")) given.push_back(absl::StrCat("--v=", flags.Int("v")));
  if (flags.Has("vmodule")) given.push_back(absl::StrCat("--vmodule=", flags.String("vmodule")));
  if (flags.Has("minloglevel")) given.push_back(absl::StrCat("--minloglevel=", flags.Int("minloglevel")));
  for (const char* name : {kWorkerTimeout, kCollectiveTimeout}) {
    if (flags.Has(name)) given.push_back(absl::StrCat("--", name, "=", flags.Int(name)));
  }
  return given;
}

}  // namespace

const FlagTable& UpFlags() {
  static const auto* table = [] {
    auto* made = new FlagTable{
        .command = "helmway up",
        .usage = "helmway up [flags] [-- COMMAND ...]",
        .purpose =
            "Serves the devices of this machine to JAX programs on it. With a command, runs it on them and "
            "ends "
            "with it;\nwithout one, prints the variables that a program needs and serves until SIGINT or "
            "SIGTERM.",
        .flags =
            {{.name = "devices",
              .type = FlagType::kInt,
              .default_value = "1",
              .help =
                  "Number of virtual CPU devices of a single worker, which is in this process; with a GPU "
                  "plugin the first so many GPUs (default: all).",
              .min = 1,
              .max = 65536},
             {.name = "workers",
              .type = FlagType::kInt,
              .help =
                  "Number of workers, each a process of its own. Without it there is one, in this process.",
              .min = 1,
              .max = 1024},
             {.name = "devices_per_worker",
              .type = FlagType::kInt,
              .default_value = "1",
              .help = "Number of virtual CPU devices of each of the --workers; with a GPU plugin the first "
                      "worker "
                      "has the first so many GPUs, the second the next, and so on.",
              .min = 1,
              .max = 2048},
             {.name = "slices",
              .type = FlagType::kInt,
              .default_value = "1",
              .help = "Number of slices that the --workers make up, each as large as the others.",
              .min = 1,
              .max = 1024},
             {.name = "max_worker_restarts",
              .type = FlagType::kInt,
              .default_value = "100",
              .help = "How often one of the --workers that ends is started again; 0: never.",
              .max = 1 << 30},
             {.name = "chaos",
              .type = FlagType::kInt,
              .help =
                  "Kills one of the --workers now and then, chosen by this seed, to try how a program takes "
                  "it.",
              .max = int64_t{1} << 62},
             {.name = "chaos_interval",
              .type = FlagType::kInt,
              .default_value = "20",
              .help = "About how many seconds --chaos lets pass.",
              .min = 1,
              .max = 1 << 20},
             {.name = "port",
              .type = FlagType::kInt,
              .default_value = "0",
              .help = "Port on 127.0.0.1; 0 takes a free one.",
              .max = 65535},
             PythonFlag(),
             ScratchLocationFlag(),
             CompileCacheDaysFlag()},
        .foreign = {XlaFlags()},
        .takes_command = true};
    for (FlagSpec& spec : PluginFlags()) made->flags.push_back(std::move(spec));
    for (FlagSpec& spec : TimeoutFlags()) made->flags.push_back(std::move(spec));
    for (FlagSpec& spec : LoggingFlags()) made->flags.push_back(std::move(spec));
    return made;
  }();
  return *table;
}

int RunUp(const std::vector<std::string>& arguments, const CommandContext& context) {
  ParsedFlags flags = ParseFlags(UpFlags(), arguments, context.environment);
  if (flags.help) {
    context.out << HelpText(UpFlags()) << std::flush;
    return kExitOk;
  }
  CheckShape(flags);
  std::string scratch_location = ReadScratchLocation(flags, /*has_older_name=*/false);
  PrintNotes(UpFlags(), flags, context.err);
  if (!flags.ok()) return kExitUsage;
  const auto fail = [&context](const absl::Status& status, int code) {
    context.err << "helmway up: " << status.message() << std::endl;
    return code;
  };

  auto plugin = ChoosePlugin(flags, context.executable_path, context.environment);
  if (plugin.ok()) plugin = CheckDevicesFlag(flags.Has("devices"), *std::move(plugin));
  if (plugin.ok() && flags.Has("workers")) plugin = CheckForSeveralWorkers(*std::move(plugin));
  if (!plugin.ok()) return fail(plugin.status(), UsageOrFailure(plugin.status()));
  auto python =
      FindPython({flags.String("python"), plugin->path, context.executable_path, context.environment});
  if (!python.ok()) return fail(python.status(), kExitFailure);
  auto address = ChooseListenAddress(ListenScope::kLoopback, static_cast<int>(flags.Int("port")), "port");
  if (!address.ok()) return fail(address.status(), kExitFailure);

  std::vector<std::string> xla_flags = AllXlaFlags(context.environment, flags.xla_flags, context.err);

  // The program shares the terminal with the user's own: only warnings unless asked.
  context.start_logging(ResolveLogSettings(flags, context.environment, /*default_level=*/1));
  BlockedSignals signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  std::unique_ptr<LocalCluster> workers;
  if (flags.Has("workers")) {
    auto started =
        LocalCluster::Start({.executable = context.executable_path,
                             .workers = static_cast<int>(flags.Int("workers")),
                             .devices_per_worker = static_cast<int>(flags.Int("devices_per_worker")),
                             .slices = static_cast<int>(flags.Int("slices")),
                             .plugin_flags = FlagsOf(flags, *plugin),
                             .python = *python,
                             .scratch_location = scratch_location,
                             .flags = FlagsForWorkers(flags),
                             .environment = context.environment,
                             .signal_mask = signals.original_mask(),
                             .max_restarts = static_cast<int>(flags.Int("max_worker_restarts")),
                             .chaos_seed = ChaosSeed(flags),
                             .chaos_interval = absl::Seconds(flags.Int("chaos_interval"))});
    if (!started.ok()) return fail(started.status(), kExitFailure);
    workers = *std::move(started);
  }
  auto server = context.start_server(
      {.listen_address = *std::move(address),
       .workers = workers ? workers->workers() : std::vector<RemoteWorkerAddress>(),
       .on_worker_lost = [&workers](size_t number,
                                    uint64_t incarnation) { workers->Condemn(number, incarnation); },
       .worker_timeout = TimeoutsFrom(flags).peer,
       .devices =
           flags.Has("devices") ? std::make_optional(static_cast<int>(flags.Int("devices"))) : std::nullopt,
       .plugin = *std::move(plugin),
       .python = *std::move(python),
       .xla_flags = std::move(xla_flags),
       .scratch_location = std::move(scratch_location),
       .compile_cache_days = static_cast<int>(flags.Int("compile_cache_days")),
       .environment = context.environment,
       .large_transfer_directory = LargeTransferDirectory(context.environment)});
  if (!server.ok()) return fail(server.status(), kExitFailure);
  LOG(INFO) << "serving on 127.0.0.1:" << (*server)->port();
  if (workers) {
    workers->Watch([&server](size_t number, const RemoteWorkerAddress& returned) {
      return (*server)->ReturnWorker(number, returned);
    });
  }

  int exit_code = kExitOk;
  if (flags.command.empty()) {
    for (const auto& [name, value] : ClientVariables((*server)->port())) {
      context.out << "export " << name << "=" << value << "\n";
    }
    context.out.flush();
    while (NextSignal(signals, workers.get()).si_signo == SIGCHLD) {
    }
  } else {
    Environment environment = context.environment;
    for (auto& [name, value] : ClientVariables((*server)->port())) environment[name] = std::move(value);
    const auto child = StartChild(flags.command, environment, signals.original_mask());
    if (child.ok()) {
      exit_code = WaitForChild(*child, signals, workers.get());
    } else {
      exit_code = fail(child.status(), absl::IsNotFound(child.status())           ? 127
                                       : absl::IsPermissionDenied(child.status()) ? 126
                                                                                  : kExitFailure);
    }
  }
  if (workers) workers->StopWatching();
  // The signals stay blocked: one sent twice must not cut the shutdown short.
  (*server)->Shutdown();
  return exit_code;
}

}  // namespace helmway::apps
