#ifndef HELMWAY_BASE_HOST_MEMORY_H_
#define HELMWAY_BASE_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "helmway/base/mutex.h"

namespace helmway::base {

// Alignment of every block, in bytes. The CPU plugin aliases host memory only from this alignment on.
inline constexpr size_t kHostMemoryAlignment = 64;

// Read-only bytes with whatever keeps them alive. Copying shares the bytes. Immutable; any thread.
struct HostBytes {
  std::shared_ptr<const void> owner;
  const uint8_t* data = nullptr;
  int64_t size = 0;
  // True if nobody but the holder of this value reads or writes the bytes, so that they may be handed over
  // for writing (a device buffer that is donated later).
  bool exclusive = false;
};

// A writable block of host memory, 64-byte aligned, given back to its pool when the last owner drops it.
// Contents start undefined.
struct HostBlock {
  std::shared_ptr<void> owner;
  uint8_t* data = nullptr;
  int64_t size = 0;

  // Gives the block away as bytes that only the receiver uses.
  HostBytes Finish() && {
    HostBytes bytes{owner, data, size, /*exclusive=*/true};
    owner.reset();
    return bytes;
  }
};

// Recycles large blocks: the first touch of fresh pages costs more than the copy that fills them (measured:
// about 3x). Blocks come in power-of-two classes from 64 KiB on; smaller ones are plain allocations.
// At most `max_cached_bytes` lie idle; what is beyond goes back to the system. Any thread. Blocks may
// outlive the pool.
class HostMemoryPool {
 public:
  explicit HostMemoryPool(int64_t max_cached_bytes);
  ~HostMemoryPool();

  // RESOURCE_EXHAUSTED if the system has no memory for it (for a large block: none that it could also use),
  // INVALID_ARGUMENT for a negative size.
  absl::StatusOr<HostBlock> Allocate(int64_t size_bytes);

  int64_t cached_bytes() const;

 private:
  struct Cache;
  std::shared_ptr<Cache> cache_;
};

}  // namespace helmway::base

#endif  // HELMWAY_BASE_HOST_MEMORY_H_
