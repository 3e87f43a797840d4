// A plugin that has the face of a GPU plugin and no hardware: it takes create options, tells its peers of its
// devices through the key-value store, and lists the devices of all. It has but one program, whatever it
// compiles: without parameters, every device gives an f32[1], the sum over all devices of the program of
// their ids plus one. Devices of several processes learn each other's part through the store, so all of them
// must run it, or those that do wait. What the plugin lacks is UNIMPLEMENTED.
//
// Options: those of kOptions. Every device has each as an attribute "option <name>", as it was given.
// Each of num_nodes processes has the devices of visible_devices (default: 0 and 1); their ids count on from
// process to process.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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

// What was done when it was made.
struct PJRT_Event {};

struct PJRT_Buffer {
  PJRT_Memory* memory;
  float value;
  bool deleted = false;
};

struct PJRT_Executable {
  std::vector<int64_t> devices;  // ids, of all processes
  std::string hlo;
};

struct PJRT_SerializedExecutable {
  std::string bytes;
};

struct PJRT_LoadedExecutable {
  PJRT_Client* client;
  PJRT_Executable executable;
  std::vector<PJRT_Device*> addressable_devices;
};

struct PJRT_Client {
  // The key-value store.
  PJRT_Client_Create_Args created_with;
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
constexpr int64_t kDims[] = {1};  // of everything that it computes

PJRT_Error* MakeError(PJRT_Error_Code code, std::string text) {
  return new PJRT_Error{code, std::move(text)};
}

PJRT_Error* MakeErrorForCallback(PJRT_Error_Code code, const char* message, size_t message_size) {
  return MakeError(code, std::string(message, message_size));
}

// ---- Key-value store
// ---------------------------------------------------------------------------------------

PJRT_Error* Put(const PJRT_Client_Create_Args& store, const std::string& key, const std::string& value) {
  PJRT_CallbackError make_error = MakeErrorForCallback;
  PJRT_KeyValuePutCallback_Args put{.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
                                    .key = key.data(),
                                    .key_size = key.size(),
                                    .value = value.data(),
                                    .value_size = value.size(),
                                    .callback_error = &make_error,
                                    .user_arg = store.kv_put_user_arg};
  return store.kv_put_callback(&put);
}

PJRT_Error* Get(const PJRT_Client_Create_Args& store, const std::string& key, int timeout_ms,
                std::string* value) {
  PJRT_CallbackError make_error = MakeErrorForCallback;
  PJRT_KeyValueGetCallback_Args get{.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
                                    .key = key.data(),
                                    .key_size = key.size(),
                                    .timeout_in_ms = timeout_ms,
                                    .callback_error = &make_error,
                                    .user_arg = store.kv_get_user_arg};
  if (PJRT_Error* error = store.kv_get_callback(&get)) return error;
  value->assign(get.value, get.value_size);
  get.value_deleter_callback(get.value);
  return nullptr;
}

// ---- Clients
// -------------------------------------------------------------------------------------------------

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
  if (PJRT_Error* error = Put(*args, own_key, own)) return error;
  for (int64_t other = 0; other < nodes; ++other) {
    std::string text;
    if (PJRT_Error* error = Get(*args, TopologyKey(other), timeout_ms, &text)) return error;
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
  client->created_with = *args;
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

// ---- The program
// -------------------------------------------------------------------------------------------

// Protocol buffers by hand: this library must not bring a second copy of messages that the program has.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string Number(int field, int64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(static_cast<uint64_t>(value));
}
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}

struct Field {
  int number;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of what has a length
};

uint64_t TakeVarint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; !bytes->empty() && shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// Of a well-formed message.
std::vector<Field> FieldsOf(std::string_view bytes) {
  std::vector<Field> fields;
  while (!bytes.empty()) {
    const uint64_t tag = TakeVarint(&bytes);
    Field field{.number = static_cast<int>(tag >> 3)};
    size_t length = 0;
    switch (tag & 7) {
      case 0:
        field.value = TakeVarint(&bytes);
        break;
      case 1:
        length = 8;
        break;
      case 5:
        length = 4;
        break;
      default:
        length = std::min<size_t>(TakeVarint(&bytes), bytes.size());
        break;
    }
    field.bytes = bytes.substr(0, length);
    bytes.remove_prefix(std::min(length, bytes.size()));
    fields.push_back(field);
  }
  return fields;
}

// The ids of xla.CompileOptionsProto.executable_build_options.device_assignment, for one replica.
std::vector<int64_t> AssignedDevices(std::string_view options) {
  std::vector<int64_t> devices;
  for (const Field& build : FieldsOf(options)) {
    if (build.number != 3) continue;
    for (const Field& assignment : FieldsOf(build.bytes)) {
      if (assignment.number != 9) continue;
      for (const Field& partition : FieldsOf(assignment.bytes)) {
        if (partition.number != 3) continue;
        for (const Field& id : FieldsOf(partition.bytes)) {
          if (id.number != 1) continue;
          std::string_view packed = id.bytes;
          if (packed.empty()) devices.push_back(static_cast<int64_t>(id.value));
          while (!packed.empty()) devices.push_back(static_cast<int64_t>(TakeVarint(&packed)));
        }
      }
    }
  }
  return devices;
}

// xla.HloModuleProto of the program for so many devices.
std::string Hlo(size_t devices) {
  constexpr int kF32 = 11, kOther = 3;
  const std::string shape = Number(2, kF32) + Number(3, 1) + Bytes(5, Number(1, 0));
  const std::string instruction = Bytes(1, "sum") + Bytes(2, devices > 1 ? "all-reduce" : "constant");
  const auto n = static_cast<int64_t>(devices);
  std::string module =
      Bytes(1, "fake") + Bytes(3, Bytes(1, "main") + Bytes(2, instruction)) + Bytes(4, Bytes(2, shape));
  if (devices > 1) {
    module += Bytes(12, Number(1, kOther) + Number(3, n) + Number(9, n) + Number(10, 0));
  }
  return module;
}

PJRT_Error* Load(PJRT_Client* client, std::vector<int64_t> devices, PJRT_LoadedExecutable** loaded) {
  auto made = std::make_unique<PJRT_LoadedExecutable>();
  made->client = client;
  if (devices.empty()) devices.push_back(client->addressable_devices.front()->description.id);
  for (const int64_t id : devices) {
    if (id < 0 || static_cast<size_t>(id) >= client->device_list.size()) {
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                       absl::StrCat("the fake GPU plugin has no device ", id));
    }
    PJRT_Device* device = client->device_list[static_cast<size_t>(id)];
    if (device->addressable) made->addressable_devices.push_back(device);
  }
  made->executable = {devices, Hlo(devices.size())};
  *loaded = made.release();
  return nullptr;
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  return Load(args->client, AssignedDevices({args->compile_options, args->compile_options_size}),
              &args->executable);
}

PJRT_Error* Serialize(PJRT_Executable_Serialize_Args* args) {
  auto* serialized = new PJRT_SerializedExecutable{absl::StrJoin(args->executable->devices, ",")};
  args->serialized_bytes = serialized->bytes.data();
  args->serialized_bytes_size = serialized->bytes.size();
  args->serialized_executable = serialized;
  args->serialized_executable_deleter = [](PJRT_SerializedExecutable* executable) { delete executable; };
  return nullptr;
}

PJRT_Error* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  std::vector<int64_t> devices;
  if (args->overridden_serialized_compile_options != nullptr) {
    devices = AssignedDevices(
        {args->overridden_serialized_compile_options, args->overridden_serialized_compile_options_size});
  }
  const std::string bytes(args->serialized_executable, args->serialized_executable_size);
  if (devices.empty()) {
    for (const auto piece : absl::StrSplit(bytes, ',')) {
      if (!absl::SimpleAtoi(piece, &devices.emplace_back())) {
        return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "not an executable of the fake GPU plugin");
      }
    }
  }
  return Load(args->client, std::move(devices), &args->loaded_executable);
}

std::string RunKey(int launch, int64_t device) { return absl::StrCat("fake_gpu/run/", launch, "/", device); }

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  constexpr int kTimeoutMs = 60'000;
  if (args->execute_device == nullptr || args->num_devices != 1) {
    return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "the fake GPU plugin runs on one device at a time");
  }
  const std::vector<int64_t>& devices = args->executable->executable.devices;
  const PJRT_Client_Create_Args& store = args->executable->client->created_with;
  const int launch = args->options->launch_id;
  const bool alone = args->executable->addressable_devices.size() == devices.size();
  const int64_t own = args->execute_device->description.id;
  float sum = 0;
  if (!alone) {
    if (PJRT_Error* error = Put(store, RunKey(launch, own), absl::StrCat(own + 1))) return error;
  }
  for (const int64_t device : devices) {
    std::string part = absl::StrCat(device + 1);
    if (!alone) {
      if (PJRT_Error* error = Get(store, RunKey(launch, device), kTimeoutMs, &part)) return error;
    }
    float number = 0;
    if (!absl::SimpleAtof(part, &number)) return MakeError(PJRT_Error_Code_INTERNAL, "no number");
    sum += number;
  }
  args->output_lists[0][0] = new PJRT_Buffer{args->execute_device->memories.front(), sum};
  if (args->device_complete_events != nullptr) args->device_complete_events[0] = new PJRT_Event;
  return nullptr;
}

void SetProgramFunctions(PJRT_Api& api) {
  api.PJRT_Event_Destroy = [](PJRT_Event_Destroy_Args* args) -> PJRT_Error* {
    delete args->event;
    return nullptr;
  };
  api.PJRT_Event_IsReady = [](PJRT_Event_IsReady_Args* args) -> PJRT_Error* {
    args->is_ready = true;
    return nullptr;
  };
  api.PJRT_Event_Error = [](PJRT_Event_Error_Args*) -> PJRT_Error* { return nullptr; };
  api.PJRT_Event_Await = [](PJRT_Event_Await_Args*) -> PJRT_Error* { return nullptr; };
  api.PJRT_Event_OnReady = [](PJRT_Event_OnReady_Args* args) -> PJRT_Error* {
    args->callback(nullptr, args->user_arg);
    return nullptr;
  };

  api.PJRT_Client_Compile = Compile;
  api.PJRT_Executable_Serialize = Serialize;
  api.PJRT_Executable_DeserializeAndLoad = DeserializeAndLoad;
  api.PJRT_Executable_Destroy = [](PJRT_Executable_Destroy_Args* args) -> PJRT_Error* {
    delete args->executable;
    return nullptr;
  };
  api.PJRT_Executable_Name = [](PJRT_Executable_Name_Args* args) -> PJRT_Error* {
    args->executable_name = "fake";
    args->executable_name_size = 4;
    return nullptr;
  };
  api.PJRT_Executable_NumReplicas = [](PJRT_Executable_NumReplicas_Args* args) -> PJRT_Error* {
    args->num_replicas = 1;
    return nullptr;
  };
  api.PJRT_Executable_NumPartitions = [](PJRT_Executable_NumPartitions_Args* args) -> PJRT_Error* {
    args->num_partitions = args->executable->devices.size();
    return nullptr;
  };
  api.PJRT_Executable_NumOutputs = [](PJRT_Executable_NumOutputs_Args* args) -> PJRT_Error* {
    args->num_outputs = 1;
    return nullptr;
  };
  api.PJRT_Executable_OutputElementTypes = [](PJRT_Executable_OutputElementTypes_Args* args) -> PJRT_Error* {
    static PJRT_Buffer_Type type = PJRT_Buffer_Type_F32;
    args->output_types = &type;
    args->num_output_types = 1;
    return nullptr;
  };
  api.PJRT_Executable_OutputDimensions = [](PJRT_Executable_OutputDimensions_Args* args) -> PJRT_Error* {
    static constexpr size_t kRank = 1;
    args->num_outputs = 1;
    args->dims = kDims;
    args->dim_sizes = &kRank;
    return nullptr;
  };
  api.PJRT_Executable_OutputMemoryKinds = [](PJRT_Executable_OutputMemoryKinds_Args* args) -> PJRT_Error* {
    static constexpr const char* kMemory = "device";
    static constexpr size_t kSize = 6;
    args->num_outputs = 1;
    args->memory_kinds = &kMemory;
    args->memory_kind_sizes = &kSize;
    return nullptr;
  };
  api.PJRT_Executable_OptimizedProgram = [](PJRT_Executable_OptimizedProgram_Args* args) -> PJRT_Error* {
    const std::string& hlo = args->executable->hlo;
    args->program->format = "hlo";
    args->program->format_size = 3;
    if (args->program->code != nullptr) std::memcpy(args->program->code, hlo.data(), hlo.size());
    args->program->code_size = hlo.size();
    return nullptr;
  };
  api.PJRT_LoadedExecutable_Destroy = [](PJRT_LoadedExecutable_Destroy_Args* args) -> PJRT_Error* {
    delete args->executable;
    return nullptr;
  };
  api.PJRT_LoadedExecutable_GetExecutable =
      [](PJRT_LoadedExecutable_GetExecutable_Args* args) -> PJRT_Error* {
    args->executable = new PJRT_Executable(args->loaded_executable->executable);
    return nullptr;
  };
  api.PJRT_LoadedExecutable_AddressableDevices =
      [](PJRT_LoadedExecutable_AddressableDevices_Args* args) -> PJRT_Error* {
    args->addressable_devices = args->executable->addressable_devices.data();
    args->num_addressable_devices = args->executable->addressable_devices.size();
    return nullptr;
  };
  api.PJRT_LoadedExecutable_Execute = Execute;

  api.PJRT_Buffer_Destroy = [](PJRT_Buffer_Destroy_Args* args) -> PJRT_Error* {
    delete args->buffer;
    return nullptr;
  };
  api.PJRT_Buffer_ElementType = [](PJRT_Buffer_ElementType_Args* args) -> PJRT_Error* {
    args->type = PJRT_Buffer_Type_F32;
    return nullptr;
  };
  api.PJRT_Buffer_Dimensions = [](PJRT_Buffer_Dimensions_Args* args) -> PJRT_Error* {
    args->dims = kDims;
    args->num_dims = 1;
    return nullptr;
  };
  api.PJRT_Buffer_Device = [](PJRT_Buffer_Device_Args* args) -> PJRT_Error* {
    args->device = args->buffer->memory->devices.front();
    return nullptr;
  };
  api.PJRT_Buffer_Memory = [](PJRT_Buffer_Memory_Args* args) -> PJRT_Error* {
    args->memory = args->buffer->memory;
    return nullptr;
  };
  api.PJRT_Buffer_OnDeviceSizeInBytes = [](PJRT_Buffer_OnDeviceSizeInBytes_Args* args) -> PJRT_Error* {
    args->on_device_size_in_bytes = sizeof(float);
    return nullptr;
  };
  api.PJRT_Buffer_GetMemoryLayout = [](PJRT_Buffer_GetMemoryLayout_Args* args) -> PJRT_Error* {
    static constexpr int64_t kMinorToMajor = 0;
    args->layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    args->layout.tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                          .minor_to_major = &kMinorToMajor,
                          .minor_to_major_size = 1};
    return nullptr;
  };
  api.PJRT_Buffer_Delete = [](PJRT_Buffer_Delete_Args* args) -> PJRT_Error* {
    args->buffer->deleted = true;
    return nullptr;
  };
  api.PJRT_Buffer_IsDeleted = [](PJRT_Buffer_IsDeleted_Args* args) -> PJRT_Error* {
    args->is_deleted = args->buffer->deleted;
    return nullptr;
  };
  api.PJRT_Buffer_ReadyEvent = [](PJRT_Buffer_ReadyEvent_Args* args) -> PJRT_Error* {
    args->event = new PJRT_Event;
    return nullptr;
  };
  api.PJRT_Buffer_CopyToMemory = [](PJRT_Buffer_CopyToMemory_Args* args) -> PJRT_Error* {
    args->dst_buffer = new PJRT_Buffer{args->dst_memory, args->buffer->value};
    return nullptr;
  };
  api.PJRT_Buffer_ToHostBuffer = [](PJRT_Buffer_ToHostBuffer_Args* args) -> PJRT_Error* {
    if (args->dst != nullptr) std::memcpy(args->dst, &args->src->value, sizeof(float));
    args->dst_size = sizeof(float);
    args->event = new PJRT_Event;
    return nullptr;
  };
}

// ---- The interface
// -----------------------------------------------------------------------------------------

// In the order of the header, from 0 on.
template <size_t function>
PJRT_Error* Lacking(void*) {
  return MakeError(
      PJRT_Error_Code_UNIMPLEMENTED,
      absl::StrCat("the fake GPU plugin lacks the function number ", function, " of the interface"));
}

constexpr size_t kFunctions =
    (PJRT_Api_STRUCT_SIZE - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(PJRT_Error * (*)(void*));

// All functions differ in the type of their arguments only, and in that the two of errors return nothing.
template <size_t... functions>
void LackAll(PJRT_Api& api, std::index_sequence<functions...>) {
  PJRT_Error* (*const lacking[])(void*) = {Lacking<functions>...};
  std::memcpy(&api.PJRT_Error_Destroy, lacking, sizeof(lacking));
}

PJRT_Api MakeApi() {
  PJRT_Api api;
  LackAll(api, std::make_index_sequence<kFunctions>());
  SetProgramFunctions(api);

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
