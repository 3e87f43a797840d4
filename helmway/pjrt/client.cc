#include "helmway/pjrt/client.h"

#include <glog/logging.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/compile_options.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/key_value_callbacks.h"
#include "helmway/pjrt/layout.h"
#include "helmway/pjrt/layout_text.h"
#include "helmway/pjrt/named_value.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

PJRT_HostBufferSemantics ToPjrt(HostBufferSemantics semantics) {
  switch (semantics) {
    case HostBufferSemantics::kImmutableOnlyDuringCall:
      return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    case HostBufferSemantics::kImmutableUntilTransferCompletes:
      return PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
    case HostBufferSemantics::kImmutableZeroCopy:
      return PJRT_HostBufferSemantics_kImmutableZeroCopy;
    case HostBufferSemantics::kMutableZeroCopy:
      return PJRT_HostBufferSemantics_kMutableZeroCopy;
  }
  LOG(FATAL) << "no such HostBufferSemantics: " << static_cast<int>(semantics);
  return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;  // GCC does not know that LOG(FATAL) ends here.
}

}  // namespace

Memory* Device::FindMemory(std::string_view kind) const {
  for (Memory* memory : memories_) {
    if (memory->kind() == kind) return memory;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Client>> Client::Create(std::shared_ptr<Plugin> plugin,
                                                       std::vector<Option> options,
                                                       std::shared_ptr<KeyValueStore> key_values) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const Option& option : options) values.push_back(ToNamedValue(option.name, option.value));
  const PJRT_Api* api = plugin->api();
  PJRT_Client_Create_Args args{.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE,
                               .create_options = values.data(),
                               .num_options = values.size()};
  if (key_values != nullptr) SetKeyValueCallbacks(key_values.get(), &args);
  if (absl::Status s = ToStatus(api, api->PJRT_Client_Create(&args)); !s.ok()) {
    return absl::Status(
        s.code(), absl::StrCat("creating a client of the PJRT plugin '", plugin->path(), "': ", s.message()));
  }
  std::shared_ptr<Client> client(new Client(std::move(plugin), std::move(key_values), args.client));
  if (absl::Status s = client->Describe(); !s.ok()) return s;
  return client;
}

Client::Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> key_values, PJRT_Client* client)
    : plugin_(std::move(plugin)), key_values_(std::move(key_values)), client_(client) {}

Client::~Client() {
  PJRT_Client_Destroy_Args args{.struct_size = PJRT_Client_Destroy_Args_STRUCT_SIZE, .client = client_};
  absl::Status status = ToStatus(api(), api()->PJRT_Client_Destroy(&args));
  LOG_IF(ERROR, !status.ok()) << "PJRT_Client_Destroy: " << status;
}

absl::Status Client::Describe() {
  const PJRT_Api* api = plugin_->api();
  PJRT_Client_PlatformName_Args name{.struct_size = PJRT_Client_PlatformName_Args_STRUCT_SIZE,
                                     .client = client_};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_PlatformName(&name)); !s.ok()) return s;
  platform_name_.assign(name.platform_name, name.platform_name_size);

  PJRT_Client_PlatformVersion_Args version{.struct_size = PJRT_Client_PlatformVersion_Args_STRUCT_SIZE,
                                           .client = client_};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_PlatformVersion(&version)); !s.ok()) return s;
  platform_version_.assign(version.platform_version, version.platform_version_size);

  PJRT_Client_ProcessIndex_Args process{.struct_size = PJRT_Client_ProcessIndex_Args_STRUCT_SIZE,
                                        .client = client_};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_ProcessIndex(&process)); !s.ok()) return s;
  process_index_ = process.process_index;

  PJRT_Client_Devices_Args devices{.struct_size = PJRT_Client_Devices_Args_STRUCT_SIZE, .client = client_};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_Devices(&devices)); !s.ok()) return s;
  PJRT_Client_AddressableMemories_Args memories{
      .struct_size = PJRT_Client_AddressableMemories_Args_STRUCT_SIZE, .client = client_};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_AddressableMemories(&memories)); !s.ok()) return s;

  // Devices and memories point at each other: make all of them first.
  for (size_t i = 0; i < devices.num_devices; ++i) {
    Device* device = devices_.emplace_back(std::make_unique<Device>()).get();
    device->device_ = devices.devices[i];
    device_list_.push_back(device);
    device_by_handle_[device->device_] = device;
  }
  for (size_t i = 0; i < memories.num_addressable_memories; ++i) {
    Memory* memory = memories_.emplace_back(std::make_unique<Memory>()).get();
    memory->memory_ = memories.addressable_memories[i];
    memory_list_.push_back(memory);
    memory_by_handle_[memory->memory_] = memory;
  }
  for (Memory* memory : memory_list_) {
    if (absl::Status s = DescribeMemory(*memory); !s.ok()) return s;
    memory_by_id_[memory->id_] = memory;
  }
  for (Device* device : device_list_) {
    if (absl::Status s = DescribeDevice(*device); !s.ok()) return s;
    device_by_id_[device->id_] = device;
    if (device->is_addressable_) addressable_devices_.push_back(device);
  }
  return absl::OkStatus();
}

absl::Status Client::DescribeDevice(Device& device) {
  const PJRT_Api* api = plugin_->api();
  PJRT_Device_GetDescription_Args get{.struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE,
                                      .device = device.device_};
  if (absl::Status s = ToStatus(api, api->PJRT_Device_GetDescription(&get)); !s.ok()) return s;
  PJRT_DeviceDescription* description = get.device_description;

  PJRT_DeviceDescription_Id_Args id{.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE,
                                    .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_Id(&id)); !s.ok()) return s;
  device.id_ = id.id;

  PJRT_DeviceDescription_ProcessIndex_Args process{
      .struct_size = PJRT_DeviceDescription_ProcessIndex_Args_STRUCT_SIZE, .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_ProcessIndex(&process)); !s.ok()) return s;
  device.process_index_ = process.process_index;

  PJRT_DeviceDescription_Kind_Args kind{.struct_size = PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE,
                                        .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_Kind(&kind)); !s.ok()) return s;
  device.kind_.assign(kind.device_kind, kind.device_kind_size);

  PJRT_DeviceDescription_DebugString_Args debug{
      .struct_size = PJRT_DeviceDescription_DebugString_Args_STRUCT_SIZE, .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_DebugString(&debug)); !s.ok()) return s;
  device.debug_string_.assign(debug.debug_string, debug.debug_string_size);

  PJRT_DeviceDescription_ToString_Args text{.struct_size = PJRT_DeviceDescription_ToString_Args_STRUCT_SIZE,
                                            .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_ToString(&text)); !s.ok()) return s;
  device.to_string_.assign(text.to_string, text.to_string_size);

  PJRT_DeviceDescription_Attributes_Args attributes{
      .struct_size = PJRT_DeviceDescription_Attributes_Args_STRUCT_SIZE, .device_description = description};
  if (absl::Status s = ToStatus(api, api->PJRT_DeviceDescription_Attributes(&attributes)); !s.ok()) return s;
  device.attributes_ = ToAttributeMap(attributes.attributes, attributes.num_attributes);

  PJRT_Device_IsAddressable_Args addressable{.struct_size = PJRT_Device_IsAddressable_Args_STRUCT_SIZE,
                                             .device = device.device_};
  if (absl::Status s = ToStatus(api, api->PJRT_Device_IsAddressable(&addressable)); !s.ok()) return s;
  device.is_addressable_ = addressable.is_addressable;
  if (!device.is_addressable_) return absl::OkStatus();

  PJRT_Device_LocalHardwareId_Args local{.struct_size = PJRT_Device_LocalHardwareId_Args_STRUCT_SIZE,
                                         .device = device.device_};
  if (absl::Status s = ToStatus(api, api->PJRT_Device_LocalHardwareId(&local)); !s.ok()) return s;
  device.local_hardware_id_ = local.local_hardware_id;

  PJRT_Device_AddressableMemories_Args memories{
      .struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, .device = device.device_};
  if (absl::Status s = ToStatus(api, api->PJRT_Device_AddressableMemories(&memories)); !s.ok()) return s;
  for (size_t i = 0; i < memories.num_memories; ++i) {
    if (Memory* memory = FindMemory(memories.memories[i]); memory != nullptr)
      device.memories_.push_back(memory);
  }

  PJRT_Device_DefaultMemory_Args default_memory{.struct_size = PJRT_Device_DefaultMemory_Args_STRUCT_SIZE,
                                                .device = device.device_};
  if (absl::Status s = ToStatus(api, api->PJRT_Device_DefaultMemory(&default_memory)); !s.ok()) return s;
  device.default_memory_ = FindMemory(default_memory.memory);
  return absl::OkStatus();
}

absl::Status Client::DescribeMemory(Memory& memory) {
  const PJRT_Api* api = plugin_->api();
  PJRT_Memory_Id_Args id{.struct_size = PJRT_Memory_Id_Args_STRUCT_SIZE, .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_Id(&id)); !s.ok()) return s;
  memory.id_ = id.id;

  PJRT_Memory_Kind_Args kind{.struct_size = PJRT_Memory_Kind_Args_STRUCT_SIZE, .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_Kind(&kind)); !s.ok()) return s;
  memory.kind_.assign(kind.kind, kind.kind_size);

  PJRT_Memory_Kind_Id_Args kind_id{.struct_size = PJRT_Memory_Kind_Id_Args_STRUCT_SIZE,
                                   .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_Kind_Id(&kind_id)); !s.ok()) return s;
  memory.kind_id_ = kind_id.kind_id;

  PJRT_Memory_DebugString_Args debug{.struct_size = PJRT_Memory_DebugString_Args_STRUCT_SIZE,
                                     .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_DebugString(&debug)); !s.ok()) return s;
  memory.debug_string_.assign(debug.debug_string, debug.debug_string_size);

  PJRT_Memory_ToString_Args text{.struct_size = PJRT_Memory_ToString_Args_STRUCT_SIZE,
                                 .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_ToString(&text)); !s.ok()) return s;
  memory.to_string_.assign(text.to_string, text.to_string_size);

  PJRT_Memory_AddressableByDevices_Args devices{
      .struct_size = PJRT_Memory_AddressableByDevices_Args_STRUCT_SIZE, .memory = memory.memory_};
  if (absl::Status s = ToStatus(api, api->PJRT_Memory_AddressableByDevices(&devices)); !s.ok()) return s;
  for (size_t i = 0; i < devices.num_devices; ++i) {
    if (Device* device = FindDevice(devices.devices[i]); device != nullptr) memory.devices_.push_back(device);
  }
  return absl::OkStatus();
}

Device* Client::FindDevice(int id) const {
  auto it = device_by_id_.find(id);
  return it == device_by_id_.end() ? nullptr : it->second;
}

Memory* Client::FindMemory(int id) const {
  auto it = memory_by_id_.find(id);
  return it == memory_by_id_.end() ? nullptr : it->second;
}

Device* Client::FindDevice(const PJRT_Device* device) const {
  auto it = device_by_handle_.find(device);
  return it == device_by_handle_.end() ? nullptr : it->second;
}

Memory* Client::FindMemory(const PJRT_Memory* memory) const {
  auto it = memory_by_handle_.find(memory);
  return it == memory_by_handle_.end() ? nullptr : it->second;
}

absl::StatusOr<std::unique_ptr<LoadedExecutable>> Client::Compile(const CompileRequest& request) const {
  const std::string options =
      request.serialized_options.empty() ? DefaultCompileOptions() : std::string(request.serialized_options);
  if (absl::Status s = CheckCompileOptions(options); !s.ok()) return s;
  const PJRT_Api* api = plugin_->api();
  PJRT_Program program{.struct_size = PJRT_Program_STRUCT_SIZE,
                       // Only read by this call; the field is not const because others write through it.
                       .code = const_cast<char*>(request.code.data()),
                       .code_size = request.code.size(),
                       .format = request.format.data(),
                       .format_size = request.format.size()};
  PJRT_Client_Compile_Args args{.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE,
                                .client = client_,
                                .program = &program,
                                .compile_options = options.data(),
                                .compile_options_size = options.size()};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_Compile(&args)); !s.ok()) return s;
  return LoadedExecutable::Wrap(shared_from_this(), args.executable);
}

absl::StatusOr<std::unique_ptr<LoadedExecutable>> Client::DeserializeAndLoad(
    std::string_view bytes, std::optional<std::string_view> serialized_options) const {
  const PJRT_Api* api = plugin_->api();
  PJRT_Executable_DeserializeAndLoad_Args args{
      .struct_size = PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE,
      .client = client_,
      .serialized_executable = bytes.data(),
      .serialized_executable_size = bytes.size()};
  if (serialized_options.has_value()) {
    if (absl::Status s = CheckCompileOptions(*serialized_options); !s.ok()) return s;
    args.overridden_serialized_compile_options = serialized_options->data();
    args.overridden_serialized_compile_options_size = serialized_options->size();
  }
  if (absl::Status s = ToStatus(api, api->PJRT_Executable_DeserializeAndLoad(&args)); !s.ok()) return s;
  return LoadedExecutable::Wrap(shared_from_this(), args.loaded_executable);
}

absl::StatusOr<std::vector<int>> Client::DefaultDeviceAssignment(int replicas, int partitions) const {
  if (replicas < 1 || partitions < 1 || static_cast<int64_t>(replicas) * partitions > (1 << 24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DefaultDeviceAssignment for ", replicas, " replicas and ", partitions, " partitions"));
  }
  std::vector<int> ids(static_cast<size_t>(replicas) * partitions);
  const PJRT_Api* api = plugin_->api();
  PJRT_Client_DefaultDeviceAssignment_Args args{
      .struct_size = PJRT_Client_DefaultDeviceAssignment_Args_STRUCT_SIZE,
      .client = client_,
      .num_replicas = replicas,
      .num_partitions = partitions,
      .default_assignment_size = ids.size(),
      .default_assignment = ids.data()};
  if (absl::Status s = ToStatus(api, api->PJRT_Client_DefaultDeviceAssignment(&args)); !s.ok()) return s;
  return ids;
}

absl::StatusOr<std::string> Client::DefaultLayout(ElementType type, absl::Span<const int64_t> dims) const {
  absl::StatusOr<const LayoutsExtension*> layouts = RequireLayouts(*plugin_);
  if (!layouts.ok()) return layouts.status();
  absl::StatusOr<int> pjrt_type = ToPjrtBufferType(type);
  if (!pjrt_type.ok()) return pjrt_type.status();
  if (absl::StatusOr<size_t> bytes = DenseHostBytes(type, dims); !bytes.ok()) return bytes.status();
  ClientDefaultLayoutArgs args{.struct_size = sizeof(ClientDefaultLayoutArgs),
                               .client = client_,
                               .type = static_cast<PJRT_Buffer_Type>(*pjrt_type),
                               .dims = dims.data(),
                               .num_dims = dims.size()};
  if (absl::Status s = ToStatus(plugin_->api(), CallPlugin((*layouts)->client_default_layout, &args));
      !s.ok())
    return s;
  return ConsumeLayout(*plugin_, args.layout);
}

absl::StatusOr<HostBufferResult> Client::BufferFromHost(const HostBufferArgs& request) const {
  absl::StatusOr<int> type = ToPjrtBufferType(request.type);
  if (!type.ok()) return type.status();
  absl::StatusOr<size_t> bytes = DenseHostBytes(request.type, request.dims);
  if (!bytes.ok()) return bytes.status();
  if (request.data == nullptr && *bytes != 0) {
    return absl::InvalidArgumentError("BufferFromHost: the data is null");
  }
  if (request.device == nullptr && request.memory == nullptr) {
    return absl::InvalidArgumentError("BufferFromHost: neither a device nor a memory is given");
  }
  static constexpr char kNothing = 0;
  const PJRT_Api* api = plugin_->api();
  PJRT_Client_BufferFromHostBuffer_Args args{
      .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
      .client = client_,
      .data = request.data == nullptr ? &kNothing : request.data,
      .type = static_cast<PJRT_Buffer_Type>(*type),
      .dims = request.dims.data(),
      .num_dims = request.dims.size(),
      .host_buffer_semantics = ToPjrt(request.semantics),
      .device = request.device == nullptr ? nullptr : request.device->get(),
      .memory = request.memory == nullptr ? nullptr : request.memory->get()};
  if (request.byte_strides.has_value()) {
    if (request.byte_strides->size() != request.dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat("BufferFromHost: ", request.byte_strides->size(),
                                                     " byte strides for an array of rank ",
                                                     request.dims.size()));
    }
    args.byte_strides = request.byte_strides->data();
    args.num_byte_strides = request.byte_strides->size();
  }
  PJRT_Buffer_MemoryLayout layout{.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                  .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  if (request.minor_to_major.has_value()) {
    if (absl::Status s = CheckMinorToMajor(*request.minor_to_major, request.dims.size()); !s.ok()) return s;
    layout.tiled = PJRT_Buffer_MemoryLayout_Tiled{.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                                  .minor_to_major = request.minor_to_major->data(),
                                                  .minor_to_major_size = request.minor_to_major->size()};
    args.device_layout = &layout;
  }
  if (absl::Status s = ToStatus(api, api->PJRT_Client_BufferFromHostBuffer(&args)); !s.ok()) return s;
  return HostBufferResult{Buffer(shared_from_this(), args.buffer),
                          Event(api, args.done_with_host_buffer, /*callbacks=*/nullptr)};
}

absl::StatusOr<Buffer> Client::ViewOfDeviceMemory(const DeviceViewArgs& view,
                                                  std::function<void()> on_release) const {
  const PJRT_Api* api = plugin_->api();
  PJRT_Buffer_MemoryLayout layout{.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                  .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  auto release = std::make_unique<std::function<void()>>(std::move(on_release));
  const auto create = [&]() -> absl::StatusOr<PJRT_Buffer*> {
    absl::StatusOr<int> type = ToPjrtBufferType(view.type);
    if (!type.ok()) return type.status();
    absl::StatusOr<size_t> bytes = DenseHostBytes(view.type, view.dims);
    if (!bytes.ok()) return bytes.status();
    if (view.data == nullptr || view.memory == nullptr || *bytes == 0) {
      return absl::InvalidArgumentError(
          "ViewOfDeviceMemory: no data, no memory, or an array without elements");
    }
    if (api->PJRT_Client_CreateViewOfDeviceBuffer == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("the PJRT plugin '", plugin_->path(), "' lacks PJRT_Client_CreateViewOfDeviceBuffer"));
    }
    PJRT_Client_CreateViewOfDeviceBuffer_Args args{
        .struct_size = PJRT_Client_CreateViewOfDeviceBuffer_Args_STRUCT_SIZE,
        .client = client_,
        .device_buffer_ptr = view.data,
        .dims = view.dims.data(),
        .num_dims = view.dims.size(),
        .element_type = static_cast<PJRT_Buffer_Type>(*type),
        .on_delete_callback =
            [](void*, void* user_arg) {
              base::OwnCode own;
              base::HappensAfter(user_arg);
              std::unique_ptr<std::function<void()>> callback(static_cast<std::function<void()>*>(user_arg));
              (*callback)();
            },
        .on_delete_callback_arg = release.get(),
        .memory = view.memory->get()};
    if (view.minor_to_major.has_value()) {
      if (absl::Status s = CheckMinorToMajor(*view.minor_to_major, view.dims.size()); !s.ok()) return s;
      layout.tiled = PJRT_Buffer_MemoryLayout_Tiled{.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                                    .minor_to_major = view.minor_to_major->data(),
                                                    .minor_to_major_size = view.minor_to_major->size()};
      args.layout = &layout;
    }
    base::HappensBefore(release.get());
    if (absl::Status s = ToStatus(api, api->PJRT_Client_CreateViewOfDeviceBuffer(&args)); !s.ok()) return s;
    return args.buffer;
  };
  absl::StatusOr<PJRT_Buffer*> buffer = create();
  if (!buffer.ok()) {
    (*release)();
    return buffer.status();
  }
  release.release();  // NOLINT(bugprone-unused-return-value): the plugin's callback owns it now.
  return Buffer(shared_from_this(), *buffer);
}

absl::StatusOr<Buffer> Client::ErrorBuffer(const absl::Status& error, ElementType type,
                                           absl::Span<const int64_t> dims, const Memory* memory) const {
  if (error.ok()) return absl::InvalidArgumentError("ErrorBuffer: the error is OK");
  if (memory == nullptr) return absl::InvalidArgumentError("ErrorBuffer: the memory is null");
  const PJRT_Api* api = plugin_->api();
  const auto* grown = reinterpret_cast<const ApiSince82*>(api);
  if (!HELMWAY_PJRT_HAS_FIELD(ApiSince82, create_error_buffer, api->struct_size) ||
      grown->create_error_buffer == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin_->path(), "' lacks PJRT_Client_CreateErrorBuffer"));
  }
  absl::StatusOr<int> pjrt_type = ToPjrtBufferType(type);
  if (!pjrt_type.ok()) return pjrt_type.status();
  if (type != ElementType::kToken) {
    if (absl::StatusOr<size_t> bytes = DenseHostBytes(type, dims); !bytes.ok()) return bytes.status();
  }
  CreateErrorBufferArgs args{.struct_size = sizeof(CreateErrorBufferArgs),
                             .client = client_,
                             .error_code = static_cast<PJRT_Error_Code>(error.code()),
                             .error_message = error.message().data(),
                             .error_message_size = error.message().size(),
                             .shape_dims = dims.data(),
                             .shape_num_dims = dims.size(),
                             .shape_element_type = static_cast<PJRT_Buffer_Type>(*pjrt_type),
                             .memory = memory->get()};
  if (absl::Status s = ToStatus(api, CallPlugin(grown->create_error_buffer, &args)); !s.ok()) return s;
  return Buffer(shared_from_this(), args.buffer);
}

}  // namespace helmway::pjrt
