// Requests about programs before they are executables: compiling.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/program/compile_options.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/serialized.h"

namespace helmway::proxy {

using ::helmway::array::ArraySpec;
using ::xla::ifrt::proxy::CompileRequest;
using ::xla::ifrt::proxy::CompileResponse;

namespace {

// What each output of a run is, for the first run of a client and for all its arrays.
absl::StatusOr<std::vector<std::shared_ptr<const array::ArraySpec>>> OutputSpecs(
    const Executable& executable, const std::string& default_kind) {
  std::vector<std::shared_ptr<const array::ArraySpec>> specs;
  for (size_t i = 0; i < executable.spec.outputs.size(); ++i) {
    const program::ValueSpec& output = executable.spec.outputs[i];
    auto spec = std::make_shared<array::ArraySpec>();
    if (output.is_token) {
      spec->dtype = xla::ifrt::DTypeProto::KIND_TOKEN;
    } else {
      HELMWAY_ASSIGN_OR_RETURN(spec->dtype, wire::FromPrimitiveType(output.element_type));
      spec->dims.assign(output.global_dims.begin(), output.global_dims.end());
      spec->layout = output.layout;
    }
    const std::string& kind = executable.output_memory_kinds[i];
    const bool is_default = kind.empty() || kind == default_kind;
    const std::optional<absl::string_view> memory_kind =
        is_default ? std::nullopt : std::optional<absl::string_view>(kind);
    if (executable.devices.size() == 1) {
      HELMWAY_ASSIGN_OR_RETURN(spec->sharding,
                               program::Sharding::SingleDevice(executable.devices[0], memory_kind));
    } else if (is_default) {
      spec->sharding = output.sharding;
    } else {
      HELMWAY_ASSIGN_OR_RETURN(spec->sharding,
                               output.sharding->WithDevicesAndMemoryKind(std::nullopt, memory_kind));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string DefaultMemoryKind(const cluster::WorkerInfo& info, int32_t device_id) {
  for (const cluster::DeviceInfo& device : info.devices) {
    if (device.id != device_id || !device.default_memory) continue;
    for (const cluster::MemoryInfo& memory : info.memories) {
      if (memory.id == *device.default_memory) return memory.kind;
    }
  }
  return "";
}

absl::StatusOr<std::shared_ptr<const Executable>> MakeExecutable(cluster::ExecutableId id,
                                                                 cluster::CompiledProgram compiled,
                                                                 const cluster::WorkerInfo& info,
                                                                 std::shared_ptr<PythonCallbacks> callbacks) {
  auto executable = std::make_shared<Executable>();
  executable->id = id;
  HELMWAY_ASSIGN_OR_RETURN(
      executable->spec, program::FromOptimizedHlo(program::kOutlineFormat, compiled.outline, compiled.devices,
                                                  compiled.num_replicas, compiled.num_partitions));
  if (!executable->spec.python_callbacks.empty()) {
    executable->callbacks =
        std::make_shared<const CallbackUse>(std::move(callbacks), executable->spec.python_callbacks);
  }
  executable->devices = std::move(compiled.devices);
  executable->output_memory_kinds = std::move(compiled.output_memory_kinds);
  if (executable->output_memory_kinds.size() != executable->spec.outputs.size()) {
    return absl::InternalError(absl::StrCat("the compiler reports ", executable->output_memory_kinds.size(),
                                            " memory kinds for ", executable->spec.outputs.size(),
                                            " outputs"));
  }
  HELMWAY_ASSIGN_OR_RETURN(executable->outputs,
                           OutputSpecs(*executable, DefaultMemoryKind(info, executable->devices[0])));
  executable->memory_stats = std::move(compiled.memory_stats);
  executable->code_size_bytes = compiled.code_size_bytes;
  executable->optimized_hlo_format = std::move(compiled.optimized_hlo_format);
  executable->optimized_hlo = std::move(compiled.optimized_hlo);
  return executable;
}

// A client must not make the server write where it likes.
absl::Status CheckDumps(const program::CompileOptions& options, const std::string& scratch_location) {
  const auto& overrides = options.proto().env_option_overrides();
  const auto to = overrides.find("xla_dump_to");
  if (to == overrides.end()) return absl::OkStatus();
  const std::string& where = to->second.string_field();
  const auto bare = [](absl::string_view text) {
    absl::ConsumePrefix(&text, "file://");
    return absl::StripSuffix(text, "/");
  };
  const absl::string_view inside = bare(where);
  const absl::string_view scratch = bare(scratch_location);
  if (!scratch.empty() && (inside == scratch || absl::StartsWith(inside, absl::StrCat(scratch, "/"))) &&
      !absl::StrContains(inside, "..")) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "xla_dump_to=", where,
      ": the files would be written by the server, which takes this option of a program only ",
      scratch.empty() ? "if it has a --gcs_scratch_location, and below that"
                      : absl::StrCat("for places below its scratch location ", scratch_location)));
}

// Colocated Python of JAX.
constexpr char kColocatedPython[] = "jax_colocated_python_v0.0.1";

absl::Status CheckOnDevices(const ArraySpec& spec, const std::vector<int32_t>& devices,
                            absl::string_view what, absl::string_view program) {
  const absl::Span<const int32_t> own = spec.sharding->devices();
  if (own.size() != devices.size() || !std::is_permutation(own.begin(), own.end(), devices.begin())) {
    return absl::InvalidArgumentError(absl::StrCat(what, " of the Python program ", program,
                                                   " is on devices [", absl::StrJoin(own, ","),
                                                   "], the program on [", absl::StrJoin(devices, ","), "]"));
  }
  // What its shards are.
  for (size_t i = 0; i < own.size(); ++i) {
    HELMWAY_RETURN_IF_ERROR(
        base::Annotate(spec.sharding->ShardShapeAt(spec.dims, static_cast<int64_t>(i)).status(),
                       absl::StrCat(what, " of the Python program ", program)));
  }
  if (spec.layout && !(spec.layout->IsDescending() && spec.layout->tiles().empty())) {
    return absl::UnimplementedError(
        absl::StrCat(what, " of the Python program ", program, " with the layout ", spec.layout->ToText()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Session::HandleCompile(CompileRequest& request, Reply& reply) {
  if (request.program().type_name() == wire::kCustomCallProgram) return CompilePython(request, reply);
  if (request.program().type_name() != wire::kXlaProgram) {
    return absl::UnimplementedError(
        absl::StrCat("programs of type \"", request.program().type_name(), "\" are not supported yet"));
  }
  if (request.compile_options().type_name() != wire::kXlaCompileOptions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compile options of type \"", request.compile_options().type_name(), "\" for an XLA program"));
  }
  if (request.host_callbacks_size() > 0) {
    return absl::UnimplementedError("host callbacks of the send/recv form are not supported");
  }
  HELMWAY_ASSIGN_OR_RETURN(program::CompileOptions options,
                           program::ParseXlaCompileOptions(request.compile_options().data()));
  if (options.compile_portable_executable() || options.device_ids().empty()) {
    return absl::UnimplementedError(
        "portable executables (compile_portable_executable) are not supported yet");
  }
  HELMWAY_RETURN_IF_ERROR(CheckDevices(options.device_ids()));

  HELMWAY_RETURN_IF_ERROR(CheckDumps(options, proxy_->options().scratch_location));

  cluster::CompileProgram command;
  command.executable = proxy_->NewExecutable();
  HELMWAY_ASSIGN_OR_RETURN(command.options,
                           options.SerializeForPlugin(device_ids_, proxy_->options().xla_options));
  command.code = std::move(*request.mutable_program()->mutable_data());
  command.devices.assign(options.device_ids().begin(), options.device_ids().end());
  const cluster::ExecutableId id = command.executable;
  reply.deferred = true;
  link_->Compile(std::move(command), [self = shared_from_this(), op_id = reply.op_id,
                                      id](absl::StatusOr<cluster::CompiledProgram> compiled) {
    if (!compiled.ok()) return self->SendError(op_id, compiled.status());
    const std::string fingerprint = compiled->fingerprint;
    absl::StatusOr<std::shared_ptr<const Executable>> executable =
        MakeExecutable(id, *std::move(compiled), self->proxy_->worker().info(), self->callbacks_);
    if (!executable.ok()) {
      self->link_->Unload(id, std::nullopt);
      return self->SendError(op_id, base::Annotate(executable.status(), "reading the compiled program"));
    }
    self->AnswerCompile(op_id, *std::move(executable), fingerprint);
  });
  return absl::OkStatus();
}

void Session::AnswerCompile(uint64_t op_id, std::shared_ptr<const Executable> executable,
                            const std::string& fingerprint) {
  Response response;
  CompileResponse& result = *response.mutable_compile_response();
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    const uint64_t handle = NewServerHandle();
    executables_[handle] = executable;
    result.set_loaded_executable_handle(handle);
    result.set_ready_future_handle(AddFuture(async::DoneCompletion()));
  }
  result.set_name(executable->spec.name);
  result.set_num_devices(static_cast<int32_t>(executable->devices.size()));
  for (const int32_t device : executable->devices) {
    result.add_addressable_device_ids(device);
    result.add_device_ids(device);
  }
  if (!fingerprint.empty()) result.set_fingerprint_value(fingerprint);
  Send(op_id, absl::OkStatus(), response);
}

absl::Status Session::CompilePython(CompileRequest& request, Reply& reply) {
  if (request.host_callbacks_size() > 0) {
    return absl::InvalidArgumentError("host callbacks of a custom call program");
  }
  HELMWAY_ASSIGN_OR_RETURN(const xla::ifrt::CustomCallCompileOptionsProto options,
                           wire::ParseSerialized<xla::ifrt::CustomCallCompileOptionsProto>(
                               request.compile_options(), wire::kCustomCallCompileOptions));
  if (options.outputs_bundle_slice_sizes_size() > 0) {
    return absl::UnimplementedError("outputs_bundle_slice_sizes of a custom call program");
  }
  HELMWAY_ASSIGN_OR_RETURN(
      xla::ifrt::CustomCallProgramProto program,
      wire::ParseSerialized<xla::ifrt::CustomCallProgramProto>(request.program(), wire::kCustomCallProgram));
  if (program.type() != kColocatedPython) {
    return absl::UnimplementedError(
        absl::StrCat("custom call programs of type \"", program.type(), "\" are not supported"));
  }
  if (program.version_number() != 0) {
    return absl::UnimplementedError(
        absl::StrCat("custom call programs of format version ", program.version_number()));
  }
  auto executable = std::make_shared<Executable>();
  executable->is_python = true;
  executable->id = proxy_->NewExecutable();
  executable->spec.name = program.name();
  executable->devices.assign(program.devices().device_ids().begin(), program.devices().device_ids().end());
  if (executable->devices.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the Python program ", program.name(), " has no devices"));
  }
  HELMWAY_RETURN_IF_ERROR(CheckDevices(executable->devices));
  for (size_t i = 0; i < static_cast<size_t>(program.input_specs_size()); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(program.input_specs(static_cast<int>(i))));
    HELMWAY_RETURN_IF_ERROR(
        CheckOnDevices(spec, executable->devices, absl::StrCat("argument ", i), program.name()));
    executable->python_inputs.push_back(std::move(spec));
  }
  for (size_t i = 0; i < static_cast<size_t>(program.output_specs_size()); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(program.output_specs(static_cast<int>(i))));
    HELMWAY_RETURN_IF_ERROR(
        CheckOnDevices(spec, executable->devices, absl::StrCat("output ", i), program.name()));
    executable->output_memory_kinds.push_back(spec.sharding->memory_kind().value_or(""));
    executable->outputs.push_back(std::make_shared<const ArraySpec>(std::move(spec)));
  }

  cluster::CompileProgram command;
  command.executable = executable->id;
  command.devices = executable->devices;
  command.python.emplace();
  HELMWAY_ASSIGN_OR_RETURN(command.python->hosts, cluster::PythonHostsOf(proxy_->worker().info()));
  command.python->python_version = versions_.python;
  command.python->jax_version = versions_.jax;
  command.code = std::move(*request.mutable_program()->mutable_data());
  reply.deferred = true;
  link_->Compile(std::move(command),
                 [self = shared_from_this(), op_id = reply.op_id, executable = std::move(executable)](
                     const absl::StatusOr<cluster::CompiledProgram>& compiled) {
                   if (!compiled.ok()) return self->SendError(op_id, compiled.status());
                   self->AnswerCompile(op_id, executable, /*fingerprint=*/"");
                 });
  return absl::OkStatus();
}

}  // namespace helmway::proxy
