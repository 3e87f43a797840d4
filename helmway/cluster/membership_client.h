#ifndef HELMWAY_CLUSTER_MEMBERSHIP_CLIENT_H_
#define HELMWAY_CLUSTER_MEMBERSHIP_CLIENT_H_

#include <grpcpp/completion_queue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "helmway/async/backoff.h"
#include "helmway/cluster/membership.h"

namespace helmway::cluster {

// Exclusive use of slices: all of the cluster's, those too that are not there yet, or else one ready slice of
// each of these types.
struct LeaseRequest {
  bool all = false;
  std::vector<std::string> instance_types;  // as the manager writes them, "cpu:2x4"
  int32_t may_be_missing = 0;               // so many of these need not be ready
};

struct Lease {
  bool granted = false;
  std::vector<int32_t> slices;  // one for each that was asked for, in that order
  std::string waits_for;        // while it is not granted; for people
  uint64_t number = 0;          // if granted: a later lease has a higher one

  friend bool operator==(const Lease&, const Lease&) = default;
};

struct MembershipClientOptions {
  std::string manager_address;  // host:port; need not resolve yet
  // Where the calls come back, each as a Tag (completion_tag.h), for as long as the client lives.
  grpc::CompletionQueue* queue = nullptr;
  std::string name;                   // of the proxy, for messages
  uint64_t incarnation = 0;           // of this process; 0: a random one
  std::optional<LeaseRequest> lease;  // absent: only looks on
  absl::Duration heartbeat = absl::Seconds(2);
  async::Backoff::Options backoff;
};

// Called on the client's thread, one at a time; must not block for long, since heartbeats wait.
class MembershipObserver {
 public:
  virtual ~MembershipObserver() = default;
  // What is known now, and the indices of the workers that changed. The reference is good during the call.
  virtual void OnMembership(const Membership& membership, const std::vector<int32_t>& changed) = 0;
  // The lease was granted, or what it waits for has changed. Not granted after granted: it is lost, since
  // this process was out of the manager's sight for too long and somebody else has the slices now; whatever
  // runs on them must end.
  virtual void OnLease(const Lease& lease) = 0;
  // The manager is not reached, or refuses. What is known stays, the lease too; another attempt follows.
  virtual void OnManagerLost(const absl::Status& status) = 0;
};

// Watches the cluster's membership and leases slices, for ever: a manager that is not there yet, restarts or
// refuses is tried again after a while. Workers of which a manager that has just started knows nothing yet
// stay as they were. Any thread.
class MembershipClient {
 public:
  // `observer` outlives this. Starts at once.
  static std::unique_ptr<MembershipClient> Start(MembershipClientOptions options,
                                                 MembershipObserver* observer);
  // Gives the lease back if the manager is reached; waits for a call to the observer that is under way.
  virtual ~MembershipClient() = default;

  virtual uint64_t incarnation() const = 0;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_MEMBERSHIP_CLIENT_H_
