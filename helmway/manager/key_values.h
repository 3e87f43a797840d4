#ifndef HELMWAY_MANAGER_KEY_VALUES_H_
#define HELMWAY_MANAGER_KEY_VALUES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/cluster/manager.pb.h"
#include "helmway/manager/actions.h"
#include "helmway/manager/settings.h"

namespace helmway::manager {

// What the plugins of each slice's workers tell each other (KeyValueRequest in manager.proto). One thread.
//
// A slice goes through generations. One begins empty when a worker calls, and takes in the others as they
// call; it is formed when the first of them has made its client, which it can do only after all have told it
// what it needs. A worker that comes to a formed generation, or takes the place of one that is in it, is a
// process that has started again: it begins the next generation, and those of the one before are outdated,
// since their clients cannot be joined. Slices whose workers never call have no generation.
class KeyValues {
 public:
  // Workers that have to start again, by incarnation, and why.
  struct Outdated {
    std::vector<uint64_t> workers;
    std::string reason;
  };

  // `settings` outlives this. Generations are numbered from the manager's incarnation on, so that those of
  // different lives of the manager differ.
  KeyValues(const ManagerSettings* settings, uint64_t manager_incarnation);

  // A call of the worker in this place. Answers it, and others that it ends.
  Outdated OnCall(absl::Time now, KeyValueCallId call, int32_t slice, int32_t task,
                  const cluster::proto::KeyValueRequest& request, Actions& actions);
  // What to answer a caller that is in no place.
  absl::Status WhyUnknown(const cluster::proto::KeyValueRequest& request) const;
  // Nobody waits for the answer any more.
  void OnGone(KeyValueCallId call);
  // The worker has made its client in that generation, maybe in an earlier life of the manager. Of a slice
  // without a generation this is the one.
  Outdated OnFormed(int32_t slice, int32_t task, uint64_t incarnation, uint64_t generation);
  void OnTime(absl::Time now, Actions& actions);
  absl::Time next_deadline() const;

 private:
  struct Slice {
    uint64_t generation = 0;
    bool formed = false;
    std::map<int32_t, uint64_t> members;   // by task: incarnation
    std::map<int32_t, uint64_t> outdated;  // the same, of those from before
    std::string begun_because;             // of the generation
    absl::flat_hash_map<std::string, std::string> values;
    int64_t bytes = 0;
    std::map<std::string, std::set<KeyValueCallId>> waiting;  // by key
    int64_t waiting_calls = 0;
  };
  struct Waiting {
    int32_t slice;
    std::string key;
    absl::Time until;
  };

  absl::Status Join(int32_t slice, int32_t task, const cluster::proto::KeyValueRequest& request,
                    Outdated& outdated, Actions& actions);
  void Begin(int32_t slice, std::string reason, Outdated& outdated, Actions& actions);
  absl::Status Put(Slice& slice, const std::string& key, const std::string& value, Actions& actions);
  // The call does not wait any more. Returns what it has waited for.
  Waiting Forget(KeyValueCallId call);

  const ManagerSettings* const settings_;
  const uint64_t manager_incarnation_;
  uint64_t next_generation_;
  std::vector<Slice> slices_;
  absl::flat_hash_map<KeyValueCallId, Waiting> waiting_;
  std::set<std::pair<absl::Time, KeyValueCallId>> due_;
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_KEY_VALUES_H_
