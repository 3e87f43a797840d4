#ifndef HELMWAY_MANAGER_SETTINGS_H_
#define HELMWAY_MANAGER_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace helmway::manager {

// How the health of workers is watched. A worker is lost after `failure_threshold` probes in a row that were
// not answered in time, and back with the first that is.
struct HealthSettings {
  absl::Duration initial_delay = absl::ZeroDuration();  // from the registration to the first probe
  absl::Duration period = absl::Seconds(3);  // from the start of one probe to the start of the next
  absl::Duration timeout = absl::Seconds(5);
  int failure_threshold = 4;
};

struct SliceSettings {
  std::string instance_type;  // canonical: "cpu:2x4", "tpuv5e:4x4"
  std::string platform;       // what the plugin calls it: "cpu", "gpu", "tpu"
  int32_t hosts = 1;
  int32_t devices_per_host = 1;
};

// What the key-value store of one slice may hold.
struct KeyValueLimits {
  // Of keys and values together. NCCL ids and the descriptions of a slice's devices are a few kilobytes for
  // each host.
  int64_t bytes = int64_t{64} << 20;
  // Calls that wait for keys, each on a thread of some worker.
  int64_t waiting_calls = 1 << 16;
};

struct ManagerSettings {
  std::vector<SliceSettings> slices;  // at least one
  // Under which name other hosts reach this one; stands for the loopback address of workers of this host.
  // Empty: unknown.
  std::string advertised_host;
  HealthSettings health;
  // After the start: how long workers and proxies from before have to come back. Until then silence about a
  // worker means nothing, and if any comes back, leases from before go first.
  absl::Duration recovery_time = absl::Seconds(30);
  // How long a worker that answers may be without its stream before it counts as lost.
  absl::Duration reconnect_time = absl::Seconds(10);
  absl::Duration proxy_silence = absl::Seconds(10);    // a proxy without a heartbeat for so long is gone
  absl::Duration lease_grace = absl::Seconds(5);       // a lease outlives its broken stream by this time
  absl::Duration no_slice_warning = absl::Minutes(2);  // a warning if no slice was ready for so long
  KeyValueLimits key_values;
};

// INVALID_ARGUMENT, with the reason, for clusters that device ids cannot be given to.
absl::Status CheckSettings(const ManagerSettings& settings);

// "2 slices of cpu:2x4", "3 slices (cpu:2x4, cpu:2x4, cpu:1x8)".
std::string DescribeSlices(const std::vector<SliceSettings>& slices);

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_SETTINGS_H_
