#ifndef HELMWAY_NET_SHARED_MEMORY_H_
#define HELMWAY_NET_SHARED_MEMORY_H_

// Memory by which a process gives bytes to others on its host without sending them.
//
// The sender has one arena. Each receiver maps it for reading, is told where bytes lie by an ordinary
// message, and says when it is done with them in a small page that the two share (the lane's). Both are
// memfds, which have no name in any file system and go with the last process that maps them, however it ends.
// A receiver opens them through /proc/PID/fd of the sender; that fails, and nothing else happens, where it
// sees other processes or other users: in another container, on another host.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"

namespace helmway::net {

// A memfd that is mapped here and cannot shrink.
class SharedMapping {
 public:
  // RESOURCE_EXHAUSTED: the system gives no such memory, or no file descriptor. Pages are taken when they are
  // first used.
  static absl::StatusOr<std::unique_ptr<SharedMapping>> Create(const char* name, int64_t size);
  // Maps that of another process. FAILED_PRECONDITION: it cannot be reached, or is not what Create made.
  static absl::StatusOr<std::unique_ptr<SharedMapping>> Open(int64_t process, int64_t fd, int64_t size,
                                                             bool writable);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  // Takes the pages up to `size` now, so that using them cannot fail. RESOURCE_EXHAUSTED: there are none.
  absl::Status Reserve(int64_t begin, int64_t size);

  uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }  // of what was created here

 private:
  SharedMapping(int fd, uint8_t* data, int64_t size) : fd_(fd), data_(data), size_(size) {}
  const int fd_;
  uint8_t* const data_;
  const int64_t size_;
};

// The sender's memory. Any thread. Blocks keep it alive.
class SharedArena : public std::enable_shared_from_this<SharedArena> {
 public:
  // At most `capacity` bytes; what is in use at most at one time stays taken from the system.
  static absl::StatusOr<std::shared_ptr<SharedArena>> Create(int64_t capacity);

  // A block, 64-byte aligned, free again when its last owner drops it. Null: there is no room now, or never
  // will be (see status).
  std::optional<base::HostBlock> Allocate(int64_t size);
  // Where a block of this arena that is in use begins; null for other memory.
  std::optional<int64_t> OffsetOf(const uint8_t* data) const;

  // Nothing is given out or used again: somebody who cannot be asked may still read it.
  void Retire();
  bool retired() const { return retired_.load(std::memory_order_relaxed); }
  // Why it gives out no more, if the system had no memory for it.
  absl::Status status() const;

  const SharedMapping& mapping() const { return *mapping_; }

 private:
  explicit SharedArena(std::unique_ptr<SharedMapping> mapping);
  void Free(int64_t offset, int64_t size);

  const std::unique_ptr<SharedMapping> mapping_;
  std::atomic<bool> retired_{false};
  mutable base::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  int64_t reserved_ ABSL_GUARDED_BY(mu_) = 0;             // bytes from the beginning
  std::map<int64_t, int64_t> free_ ABSL_GUARDED_BY(mu_);  // by offset: bytes; no two that touch
};

// What a receiver must know to open a lane. Numbers of the sender's process.
struct LaneOffer {
  int64_t process = 0;
  int64_t arena_fd = 0;
  int64_t arena_size = 0;
  int64_t lane_fd = 0;
  uint64_t token = 0;  // in the lane's page: a number that nobody guesses
};

// The bytes that a message means.
struct LaneBytes {
  uint64_t id = 0;  // of this use; never 0
  int64_t offset = 0;
  int64_t size = 0;
};

// The way from an arena to one receiver. Any thread.
class LaneSender {
 public:
  static absl::StatusOr<std::unique_ptr<LaneSender>> Create(std::shared_ptr<SharedArena> arena);
  // If the receiver has not given everything back, the arena is retired.
  ~LaneSender();

  LaneOffer offer() const;
  // Whether the receiver has opened it.
  bool accepted() const;
  const std::shared_ptr<SharedArena>& arena() const { return arena_; }

  // Keeps bytes of the arena until the receiver gives them back; they must not be written any more. Null:
  // they are no bytes of the arena, or the receiver has not opened the lane, or has too much to give back.
  std::optional<LaneBytes> Share(const base::HostBytes& bytes);
  // Drops what the receiver has given back, which Share does too.
  void Collect();

 private:
  LaneSender(std::shared_ptr<SharedArena> arena, std::unique_ptr<SharedMapping> page, uint64_t token);
  void CollectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<SharedArena> arena_;
  const std::unique_ptr<SharedMapping> page_;
  const uint64_t token_;
  base::Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t collected_ ABSL_GUARDED_BY(mu_) = 0;  // entries of the page's ring
  absl::flat_hash_map<uint64_t, base::HostBytes> shared_ ABSL_GUARDED_BY(mu_);
};

// The receiver's end. Any thread. Bytes keep it alive.
class LaneReceiver : public std::enable_shared_from_this<LaneReceiver> {
 public:
  // As SharedMapping::Open.
  static absl::StatusOr<std::shared_ptr<LaneReceiver>> Open(const LaneOffer& offer);

  // Bytes that the sender leaves as they are until their last owner drops them. INVALID_ARGUMENT: there are
  // none.
  absl::StatusOr<base::HostBytes> Take(const LaneBytes& bytes);

 private:
  LaneReceiver(std::unique_ptr<SharedMapping> arena, std::unique_ptr<SharedMapping> page)
      : arena_(std::move(arena)), page_(std::move(page)) {}
  void GiveBack(uint64_t id);

  const std::unique_ptr<SharedMapping> arena_, page_;
  base::Mutex mu_;  // gives ids back one after the other
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_SHARED_MEMORY_H_
