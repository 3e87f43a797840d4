#include "helmway/proxy/user_contexts.h"

namespace helmway::proxy {

void UserContexts::Begin(uint64_t op_id, uint64_t id) {
  if (id == 0) return;
  base::MutexLock lock(&mu_);
  open_.emplace(op_id, id);
}

uint64_t UserContexts::Take(uint64_t op_id) {
  base::MutexLock lock(&mu_);
  const auto it = open_.find(op_id);
  if (it == open_.end()) return 0;
  const uint64_t id = it->second;
  open_.erase(it);
  return id;
}

void UserContexts::Release(uint64_t id) {
  if (id == 0) return;
  base::MutexLock lock(&mu_);
  released_.push_back(id);
}

void UserContexts::Settle(xla::ifrt::proxy::ResponseMetadata& metadata, bool ok, bool counted) {
  base::MutexLock lock(&mu_);
  if (const auto it = open_.find(metadata.op_id()); it != open_.end()) {
    if (ok) released_.push_back(it->second);
    open_.erase(it);
  }
  if (!ok || !counted) return;
  metadata.set_seq_num(next_number_++);
  if (metadata.seq_num() == 0) return;  // its list would be ignored
  metadata.mutable_destroyed_user_context_ids()->Assign(released_.begin(), released_.end());
  released_.clear();
}

}  // namespace helmway::proxy
