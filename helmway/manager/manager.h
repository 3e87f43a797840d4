#ifndef HELMWAY_MANAGER_MANAGER_H_
#define HELMWAY_MANAGER_MANAGER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/cluster/manager.pb.h"
#include "helmway/manager/actions.h"
#include "helmway/manager/key_values.h"
#include "helmway/manager/leases.h"
#include "helmway/manager/places.h"
#include "helmway/manager/settings.h"

namespace helmway::manager {

// All decisions of the resource manager: takes events and the time, returns what is to be done. Nothing is
// kept anywhere else, and nothing survives: a manager that starts again learns all from its peers. One
// thread.
class Manager {
 public:
  // `settings` have passed CheckSettings. `incarnation` is random and not 0. `first_lease`, the number of the
  // first lease, is to be higher than all that earlier lives gave, as far as that can be known.
  Manager(ManagerSettings settings, uint64_t incarnation, uint64_t first_lease, absl::Time now);
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // Streams of workers. `peer` is gRPC's name of the other end.
  Actions OnWorkerMessage(absl::Time now, ConnectionId connection, absl::string_view peer,
                          const cluster::proto::WorkerMessage& message);
  Actions OnWorkerClosed(absl::Time now, ConnectionId connection);
  // The answer to StartProbe.
  Actions OnProbeAnswer(absl::Time now, int32_t worker, uint64_t probe, const absl::Status& status);

  // Streams of proxies.
  Actions OnProxyMessage(absl::Time now, ConnectionId connection, absl::string_view peer,
                         const cluster::proto::ProxyMessage& message);
  // The transport has taken all that was sent: only then comes more, so that what a slow proxy has to be told
  // is one message and not a queue.
  Actions OnProxySent(absl::Time now, ConnectionId connection);
  Actions OnProxyClosed(absl::Time now, ConnectionId connection);

  // Calls of the key-value store, each answered by one AnswerKeyValue, unless the caller has gone.
  Actions OnKeyValueCall(absl::Time now, KeyValueCallId call, const cluster::proto::KeyValueRequest& request);
  void OnKeyValueGone(KeyValueCallId call);

  // To be called when the deadline has come; earlier does no harm.
  Actions OnTime(absl::Time now);
  absl::Time next_deadline() const;

  const Places& places() const { return places_; }
  const Leases& leases() const { return leases_; }
  int ready_slices() const { return ready_slices_; }
  bool settled() const { return settled_; }

 private:
  struct Watcher {
    uint64_t incarnation = 0;
    std::string name;
    bool leases = false;
    absl::Time last_heard;
    bool sending = false;
    // What it has to be told.
    std::set<int32_t> workers;
    bool settled = false;
    bool lease = false;
    std::vector<uint64_t> sent_info;  // by worker: the number of the description that it has
  };

  void OnProxyHello(absl::Time now, ConnectionId connection, absl::string_view peer,
                    const cluster::proto::ProxyHello& hello, Actions& actions);
  // Ends the lease if it has one and closes its stream.
  void Dismiss(ConnectionId connection, const absl::Status& status, Actions& actions);
  void Forget(ConnectionId connection);
  void EndLease(uint64_t proxy, absl::string_view name, absl::string_view why, Actions& actions);
  // A worker has come with a client of many processes, or has made it.
  void TakeGeneration(ConnectionId connection, uint64_t generation, Actions& actions);
  // Tells workers whose slice has gone on without them to start again.
  void TellToRestart(const KeyValues::Outdated& outdated, Actions& actions);
  // Brings everything that follows from an event up to date.
  Actions Finish(absl::Time now, Actions actions);
  void Tell(ConnectionId connection, Watcher& watcher, Actions& actions);
  cluster::proto::WorkerRecord Record(const Place& place, Watcher& watcher) const;

  const ManagerSettings settings_;
  const uint64_t incarnation_;
  const absl::Time settles_at_;
  Places places_;
  Leases leases_;
  KeyValues key_values_;
  std::map<ConnectionId, Watcher> watchers_;
  std::map<uint64_t, ConnectionId> proxies_;  // by incarnation, those with a stream
  struct Gone {
    absl::Time until;
    std::string name;
  };
  std::map<uint64_t, Gone> gone_;  // proxies whose stream broke while they had a lease
  bool settled_ = false;
  int ready_slices_ = 0;
  absl::Time warn_at_;  // if no slice is ready until then
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_MANAGER_H_
