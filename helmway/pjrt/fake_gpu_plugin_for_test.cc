// A plugin that has the face of a GPU plugin and no hardware: it takes create options, tells its peers of its
// devices through the key-value store, and lists the devices of all. It compiles and runs nothing: what it
// lacks is UNIMPLEMENTED.
//
// Options: those of kOptions. Every device has each as an attribute "option <name>", as it was given.
// Each of num_nodes processes has the devices of visible_devices (default: 0 and 1); their ids count on from
// process to process.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "pjrt_c_api.h"

struct PJRT_Error {
  PJRT_Error_Code code;
  std::string text;
};

struct PJRT_DeviceDescription {
  int id = 0;
  int process = 0;
  std::string debug_string;
  std::string to_string;
  std::vector<PJRT_NamedValue> attributes;
};

struct PJRT_Device {
  PJRT_DeviceDescription description;
  bool addressable = false;
  int hardware_id = -1;
  std::vector<PJRT_Memory*> memories;  // the first is the default
};

struct PJRT_Memory {
  int id = 0;
  std::string kind;
  int kind_id = 0;
  std::string to_string;
  std::vector<PJRT_Device*> devices;
};

struct PJRT_Client {
  std::string platform;
  int node = 0;
  std::vector<std::unique_ptr<PJRT_Device>> devices;
  std::vector<std::unique_ptr<PJRT_Memory>> memories;
  std::vector<PJRT_Device*> device_list;
  std::vector<PJRT_Device*> addressable_devices;
  std::vector<PJRT_Memory*> memory_list;
  // What attributes point to.
  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<int64_t>> lists;
};

namespace {

constexpr char kKind[] = "Fake GPU";
constexpr char kVersion[] = "fake 1";

PJRT_Error* MakeError(PJRT_Error_Code code, std::string text) {
  return new PJRT_Error{code, std::move(text)};
}

PJRT_Error* MakeErrorForCallback(PJRT_Error_Code code, const char* message, size_t message_size) {
  return MakeError(code, std::string(message, message_size));
}

struct OptionType {
  const char* name;
  PJRT_NamedValue_Type type;
};

constexpr OptionType kOptions[] = {
    {"platform_name", PJRT_NamedValue_kString},
    {"allocator", PJRT_NamedValue_kString},
    {"memory_fraction", PJRT_NamedValue_kFloat},
    {"preallocate", PJRT_NamedValue_kBool},
    {"collective_memory_size", PJRT_NamedValue_kInt64},
    {"visible_devices", PJRT_NamedValue_kInt64List},
    {"node_id", PJRT_NamedValue_kInt64},
    {"num_nodes", PJRT_NamedValue_kInt64},
    // How long to wait for each peer.
    {"topology_timeout_ms", PJRT_NamedValue_kInt64},
};

PJRT_Error* ReadOptions(const PJRT_Client_Create_Args* args,
                        std::map<std::string, const PJRT_NamedValue*>* options) {
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue& value = args->create_options[i];
    const std::string name(value.name, value.name_size);
    const auto* known = std::begin(kOptions);
    while (known != std::end(kOptions) && known->name != name) ++known;
    if (known == std::end(kOptions)) {
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                       absl::StrCat("Unexpected option name passed to PJRT_Client_Create: ", name));
    }
    if (value.type != known->type) {
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                       absl::StrCat("Option passed to PJRT_Client_Create has another type: ", name));
    }
    (*options)[name] = &value;
  }
  return nullptr;
}

std::string TopologyKey(int64_t node) { return absl::StrCat("fake_gpu/topology/", node); }

// The numbers of devices of all nodes.
PJRT_Error* ExchangeTopologies(const PJRT_Client_Create_Args* args, int64_t node, int64_t nodes,
                               int timeout_ms, size_t own_devices, std::vector<size_t>* devices) {
  if (nodes == 1) {
    devices->push_back(own_devices);
    return nullptr;
  }
  if (args->kv_get_callback == nullptr || args->kv_put_callback == nullptr ||
      args->kv_try_get_callback == nullptr) {
    return MakeError(PJRT_Error_Code_FAILED_PRECONDITION, "several nodes need a key-value store");
  }
  PJRT_CallbackError make_error = MakeErrorForCallback;
  const std::string own_key = TopologyKey(node);
  PJRT_KeyValueTryGetCallback_Args look{.struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE,
                                        .key = own_key.data(),
                                        .key_size = own_key.size(),
                                        .callback_error = &make_error,
                                        .user_arg = args->kv_try_get_user_arg};
  PJRT_Error* found = args->kv_try_get_callback(&look);
  if (found == nullptr) {
    look.value_deleter_callback(look.value);
    return MakeError(PJRT_Error_Code_ALREADY_EXISTS, absl::StrCat("node ", node, " is there already"));
  }
  const bool absent = found->code == PJRT_Error_Code_NOT_FOUND;
  if (!absent) return found;
  delete found;

  // One byte more than the number, so that a value that is cut at a zero shows.
  std::string own = absl::StrCat(own_devices);
  own.push_back('\0');
  own.push_back('!');
  PJRT_KeyValuePutCallback_Args put{.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
                                    .key = own_key.data(),
                                    .key_size = own_key.size(),
                                    .value = own.data(),
                                    .value_size = own.size(),
                                    .callback_error = &make_error,
                                    .user_arg = args->kv_put_user_arg};
  if (PJRT_Error* error = args->kv_put_callback(&put)) return error;
  for (int64_t other = 0; other < nodes; ++other) {
    const std::string key = TopologyKey(other);
    PJRT_KeyValueGetCallback_Args get{.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
                                      .key = key.data(),
                                      .key_size = key.size(),
                                      .timeout_in_ms = timeout_ms,
                                      .callback_error = &make_error,
                                      .user_arg = args->kv_get_user_arg};
    if (PJRT_Error* error = args->kv_get_callback(&get)) return error;
    const std::string text(get.value, get.value_size);
    get.value_deleter_callback(get.value);
    uint64_t count = 0;
    if (text.size() < 3 || text.back() != '!' || !absl::SimpleAtoi(text.substr(0, text.size() - 2), &count)) {
      return MakeError(PJRT_Error_Code_INTERNAL, absl::StrCat("node ", other, " says \"", text, "\""));
    }
    devices->push_back(count);
  }
  return nullptr;
}

// A copy that lives as long as the client.
PJRT_NamedValue KeptAttribute(PJRT_Client* client, const std::string& name, const PJRT_NamedValue& value) {
  PJRT_NamedValue kept = value;
  client->strings["name " + name] = "option " + name;
  kept.name = client->strings["name " + name].data();
  kept.name_size = client->strings["name " + name].size();
  if (value.type == PJRT_NamedValue_kString) {
    std::string& text = client->strings[name] = std::string(value.string_value, value.value_size);
    kept.string_value = text.data();
  } else if (value.type == PJRT_NamedValue_kInt64List) {
    std::vector<int64_t>& list = client->lists[name];
    list.assign(value.int64_array_value, value.int64_array_value + value.value_size);
    kept.int64_array_value = list.data();
  }
  return kept;
}

PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  std::map<std::string, const PJRT_NamedValue*> options;
  if (PJRT_Error* error = ReadOptions(args, &options)) return error;
  const auto number = [&](const char* name, int64_t otherwise) {
    const auto it = options.find(name);
    return it == options.end() ? otherwise : it->second->int64_value;
  };
  const int64_t node = number("node_id", 0);
  const int64_t nodes = number("num_nodes", 1);
  if (node < 0 || node >= nodes) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, absl::StrCat("node ", node, " of ", nodes));
  }
  std::vector<int64_t> visible = {0, 1};
  if (const auto it = options.find("visible_devices"); it != options.end()) {
    visible.assign(it->second->int64_array_value, it->second->int64_array_value + it->second->value_size);
  }
  std::vector<size_t> counts;
  if (PJRT_Error* error =
          ExchangeTopologies(args, node, nodes, static_cast<int>(number("topology_timeout_ms", 60'000)),
                             visible.size(), &counts)) {
    return error;
  }

  auto client = std::make_unique<PJRT_Client>();
  client->platform = "fake_gpu";
  if (const auto it = options.find("platform_name"); it != options.end()) {
    client->platform.assign(it->second->string_value, it->second->value_size);
  }
  client->node = static_cast<int>(node);
  std::vector<PJRT_NamedValue> attributes;
  for (const auto& [name, value] : options) attributes.push_back(KeptAttribute(client.get(), name, *value));
  for (int process = 0; process < nodes; ++process) {
    for (size_t i = 0; i < counts[static_cast<size_t>(process)]; ++i) {
      auto* device = client->devices.emplace_back(std::make_unique<PJRT_Device>()).get();
      client->device_list.push_back(device);
      PJRT_DeviceDescription& description = device->description;
      description.id = static_cast<int>(client->device_list.size()) - 1;
      description.process = process;
      description.to_string = absl::StrCat("FakeGpuDevice(id=", description.id, ")");
      description.debug_string = absl::StrCat("FAKE_GPU_", description.id);
      description.attributes = attributes;
      if (process != node) continue;
      device->addressable = true;
      device->hardware_id = static_cast<int>(visible[i]);
      client->addressable_devices.push_back(device);
      for (const auto& [kind, kind_id] : {std::pair("device", 1), std::pair("pinned_host", 2)}) {
        auto* memory = client->memories.emplace_back(std::make_unique<PJRT_Memory>()).get();
        client->memory_list.push_back(memory);
        memory->id = static_cast<int>(client->memory_list.size()) - 1;
        memory->kind = kind;
        memory->kind_id = kind_id;
        memory->to_string = absl::StrCat("FakeMemory(", kind, " of ", description.id, ")");
        memory->devices = {device};
        device->memories.push_back(memory);
      }
    }
  }
  args->client = client.release();
  return nullptr;
}

template <typename Args>
PJRT_Error* Lacking(Args*) {
  return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "the fake GPU plugin lacks this function");
}

template <typename Args>
void Lack(PJRT_Error* (*&function)(Args*)) {
  function = Lacking<Args>;
}

PJRT_Api MakeApi() {
  PJRT_Api api;
  // A plugin of this version has all functions; they differ in the type of their arguments only.
  PJRT_Error* (*lacking)(void*) = Lacking<void>;
  constexpr size_t kFirst = offsetof(PJRT_Api, PJRT_Error_Destroy);
  for (size_t at = kFirst; at + sizeof(lacking) <= PJRT_Api_STRUCT_SIZE; at += sizeof(lacking)) {
    std::memcpy(reinterpret_cast<char*>(&api) + at, &lacking, sizeof(lacking));
  }
  // These are called by the tests; a call through another type would be no C++.
  Lack(api.PJRT_Client_Compile);
  Lack(api.PJRT_Client_BufferFromHostBuffer);
  Lack(api.PJRT_Executable_DeserializeAndLoad);
  Lack(api.PJRT_Client_DefaultDeviceAssignment);

  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.extension_start = nullptr;
  api.pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                          .extension_start = nullptr,
                          .major_version = PJRT_API_MAJOR,
                          .minor_version = PJRT_API_MINOR};
  api.PJRT_Error_Destroy = [](PJRT_Error_Destroy_Args* args) { delete args->error; };
  api.PJRT_Error_Message = [](PJRT_Error_Message_Args* args) {
    args->message = args->error->text.data();
    args->message_size = args->error->text.size();
  };
  api.PJRT_Error_GetCode = [](PJRT_Error_GetCode_Args* args) -> PJRT_Error* {
    args->code = args->error->code;
    return nullptr;
  };
  api.PJRT_Plugin_Initialize = [](PJRT_Plugin_Initialize_Args*) -> PJRT_Error* { return nullptr; };
  api.PJRT_Plugin_Attributes = [](PJRT_Plugin_Attributes_Args* args) -> PJRT_Error* {
    args->attributes = nullptr;
    args->num_attributes = 0;
    return nullptr;
  };

  api.PJRT_Client_Create = ClientCreate;
  api.PJRT_Client_Destroy = [](PJRT_Client_Destroy_Args* args) -> PJRT_Error* {
    delete args->client;
    return nullptr;
  };
  api.PJRT_Client_PlatformName = [](PJRT_Client_PlatformName_Args* args) -> PJRT_Error* {
    args->platform_name = args->client->platform.data();
    args->platform_name_size = args->client->platform.size();
    return nullptr;
  };
  api.PJRT_Client_ProcessIndex = [](PJRT_Client_ProcessIndex_Args* args) -> PJRT_Error* {
    args->process_index = args->client->node;
    return nullptr;
  };
  api.PJRT_Client_PlatformVersion = [](PJRT_Client_PlatformVersion_Args* args) -> PJRT_Error* {
    args->platform_version = kVersion;
    args->platform_version_size = std::strlen(kVersion);
    return nullptr;
  };
  api.PJRT_Client_Devices = [](PJRT_Client_Devices_Args* args) -> PJRT_Error* {
    args->devices = args->client->device_list.data();
    args->num_devices = args->client->device_list.size();
    return nullptr;
  };
  api.PJRT_Client_AddressableDevices = [](PJRT_Client_AddressableDevices_Args* args) -> PJRT_Error* {
    args->addressable_devices = args->client->addressable_devices.data();
    args->num_addressable_devices = args->client->addressable_devices.size();
    return nullptr;
  };
  api.PJRT_Client_AddressableMemories = [](PJRT_Client_AddressableMemories_Args* args) -> PJRT_Error* {
    args->addressable_memories = args->client->memory_list.data();
    args->num_addressable_memories = args->client->memory_list.size();
    return nullptr;
  };

  api.PJRT_DeviceDescription_Id = [](PJRT_DeviceDescription_Id_Args* args) -> PJRT_Error* {
    args->id = args->device_description->id;
    return nullptr;
  };
  api.PJRT_DeviceDescription_ProcessIndex =
      [](PJRT_DeviceDescription_ProcessIndex_Args* args) -> PJRT_Error* {
    args->process_index = args->device_description->process;
    return nullptr;
  };
  api.PJRT_DeviceDescription_Attributes = [](PJRT_DeviceDescription_Attributes_Args* args) -> PJRT_Error* {
    args->attributes = args->device_description->attributes.data();
    args->num_attributes = args->device_description->attributes.size();
    return nullptr;
  };
  api.PJRT_DeviceDescription_Kind = [](PJRT_DeviceDescription_Kind_Args* args) -> PJRT_Error* {
    args->device_kind = kKind;
    args->device_kind_size = std::strlen(kKind);
    return nullptr;
  };
  api.PJRT_DeviceDescription_DebugString = [](PJRT_DeviceDescription_DebugString_Args* args) -> PJRT_Error* {
    args->debug_string = args->device_description->debug_string.data();
    args->debug_string_size = args->device_description->debug_string.size();
    return nullptr;
  };
  api.PJRT_DeviceDescription_ToString = [](PJRT_DeviceDescription_ToString_Args* args) -> PJRT_Error* {
    args->to_string = args->device_description->to_string.data();
    args->to_string_size = args->device_description->to_string.size();
    return nullptr;
  };
  api.PJRT_Device_GetDescription = [](PJRT_Device_GetDescription_Args* args) -> PJRT_Error* {
    args->device_description = &args->device->description;
    return nullptr;
  };
  api.PJRT_Device_IsAddressable = [](PJRT_Device_IsAddressable_Args* args) -> PJRT_Error* {
    args->is_addressable = args->device->addressable;
    return nullptr;
  };
  api.PJRT_Device_LocalHardwareId = [](PJRT_Device_LocalHardwareId_Args* args) -> PJRT_Error* {
    args->local_hardware_id = args->device->hardware_id;
    return nullptr;
  };
  api.PJRT_Device_AddressableMemories = [](PJRT_Device_AddressableMemories_Args* args) -> PJRT_Error* {
    args->memories = args->device->memories.data();
    args->num_memories = args->device->memories.size();
    return nullptr;
  };
  api.PJRT_Device_DefaultMemory = [](PJRT_Device_DefaultMemory_Args* args) -> PJRT_Error* {
    args->memory = args->device->memories.front();
    return nullptr;
  };

  api.PJRT_Memory_Id = [](PJRT_Memory_Id_Args* args) -> PJRT_Error* {
    args->id = args->memory->id;
    return nullptr;
  };
  api.PJRT_Memory_Kind = [](PJRT_Memory_Kind_Args* args) -> PJRT_Error* {
    args->kind = args->memory->kind.data();
    args->kind_size = args->memory->kind.size();
    return nullptr;
  };
  api.PJRT_Memory_Kind_Id = [](PJRT_Memory_Kind_Id_Args* args) -> PJRT_Error* {
    args->kind_id = args->memory->kind_id;
    return nullptr;
  };
  api.PJRT_Memory_DebugString = [](PJRT_Memory_DebugString_Args* args) -> PJRT_Error* {
    args->debug_string = args->memory->to_string.data();
    args->debug_string_size = args->memory->to_string.size();
    return nullptr;
  };
  api.PJRT_Memory_ToString = [](PJRT_Memory_ToString_Args* args) -> PJRT_Error* {
    args->to_string = args->memory->to_string.data();
    args->to_string_size = args->memory->to_string.size();
    return nullptr;
  };
  api.PJRT_Memory_AddressableByDevices = [](PJRT_Memory_AddressableByDevices_Args* args) -> PJRT_Error* {
    args->devices = args->memory->devices.data();
    args->num_devices = args->memory->devices.size();
    return nullptr;
  };
  return api;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api api = MakeApi();
  return &api;
}
