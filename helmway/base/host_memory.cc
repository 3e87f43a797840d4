#include "helmway/base/host_memory.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/available_memory.h"

namespace helmway::base {
namespace {

constexpr int64_t kSmallestPooled = 64 << 10;
// Above this size a class is a multiple of 1/8 of the power of two below it, so that at most 1/8 is wasted.
constexpr int64_t kLargestPooled = int64_t{4} << 30;

int64_t ClassSize(int64_t size) {
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
  const int64_t step = power / 8;
  return (size + step - 1) / step * step;
}

}  // namespace

struct HostMemoryPool::Cache {
  explicit Cache(int64_t limit) : max_bytes(limit) {}
  ~Cache() {
    for (auto& [size, blocks] : idle) {
      for (void* block : blocks) munmap(block, static_cast<size_t>(size));
    }
  }

  void* Take(int64_t size) {
    MutexLock lock(&mu);
    auto it = idle.find(size);
    if (it == idle.end() || it->second.empty()) return nullptr;
    void* block = it->second.back();
    it->second.pop_back();
    bytes -= size;
    return block;
  }

  // True if the block was kept.
  bool Give(void* block, int64_t size) {
    MutexLock lock(&mu);
    if (bytes + size > max_bytes) return false;
    idle[size].push_back(block);
    bytes += size;
    return true;
  }

  const int64_t max_bytes;
  mutable Mutex mu;
  int64_t bytes ABSL_GUARDED_BY(mu) = 0;
  std::map<int64_t, std::vector<void*>> idle ABSL_GUARDED_BY(mu);
};

HostMemoryPool::HostMemoryPool(int64_t max_cached_bytes)
    : cache_(std::make_shared<Cache>(max_cached_bytes)) {}
HostMemoryPool::~HostMemoryPool() = default;

int64_t HostMemoryPool::cached_bytes() const {
  MutexLock lock(&cache_->mu);
  return cache_->bytes;
}

absl::StatusOr<HostBlock> HostMemoryPool::Allocate(int64_t size_bytes) {
  if (size_bytes < 0) return absl::InvalidArgumentError(absl::StrCat("negative buffer size ", size_bytes));
  auto exhausted = [&] {
    return absl::ResourceExhaustedError(
        absl::StrCat("no host memory for a buffer of ", size_bytes, " bytes"));
  };
  HostBlock block;
  block.size = size_bytes;
  if (size_bytes < kSmallestPooled) {
    const size_t rounded = (static_cast<size_t>(size_bytes) + kHostMemoryAlignment - 1) /
                           kHostMemoryAlignment * kHostMemoryAlignment;
    void* memory = std::aligned_alloc(kHostMemoryAlignment, std::max(rounded, kHostMemoryAlignment));
    if (memory == nullptr) return exhausted();
    block.owner = std::shared_ptr<void>(memory, [](void* p) { std::free(p); });
    block.data = static_cast<uint8_t*>(memory);
    return block;
  }
  const bool pooled = size_bytes <= kLargestPooled;
  const int64_t mapped = pooled ? ClassSize(size_bytes) : size_bytes;
  void* memory = pooled ? cache_->Take(mapped) : nullptr;
  if (memory == nullptr) {
    if (mapped >= kLargeAllocationBytes && mapped > AvailableMemoryBytes()) return exhausted();
    memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (memory == MAP_FAILED) return exhausted();
    if (mapped >= (4 << 20)) madvise(memory, static_cast<size_t>(mapped), MADV_HUGEPAGE);
  }
  block.owner = std::shared_ptr<void>(memory, [cache = cache_, mapped, pooled](void* p) {
    if (!pooled || !cache->Give(p, mapped)) munmap(p, static_cast<size_t>(mapped));
  });
  block.data = static_cast<uint8_t*>(memory);
  return block;
}

}  // namespace helmway::base
