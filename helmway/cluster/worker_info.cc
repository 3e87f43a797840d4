#include "helmway/cluster/worker_info.h"

#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::cluster {

void SetPlace(int64_t slice, int64_t task, DeviceInfo* device) {
  device->attributes["slice_index"] = {slice};
  device->attributes["virtual_task_index"] = {task};
  device->attributes["colocation_id"] = {int64_t{device->id}};
}

absl::StatusOr<std::vector<PythonHost>> PythonHostsOf(const WorkerInfo& info) {
  if (info.platform_name != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        "colocated Python: the server has no CPU devices beside those of platform ", info.platform_name));
  }
  const auto number = [](const DeviceInfo& device, const char* name) -> int64_t {
    const auto it = device.attributes.find(name);
    const int64_t* value = it == device.attributes.end() ? nullptr : std::get_if<int64_t>(&it->second.value);
    return value == nullptr ? 0 : *value;
  };
  std::map<int32_t, PythonHost> hosts;
  for (const DeviceInfo& device : info.devices) {
    PythonHost& host = hosts[device.id / kDeviceIdsPerWorker];
    host.process = device.id / kDeviceIdsPerWorker;
    if (device.id != FirstDeviceId(host.process) + host.devices) {
      return absl::InternalError(absl::StrCat("colocated Python: device ", device.id, " is out of order"));
    }
    ++host.devices;
    host.slice = number(device, "slice_index");
    host.task = number(device, "virtual_task_index");
  }
  std::vector<PythonHost> list;
  for (const auto& [process, host] : hosts) list.push_back(host);
  return list;
}

absl::StatusOr<std::vector<DeviceId>> AssignInOrder(const WorkerInfo& info, int replicas, int partitions) {
  const int64_t count = int64_t{replicas} * partitions;
  if (replicas < 1 || partitions < 1 || count > static_cast<int64_t>(info.devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat("no assignment of ", replicas, " replicas with ",
                                                   partitions, " partitions to ", info.devices.size(),
                                                   " devices"));
  }
  std::vector<DeviceId> devices;
  for (int64_t i = 0; i < count; ++i) devices.push_back(info.devices[static_cast<size_t>(i)].id);
  return devices;
}

proto::AttributeValue ToProto(const AttributeValue& attribute) {
  proto::AttributeValue message;
  std::visit(
      [&message](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          message.set_text(value);
        } else if constexpr (std::is_same_v<T, bool>) {
          message.set_flag(value);
        } else if constexpr (std::is_same_v<T, int64_t>) {
          message.set_number(value);
        } else if constexpr (std::is_same_v<T, float>) {
          message.set_real(value);
        } else {
          message.mutable_numbers()->mutable_values()->Assign(value.begin(), value.end());
        }
      },
      attribute.value);
  return message;
}

absl::StatusOr<AttributeValue> FromProto(const proto::AttributeValue& message) {
  switch (message.value_case()) {
    case proto::AttributeValue::kText:
      return AttributeValue{message.text()};
    case proto::AttributeValue::kFlag:
      return AttributeValue{message.flag()};
    case proto::AttributeValue::kNumber:
      return AttributeValue{message.number()};
    case proto::AttributeValue::kNumbers:
      return AttributeValue{
          std::vector<int64_t>(message.numbers().values().begin(), message.numbers().values().end())};
    case proto::AttributeValue::kReal:
      return AttributeValue{message.real()};
    case proto::AttributeValue::VALUE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an attribute without a value");
}

proto::WorkerInfo WorkerInfoToProto(const WorkerInfo& info) {
  proto::WorkerInfo message;
  message.set_platform_name(info.platform_name);
  message.set_platform_version(info.platform_version);
  for (const DeviceInfo& device : info.devices) {
    proto::DeviceInfo* out = message.add_devices();
    out->set_id(device.id);
    out->set_local_hardware_id(device.local_hardware_id);
    out->set_kind(device.kind);
    out->set_debug_string(device.debug_string);
    out->set_to_string(device.to_string);
    out->set_platform_name(device.platform_name);
    if (device.default_memory.has_value()) out->set_default_memory(*device.default_memory);
    out->mutable_memories()->Assign(device.memories.begin(), device.memories.end());
    for (const auto& [name, value] : device.attributes) (*out->mutable_attributes())[name] = ToProto(value);
  }
  for (const MemoryInfo& memory : info.memories) {
    proto::MemoryInfo* out = message.add_memories();
    out->set_id(memory.id);
    out->set_kind(memory.kind);
    out->set_kind_id(memory.kind_id);
    out->set_debug_string(memory.debug_string);
    out->set_to_string(memory.to_string);
    out->mutable_devices()->Assign(memory.devices.begin(), memory.devices.end());
  }
  return message;
}

absl::StatusOr<WorkerInfo> WorkerInfoFromProto(const proto::WorkerInfo& message) {
  WorkerInfo info;
  info.platform_name = message.platform_name();
  info.platform_version = message.platform_version();
  absl::flat_hash_set<int32_t> device_ids;
  absl::flat_hash_set<int32_t> memory_ids;
  for (const proto::DeviceInfo& device : message.devices()) {
    if (!device_ids.insert(device.id()).second) {
      return absl::InvalidArgumentError(absl::StrCat("two devices have the id ", device.id()));
    }
  }
  for (const proto::MemoryInfo& memory : message.memories()) {
    if (!memory_ids.insert(memory.id()).second) {
      return absl::InvalidArgumentError(absl::StrCat("two memories have the id ", memory.id()));
    }
  }
  for (const proto::DeviceInfo& device : message.devices()) {
    DeviceInfo out;
    out.id = device.id();
    out.local_hardware_id = device.local_hardware_id();
    out.kind = device.kind();
    out.debug_string = device.debug_string();
    out.to_string = device.to_string();
    out.platform_name = device.platform_name();
    if (device.has_default_memory()) out.default_memory = device.default_memory();
    out.memories.assign(device.memories().begin(), device.memories().end());
    for (const auto& [name, value] : device.attributes()) {
      HELMWAY_ASSIGN_OR_RETURN(out.attributes[name], FromProto(value));
    }
    for (const int32_t id : out.memories) {
      if (!memory_ids.contains(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("device ", out.id, " has the memory ", id, ", which is not described"));
      }
    }
    if (out.default_memory.has_value() && !memory_ids.contains(*out.default_memory)) {
      return absl::InvalidArgumentError(absl::StrCat("device ", out.id, " has the default memory ",
                                                     *out.default_memory, ", which is not described"));
    }
    info.devices.push_back(std::move(out));
  }
  for (const proto::MemoryInfo& memory : message.memories()) {
    MemoryInfo out;
    out.id = memory.id();
    out.kind = memory.kind();
    out.kind_id = memory.kind_id();
    out.debug_string = memory.debug_string();
    out.to_string = memory.to_string();
    out.devices.assign(memory.devices().begin(), memory.devices().end());
    for (const DeviceId id : out.devices) {
      if (!device_ids.contains(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("memory ", out.id, " belongs to the device ", id, ", which is not described"));
      }
    }
    info.memories.push_back(std::move(out));
  }
  return info;
}

}  // namespace helmway::cluster
