#ifndef HELMWAY_NET_HEALTH_PROBER_H_
#define HELMWAY_NET_HEALTH_PROBER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"

namespace helmway::net {

// Asks servers by the standard gRPC health service whether they serve. Any thread.
class HealthProber {
 public:
  HealthProber();
  // Cancels what is under way and waits for it.
  ~HealthProber();

  // Asks the server at `address` once. `done` comes once, on one of gRPC's threads: OK if it serves,
  // DEADLINE_EXCEEDED if there is no answer in time, else why not. The connection is kept for the next
  // question with the same key, which is to be the number of a target; another address for the key closes it.
  void Probe(int64_t key, const std::string& address, absl::Duration timeout,
             absl::AnyInvocable<void(const absl::Status&)> done);
  // No more questions for this key.
  void Forget(int64_t key);

 private:
  struct Target;
  struct Call;

  base::Mutex mu_;
  absl::flat_hash_map<int64_t, std::shared_ptr<Target>> targets_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mu_);
  // Calls that are over. A channel must not end on the threads that call back: gRPC joins them with the last.
  std::vector<std::unique_ptr<Call>> over_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_HEALTH_PROBER_H_
