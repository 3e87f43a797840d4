#ifndef HELMWAY_STORAGE_MEMORY_STORE_H_
#define HELMWAY_STORAGE_MEMORY_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "helmway/base/mutex.h"
#include "helmway/storage/store.h"

namespace helmway::storage {

// Objects in this process, gone with it.
class MemoryStore final : public Store {
 public:
  const std::string& location() const override { return location_; }
  absl::StatusOr<std::string> Get(absl::string_view name) override;
  absl::StatusOr<std::string> GetRange(absl::string_view name, int64_t offset, int64_t length) override;
  absl::Status Put(absl::string_view name, absl::string_view bytes, PutMode mode) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(absl::string_view prefix, size_t limit) override;
  absl::Status Delete(absl::string_view name) override;
  absl::Status RemoveUnfinished(absl::Time /*before*/) override { return absl::OkStatus(); }

 private:
  struct Object {
    std::string bytes;
    absl::Time updated;
  };
  const std::string location_ = "memory://";
  base::Mutex mu_;
  std::map<std::string, Object, std::less<>> objects_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_MEMORY_STORE_H_
