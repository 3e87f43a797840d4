#include "helmway/apps/role_flags.h"

#include <cstddef>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace helmway::apps {
namespace {

constexpr int64_t kMaxPort = 65535;
constexpr int64_t kMaxSlices = 65536;
constexpr int64_t kMaxDevices = 65536;

FlagSpec Port(absl::string_view default_port) {
  return {.name = "server_port",
          .type = FlagType::kInt,
          .default_value = std::string(default_port),
          .help = "Port to listen on; 0 takes a free one.",
          .max = kMaxPort};
}

FlagSpec ResourceManagerAddress() {
  return {.name = "resource_manager_address",
          .type = FlagType::kAddress,
          .help = "Where the resource manager of the cluster listens, as host:port."};
}

FlagSpec Silent(absl::string_view name, absl::string_view help, FlagType type = FlagType::kString) {
  return {.name = std::string(name), .type = type, .help = std::string(help)};
}

// Flags of every role.
std::vector<FlagSpec> CommonFlags() {
  std::vector<FlagSpec> flags = {
      ScratchLocationFlag(),
      {.name = "enable_metrics_collection",
       .type = FlagType::kBool,
       .help = "Write metrics to Cloud Monitoring.",
       .no_effect = "metrics are not collected by this version"},
      {.name = "temporary_flags_for_debugging",
       .type = FlagType::kList,
       .help = "name=value pairs joined by ;;; (temporary_flag_for_debugging_pipe_unreachable_timeout, "
               "temporary_flag_for_debugging_experimental_num_ok_missing_slices).",
       .separator = ";;;"},
      Silent("enforce_kernel_ipv6_support", "Taken, not needed: IPv6 is used where the host has it.",
             FlagType::kBool),
  };
  for (FlagSpec& spec : LoggingFlags()) flags.push_back(std::move(spec));
  return flags;
}

std::vector<FlagSpec> Join(std::vector<FlagSpec> first, std::vector<FlagSpec> rest) {
  for (FlagSpec& spec : rest) first.push_back(std::move(spec));
  return first;
}

std::vector<FlagSpec> LabelFlags() {
  constexpr char kReason[] = "labels of metrics, which are not collected by this version";
  return {{.name = "cluster_name", .help = "Name of the cluster.", .no_effect = kReason},
          {.name = "project_id", .help = "Name of the cloud project.", .no_effect = kReason},
          {.name = "gcs_location", .help = "Older name of --gcs_scratch_location."}};
}

std::vector<ForeignPrefix> ForeignPrefixes(ForeignPrefix xla) {
  std::vector<ForeignPrefix> foreign = {std::move(xla)};
  for (absl::string_view prefix : {"megascale_", "tpu_"}) {
    foreign.push_back({std::string(prefix), "flags of the TPU runtime, which this version does not run"});
  }
  for (absl::string_view prefix : {"deepsea_", "grpc_", "tf_", "cloud_pathways_", "temporary_flag"}) {
    foreign.push_back({std::string(prefix), "unknown here, ignored"});
  }
  return foreign;
}

// Names of early 2025, seen in google/pathways-job internal/utils/extra_prototype.go.
std::vector<RetiredFlag> RetiredFlags() {
  return {
      {"pathways_server_port", "use --server_port"},
      {"pathways_ifrt_proxy_server_port", "use --server_port"},
      {"pathways_ifrt_proxy_server_resource_manager", "use --resource_manager_address"},
      {"pathways_resource_manager", "use --resource_manager_address"},
      {"pathways_tmp_dir_pattern", "use --gcs_scratch_location"},
      {"pathways_expected_instances",
       "use --instance_type for the shape and --instance_count for the number"},
      {"pathways_plaque_network", "drop it, nothing takes its place"},
      {"pathways_server_provides_devices",
       "drop it; --node_type=resource_manager makes a manager without devices"},
      {"pathways_device_type", "drop it; --instance_type says the type"},
      {"pathways_persistent_compilation_cache", "drop it; --gcs_scratch_location turns the cache on"},
      {"pathways_compilation_mode", "drop it, nothing takes its place"},
  };
}

DebuggingOptions ReadDebuggingFlags(ParsedFlags& flags) {
  DebuggingOptions options;
  for (const std::string& piece : flags.List("temporary_flags_for_debugging")) {
    const size_t equals = piece.find('=');
    const std::string name = piece.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : piece.substr(equals + 1);
    const absl::string_view short_name = absl::StripPrefix(name, "temporary_flag_for_debugging_");
    if (short_name == "pipe_unreachable_timeout") {
      if (!absl::ParseDuration(value, &options.peer_unreachable_timeout) ||
          options.peer_unreachable_timeout <= absl::ZeroDuration()) {
        flags.Error(name, absl::StrCat(name, "=", value, ": must be a duration above zero, such as 30m"));
      }
    } else if (short_name == "experimental_num_ok_missing_slices") {
      if (!absl::SimpleAtoi(value, &options.missing_slices) || options.missing_slices < 0) {
        flags.Error(name, absl::StrCat(name, "=", value, ": must be a whole number of at least 0"));
      }
    } else {
      flags.Warn(name, absl::StrCat("--temporary_flags_for_debugging: ", name, " is unknown here, ignored"));
    }
  }
  return options;
}

// Zero if it is not given; must be above zero if it is.
absl::Duration ReadDuration(ParsedFlags& flags, const std::string& name) {
  const absl::Duration duration = flags.Duration(name);
  if (flags.Has(name) && duration == absl::ZeroDuration()) {
    flags.Error(name, absl::StrCat("--", name, "=0: must be above zero"));
  }
  return duration;
}

void CheckNodeType(ParsedFlags& flags, absl::string_view expected) {
  const std::string type = flags.String("node_type");
  if (!type.empty() && type != expected) {
    flags.Error("node_type", absl::StrCat("--node_type=", type, ": this role is ", expected,
                                          "; known are resource_manager and worker"));
  }
}

FlagSpec NodeType(absl::string_view default_type) {
  return {.name = "node_type",
          .default_value = std::string(default_type),
          .help = "Role of the server: resource_manager or worker."};
}

}  // namespace

FlagSpec WorkerTimeoutFlag() {
  return {.name = kWorkerTimeout,
          .type = FlagType::kInt,
          .default_value = "3",
          .help = "A worker that gives no sign of life for so many seconds is lost, whatever it computes.",
          .min = 1,
          .max = 1 << 20};
}

std::vector<FlagSpec> TimeoutFlags() {
  return {
      WorkerTimeoutFlag(),
      {.name = kCollectiveTimeout,
       .type = FlagType::kInt,
       .default_value = "3600",
       .help = "A run of a program fails when a collective has waited so many seconds for devices of workers "
               "that are alive; 0 waits for ever.",
       .max = 1 << 30}};
}

absl::Duration WorkerTimeoutFrom(const ParsedFlags& flags, const DebuggingOptions& debugging) {
  if (debugging.peer_unreachable_timeout > absl::ZeroDuration() && !flags.Has(kWorkerTimeout)) {
    return debugging.peer_unreachable_timeout;
  }
  return absl::Seconds(flags.Int(kWorkerTimeout));
}

WorkerTimeouts TimeoutsFrom(const ParsedFlags& flags, const DebuggingOptions& debugging) {
  WorkerTimeouts timeouts;
  timeouts.peer = WorkerTimeoutFrom(flags, debugging);
  if (flags.Int(kCollectiveTimeout) > 0) timeouts.collective = absl::Seconds(flags.Int(kCollectiveTimeout));
  return timeouts;
}

ForeignPrefix XlaFlags() {
  return {
      .prefix = "xla_",
      .help = "Options of XLA for every program, after those of XLA_FLAGS; compiler_options of a jit win."};
}

FlagSpec CompileCacheDaysFlag() {
  return {.name = "compile_cache_days",
          .type = FlagType::kInt,
          .default_value = "30",
          .help = "Compiled programs in the scratch location are deleted after so many days; 0: never.",
          .max = 36500};
}

FlagSpec ScratchLocationFlag() {
  return {.name = "gcs_scratch_location",
          .help =
              "Directory where compiled programs persist: gs://bucket/directory, file:///directory or "
              "/directory. "
              "Without it they are kept in memory."};
}

std::string ReadScratchLocation(ParsedFlags& flags, bool has_older_name) {
  std::string name = "gcs_scratch_location";
  if (has_older_name && !flags.Has(name) && flags.Has("gcs_location")) {
    name = "gcs_location";
    flags.Warn(name, "--gcs_location is the older name of --gcs_scratch_location");
  }
  const std::string location = flags.String(name);
  if (location.empty()) return location;
  if (absl::Status status = CheckScratchLocation(location); !status.ok()) {
    flags.Error(name, absl::StrCat("--", name, "=", location, ": ", status.message()));
  }
  return location;
}

FlagSpec PythonFlag() {
  return {.name = "python",
          .help =
              "Python command that runs colocated Python, and whose jaxlib has JAX's custom calls (LAPACK). "
              "Default: HELMWAY_PYTHON, else the one of the plugin's environment or of the first that has "
              "jaxlib; \"none\" is none."};
}

std::vector<FlagSpec> LoggingFlags() {
  return {
      {.name = "v", .type = FlagType::kInt, .help = "Verbosity of the log, 0 and up.", .max = 100},
      {.name = "vmodule", .help = "Verbosity by source file: name=level, joined by commas."},
      {.name = "minloglevel",
       .type = FlagType::kInt,
       .help = "Lowest severity that is logged: 0 info, 1 warning, 2 error, 3 fatal. The environment "
               "(GLOG_minloglevel, "
               "TF_CPP_MIN_LOG_LEVEL, TPU_MIN_LOG_LEVEL, TPU_STDERR_LOG_LEVEL, LOGLEVEL) may lower it.",
       .max = 3},
      Silent("alsologtostderr", "Taken, not needed: the log goes to stderr.", FlagType::kBool),
      Silent("logtostderr", "Taken, not needed: the log goes to stderr.", FlagType::kBool),
      Silent("stderrthreshold", "Taken, not needed: the log goes to stderr."),
  };
}

absl::Status CheckScratchLocation(absl::string_view location) {
  if (absl::StartsWith(location, "/")) return absl::OkStatus();
  if (absl::string_view rest = location; absl::ConsumePrefix(&rest, "file://")) {
    if (absl::StartsWith(rest, "/")) return absl::OkStatus();
    return absl::InvalidArgumentError("the path after file:// must start with /");
  }
  if (absl::string_view rest = location; absl::ConsumePrefix(&rest, "gs://")) {
    if (!rest.empty() && rest.front() != '/') return absl::OkStatus();
    return absl::InvalidArgumentError("there is no bucket after gs://");
  }
  return absl::InvalidArgumentError("must be gs://bucket/directory, file:///directory or an absolute path");
}

const FlagTable& ResourceManagerFlags() {
  static const auto* table = new FlagTable{
      .command = "helmway server",
      .usage = "helmway server --node_type=resource_manager --instance_type=TYPE:TOPOLOGY [flags]",
      .purpose =
          "Runs the resource manager of a cluster: workers register with it, proxies lease slices.\n"
          "Environment: HOST_ADDRESS is the name of this host for others, where workers are on it too.",
      .flags = Join(
          {Port("29001"),
           NodeType("resource_manager"),
           {.name = "instance_count",
            .type = FlagType::kInt,
            .default_value = "1",
            .help = "Number of slices.",
            .min = 1,
            .max = kMaxSlices},
           {.name = "instance_type",
            .help = "Shape of a slice, such as tpuv5e:4x4 or cpu:2x4; or one shape per slice, joined by "
                    "commas."},
           {.name = "health_check_initial_delay",
            .type = FlagType::kDuration,
            .help =
                "From the registration of a worker to the first question whether it is well. Default: 0s."},
           {.name = "health_check_period",
            .type = FlagType::kDuration,
            .help = "From one question to the next. Default: 3s."},
           {.name = "health_check_timeout",
            .type = FlagType::kDuration,
            .help = "How long the answer may take. Default: 5s."},
           {.name = "health_check_failure_threshold",
            .type = FlagType::kInt,
            .help =
                "So many questions in a row without an answer, and the worker is lost. Default: 4, or what "
                "makes up temporary_flag_for_debugging_pipe_unreachable_timeout.",
            .min = 1,
            .max = 1000000}},
          CommonFlags()),
      .foreign = ForeignPrefixes(
          {.prefix = "xla_", .no_effect = "XLA options mean nothing to the resource manager"}),
      .retired = RetiredFlags()};
  return *table;
}

ResourceManagerOptions ReadResourceManagerFlags(ParsedFlags& flags) {
  ResourceManagerOptions options;
  CheckNodeType(flags, "resource_manager");
  options.port = static_cast<int>(flags.Int("server_port"));
  options.slices = flags.Int("instance_count");
  options.scratch_location = ReadScratchLocation(flags, /*has_older_name=*/false);
  options.debugging = ReadDebuggingFlags(flags);
  options.health_initial_delay = flags.Duration("health_check_initial_delay");
  options.health_period = ReadDuration(flags, "health_check_period");
  options.health_timeout = ReadDuration(flags, "health_check_timeout");
  options.health_failure_threshold = static_cast<int>(flags.Int("health_check_failure_threshold"));
  const std::string type = flags.String("instance_type");
  if (type.empty()) {
    flags.Error("instance_type",
                "--instance_type is missing: it gives the shape of a slice, such as tpuv5e:4x4");
    return options;
  }
  auto instances = ParseInstanceTypes(type);
  if (!instances.ok()) {
    flags.Error("instance_type", absl::StrCat("--instance_type=", type, ": ", instances.status().message()));
    return options;
  }
  options.instances = *std::move(instances);
  const auto shapes = static_cast<int64_t>(options.instances.size());
  if (shapes == 1) return options;
  if (!flags.Has("instance_count")) {
    options.slices = shapes;
  } else if (shapes != options.slices) {
    flags.Error("instance_type", absl::StrCat("--instance_type=", type, ": ", shapes,
                                              " shapes for --instance_count=", options.slices, " slices"));
  }
  return options;
}

const FlagTable& ProxyFlags() {
  static const auto* table = new FlagTable{
      .command = "helmway proxy_server",
      .usage = "helmway proxy_server [flags]",
      .purpose =
          "Serves the devices of this host, or with --resource_manager_address those of a cluster, to JAX\n"
          "programs (JAX_PLATFORMS=proxy, JAX_BACKEND_TARGET=grpc://HOST:PORT) until SIGINT or SIGTERM.",
      .flags = Join(
          {Port("29000"),
           {.name = "devices",
            .type = FlagType::kInt,
            .default_value = "1",
            .help = "Number of virtual CPU devices of this host; with a GPU plugin the first so many GPUs "
                    "(default: all).",
            .min = 1,
            .max = kMaxDevices},
           PythonFlag(),
           CompileCacheDaysFlag(),
           {.name = "allow_remote_clients",
            .type = FlagType::kBool,
            .default_value = "false",
            .help = "Admit clients of other hosts too. The link is not encrypted."},
           ResourceManagerAddress(),
           {.name = "num_elastic_slices",
            .type = FlagType::kInt,
            .help = "Number of slices that may be missing.",
            .max = kMaxSlices},
           {.name = "virtual_slices", .help = "Slices to lease, one instance type each, joined by commas."},
           {.name = "sidecar_name", .help = "Where colocated Python runs: external."},
           Silent("cloud_pathways_external_sidecar_port",
                  "Port of the sidecar on each worker; used with --sidecar_name.", FlagType::kInt),
           Silent("cloud_pathways_external_sidecar_connect_timeout",
                  "How long to wait for a sidecar; used with --sidecar_name.", FlagType::kDuration)},
          Join(PluginFlags(), Join({WorkerTimeoutFlag()}, Join(LabelFlags(), CommonFlags())))),
      .foreign = ForeignPrefixes(XlaFlags()),
      .retired = RetiredFlags()};
  return *table;
}

ProxyOptions ReadProxyFlags(ParsedFlags& flags) {
  ProxyOptions options;
  options.port = static_cast<int>(flags.Int("server_port"));
  options.resource_manager_address = flags.String("resource_manager_address");
  options.scratch_location = ReadScratchLocation(flags, /*has_older_name=*/true);
  if (flags.Has("devices")) options.devices = static_cast<int>(flags.Int("devices"));
  options.python = flags.String("python");
  options.compile_cache_days = static_cast<int>(flags.Int("compile_cache_days"));
  options.allow_remote_clients = flags.Bool("allow_remote_clients");
  options.debugging = ReadDebuggingFlags(flags);

  options.sidecar_name = flags.String("sidecar_name");
  if (!options.sidecar_name.empty() && options.sidecar_name != "external") {
    flags.Error("sidecar_name", absl::StrCat("--sidecar_name=", options.sidecar_name, ": must be external"));
  }
  if (const std::string slices = flags.String("virtual_slices"); !slices.empty()) {
    auto parsed = ParseInstanceTypes(slices);
    if (parsed.ok()) {
      options.virtual_slices = *std::move(parsed);
    } else {
      flags.Error("virtual_slices",
                  absl::StrCat("--virtual_slices=", slices, ": ", parsed.status().message()));
    }
  }
  std::string elastic_name = "num_elastic_slices";
  if (flags.Has(elastic_name)) {
    options.elastic_slices = flags.Int(elastic_name);
  } else if (options.debugging.missing_slices >= 0) {
    elastic_name = "temporary_flag_for_debugging_experimental_num_ok_missing_slices";
    options.elastic_slices = options.debugging.missing_slices;
  }
  const auto wanted = static_cast<int64_t>(options.virtual_slices.size());
  if (wanted > 0 && options.elastic_slices > wanted) {
    flags.Error(elastic_name, absl::StrCat("--", elastic_name, "=", options.elastic_slices,
                                           ": more than the ", wanted, " slices of --virtual_slices"));
  }
  return options;
}

const FlagTable& WorkerFlags() {
  static const auto* table = new FlagTable{
      .command = "helmway server",
      .usage = "helmway server --resource_manager_address=HOST:PORT [flags]",
      .purpose =
          "Runs one worker of a cluster.\n"
          "Environment: HELMWAY_ADVERTISE_ADDRESS (host or host:port) is where others reach it, by default "
          "the\n"
          "address that the manager sees; HELMWAY_CPU_STANDIN=1 lets CPU devices stand in for a TPU slice;\n"
          "POD_NAME is for messages.",
      .flags =
          Join({Port("29005"),
                NodeType("worker"),
                ResourceManagerAddress(),
                PythonFlag(),
                {.name = "message_port",
                 .type = FlagType::kInt,
                 .default_value = "0",
                 .help = "TCP port for messages of proxies and workers on other hosts; 0 takes a free one. "
                         "Where it is closed to them, messages go to --server_port.",
                 .max = kMaxPort},
                {.name = "slice_id",
                 .type = FlagType::kInt,
                 .help = "Number of this worker's slice. Default: MEGASCALE_SLICE_ID, or what follows from "
                         "LWS_WORKER_INDEX or SLURM_PROCID, else the manager chooses.",
                 .max = kMaxSlices},
                {.name = "host_id",
                 .type = FlagType::kInt,
                 .help = "Number of this worker within its slice. Default: JOB_COMPLETION_INDEX, else as for "
                         "--slice_id.",
                 .max = kMaxSlices},
                {.name = "cloud_pathways_sidecar_shm_directory",
                 .help = "Directory in memory that the worker shares with its sidecar. Default: "
                         "CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY."}},
               Join(PluginFlags(), Join(TimeoutFlags(), Join(LabelFlags(), CommonFlags())))),
      .foreign = ForeignPrefixes(
          {.prefix = "xla_",
           .no_effect = "XLA options mean nothing to a worker; give them to the proxy server"}),
      .retired = RetiredFlags()};
  return *table;
}

WorkerOptions ReadWorkerFlags(ParsedFlags& flags) {
  WorkerOptions options;
  CheckNodeType(flags, "worker");
  options.port = static_cast<int>(flags.Int("server_port"));
  options.resource_manager_address = flags.String("resource_manager_address");
  options.scratch_location = ReadScratchLocation(flags, /*has_older_name=*/true);
  options.message_port = static_cast<int>(flags.Int("message_port"));
  if (options.message_port != 0 && options.message_port == options.port) {
    flags.Error("message_port",
                absl::StrCat("--message_port=", options.message_port, ": that is the --server_port"));
  }
  options.sidecar_shm_directory = flags.String("cloud_pathways_sidecar_shm_directory");
  options.python = flags.String("python");
  if (flags.Has("slice_id")) options.slice = static_cast<int32_t>(flags.Int("slice_id"));
  if (flags.Has("host_id")) options.host = static_cast<int32_t>(flags.Int("host_id"));
  options.debugging = ReadDebuggingFlags(flags);
  return options;
}

}  // namespace helmway::apps
