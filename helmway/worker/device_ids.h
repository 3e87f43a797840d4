#ifndef HELMWAY_WORKER_DEVICE_IDS_H_
#define HELMWAY_WORKER_DEVICE_IDS_H_

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"

namespace helmway::worker {

// The ids that a plugin gives its devices, and those of the same devices in the cluster. XLA's CPU plugin is
// told the number of its process and makes the cluster's ids itself. Others count from 0 in each client, on
// through all processes of a client that has several. Immutable: any thread.
class DeviceIds {
 public:
  struct Place {
    int worker = 0;  // number of this worker in its cluster
    int task = 0;    // number of this worker within its slice
  };

  // Process p of a client of several processes is worker (worker - task + p); the devices of a process have
  // the ids FirstDeviceId(worker) + i in the order of the plugin's ids. `client` need not outlive this.
  // FAILED_PRECONDITION: the client is another process than the one of this place, or a process has more
  // devices than can be told apart.
  static absl::StatusOr<DeviceIds> Create(const pjrt::Client& client, const Place& place);

  // The client has devices of other processes.
  bool spans_processes() const { return spans_processes_; }
  // Whether the client has this device, addressable or not.
  bool Knows(cluster::DeviceId id) const { return to_plugin_.contains(id); }
  // `device` is one of the client's.
  cluster::DeviceId Of(const pjrt::Device& device) const { return to_cluster_.at(device.id()); }
  // nullopt: no device of the client has the plugin's id.
  std::optional<cluster::DeviceId> OfPluginId(int id) const;

  // Bytes of a xla.CompileOptionsProto with the plugin's ids in the place of the cluster's. INVALID_ARGUMENT
  // for devices that the client has not, and for bytes that do not parse.
  absl::StatusOr<std::string> OptionsForPlugin(absl::string_view serialized) const;

 private:
  DeviceIds() = default;
  bool same_ = true;  // both sides have the same ids
  bool spans_processes_ = false;
  absl::flat_hash_map<int, cluster::DeviceId> to_cluster_;
  absl::flat_hash_map<cluster::DeviceId, int> to_plugin_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_DEVICE_IDS_H_
