#ifndef HELMWAY_BASE_AVAILABLE_MEMORY_H_
#define HELMWAY_BASE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace helmway::base {

// From this size on an allocation is worth a look at what is left first (some 0.1 ms): Linux gives out more
// memory than there is, and ends a process that then uses it.
inline constexpr int64_t kLargeAllocationBytes = int64_t{256} << 20;

// Where Linux says it; other places are for tests.
struct MemoryFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// Bytes that this process may still use: what the machine has free or can free at once, and no more than its
// control group and the groups above leave (both versions of control groups). INT64_MAX where nothing says
// so.
int64_t AvailableMemoryBytes(const MemoryFiles& files = {});

// Gives what the C library keeps of freed memory back to the system. Takes some milliseconds for each
// gigabyte.
void ReturnFreeMemory();

}  // namespace helmway::base

#endif  // HELMWAY_BASE_AVAILABLE_MEMORY_H_
