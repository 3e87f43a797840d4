#ifndef HELMWAY_PROXY_HOST_BUFFERS_H_
#define HELMWAY_PROXY_HOST_BUFFERS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/net/ifrt_service.h"

namespace helmway::proxy {

// Bytes of host buffers that all sessions of a proxy hold at one time, and the most they may. Any thread.
class HostBufferBudget {
 public:
  explicit HostBufferBudget(int64_t limit_bytes) : limit_(limit_bytes) {}
  // False if it would go over the limit.
  bool Take(int64_t bytes);
  void Give(int64_t bytes) { used_.fetch_sub(bytes); }
  int64_t limit() const { return limit_; }
  int64_t used() const { return used_.load(); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// The host buffers of one session, by handle: bytes from the client that no request has taken yet, and bytes
// for the client that it has not fetched yet. Any thread; callbacks run with no lock held.
class HostBuffers : public std::enable_shared_from_this<HostBuffers> {
 public:
  using Arrived = absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)>;

  HostBuffers(std::shared_ptr<base::HostMemoryPool> pool, std::shared_ptr<HostBufferBudget> budget);
  ~HostBuffers();

  // ---- From the client ----
  // Where an upload of `size` bytes goes. INVALID_ARGUMENT for a size below 0, ALREADY_EXISTS for a handle in
  // use, RESOURCE_EXHAUSTED beyond the budget. A writer that is dropped unfinished fails the handle.
  absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> Store(uint64_t handle, int64_t size);
  // The upload will not come, for a reason that its array shall tell. ALREADY_EXISTS for a handle in use.
  absl::Status Fail(uint64_t handle, const absl::Status& status);
  // Bytes that came another way.
  absl::Status Put(uint64_t handle, base::HostBytes bytes);

  // ---- For requests ----
  // Takes the buffer out once it is complete: inside the call if it is already. The bytes, or why they will
  // never come. Each handle can be taken once.
  void Take(uint64_t handle, Arrived arrived);
  // Fails a wait of Take that is not over, if it began before that time (base::SteadyNow). Returns whether
  // waits remain.
  bool FailWaitsBefore(absl::Time began_before, const absl::Status& status);

  // ---- To the client ----
  absl::StatusOr<base::HostBytes> Lookup(uint64_t handle);
  absl::Status Delete(uint64_t handle);

  // Drops all, fails what waits with CANCELLED; later calls fail the same way.
  void Close();

  // The most bytes that host buffers may hold.
  int64_t limit_bytes() const { return budget_->limit(); }

 private:
  class Writer;
  struct Entry {
    bool storing = false;  // an upload has begun
    bool complete = false;
    base::HostBytes bytes;  // if complete
    absl::Status failure;   // the upload broke off
    Arrived waiting;        // somebody has taken the handle before its bytes came
    absl::Time waiting_since;
    int64_t budget_bytes = 0;
  };
  absl::Status CheckUnused(uint64_t handle);
  void Complete(uint64_t handle, absl::StatusOr<base::HostBytes> bytes);

  const std::shared_ptr<base::HostMemoryPool> pool_;
  const std::shared_ptr<HostBufferBudget> budget_;
  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_HOST_BUFFERS_H_
