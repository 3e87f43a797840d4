#include "helmway/cache/keeper.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/base/status.h"
#include "helmway/storage/gcs_lifecycle.h"

namespace helmway::cache {
namespace {

struct Permission {
  absl::string_view name;
  absl::string_view consequence;
};

constexpr Permission kPermissions[] = {
    {"storage.objects.get", "cached programs can't be read"},
    {"storage.objects.create", "compiled programs are not kept"},
    {"storage.objects.list", "'helmway cache' can't list what is there"},
    {"storage.buckets.get", "no life cycle rule can be set, so entries stay until somebody deletes them"},
    {"storage.buckets.update", "no life cycle rule can be set, so entries stay until somebody deletes them"}};

constexpr int kMaxLifecycleTries = 5;
// A writer takes no longer.
constexpr absl::Duration kUnfinishedAge = absl::Hours(1);

}  // namespace

std::vector<std::string> MissingPermissions(storage::GcsStore& store) {
  std::vector<absl::string_view> names;
  for (const Permission& permission : kPermissions) names.push_back(permission.name);
  const absl::StatusOr<std::vector<std::string>> granted = store.TestPermissions(names);
  std::vector<std::string> missing;
  if (!granted.ok()) return missing;
  for (const Permission& permission : kPermissions) {
    if (std::find(granted->begin(), granted->end(), permission.name) != granted->end()) continue;
    missing.push_back(absl::StrCat(permission.name, " is missing on the bucket ", store.bucket(), ": ",
                                   permission.consequence));
  }
  return missing;
}

absl::StatusOr<LifecycleOutcome> EnsureLifecycle(storage::GcsStore& store, int days) {
  absl::Status last;
  for (int tries = 0; tries < kMaxLifecycleTries; ++tries) {
    HELMWAY_ASSIGN_OR_RETURN(const storage::BucketInfo bucket, store.GetBucket());
    HELMWAY_ASSIGN_OR_RETURN(const storage::LifecyclePlan plan,
                             storage::PlanLifecycle(bucket.lifecycle, store.prefix(), days));
    if (plan.action == storage::LifecyclePlan::Action::kNothing) {
      return tries == 0 ? LifecycleOutcome::kInPlace : LifecycleOutcome::kSet;
    }
    if (plan.action == storage::LifecyclePlan::Action::kFull) return LifecycleOutcome::kFull;
    last = store.SetLifecycle(plan.lifecycle, bucket.metageneration);
    if (last.ok()) return LifecycleOutcome::kSet;
    // Somebody else has changed the bucket, or our own change was answered after all.
    if (!absl::IsFailedPrecondition(last)) return last;
  }
  return absl::AbortedError(absl::StrCat("the bucket is changed all the time: ", last.message()));
}

absl::StatusOr<int> Sweep(storage::Store& store, absl::Duration age, absl::Time now) {
  HELMWAY_RETURN_IF_ERROR(store.RemoveUnfinished(now - kUnfinishedAge));
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<storage::ObjectInfo> entries,
                           store.List("", std::numeric_limits<int>::max()));
  int gone = 0;
  absl::Status outcome;
  for (const storage::ObjectInfo& entry : entries) {
    if (entry.updated + age > now) continue;
    const absl::Status status = store.Delete(entry.name);
    if (status.ok() || absl::IsNotFound(status)) {
      ++gone;
    } else {
      outcome = status;
    }
  }
  if (!outcome.ok()) return outcome;
  return gone;
}

Keeper::Keeper(std::shared_ptr<storage::Store> store, int days) : store_(std::move(store)), days_(days) {
  thread_ = std::thread([this] { Run(); });
}

Keeper::~Keeper() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Keeper::Run() {
  if (auto* gcs = dynamic_cast<storage::GcsStore*>(store_.get())) return CareForBucket(*gcs);
  if (days_ == 0) return;
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    const absl::StatusOr<int> gone = Sweep(*store_, absl::Hours(24) * days_, absl::Now());
    if (!gone.ok()) {
      LOG(WARNING) << "Old entries of the compile cache at " << store_->location()
                   << " can't be deleted: " << gone.status();
    } else if (*gone > 0) {
      LOG(INFO) << "Deleted " << *gone << " entries of the compile cache at " << store_->location()
                << " that were older than " << days_ << " days";
    }
    base::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping), absl::Hours(24))) return;
  }
}

void Keeper::CareForBucket(storage::GcsStore& store) const {
  const std::vector<std::string> missing = MissingPermissions(store);
  for (const std::string& line : missing) LOG(WARNING) << "Compile cache: " << line;
  if (days_ == 0) return;
  const absl::StatusOr<LifecycleOutcome> outcome = EnsureLifecycle(store, days_);
  if (!outcome.ok()) {
    // Said already if it is for want of a permission.
    if (!absl::IsPermissionDenied(outcome.status()) || missing.empty()) {
      LOG(WARNING) << "Compile cache: no life cycle rule could be set for " << store.location()
                   << ", so entries stay until somebody deletes them: " << outcome.status();
    }
  } else if (*outcome == LifecycleOutcome::kFull) {
    LOG(WARNING) << "Compile cache: the bucket " << store.bucket()
                 << " has no room for one more life cycle rule (it takes " << storage::kMaxLifecyclePrefixes
                 << " prefixes in all and " << storage::kMaxLifecycleRules << " rules), so entries below "
                 << store.location()
                 << " stay until somebody deletes them. Let all jobs share one location, such as gs://"
                 << store.bucket() << "/helmway, and one rule serves them all";
  } else if (*outcome == LifecycleOutcome::kSet) {
    LOG(INFO) << "The bucket " << store.bucket() << " will delete entries below " << store.location()
              << " after " << days_ << " days";
  }
}

}  // namespace helmway::cache
