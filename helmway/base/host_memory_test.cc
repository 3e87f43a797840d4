#include "helmway/base/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "helmway/base/available_memory.h"

namespace helmway::base {
namespace {

TEST(HostMemoryPool, BlocksAreAlignedAndWritable) {
  HostMemoryPool pool(1 << 20);
  for (int64_t size : {0, 1, 63, 64, 65, 4096, 65535, 65536, 1000000}) {
    auto block = pool.Allocate(size);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data) % kHostMemoryAlignment, 0u) << size;
    EXPECT_EQ(block->size, size);
    std::memset(block->data, 7, static_cast<size_t>(size));
  }
}

TEST(HostMemoryPool, KeepsLargeBlocksUpToItsLimit) {
  HostMemoryPool pool(1 << 20);
  { auto block = pool.Allocate(1 << 19); }
  EXPECT_EQ(pool.cached_bytes(), 1 << 19);
  uint8_t* first = nullptr;
  {
    auto block = pool.Allocate(1 << 19);
    first = block->data;
    EXPECT_EQ(pool.cached_bytes(), 0);
  }
  {
    auto again = pool.Allocate(1 << 19);
    EXPECT_EQ(again->data, first);
    auto other = pool.Allocate(1 << 20);
    ASSERT_TRUE(other.ok());
  }
  EXPECT_LE(pool.cached_bytes(), 1 << 20);
}

TEST(HostMemoryPool, BlocksOutliveThePool) {
  HostBytes bytes;
  {
    HostMemoryPool pool(1 << 20);
    auto block = pool.Allocate(1 << 18);
    std::memset(block->data, 3, 1 << 18);
    bytes = std::move(*block).Finish();
  }
  EXPECT_EQ(bytes.data[(1 << 18) - 1], 3);
  EXPECT_TRUE(bytes.exclusive);
}

TEST(HostMemoryPool, RefusesWhatCannotBe) {
  HostMemoryPool pool(0);
  EXPECT_EQ(pool.Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  // The system would give this one out.
  EXPECT_EQ(pool.Allocate(AvailableMemoryBytes() + (int64_t{1} << 30)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.Allocate(int64_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace helmway::base
