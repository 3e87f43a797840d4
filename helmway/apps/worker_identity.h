#ifndef HELMWAY_APPS_WORKER_IDENTITY_H_
#define HELMWAY_APPS_WORKER_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/role_flags.h"

namespace helmway::apps {

// Which worker of the cluster a process is, as launchers tell it. What is absent is the manager's choice.
struct WorkerIdentity {
  std::optional<int32_t> slice;
  std::optional<int32_t> host;    // within the slice
  std::optional<int32_t> linear;  // host, counted through all slices; only if neither of the others is known
  std::string source;             // where it comes from, for messages; empty: nothing is told
};

// The first of these that says anything:
//   1. --slice_id and --host_id
//   2. MEGASCALE_SLICE_ID and JOB_COMPLETION_INDEX (JobSet and other indexed Jobs of Kubernetes)
//   3. LWS_WORKER_INDEX - 1 (LeaderWorkerSet: the leader, 0, is no worker)
//   4. SLURM_PROCID
// INVALID_ARGUMENT, naming the variable, for a value that is no number from 0 on.
absl::StatusOr<WorkerIdentity> ReadWorkerIdentity(const WorkerOptions& options,
                                                  const Environment& environment);

std::string HostName();  // "" if the system has none to tell

// Of this process, for messages: POD_NAME, else the name of the host.
std::string ProcessName(const Environment& environment);

// HELMWAY_ADVERTISE_ADDRESS as host:port, with the port that the worker listens on if it has none; "" if it
// is not set.
std::string AdvertisedAddress(const Environment& environment, int port);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_WORKER_IDENTITY_H_
