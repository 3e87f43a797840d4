#include "helmway/cache/compile_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/cache/key.h"
#include "helmway/storage/memory_store.h"

namespace helmway::cache {
namespace {

constexpr char kPlugin[] = "plugin";

std::string Key(int number) { return Sha256(absl::StrCat(number)); }

Entry EntryOf(const std::string& code) {
  Entry entry;
  entry.executable = code;
  entry.program.name = "jit_f";
  return entry;
}

// A store whose faults the test decides.
class FaultyStore final : public storage::Store {
 public:
  const std::string& location() const override { return inner_.location(); }
  absl::StatusOr<std::string> Get(absl::string_view name) override {
    ++gets;
    if (!get_fault.ok()) return get_fault;
    return inner_.Get(name);
  }
  absl::StatusOr<std::string> GetRange(absl::string_view name, int64_t offset, int64_t length) override {
    return inner_.GetRange(name, offset, length);
  }
  absl::Status Put(absl::string_view name, absl::string_view bytes, storage::PutMode mode) override {
    ++puts;
    return put_fault.ok() ? inner_.Put(name, bytes, mode) : put_fault;
  }
  absl::StatusOr<std::vector<storage::ObjectInfo>> List(absl::string_view prefix, size_t limit) override {
    return inner_.List(prefix, limit);
  }
  absl::Status Delete(absl::string_view name) override {
    return delete_fault.ok() ? inner_.Delete(name) : delete_fault;
  }
  absl::Status RemoveUnfinished(absl::Time) override { return absl::OkStatus(); }

  absl::Status get_fault;
  absl::Status put_fault;
  absl::Status delete_fault;
  std::atomic<int> gets{0};
  std::atomic<int> puts{0};

 private:
  storage::MemoryStore inner_;
};

void Make(CompileCache& cache, int number, const std::string& code) {
  CompileCache::Lease lease = cache.Acquire(Key(number), kPlugin);
  ASSERT_EQ(lease.entry(), nullptr);
  lease.Publish(EntryOf(code));
}

std::string Code(CompileCache& cache, int number) {
  const CompileCache::Lease lease = cache.Acquire(Key(number), kPlugin);
  return lease.entry() == nullptr ? "" : lease.entry()->executable;
}

TEST(CompileCacheTest, KeepsInMemory) {
  CompileCache cache({});
  Make(cache, 1, "one");
  EXPECT_EQ(Code(cache, 1), "one");
  EXPECT_EQ(Code(cache, 2), "");
  EXPECT_EQ(cache.stats().memory_hits, 1);
  EXPECT_EQ(cache.stats().misses, 2);
  EXPECT_FALSE(cache.persists());
}

TEST(CompileCacheTest, DropsTheLeastRecentlyUsed) {
  const int64_t size = EntryOf(std::string(1000, 'x')).size_bytes();
  CompileCache cache({.max_memory_bytes = 2 * size});
  Make(cache, 1, std::string(1000, '1'));
  Make(cache, 2, std::string(1000, '2'));
  EXPECT_NE(Code(cache, 1), "");
  Make(cache, 3, std::string(1000, '3'));
  EXPECT_NE(Code(cache, 1), "");
  EXPECT_EQ(Code(cache, 2), "");
  EXPECT_NE(Code(cache, 3), "");
  EXPECT_EQ(cache.stats().memory_bytes, 2 * size);
  EXPECT_EQ(cache.stats().memory_entries, 2);
  Make(cache, 4, std::string(10000, '4'));
  EXPECT_EQ(Code(cache, 4), "") << "larger than all the memory";
}

TEST(CompileCacheTest, OutlivesTheProcessInAStore) {
  const auto store = std::make_shared<storage::MemoryStore>();
  {
    CompileCache cache({.store = store});
    EXPECT_TRUE(cache.persists());
    Make(cache, 1, "one");
  }
  EXPECT_TRUE(store->Get(absl::StrCat("v1/", Key(1).substr(0, 2), "/", Key(1))).ok());
  CompileCache cache({.store = store});
  EXPECT_EQ(Code(cache, 1), "one");
  EXPECT_EQ(Code(cache, 1), "one");
  EXPECT_EQ(cache.stats().store_hits, 1);
  EXPECT_EQ(cache.stats().memory_hits, 1);
  EXPECT_EQ(cache.stats().misses, 0);
}

TEST(CompileCacheTest, OneCompilesAndTheOthersWait) {
  CompileCache cache({});
  std::atomic<int> compiled{0};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      CompileCache::Lease lease = cache.Acquire(Key(1), kPlugin);
      if (lease.entry() == nullptr) {
        ++compiled;
        lease.Publish(EntryOf("one"));
      } else if (lease.entry()->executable == "one") {
        ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(right, 7);
}

TEST(CompileCacheTest, IfOneFailsTheNextTries) {
  CompileCache cache({});
  std::thread other;
  {
    const CompileCache::Lease lease = cache.Acquire(Key(1), kPlugin);
    ASSERT_EQ(lease.entry(), nullptr);
    other = std::thread([&cache] { Make(cache, 1, "one"); });
    while (cache.stats().waits == 0) std::this_thread::yield();
  }
  other.join();
  EXPECT_EQ(Code(cache, 1), "one");
}

TEST(CompileCacheTest, DamagedAndForeignEntriesAreReplaced) {
  const auto store = std::make_shared<storage::MemoryStore>();
  const std::string whole = EncodeEntry(Key(1), kPlugin, EntryOf("one"));
  for (const std::string& bad : {std::string(), std::string("nonsense"), whole.substr(0, whole.size() / 2),
                                 EncodeEntry(Key(2), kPlugin, EntryOf("other key")),
                                 EncodeEntry(Key(1), "plugin 2", EntryOf("other"))}) {
    ASSERT_TRUE(store->Put(EntryName(Key(1)), bad, storage::PutMode::kReplace).ok());
    {
      CompileCache cache({.store = store});
      Make(cache, 1, "one");
      EXPECT_EQ(cache.stats().rejected, 1);
    }
    EXPECT_EQ(store->Get(EntryName(Key(1))).value_or(""), whole);
  }
}

TEST(CompileCacheTest, AnEntryThatDoesNotLoadIsReplaced) {
  const auto store = std::make_shared<storage::MemoryStore>();
  {
    CompileCache cache({.store = store});
    Make(cache, 1, "bad");
  }
  {
    CompileCache cache({.store = store});
    CompileCache::Lease lease = cache.Acquire(Key(1), kPlugin);
    ASSERT_NE(lease.entry(), nullptr);
    lease.Reject(absl::InternalError("does not load"));
    EXPECT_EQ(lease.entry(), nullptr);
    lease.Publish(EntryOf("good"));
  }
  CompileCache cache({.store = store});
  EXPECT_EQ(Code(cache, 1), "good");
}

TEST(CompileCacheTest, ABadEntryThatMayNotBeDeletedStaysAndHarmsNobody) {
  const auto store = std::make_shared<FaultyStore>();
  store->delete_fault = absl::PermissionDeniedError("no delete");
  ASSERT_TRUE(store->Put(EntryName(Key(1)), "nonsense", storage::PutMode::kCreate).ok());
  CompileCache cache({.store = store});
  Make(cache, 1, "one");
  EXPECT_EQ(Code(cache, 1), "one");
}

TEST(CompileCacheTest, AStoreThatFailsIsLeftAlone) {
  const auto store = std::make_shared<FaultyStore>();
  store->get_fault = absl::UnavailableError("down");
  store->put_fault = absl::ResourceExhaustedError("full");
  {
    CompileCache cache({.store = store});
    for (int number = 0; number < 10; ++number) Make(cache, number, "x");
    EXPECT_EQ(Code(cache, 3), "x");
    EXPECT_EQ(store->gets, 1);
  }
  EXPECT_EQ(store->puts, 1);
}

TEST(CompileCacheTest, WhatIsMissingIsNoFaultOfTheStore) {
  const auto store = std::make_shared<FaultyStore>();
  CompileCache cache({.store = store});
  for (int number = 0; number < 5; ++number) EXPECT_EQ(Code(cache, number), "");
  EXPECT_EQ(store->gets, 5);
}

TEST(BreakerTest, WaitsLongerAfterEachFailure) {
  Breaker breaker;
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_TRUE(breaker.Allows(now));
  EXPECT_FALSE(breaker.Succeeded());
  EXPECT_TRUE(breaker.Failed(now));
  EXPECT_FALSE(breaker.Allows(now + absl::Seconds(29)));
  now += absl::Seconds(30);
  EXPECT_TRUE(breaker.Allows(now));
  EXPECT_FALSE(breaker.Failed(now)) << "told already";
  EXPECT_FALSE(breaker.Allows(now + absl::Seconds(59)));
  EXPECT_TRUE(breaker.Allows(now + absl::Seconds(60)));
  for (int i = 0; i < 20; ++i) breaker.Failed(now);
  EXPECT_TRUE(breaker.Allows(now + absl::Minutes(10)));
  EXPECT_TRUE(breaker.Succeeded());
  EXPECT_TRUE(breaker.Allows(now));
}

}  // namespace
}  // namespace helmway::cache
