#ifndef HELMWAY_PJRT_KEY_VALUE_STORE_TESTING_H_
#define HELMWAY_PJRT_KEY_VALUE_STORE_TESTING_H_

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/key_value_store.h"

namespace helmway::pjrt {

// For clients of one process. Any thread.
class InMemoryKeyValueStore final : public KeyValueStore {
 public:
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    base::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      // One that waits is told of the end first.
      return cancelled_ || values_.contains(key);
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), timeout)) {
      return absl::DeadlineExceededError(absl::StrCat("nobody has put ", key));
    }
    if (cancelled_) return absl::CancelledError(absl::StrCat("nobody waits for ", key, " any more"));
    return values_[key];
  }
  absl::StatusOr<std::string> TryGet(const std::string& key) override {
    base::MutexLock lock(&mu_);
    const auto it = values_.find(key);
    if (it == values_.end()) return absl::NotFoundError(absl::StrCat("nobody has put ", key));
    return it->second;
  }
  absl::Status Put(const std::string& key, const std::string& value) override {
    base::MutexLock lock(&mu_);
    const auto [it, added] = values_.emplace(key, value);
    if (added || it->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(key, " has another value"));
  }

  // Ends all calls of Get.
  void Cancel() {
    base::MutexLock lock(&mu_);
    cancelled_ = true;
  }

 private:
  base::Mutex mu_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_KEY_VALUE_STORE_TESTING_H_
