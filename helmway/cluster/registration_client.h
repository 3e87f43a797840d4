#ifndef HELMWAY_CLUSTER_REGISTRATION_CLIENT_H_
#define HELMWAY_CLUSTER_REGISTRATION_CLIENT_H_

#include <grpcpp/completion_queue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/async/backoff.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

struct RegistrationOptions {
  std::string manager_address;  // host:port; need not resolve yet
  // Where the calls come back, each as a Tag (completion_tag.h), for as long as the client lives.
  grpc::CompletionQueue* queue = nullptr;
  uint64_t incarnation = 0;  // of this process; 0: a random one
  std::string host;          // names for people
  std::string pod;
  int port = 0;                   // where this worker serves
  std::string advertise_address;  // host:port for proxies and peers; empty: the address that the manager sees
  // The place that this worker wants; the manager chooses what is not given. `linear` counts hosts through
  // all slices.
  std::optional<int32_t> slice;
  std::optional<int32_t> task;
  std::optional<int32_t> linear;
  bool cpu_standin = false;  // CPU devices may stand in for those that the slice should have
  async::Backoff::Options backoff;
};

// What the manager has given a worker for its life.
struct AssignedPlace {
  int32_t slice = 0;
  int32_t task = 0;           // within the slice
  int32_t worker = 0;         // over all slices: the first device has the id FirstDeviceId(worker)
  std::string instance_type;  // of the slice, "cpu:2x4"
  int32_t hosts = 0;          // of the slice
  int32_t devices_per_host = 0;
  int32_t slices = 0;                // of the cluster
  int32_t workers = 0;               // of the cluster
  std::string address;               // host:port where proxies and other workers reach this one
  uint64_t manager_incarnation = 0;  // of the manager's life that gave this place first
};

// Called on the client's thread, one at a time.
class RegistrationObserver {
 public:
  virtual ~RegistrationObserver() = default;
  // Once per life: the worker makes its devices for this place, which may take seconds. An error is final:
  // OnFailed gets it, and nothing more is tried.
  virtual absl::StatusOr<WorkerInfo> OnPlaced(const AssignedPlace& placement) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;
  // Asked after OnPlaced: the generation of its slice that this worker's devices were made in, if they are
  // part of a client of several processes (KeyValueClient), else 0.
  virtual uint64_t slice_generation() const { return 0; }
  // Another worker of the slice has started again, and cannot join the client that this one is part of. Once
  // for each time that the manager says so; a worker without such a client is never told.
  virtual void OnSliceRestarted(const absl::Status& /*why*/) {}
  // The manager knows this worker and its devices; after OnLost, again.
  virtual void OnRegistered(const AssignedPlace& placement) = 0;
  // The manager is not reached, or refuses. The worker keeps what it has; another attempt follows.
  virtual void OnLost(const absl::Status& status) = 0;
};

// Registers a worker with the resource manager and keeps it registered, for ever: a manager that is not there
// yet, restarts or refuses is tried again after a while. The place that was given once is asked for again.
// Any thread.
class RegistrationClient {
 public:
  // `observer` outlives this. Starts at once.
  static std::unique_ptr<RegistrationClient> Start(RegistrationOptions options,
                                                   RegistrationObserver* observer);
  // Ends the registration; waits for a call to the observer that is under way.
  virtual ~RegistrationClient() = default;

  virtual uint64_t incarnation() const = 0;
  // The worker has been told to end and is gone after `remaining` at the latest. Said again to a manager that
  // comes back.
  virtual void Drain(absl::Duration remaining) = 0;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_REGISTRATION_CLIENT_H_
