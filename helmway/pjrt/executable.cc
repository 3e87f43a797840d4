#include "helmway/pjrt/executable.h"

#include <glog/logging.h>

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/layout_text.h"
#include "helmway/pjrt/named_value.h"
#include "helmway/pjrt/run_context.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

using BufferVector = absl::InlinedVector<PJRT_Buffer*, 32>;

// `what`: "argument" with its position, for the error.
absl::Status AppendArguments(absl::Span<Buffer* const> args, BufferVector& handles) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == nullptr || !*args[i]) {
      return absl::InvalidArgumentError(absl::StrCat("execute: argument ", i, " is an empty buffer"));
    }
    handles.push_back(args[i]->get());
  }
  return absl::OkStatus();
}

GrownExecuteOptions ToPjrt(const ExecuteOptions& options) {
  GrownExecuteOptions result{};
  result.base.struct_size = sizeof(GrownExecuteOptions);
  result.base.launch_id = options.launch_id;
  result.base.non_donatable_input_indices = options.non_donatable_input_indices.data();
  result.base.num_non_donatable_input_indices = options.non_donatable_input_indices.size();
  if (options.context != nullptr) result.base.context = options.context->get();
  return result;
}

absl::StatusOr<std::vector<std::string>> LayoutTexts(const Plugin& plugin, PJRT_Executable* executable,
                                                     const char* what,
                                                     PJRT_Error* (*const* function)(ExecutableLayoutsArgs*)) {
  if (function == nullptr || *function == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' does not tell the layouts of ", what));
  }
  ExecutableLayoutsArgs args{.struct_size = sizeof(ExecutableLayoutsArgs), .executable = executable};
  if (absl::Status s = ToStatus(plugin.api(), CallPlugin(*function, &args)); !s.ok()) return s;
  std::vector<std::string> texts;
  for (size_t i = 0; i < args.num_layouts; ++i) {
    absl::StatusOr<std::string> text = LayoutToText(plugin, args.layouts[i]);
    if (!text.ok()) return text.status();
    texts.push_back(*std::move(text));
  }
  return texts;
}

absl::StatusOr<std::optional<std::vector<std::string>>> ShardingBytes(
    const Plugin& plugin, PJRT_Executable* executable, const char* what,
    PJRT_Error* (*ShardingsExtension::*function)(ExecutableShardingsArgs*)) {
  if (plugin.shardings() == nullptr || plugin.shardings()->*function == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' does not tell the shardings of ", what));
  }
  ExecutableShardingsArgs args{.struct_size = sizeof(ExecutableShardingsArgs), .executable = executable};
  if (absl::Status s = ToStatus(plugin.api(), CallPlugin(plugin.shardings()->*function, &args)); !s.ok())
    return s;
  if (args.shardings == nullptr || args.sizes == nullptr) return std::nullopt;
  std::vector<std::string> shardings;
  for (size_t i = 0; i < args.num_shardings; ++i) shardings.emplace_back(args.shardings[i], args.sizes[i]);
  return std::optional(std::move(shardings));
}

}  // namespace

LoadedExecutable::LoadedExecutable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* executable)
    : client_(std::move(client)), loaded_(executable) {}

LoadedExecutable::~LoadedExecutable() {
  const PJRT_Api* api = client_->api();
  if (executable_ != nullptr) {
    PJRT_Executable_Destroy_Args args{.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE,
                                      .executable = executable_};
    absl::Status status = ToStatus(api, api->PJRT_Executable_Destroy(&args));
    LOG_IF(ERROR, !status.ok()) << "PJRT_Executable_Destroy: " << status;
  }
  PJRT_LoadedExecutable_Destroy_Args args{.struct_size = PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE,
                                          .executable = loaded_};
  absl::Status status = ToStatus(api, api->PJRT_LoadedExecutable_Destroy(&args));
  LOG_IF(ERROR, !status.ok()) << "PJRT_LoadedExecutable_Destroy: " << status;
}

absl::StatusOr<std::unique_ptr<LoadedExecutable>> LoadedExecutable::Wrap(std::shared_ptr<const Client> client,
                                                                         PJRT_LoadedExecutable* executable) {
  std::unique_ptr<LoadedExecutable> result(new LoadedExecutable(std::move(client), executable));
  if (absl::Status s = result->Describe(); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat("reading what a compiled program looks like: ", s.message()));
  }
  return result;
}

absl::Status LoadedExecutable::Describe() {
  const PJRT_Api* api = client_->api();
  PJRT_LoadedExecutable_GetExecutable_Args get{
      .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE, .loaded_executable = loaded_};
  if (absl::Status s = ToStatus(api, api->PJRT_LoadedExecutable_GetExecutable(&get)); !s.ok()) return s;
  executable_ = get.executable;

  PJRT_Executable_Name_Args name{.struct_size = PJRT_Executable_Name_Args_STRUCT_SIZE,
                                 .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_Name(&name)); !s.ok()) return s;
  name_.assign(name.executable_name, name.executable_name_size);

  PJRT_Executable_NumReplicas_Args replicas{.struct_size = PJRT_Executable_NumReplicas_Args_STRUCT_SIZE,
                                            .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_NumReplicas(&replicas)); !s.ok()) return s;
  num_replicas_ = static_cast<int>(replicas.num_replicas);

  PJRT_Executable_NumPartitions_Args partitions{.struct_size = PJRT_Executable_NumPartitions_Args_STRUCT_SIZE,
                                                .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_NumPartitions(&partitions)); !s.ok()) return s;
  num_partitions_ = static_cast<int>(partitions.num_partitions);

  PJRT_LoadedExecutable_AddressableDevices_Args devices{
      .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE, .executable = loaded_};
  if (absl::Status s = ToStatus(api, api->PJRT_LoadedExecutable_AddressableDevices(&devices)); !s.ok())
    return s;
  for (size_t i = 0; i < devices.num_addressable_devices; ++i) {
    Device* device = client_->FindDevice(devices.addressable_devices[i]);
    if (device == nullptr) return absl::InternalError("it runs on a device that the client does not list");
    addressable_devices_.push_back(device);
  }

  PJRT_Executable_NumOutputs_Args outputs{.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE,
                                          .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_NumOutputs(&outputs)); !s.ok()) return s;
  num_outputs_ = outputs.num_outputs;

  PJRT_Executable_OutputElementTypes_Args types{
      .struct_size = PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE, .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_OutputElementTypes(&types)); !s.ok()) return s;
  for (size_t i = 0; i < types.num_output_types; ++i) {
    absl::StatusOr<ElementType> type = FromPjrtBufferType(EnumNumber(types.output_types[i]));
    if (!type.ok()) return type.status();
    output_element_types_.push_back(*type);
  }

  PJRT_Executable_OutputDimensions_Args dims{.struct_size = PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE,
                                             .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_OutputDimensions(&dims)); !s.ok()) return s;
  const int64_t* next = dims.dims;
  for (size_t i = 0; i < dims.num_outputs; ++i) {
    output_dimensions_.emplace_back(next, next + dims.dim_sizes[i]);
    next += dims.dim_sizes[i];
  }
  if (output_element_types_.size() != num_outputs_ || output_dimensions_.size() != num_outputs_) {
    return absl::InternalError(absl::StrCat("the plugin reports ", num_outputs_, " outputs, ",
                                            output_element_types_.size(), " element types and ",
                                            output_dimensions_.size(), " shapes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> LoadedExecutable::OutputMemoryKinds() const {
  const PJRT_Api* api = client_->api();
  PJRT_Executable_OutputMemoryKinds_Args args{
      .struct_size = PJRT_Executable_OutputMemoryKinds_Args_STRUCT_SIZE, .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_OutputMemoryKinds(&args)); !s.ok()) return s;
  std::vector<std::string> kinds;
  for (size_t i = 0; i < args.num_outputs; ++i) {
    kinds.emplace_back(args.memory_kinds[i], args.memory_kind_sizes[i]);
  }
  return kinds;
}

absl::StatusOr<std::vector<std::string>> LoadedExecutable::ParameterLayouts() const {
  const Plugin& plugin = *client_->plugin();
  absl::StatusOr<const LayoutsExtension*> layouts = RequireLayouts(plugin);
  if (!layouts.ok()) return layouts.status();
  const bool has = HELMWAY_PJRT_HAS_FIELD(LayoutsExtension, parameter_layouts, (*layouts)->base.struct_size);
  return LayoutTexts(plugin, executable_, "parameters", has ? &(*layouts)->parameter_layouts : nullptr);
}

absl::StatusOr<std::vector<std::string>> LoadedExecutable::OutputLayouts() const {
  const Plugin& plugin = *client_->plugin();
  absl::StatusOr<const LayoutsExtension*> layouts = RequireLayouts(plugin);
  if (!layouts.ok()) return layouts.status();
  const bool has = HELMWAY_PJRT_HAS_FIELD(LayoutsExtension, output_layouts, (*layouts)->base.struct_size);
  return LayoutTexts(plugin, executable_, "outputs", has ? &(*layouts)->output_layouts : nullptr);
}

absl::StatusOr<std::optional<std::vector<std::string>>> LoadedExecutable::ParameterShardings() const {
  return ShardingBytes(*client_->plugin(), executable_, "parameters",
                       &ShardingsExtension::parameter_shardings);
}

absl::StatusOr<std::optional<std::vector<std::string>>> LoadedExecutable::OutputShardings() const {
  return ShardingBytes(*client_->plugin(), executable_, "outputs", &ShardingsExtension::output_shardings);
}

absl::StatusOr<std::string> LoadedExecutable::Fingerprint() const {
  const PJRT_Api* api = client_->api();
  PJRT_Executable_Fingerprint_Args args{.struct_size = PJRT_Executable_Fingerprint_Args_STRUCT_SIZE,
                                        .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_Fingerprint(&args)); !s.ok()) return s;
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

absl::StatusOr<ProgramBytes> LoadedExecutable::OptimizedHlo() const {
  const PJRT_Api* api = client_->api();
  PJRT_Program program{.struct_size = PJRT_Program_STRUCT_SIZE};
  PJRT_Executable_OptimizedProgram_Args args{.struct_size = PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE,
                                             .executable = executable_,
                                             .program = &program};
  // The first call gives the size, the second fills the memory.
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_OptimizedProgram(&args)); !s.ok()) return s;
  ProgramBytes result;
  result.bytes.resize(program.code_size);
  program.code = result.bytes.data();
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_OptimizedProgram(&args)); !s.ok()) return s;
  result.bytes.resize(program.code_size);
  result.format.assign(program.format, program.format_size);
  return result;
}

absl::StatusOr<CompiledMemoryStats> LoadedExecutable::GetCompiledMemoryStats() const {
  const PJRT_Api* api = client_->api();
  CompiledMemoryStatsArgs grown{};
  grown.base.struct_size = sizeof(grown);
  grown.base.executable = executable_;
  const PJRT_Executable_GetCompiledMemoryStats_Args& args = grown.base;
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_GetCompiledMemoryStats(&grown.base)); !s.ok())
    return s;
  return CompiledMemoryStats{.generated_code_bytes = args.generated_code_size_in_bytes,
                             .argument_bytes = args.argument_size_in_bytes,
                             .output_bytes = args.output_size_in_bytes,
                             .alias_bytes = args.alias_size_in_bytes,
                             .temp_bytes = args.temp_size_in_bytes,
                             .host_generated_code_bytes = args.host_generated_code_size_in_bytes,
                             .host_argument_bytes = args.host_argument_size_in_bytes,
                             .host_output_bytes = args.host_output_size_in_bytes,
                             .host_alias_bytes = args.host_alias_size_in_bytes,
                             .host_temp_bytes = args.host_temp_size_in_bytes,
                             .peak_memory_bytes = args.peak_memory_in_bytes,
                             .total_bytes = grown.total_size_in_bytes};
}

absl::StatusOr<AttributeMap> LoadedExecutable::CostAnalysis() const {
  const PJRT_Api* api = client_->api();
  PJRT_Executable_GetCostAnalysis_Args args{.struct_size = PJRT_Executable_GetCostAnalysis_Args_STRUCT_SIZE,
                                            .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_GetCostAnalysis(&args)); !s.ok()) return s;
  return ToAttributeMap(args.properties, args.num_properties);
}

absl::StatusOr<int64_t> LoadedExecutable::GeneratedCodeSizeBytes() const {
  const PJRT_Api* api = client_->api();
  PJRT_Executable_SizeOfGeneratedCodeInBytes_Args args{
      .struct_size = PJRT_Executable_SizeOfGeneratedCodeInBytes_Args_STRUCT_SIZE, .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_SizeOfGeneratedCodeInBytes(&args)); !s.ok())
    return s;
  return args.size_in_bytes;
}

absl::StatusOr<std::string> LoadedExecutable::Serialize() const {
  const PJRT_Api* api = client_->api();
  PJRT_Executable_Serialize_Args args{.struct_size = PJRT_Executable_Serialize_Args_STRUCT_SIZE,
                                      .executable = executable_};
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_Serialize(&args)); !s.ok()) return s;
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

absl::Status LoadedExecutable::Delete() {
  const PJRT_Api* api = client_->api();
  PJRT_LoadedExecutable_Delete_Args args{.struct_size = PJRT_LoadedExecutable_Delete_Args_STRUCT_SIZE,
                                         .executable = loaded_};
  return ToStatus(api, api->PJRT_LoadedExecutable_Delete(&args));
}

bool LoadedExecutable::IsDeleted() const {
  const PJRT_Api* api = client_->api();
  PJRT_LoadedExecutable_IsDeleted_Args args{.struct_size = PJRT_LoadedExecutable_IsDeleted_Args_STRUCT_SIZE,
                                            .executable = loaded_};
  absl::Status status = ToStatus(api, api->PJRT_LoadedExecutable_IsDeleted(&args));
  CHECK(status.ok()) << "PJRT_LoadedExecutable_IsDeleted: " << status;
  return args.is_deleted;
}

absl::Status LoadedExecutable::ExecuteOn(const Device* device, absl::Span<Buffer* const> args,
                                         absl::Span<Buffer> outputs, Event* complete,
                                         const ExecuteOptions& options) const {
  if (device == nullptr) return absl::InvalidArgumentError("execute: the device is null");
  if (outputs.size() != num_outputs_) {
    return absl::InvalidArgumentError(
        absl::StrCat("execute: room for ", outputs.size(), " outputs, but ", name_, " has ", num_outputs_));
  }
  BufferVector arg_handles;
  if (absl::Status s = AppendArguments(args, arg_handles); !s.ok()) return s;
  BufferVector output_handles(num_outputs_, nullptr);
  PJRT_Buffer* const* arg_list = arg_handles.data();
  PJRT_Buffer** output_list = output_handles.data();
  PJRT_Event* complete_handle = nullptr;

  GrownExecuteOptions pjrt_options = ToPjrt(options);
  const PJRT_Api* api = client_->api();
  PJRT_LoadedExecutable_Execute_Args execute{
      .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
      .executable = loaded_,
      .options = &pjrt_options.base,
      .argument_lists = &arg_list,
      .num_devices = 1,
      .num_args = args.size(),
      .output_lists = &output_list,
      .device_complete_events = complete == nullptr ? nullptr : &complete_handle,
      .execute_device = device->get()};
  if (absl::Status s = ToStatus(api, api->PJRT_LoadedExecutable_Execute(&execute)); !s.ok()) return s;
  for (size_t i = 0; i < num_outputs_; ++i) outputs[i] = Buffer(client_, output_handles[i]);
  if (complete != nullptr) *complete = Event(api, complete_handle, client_->callbacks());
  return absl::OkStatus();
}

absl::Status LoadedExecutable::ExecuteAll(absl::Span<const absl::Span<Buffer* const>> args,
                                          absl::Span<const absl::Span<Buffer>> outputs,
                                          absl::Span<Event> complete, const ExecuteOptions& options) const {
  const size_t devices = addressable_devices_.size();
  if (devices == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("execute: ", name_, " has no devices of its own; run it with ExecuteOn"));
  }
  if (args.size() != devices || outputs.size() != devices ||
      (!complete.empty() && complete.size() != devices)) {
    return absl::InvalidArgumentError(absl::StrCat("execute: ", args.size(), " argument lists, ",
                                                   outputs.size(), " output lists and ", complete.size(),
                                                   " events, but ", name_, " runs on ", devices, " devices"));
  }
  const size_t num_args = args[0].size();
  BufferVector arg_handles;
  arg_handles.reserve(num_args * devices);
  for (size_t d = 0; d < devices; ++d) {
    if (args[d].size() != num_args || outputs[d].size() != num_outputs_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "execute: device ", d, " of ", name_, " has ", args[d].size(), " arguments and room for ",
          outputs[d].size(), " outputs; needed are ", num_args, " and ", num_outputs_));
    }
    if (absl::Status s = AppendArguments(args[d], arg_handles); !s.ok()) return s;
  }
  BufferVector output_handles(num_outputs_ * devices, nullptr);
  absl::InlinedVector<PJRT_Buffer* const*, 8> arg_lists;
  absl::InlinedVector<PJRT_Buffer**, 8> output_lists;
  for (size_t d = 0; d < devices; ++d) {
    arg_lists.push_back(arg_handles.data() + d * num_args);
    output_lists.push_back(output_handles.data() + d * num_outputs_);
  }
  absl::InlinedVector<PJRT_Event*, 8> events(devices, nullptr);

  GrownExecuteOptions pjrt_options = ToPjrt(options);
  const PJRT_Api* api = client_->api();
  PJRT_LoadedExecutable_Execute_Args execute{
      .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
      .executable = loaded_,
      .options = &pjrt_options.base,
      .argument_lists = arg_lists.data(),
      .num_devices = devices,
      .num_args = num_args,
      .output_lists = output_lists.data(),
      .device_complete_events = complete.empty() ? nullptr : events.data()};
  if (absl::Status s = ToStatus(api, api->PJRT_LoadedExecutable_Execute(&execute)); !s.ok()) return s;
  for (size_t d = 0; d < devices; ++d) {
    for (size_t i = 0; i < num_outputs_; ++i) outputs[d][i] = Buffer(client_, output_lists[d][i]);
    if (!complete.empty()) complete[d] = Event(api, events[d], client_->callbacks());
  }
  return absl::OkStatus();
}

}  // namespace helmway::pjrt
