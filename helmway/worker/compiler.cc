#include "helmway/worker/compiler.h"

#include <glog/logging.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/cache/key.h"
#include "helmway/program/bytecode_locations.h"
#include "helmway/program/compile_options.h"
#include "helmway/program/executable_spec.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::worker {
namespace {

std::string SerializeMemoryStats(const pjrt::CompiledMemoryStats& stats) {
  xla::CompiledMemoryStatsProto proto;
  proto.set_generated_code_size_in_bytes(stats.generated_code_bytes);
  proto.set_argument_size_in_bytes(stats.argument_bytes);
  proto.set_output_size_in_bytes(stats.output_bytes);
  proto.set_alias_size_in_bytes(stats.alias_bytes);
  proto.set_temp_size_in_bytes(stats.temp_bytes);
  proto.set_host_generated_code_size_in_bytes(stats.host_generated_code_bytes);
  proto.set_host_argument_size_in_bytes(stats.host_argument_bytes);
  proto.set_host_output_size_in_bytes(stats.host_output_bytes);
  proto.set_host_alias_size_in_bytes(stats.host_alias_bytes);
  proto.set_host_temp_size_in_bytes(stats.host_temp_bytes);
  proto.set_peak_memory_in_bytes(stats.peak_memory_bytes);
  proto.set_total_size_in_bytes(stats.total_bytes);
  return proto.SerializeAsString();
}

absl::StatusOr<cluster::CompiledProgram> Describe(const pjrt::LoadedExecutable& executable) {
  cluster::CompiledProgram program;
  program.name = executable.name();
  program.num_replicas = executable.num_replicas();
  program.num_partitions = executable.num_partitions();
  HELMWAY_ASSIGN_OR_RETURN(pjrt::ProgramBytes hlo, executable.OptimizedHlo());
  program.optimized_hlo_format = std::move(hlo.format);
  program.optimized_hlo = std::move(hlo.bytes);
  HELMWAY_ASSIGN_OR_RETURN(program.output_memory_kinds, executable.OutputMemoryKinds());
  program.fingerprint = executable.Fingerprint().value_or("");
  if (absl::StatusOr<pjrt::CompiledMemoryStats> stats = executable.GetCompiledMemoryStats(); stats.ok()) {
    program.memory_stats = SerializeMemoryStats(*stats);
  } else {
    program.memory_stats = stats.status();
  }
  program.code_size_bytes = executable.GeneratedCodeSizeBytes().value_or(0);
  return program;
}

std::vector<cluster::DeviceId> DevicesOf(const pjrt::LoadedExecutable& executable) {
  std::vector<cluster::DeviceId> devices;
  for (const pjrt::Device* device : executable.addressable_devices()) devices.push_back(device->id());
  return devices;
}

// Custom calls that XLA's CPU backend implements itself.
bool IsOfTheCompiler(const std::string& target) {
  return target == "TopK" || target == "PadToStatic" || target == "SliceToDynamic" ||
         target.rfind("__onednn$", 0) == 0;
}

bool WantsHandlers(const cluster::CompiledProgram& program, absl::Span<const cluster::DeviceId> devices) {
  const absl::StatusOr<program::ExecutableSpec> spec =
      program::FromOptimizedHlo(program.optimized_hlo_format, program.optimized_hlo, devices,
                                program.num_replicas, program.num_partitions);
  return spec.ok() && !absl::c_all_of(spec->custom_call_targets, IsOfTheCompiler);
}

}  // namespace

Compiler::Compiler(std::shared_ptr<pjrt::Client> client, CustomCalls* custom_calls, Dumps* dumps,
                   std::shared_ptr<cache::CompileCache> cache)
    : client_(std::move(client)),
      custom_calls_(custom_calls),
      dumps_(dumps),
      cache_(std::move(cache)),
      code_is_for_host_(client_->platform_name() == "cpu"),
      plugin_(absl::UnknownError("not known yet")) {
  if (cache_ == nullptr) return;
  if (code_is_for_host_) host_ = cache::HostInstructionSet();
  const std::string version = absl::StrCat(client_->platform_name(), " ", client_->platform_version());
  if (!cache_->persists()) {
    // Nobody else's plugin will ever be asked for.
    plugin_ = version;
    identified_.Notify();
    return;
  }
  identify_ = std::thread([this, version] {
    plugin_ = cache::PluginIdentity(client_->plugin()->path(), version);
    LOG_IF(WARNING, !plugin_.ok()) << "No compile cache: " << plugin_.status();
    identified_.Notify();
  });
}

Compiler::~Compiler() {
  if (identify_.joinable()) identify_.join();
}

absl::StatusOr<std::string> Compiler::KeyOf(const cluster::CompileProgram& command) {
  identified_.WaitForNotification();
  HELMWAY_RETURN_IF_ERROR(plugin_.status());
  HELMWAY_ASSIGN_OR_RETURN(
      const std::string options,
      program::CompileOptionsForKey(command.options, /*devices_matter=*/!code_is_for_host_));
  const absl::Span<pjrt::Device* const> devices = client_->addressable_devices();
  return cache::MakeKey({.program = program::WithoutSourceLocations(command.code),
                         .options = options,
                         .plugin = *plugin_,
                         .devices = devices.empty() ? "" : devices[0]->kind(),
                         .host = host_});
}

absl::StatusOr<Compiler::Compiled> Compiler::Compile(const cluster::CompileProgram& given) {
  if (given.only_to_see) return CompileAnew(given);
  // Options about dumps are for us, not for the plugin, which would write wherever they say.
  cluster::CompileProgram command = given;
  HELMWAY_ASSIGN_OR_RETURN(const std::optional<DumpRequest> dump, TakeDumpOptions(command.options));
  const auto compile = [&] { return dump ? CompileAndDump(given, *dump) : CompileAnew(command); };
  if (cache_ == nullptr) return compile();
  const absl::StatusOr<std::string> key = KeyOf(command);
  if (!key.ok()) return compile();
  cache::CompileCache::Lease lease = cache_->Acquire(*key, *plugin_);
  // There is nothing to dump of a program that is not compiled.
  if (lease.entry() != nullptr && !(dump && Matches(*dump, lease.entry()->program.name))) {
    absl::StatusOr<Compiled> loaded = Load(*lease.entry(), command);
    if (loaded.ok()) return loaded;
    lease.Reject(loaded.status());
  }
  absl::StatusOr<Compiled> compiled = compile();
  if (!compiled.ok() || lease.entry() != nullptr) return compiled;
  absl::StatusOr<std::string> bytes = compiled->executable->Serialize();
  if (bytes.ok()) {
    cache::Entry entry;
    entry.platform = client_->platform_name();
    entry.executable = *std::move(bytes);
    entry.program = compiled->program;
    entry.program.devices.clear();
    entry.has_custom_calls = WantsHandlers(compiled->program, compiled->program.devices);
    lease.Publish(std::move(entry));
  } else {
    LOG_FIRST_N(WARNING, 1) << "The plugin can't serialize programs; they are not cached: " << bytes.status();
  }
  return compiled;
}

absl::StatusOr<Compiler::Compiled> Compiler::Load(const cache::Entry& entry,
                                                  const cluster::CompileProgram& command) {
  // The plugin looks handlers up when it loads. Without them it says what is missing, and so will the
  // compiler.
  if (entry.has_custom_calls) custom_calls_->Load().IgnoreError();
  Compiled loaded;
  HELMWAY_ASSIGN_OR_RETURN(loaded.executable, client_->DeserializeAndLoad(entry.executable, command.options));
  loaded.program = entry.program;
  loaded.program.devices = DevicesOf(*loaded.executable);
  if (loaded.executable->num_outputs() != entry.program.output_memory_kinds.size() ||
      static_cast<int64_t>(loaded.program.devices.size()) !=
          int64_t{entry.program.num_replicas} * entry.program.num_partitions) {
    return absl::InternalError("the loaded program is not the one that was compiled");
  }
  return loaded;
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileAndDump(const cluster::CompileProgram& command,
                                                            const DumpRequest& request) {
  Dumps::Compile dump;
  dump.request = request;
  cluster::CompileProgram with_dump = command;
  if (absl::StatusOr<std::string> directory = dumps_->MakeDirectory(); directory.ok()) {
    dump.directory = *std::move(directory);
    HELMWAY_RETURN_IF_ERROR(TakeDumpOptions(with_dump.options, dump.directory).status());
  } else {
    LOG(WARNING) << "XLA's own files are missing in a dump: " << directory.status();
    HELMWAY_RETURN_IF_ERROR(TakeDumpOptions(with_dump.options).status());
  }
  absl::StatusOr<Compiled> compiled = CompileAnew(with_dump);
  dump.code = command.code;
  dump.options = command.options;
  if (compiled.ok()) {
    dump.result = compiled->program;
  } else {
    dump.result = compiled.status();
  }
  dumps_->Write(std::move(dump));
  return compiled;
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileAnew(const cluster::CompileProgram& command) {
  pjrt::CompileRequest request;
  request.code = command.code;
  request.serialized_options = command.options;
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> executable = client_->Compile(request);
  if (!executable.ok() && CustomCalls::IsMissingTarget(executable.status())) {
    // JAX's custom calls are loaded when the first program wants one.
    if (custom_calls_->Load().ok()) executable = client_->Compile(request);
    if (!executable.ok() && CustomCalls::IsMissingTarget(executable.status())) {
      return custom_calls_->Explain(executable.status());
    }
  }
  HELMWAY_RETURN_IF_ERROR(executable.status());
  Compiled compiled;
  compiled.executable = *std::move(executable);
  HELMWAY_ASSIGN_OR_RETURN(compiled.program, Describe(*compiled.executable));
  compiled.program.devices = DevicesOf(*compiled.executable);
  return compiled;
}

}  // namespace helmway::worker
