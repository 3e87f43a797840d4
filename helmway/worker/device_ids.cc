#include "helmway/worker/device_ids.h"

#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/wire/xla_compile_options.pb.h"

namespace helmway::worker {

absl::StatusOr<DeviceIds> DeviceIds::Create(const pjrt::Client& client, const Place& place) {
  DeviceIds ids;
  std::map<int, std::set<int>> of_process;
  for (const pjrt::Device* device : client.devices()) {
    ids.spans_processes_ = ids.spans_processes_ || !device->is_addressable();
    of_process[device->process_index()].insert(device->id());
  }
  if (ids.spans_processes_ && client.process_index() != place.task) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plugin's client is process ", client.process_index(), " of its slice, but this worker is host ",
        place.task, " of it; give both the same numbers (for a TPU: TPU_WORKER_ID and --host_id)"));
  }
  for (const auto& [process, devices] : of_process) {
    if (devices.size() > static_cast<size_t>(cluster::kDeviceIdsPerWorker)) {
      return absl::FailedPreconditionError(absl::StrCat("a process with ", devices.size(),
                                                        " devices; at most ", cluster::kDeviceIdsPerWorker,
                                                        " can be told apart"));
    }
    const int worker = ids.spans_processes_ ? place.worker - place.task + process : place.worker;
    cluster::DeviceId next = cluster::FirstDeviceId(worker);
    for (const int id : devices) {
      ids.same_ = ids.same_ && id == next;
      ids.to_cluster_[id] = next;
      ids.to_plugin_[next] = id;
      ++next;
    }
  }
  return ids;
}

std::optional<cluster::DeviceId> DeviceIds::OfPluginId(int id) const {
  const auto it = to_cluster_.find(id);
  if (it == to_cluster_.end()) return std::nullopt;
  return it->second;
}

absl::StatusOr<std::string> DeviceIds::OptionsForPlugin(absl::string_view serialized) const {
  if (same_) return std::string(serialized);
  xla::CompileOptionsProto options;
  if (!options.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) {
    return absl::InvalidArgumentError("the compile options can't be parsed");
  }
  if (!options.executable_build_options().has_device_assignment()) return std::string(serialized);
  auto& assignment = *options.mutable_executable_build_options()->mutable_device_assignment();
  for (auto& partition : *assignment.mutable_computation_devices()) {
    for (int64_t& id : *partition.mutable_replica_device_ids()) {
      const auto it = to_plugin_.find(static_cast<cluster::DeviceId>(id));
      if (it == to_plugin_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("the plugin's client has no device ", id));
      }
      id = it->second;
    }
  }
  return options.SerializeAsString();
}

}  // namespace helmway::worker
