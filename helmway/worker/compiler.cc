#include "helmway/worker/compiler.h"

#include <glog/logging.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/cache/key.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/program/bytecode_locations.h"
#include "helmway/program/compile_options.h"
#include "helmway/program/executable_spec.h"
#include "helmway/wire/xla_compile_options.pb.h"
#include "helmway/wire/xla_data.pb.h"
#include "helmway/worker/collectives.h"

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

// `ids`: null where the client's are the cluster's.
absl::StatusOr<std::string> OptionsForPlugin(const DeviceIds* ids, const std::string& options) {
  return ids == nullptr ? options : ids->OptionsForPlugin(options);
}

std::vector<cluster::DeviceId> DevicesOf(const pjrt::LoadedExecutable& executable, const DeviceIds* ids) {
  std::vector<cluster::DeviceId> devices;
  for (const pjrt::Device* device : executable.addressable_devices()) {
    devices.push_back(ids == nullptr ? device->id() : ids->Of(*device));
  }
  return devices;
}

absl::StatusOr<program::ExecutableSpec> ReadOutline(const cluster::CompiledProgram& program) {
  return program::FromOptimizedHlo(program::kOutlineFormat, program.outline, program.devices,
                                   program.num_replicas, program.num_partitions);
}

// Fills in what the compiler says of a program, and reads its optimized module.
absl::Status Describe(std::vector<cluster::DeviceId> devices, Compiler::Compiled* compiled) {
  const pjrt::LoadedExecutable& executable = *compiled->executable;
  cluster::CompiledProgram& program = compiled->program;
  program.devices = std::move(devices);
  program.name = executable.name();
  program.num_replicas = executable.num_replicas();
  program.num_partitions = executable.num_partitions();
  HELMWAY_ASSIGN_OR_RETURN(pjrt::ProgramBytes hlo, executable.OptimizedHlo());
  program.optimized_hlo_format = std::move(hlo.format);
  program.optimized_hlo = std::move(hlo.bytes);
  HELMWAY_ASSIGN_OR_RETURN(program.outline,
                           program::OutlineOf(program.optimized_hlo_format, program.optimized_hlo));
  HELMWAY_ASSIGN_OR_RETURN(compiled->spec, ReadOutline(program));
  program.calls_python = !compiled->spec.python_callbacks.empty();
  HELMWAY_ASSIGN_OR_RETURN(program.output_memory_kinds, executable.OutputMemoryKinds());
  program.fingerprint = executable.Fingerprint().value_or("");
  if (absl::StatusOr<pjrt::CompiledMemoryStats> stats = executable.GetCompiledMemoryStats(); stats.ok()) {
    program.memory_stats = SerializeMemoryStats(*stats);
  } else {
    program.memory_stats = stats.status();
  }
  program.code_size_bytes = executable.GeneratedCodeSizeBytes().value_or(0);
  return absl::OkStatus();
}

// Custom calls that XLA's CPU backend implements itself, and ours.
bool NeedsNoHandler(const std::string& target) {
  return target == program::kCollectiveTarget || target == "TopK" || target == "PadToStatic" ||
         target == "SliceToDynamic" || target.rfind("__onednn$", 0) == 0;
}

}  // namespace

bool Compiler::Compiled::calls_back() const {
  return absl::c_binary_search(spec.custom_call_targets, cluster::kPythonCallbackTarget);
}

Compiler::Compiler(std::shared_ptr<pjrt::Client> client, DeviceIds ids, CustomCalls* custom_calls,
                   Dumps* dumps, std::shared_ptr<cache::CompileCache> cache, program::XlaOptions for_slice)
    : client_(std::move(client)),
      ids_(std::move(ids)),
      for_slice_(std::move(for_slice)),
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

absl::StatusOr<std::string> Compiler::KeyOf(const Target& target, const std::string& code,
                                            const std::string& options) {
  identified_.WaitForNotification();
  HELMWAY_RETURN_IF_ERROR(plugin_.status());
  HELMWAY_ASSIGN_OR_RETURN(const std::string options_for_key,
                           program::CompileOptionsForKey(options, /*devices_matter=*/!code_is_for_host_));
  const absl::Span<pjrt::Device* const> all = client_->addressable_devices();
  std::string devices(all.empty() ? "" : all[0]->kind());
  if (target.several) {
    absl::StrAppend(&devices, " of several workers, ", target.several->replicas, " x ",
                    target.several->partitions);
  }
  return cache::MakeKey({.program = program::WithoutSourceLocations(code),
                         .options = options_for_key,
                         .plugin = *plugin_,
                         .devices = devices,
                         .host = host_});
}

absl::StatusOr<Compiler::Compiled> Compiler::Compile(const cluster::CompileProgram& command) {
  return CompileFor({.client = client_}, command);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileUncached(std::shared_ptr<pjrt::Client> client,
                                                             const cluster::CompileProgram& command) {
  return CompileFor({.client = std::move(client), .cached = false}, command);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileForSeveral(std::shared_ptr<pjrt::Client> client,
                                                               program::ProgramSize size,
                                                               const cluster::CompileProgram& command) {
  return CompileFor({.client = std::move(client), .several = size}, command);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileForSlice(const cluster::CompileProgram& command) {
  xla::CompileOptionsProto options;
  if (!options.ParseFromString(command.options)) {
    return absl::InvalidArgumentError("the compile options can't be parsed");
  }
  options.mutable_env_option_overrides()->insert(for_slice_.begin(), for_slice_.end());
  // The devices are those of the assignment.
  options.mutable_executable_build_options()->set_device_ordinal(-1);
  cluster::CompileProgram for_slice = command;
  for_slice.options = options.SerializeAsString();
  return CompileFor({.client = client_, .cached = false, .slice = true}, for_slice);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileFor(const Target& target,
                                                        const cluster::CompileProgram& command) {
  if (command.only_to_see) return CompileAnew(target, command.code, command.options);
  // Options about dumps are for us, not for the plugin, which would write wherever they say.
  std::string options = command.options;
  HELMWAY_ASSIGN_OR_RETURN(const std::optional<DumpRequest> dump, TakeDumpOptions(options));
  if (cache_ == nullptr || !target.cached) return CompileNow(target, command, options, dump);
  const absl::StatusOr<std::string> key = KeyOf(target, command.code, options);
  if (!key.ok()) return CompileNow(target, command, options, dump);
  cache::CompileCache::Lease lease = cache_->Acquire(*key, *plugin_);
  // There is nothing to dump of a program that is not compiled.
  if (lease.entry() != nullptr && !(dump && Matches(*dump, lease.entry()->program.name))) {
    absl::StatusOr<Compiled> foreseen = Foresee(target, *lease.entry(), options);
    if (foreseen.ok() && !target.several) {
      foreseen->load = [this, target, &command, options = std::move(options), dump,
                        program = foreseen->program, lease = std::move(lease)]() mutable {
        return LoadOrCompile(target, command, options, dump, program, std::move(lease));
      };
      return foreseen;
    }
    // Of no use later, but this is how to know that the workers will be able to load it.
    absl::Status status = foreseen.status();
    if (status.ok()) status = Load(target, *lease.entry(), options, foreseen->program).status();
    if (status.ok()) return foreseen;
    lease.Reject(status);
  }
  absl::StatusOr<Compiled> compiled = CompileNow(target, command, options, dump);
  if (compiled.ok() && lease.entry() == nullptr) Publish(target, *compiled, lease);
  return compiled;
}

void Compiler::Publish(const Target& target, const Compiled& compiled, cache::CompileCache::Lease& lease) {
  if (compiled.calls_back()) return;
  // It will be refused.
  if (target.several && compiled.spec.has_cross_device_ops) return;
  absl::StatusOr<std::string> bytes = target.several
                                          ? absl::StatusOr<std::string>(compiled.program.serialized)
                                          : compiled.executable->Serialize();
  if (!bytes.ok()) {
    LOG_FIRST_N(WARNING, 1) << "The plugin can't serialize programs; they are not cached: " << bytes.status();
    return;
  }
  cache::Entry entry;
  entry.platform = client_->platform_name();
  entry.executable = *std::move(bytes);
  entry.program = compiled.program;
  entry.program.devices.clear();
  entry.program.serialized.clear();
  entry.has_custom_calls = !absl::c_all_of(compiled.spec.custom_call_targets, NeedsNoHandler);
  lease.Publish(std::move(entry));
}

absl::StatusOr<Compiler::Compiled> Compiler::Foresee(const Target& target, const cache::Entry& entry,
                                                     const std::string& options) {
  Compiled foreseen;
  foreseen.program = entry.program;
  HELMWAY_ASSIGN_OR_RETURN(foreseen.program.devices, program::AssignedDevices(options));
  if (static_cast<int64_t>(foreseen.program.devices.size()) !=
      int64_t{entry.program.num_replicas} * entry.program.num_partitions) {
    return absl::InternalError("the program is for another number of devices");
  }
  HELMWAY_ASSIGN_OR_RETURN(foreseen.spec, ReadOutline(foreseen.program));
  if (target.several) foreseen.program.serialized = entry.executable;
  return foreseen;
}

absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> Compiler::Load(
    const Target& target, const cache::Entry& entry, const std::string& options,
    const cluster::CompiledProgram& foreseen) {
  // The plugin looks handlers up when it loads. Without them it says what is missing, and so will the
  // compiler.
  if (entry.has_custom_calls) custom_calls_->Load().IgnoreError();
  if (entry.program.has_collectives) {
    HELMWAY_RETURN_IF_ERROR(ReplaceCollectivesHere::Prepare(*target.client->plugin()));
  }
  const DeviceIds* ids = IdsOf(target);
  HELMWAY_ASSIGN_OR_RETURN(const std::string plugin_options, OptionsForPlugin(ids, options));
  HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<pjrt::LoadedExecutable> executable,
                           target.client->DeserializeAndLoad(entry.executable, plugin_options));
  if (executable->num_outputs() != entry.program.output_memory_kinds.size() ||
      DevicesOf(*executable, ids) != foreseen.devices) {
    return absl::InternalError("the loaded program is not the one that was compiled");
  }
  return executable;
}

absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> Compiler::LoadOrCompile(
    const Target& target, const cluster::CompileProgram& command, const std::string& options,
    const std::optional<DumpRequest>& dump, const cluster::CompiledProgram& foreseen,
    cache::CompileCache::Lease lease) {
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> loaded =
      Load(target, *lease.entry(), options, foreseen);
  if (loaded.ok()) return loaded;
  lease.Reject(loaded.status());
  HELMWAY_ASSIGN_OR_RETURN(Compiled compiled, CompileNow(target, command, options, dump));
  Publish(target, compiled, lease);
  // The client has been told of the other one.
  if (compiled.program.outline != foreseen.outline || compiled.program.devices != foreseen.devices ||
      compiled.program.output_memory_kinds != foreseen.output_memory_kinds) {
    return absl::InternalError(absl::StrCat("program ", foreseen.name,
                                            " could not be loaded from the compile cache, and is another one "
                                            "when it is compiled anew; compile it again"));
  }
  return std::move(compiled.executable);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileNow(const Target& target,
                                                        const cluster::CompileProgram& command,
                                                        const std::string& options,
                                                        const std::optional<DumpRequest>& dump) {
  return dump ? CompileAndDump(target, command, *dump) : CompileAnew(target, command.code, options);
}

absl::StatusOr<Compiler::Compiled> Compiler::CompileAndDump(const Target& target,
                                                            const cluster::CompileProgram& command,
                                                            const DumpRequest& request) {
  Dumps::Compile dump;
  dump.request = request;
  std::string options = command.options;
  if (absl::StatusOr<std::string> directory = dumps_->MakeDirectory(); directory.ok()) {
    dump.directory = *std::move(directory);
    HELMWAY_RETURN_IF_ERROR(TakeDumpOptions(options, dump.directory).status());
  } else {
    LOG(WARNING) << "XLA's own files are missing in a dump: " << directory.status();
    HELMWAY_RETURN_IF_ERROR(TakeDumpOptions(options).status());
  }
  absl::StatusOr<Compiled> compiled = CompileAnew(target, command.code, options);
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

absl::StatusOr<Compiler::Compiled> Compiler::CompileAnew(const Target& target, const std::string& code,
                                                         const std::string& options) {
  pjrt::CompileRequest request;
  const DeviceIds* ids = IdsOf(target);
  HELMWAY_ASSIGN_OR_RETURN(const std::string plugin_options, OptionsForPlugin(ids, options));
  request.code = code;
  request.serialized_options = plugin_options;
  absl::Status prepared;
  std::optional<ReplaceCollectivesHere> replace;
  if (target.several) {
    // Of interest only if the program has any.
    prepared = ReplaceCollectivesHere::Prepare(*target.client->plugin());
    replace.emplace(*target.several);
  }
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> executable = target.client->Compile(request);
  if (std::optional<absl::Status> why = CustomCalls::ExplainUntyped(executable.status())) return *why;
  if (!executable.ok() && CustomCalls::IsMissingTarget(executable.status())) {
    // JAX's custom calls are loaded when the first program wants one.
    if (custom_calls_->Load().ok()) executable = target.client->Compile(request);
    if (!executable.ok() && CustomCalls::IsMissingTarget(executable.status())) {
      return custom_calls_->Explain(executable.status());
    }
  }
  if (replace) HELMWAY_RETURN_IF_ERROR(replace->status());
  HELMWAY_RETURN_IF_ERROR(executable.status());
  Compiled compiled;
  compiled.executable = *std::move(executable);
  std::vector<cluster::DeviceId> devices;
  if (target.slice) {
    // The plugin tells only of those of this worker.
    HELMWAY_ASSIGN_OR_RETURN(devices, program::AssignedDevices(options));
  } else {
    devices = DevicesOf(*compiled.executable, ids);
  }
  HELMWAY_RETURN_IF_ERROR(Describe(std::move(devices), &compiled));
  if (target.slice) {
    // Whether devices talk to each other is for the plugin to know; they start together in any case.
    compiled.program.has_collectives = true;
    HELMWAY_ASSIGN_OR_RETURN(compiled.program.serialized, compiled.executable->Serialize());
  }
  if (target.several) {
    // Its collectives were not replaced, and this is why.
    if (compiled.spec.has_cross_device_ops) HELMWAY_RETURN_IF_ERROR(prepared);
    compiled.program.has_collectives = replace->replaced();
    HELMWAY_ASSIGN_OR_RETURN(compiled.program.serialized, compiled.executable->Serialize());
  }
  return compiled;
}

}  // namespace helmway::worker
