#ifndef HELMWAY_MANAGER_PLACES_H_
#define HELMWAY_MANAGER_PLACES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/cluster/manager.pb.h"
#include "helmway/cluster/membership.h"
#include "helmway/manager/actions.h"
#include "helmway/manager/health_check.h"
#include "helmway/manager/settings.h"

namespace helmway::manager {

// One place of the cluster, and the last worker that was in it.
struct Place {
  int32_t worker = 0;  // its number; device ids follow from it
  int32_t slice = 0;
  int32_t task = 0;

  cluster::WorkerState state = cluster::WorkerState::kExpected;
  std::string reason;           // of kDown
  uint64_t incarnation = 0;     // 0: no worker was here yet
  ConnectionId connection = 0;  // 0: its stream is over
  // While it is up without a stream: the time it has to come back.
  std::optional<absl::Time> missing_until;
  std::string name;  // "host-3 (10.0.0.3:29005)", for messages
  std::string host;
  std::string pod;
  std::string address;        // for proxies and peers
  std::string probe_address;  // for ourselves
  std::string software;
  bool draining = false;
  // Of the last worker here whose devices were taken. `info_number` counts them.
  std::shared_ptr<const cluster::proto::WorkerInfo> info;
  uint64_t info_number = 0;
  bool ready = false;                 // its devices were taken on this stream
  std::optional<HealthCheck> health;  // from then on, until it is lost or replaced
};

// Which worker is where, and whether it is well: registration, duplicates, readiness, health. Takes events
// and the time, writes down what is to be done. One thread.
//
// A place belongs to a worker (one incarnation of it) until it is lost, and then to it or to a new one,
// whichever comes first. When its stream ends it is probed at once, and lost if it does not answer: a process
// that is dead shows within milliseconds, and one that only lost its connection to the manager keeps what it
// has. A silent worker is lost after some probes.
class Places {
 public:
  // `settings` outlives this. `manager_incarnation` is told to the workers.
  Places(const ManagerSettings* settings, uint64_t manager_incarnation);

  // ---- Events. `peer` is gRPC's name of the stream's other end.
  void OnHello(absl::Time now, ConnectionId connection, absl::string_view peer,
               const cluster::proto::WorkerHello& hello, Actions& actions);
  void OnReady(absl::Time now, ConnectionId connection, const cluster::proto::WorkerReady& ready,
               Actions& actions);
  void OnDraining(absl::Time now, ConnectionId connection, const cluster::proto::WorkerDraining& draining,
                  Actions& actions);
  void OnClosed(absl::Time now, ConnectionId connection, Actions& actions);
  void OnProbeAnswer(absl::Time now, int32_t worker, uint64_t probe, const absl::Status& status,
                     Actions& actions);
  void OnTime(absl::Time now, Actions& actions);
  absl::Time next_deadline() const;

  // ---- State.
  const std::vector<Place>& places() const { return places_; }
  // The places that changed since the last call.
  std::set<int32_t> TakeChanged() { return std::exchange(changed_, {}); }
  bool SliceIsReady(int32_t slice) const;
  // The place that the worker of this incarnation is in, or null. And that of the worker of this stream.
  const Place* PlaceOf(uint64_t incarnation) const;
  const Place* PlaceOfConnection(ConnectionId connection) const;
  // A worker came that had been registered with an earlier life of the manager.
  bool saw_older_life() const { return saw_older_life_; }

 private:
  using Hello = cluster::proto::WorkerHello;
  const SliceSettings& SliceOf(const Place& place) const {
    return settings_->slices[static_cast<size_t>(place.slice)];
  }
  // The place for a worker that is not in one, or why there is none.
  absl::StatusOr<int32_t> Choose(absl::Time now, const Hello& hello, const std::string& name,
                                 const std::string& probe_address);
  absl::StatusOr<std::vector<int32_t>> Candidates(const Hello& hello, const std::string& name) const;
  absl::Status Mismatch(absl::string_view what) const;
  absl::Status CheckDevices(const Place& place, const cluster::proto::WorkerReady& ready) const;
  // The place of this stream's worker, or null after the stream was closed for having said something else.
  Place* Find(ConnectionId connection, absl::string_view what, Actions& actions);
  // The worker is lost: nothing of it is watched any more.
  void Lose(Place& place, std::string reason, Actions& actions);
  void Refuse(ConnectionId connection, uint64_t incarnation, const absl::Status& status, Actions& actions);
  // After a change of stream, devices, health or draining.
  void Update(Place& place, Actions& actions);
  void Schedule(Place& place);

  const ManagerSettings* const settings_;
  const uint64_t manager_incarnation_;
  std::vector<Place> places_;
  std::vector<int32_t> first_worker_;  // by slice
  absl::flat_hash_map<ConnectionId, int32_t> connections_;
  absl::flat_hash_map<uint64_t, int32_t> incarnations_;  // of the workers that are in places_
  std::vector<absl::Time> scheduled_;                    // by worker: its entry in due_
  std::set<std::pair<absl::Time, int32_t>> due_;         // probes
  std::set<int32_t> changed_;
  absl::flat_hash_map<uint64_t, std::string> refused_;  // by incarnation: what was logged last
  uint64_t probes_ = 0;
  bool saw_older_life_ = false;
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_PLACES_H_
