#ifndef HELMWAY_CACHE_KEEPER_H_
#define HELMWAY_CACHE_KEEPER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"
#include "helmway/storage/gcs_store.h"
#include "helmway/storage/store.h"

namespace helmway::cache {

// What the caller may not do in the bucket of a cache, one line for each permission that it lacks, with what
// will not work. Empty where the service does not tell.
std::vector<std::string> MissingPermissions(storage::GcsStore& store);

enum class LifecycleOutcome {
  kInPlace,  // a rule was there
  kSet,
  kFull,  // the bucket takes no more rules or prefixes
};

// Has the bucket delete what lies below the store's location `days` after it was written, by a rule of the
// bucket. Rules of others stay; if somebody changes them at the same time it looks again. ABORTED: too many
// changes; others as storage::GcsStore.
absl::StatusOr<LifecycleOutcome> EnsureLifecycle(storage::GcsStore& store, int days);

// Deletes the entries of a cache that are older than `age`, and what dead writers left. The number of entries
// that are gone.
absl::StatusOr<int> Sweep(storage::Store& store, absl::Duration age, absl::Time now);

// Looks after the location of a cache in the background: in a bucket it checks the permissions and sets a
// rule, once; a directory it sweeps at the start and once a day. What is wrong is logged. `days` 0: nothing
// is ever deleted.
class Keeper {
 public:
  Keeper(std::shared_ptr<storage::Store> store, int days);
  ~Keeper();

 private:
  void Run();
  void CareForBucket(storage::GcsStore& store) const;

  const std::shared_ptr<storage::Store> store_;
  const int days_;
  base::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace helmway::cache

#endif  // HELMWAY_CACHE_KEEPER_H_
