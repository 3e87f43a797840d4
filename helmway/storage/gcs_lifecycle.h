#ifndef HELMWAY_STORAGE_GCS_LIFECYCLE_H_
#define HELMWAY_STORAGE_GCS_LIFECYCLE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace helmway::storage {

// What Cloud Storage takes in one bucket: prefixes in all rules together ("Lifecycle matches_prefix cannot
// specify more than 50 prefixes per config"), and rules.
inline constexpr int kMaxLifecyclePrefixes = 50;
inline constexpr int kMaxLifecycleRules = 100;

struct LifecyclePlan {
  enum class Action {
    kNothing,  // some rule already deletes what lies under the prefix, no later than wanted
    kUpdate,   // set `lifecycle`
    kFull,     // no room for one more prefix or rule
  };
  Action action = Action::kNothing;
  std::string lifecycle;  // JSON, the whole new value of the bucket's `lifecycle`
};

// How to have objects under `prefix` ("jobs/helmway-cache/", with its slash) deleted `days` after their
// upload. `lifecycle`: the bucket's present value as JSON; "" if it has none. Rules of others come out as
// they went in, members that we do not know included. Rules have no name: ours are those that delete, with no
// conditions but an age and prefixes, all of which end like ours in "/<last part of prefix>/"; one of the
// same age takes the prefix too, one that had this prefix with another age loses it. FAILED_PRECONDITION if
// `lifecycle` is not what the API describes: better no rule than a broken one.
absl::StatusOr<LifecyclePlan> PlanLifecycle(absl::string_view lifecycle, absl::string_view prefix, int days);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_GCS_LIFECYCLE_H_
