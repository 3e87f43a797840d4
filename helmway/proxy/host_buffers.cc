#include "helmway/proxy/host_buffers.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/clock.h"
#include "helmway/base/status.h"

namespace helmway::proxy {
namespace {

absl::Status SessionEnded() { return absl::CancelledError("the session has ended"); }

}  // namespace

bool HostBufferBudget::Take(int64_t bytes) {
  int64_t used = used_.load();
  do {
    if (bytes > limit_ - used) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

class HostBuffers::Writer final : public net::HostBufferWriter {
 public:
  Writer(std::shared_ptr<HostBuffers> buffers, uint64_t handle, base::HostBlock block)
      : buffers_(std::move(buffers)), handle_(handle), block_(std::move(block)) {}

  ~Writer() override {
    if (buffers_) {
      buffers_->Complete(handle_, absl::CancelledError(absl::StrCat("the upload of host buffer ", handle_,
                                                                    " broke off after ", written_, " of ",
                                                                    block_.size, " bytes")));
    }
  }

  uint8_t* Reserve(int64_t size) override {
    if (size > block_.size - written_) return nullptr;
    uint8_t* target = block_.data + written_;
    written_ += size;
    return target;
  }

  absl::Status Finish() override {
    std::shared_ptr<HostBuffers> buffers = std::move(buffers_);
    if (written_ != block_.size) {
      absl::Status status = absl::DataLossError(absl::StrCat("host buffer ", handle_, " was announced with ",
                                                             block_.size, " bytes, but ", written_, " came"));
      buffers->Complete(handle_, status);
      return status;
    }
    buffers->Complete(handle_, std::move(block_).Finish());
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<HostBuffers> buffers_;  // null once finished
  const uint64_t handle_;
  base::HostBlock block_;
  int64_t written_ = 0;
};

HostBuffers::HostBuffers(std::shared_ptr<base::HostMemoryPool> pool, std::shared_ptr<HostBufferBudget> budget)
    : pool_(std::move(pool)), budget_(std::move(budget)) {}

HostBuffers::~HostBuffers() { Close(); }

absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> HostBuffers::Store(uint64_t handle, int64_t size) {
  if (size < 0)
    return absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " has the size ", size));
  absl::Status refused;
  Arrived waiting;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return SessionEnded();
    Entry& entry = entries_[handle];
    if (entry.storing || entry.complete || !entry.failure.ok()) {
      return absl::AlreadyExistsError(absl::StrCat("host buffer ", handle, " exists already"));
    }
    if (budget_->Take(size)) {
      entry.storing = true;
      entry.budget_bytes = size;
    } else {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("host buffer ", handle, " of ", size, " bytes does not fit: ", budget_->used(), " of ",
                       budget_->limit(), " bytes are taken by buffers on their way"));
      waiting = std::move(entry.waiting);
      entries_.erase(handle);
    }
  }
  if (!refused.ok()) {
    if (waiting) waiting(refused);
    return refused;
  }
  absl::StatusOr<base::HostBlock> block = pool_->Allocate(size);
  if (!block.ok()) {
    Complete(handle, block.status());
    return block.status();
  }
  return std::make_unique<Writer>(shared_from_this(), handle, *std::move(block));
}

absl::Status HostBuffers::Put(uint64_t handle, base::HostBytes bytes) {
  HELMWAY_RETURN_IF_ERROR(CheckUnused(handle));
  Complete(handle, std::move(bytes));
  return absl::OkStatus();
}

absl::Status HostBuffers::Fail(uint64_t handle, const absl::Status& status) {
  HELMWAY_RETURN_IF_ERROR(CheckUnused(handle));
  Complete(handle, status);
  return absl::OkStatus();
}

absl::Status HostBuffers::CheckUnused(uint64_t handle) {
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  const auto it = entries_.find(handle);
  if (it != entries_.end() && (it->second.storing || it->second.complete || !it->second.failure.ok())) {
    return absl::AlreadyExistsError(absl::StrCat("host buffer ", handle, " exists already"));
  }
  return absl::OkStatus();
}

void HostBuffers::Complete(uint64_t handle, absl::StatusOr<base::HostBytes> bytes) {
  Arrived waiting;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    Entry& entry = entries_[handle];
    if (!entry.waiting) {
      entry.complete = bytes.ok();
      if (bytes.ok()) {
        entry.bytes = *std::move(bytes);
      } else {
        entry.failure = bytes.status();
      }
      return;
    }
    waiting = std::move(entry.waiting);
    budget_->Give(entry.budget_bytes);
    entries_.erase(handle);
  }
  waiting(std::move(bytes));
}

void HostBuffers::Take(uint64_t handle, Arrived arrived) {
  absl::StatusOr<base::HostBytes> bytes = SessionEnded();
  {
    base::MutexLock lock(&mu_);
    if (!closed_) {
      Entry& entry = entries_[handle];
      if (entry.waiting) {
        bytes = absl::InvalidArgumentError(absl::StrCat("host buffer ", handle, " is used twice"));
      } else if (entry.complete || !entry.failure.ok()) {
        if (entry.complete) {
          bytes = std::move(entry.bytes);
        } else {
          bytes = entry.failure;
        }
        budget_->Give(entry.budget_bytes);
        entries_.erase(handle);
      } else {
        entry.waiting = std::move(arrived);
        entry.waiting_since = base::SteadyNow();
        return;
      }
    }
  }
  arrived(std::move(bytes));
}

bool HostBuffers::FailWaitsBefore(absl::Time began_before, const absl::Status& status) {
  std::vector<std::pair<uint64_t, Arrived>> failed;
  bool remain = false;
  {
    base::MutexLock lock(&mu_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      Entry& entry = it->second;
      // An upload that has begun is not late: gRPC ends it when its client is gone.
      if (!entry.waiting || entry.storing) {
        ++it;
      } else if (entry.waiting_since < began_before) {
        failed.emplace_back(it->first, std::move(entry.waiting));
        entries_.erase(it++);
      } else {
        remain = true;
        ++it;
      }
    }
  }
  for (auto& [handle, arrived] : failed) {
    arrived(absl::Status(status.code(), absl::StrCat("host buffer ", handle, " ", status.message())));
  }
  return remain;
}

absl::StatusOr<base::HostBytes> HostBuffers::Lookup(uint64_t handle) {
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  const auto it = entries_.find(handle);
  if (it == entries_.end() || !it->second.complete) {
    return absl::NotFoundError(absl::StrCat("no host buffer ", handle));
  }
  return it->second.bytes;
}

absl::Status HostBuffers::Delete(uint64_t handle) {
  base::HostBytes dropped;  // freed outside the lock
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  const auto it = entries_.find(handle);
  if (it == entries_.end() || !it->second.complete) {
    return absl::NotFoundError(absl::StrCat("no host buffer ", handle));
  }
  dropped = std::move(it->second.bytes);
  budget_->Give(it->second.budget_bytes);
  entries_.erase(it);
  return absl::OkStatus();
}

void HostBuffers::Close() {
  decltype(entries_) dropped;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    dropped.swap(entries_);
  }
  for (auto& [handle, entry] : dropped) {
    budget_->Give(entry.budget_bytes);
    if (entry.waiting) entry.waiting(SessionEnded());
  }
}

}  // namespace helmway::proxy
