#include "helmway/storage/memory_store.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "helmway/base/status.h"

namespace helmway::storage {

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view name) {
  return GetRange(name, 0, std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::string> MemoryStore::GetRange(absl::string_view name, int64_t offset, int64_t length) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  if (offset < 0 || length < 0) return absl::InvalidArgumentError("negative offset or length");
  base::MutexLock lock(&mu_);
  const auto it = objects_.find(name);
  if (it == objects_.end()) return absl::NotFoundError(name);
  const std::string& bytes = it->second.bytes;
  const auto start = static_cast<size_t>(offset);
  if (start > bytes.size() || (start == bytes.size() && start > 0)) return absl::OutOfRangeError(name);
  return bytes.substr(start, static_cast<size_t>(length));
}

absl::Status MemoryStore::Put(absl::string_view name, absl::string_view bytes, PutMode mode) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  base::MutexLock lock(&mu_);
  const auto it = objects_.find(name);
  if (it != objects_.end() && mode == PutMode::kCreate) return absl::AlreadyExistsError(name);
  objects_[std::string(name)] = Object{std::string(bytes), absl::Now()};
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ObjectInfo>> MemoryStore::List(absl::string_view prefix, size_t limit) {
  base::MutexLock lock(&mu_);
  std::vector<ObjectInfo> found;
  for (auto it = objects_.lower_bound(prefix); it != objects_.end() && found.size() < limit; ++it) {
    if (!absl::StartsWith(it->first, prefix)) break;
    found.push_back({it->first, static_cast<int64_t>(it->second.bytes.size()), it->second.updated});
  }
  return found;
}

absl::Status MemoryStore::Delete(absl::string_view name) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  base::MutexLock lock(&mu_);
  const auto it = objects_.find(name);
  if (it == objects_.end()) return absl::NotFoundError(name);
  objects_.erase(it);
  return absl::OkStatus();
}

}  // namespace helmway::storage
