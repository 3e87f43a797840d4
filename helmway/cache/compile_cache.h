#ifndef HELMWAY_CACHE_COMPILE_CACHE_H_
#define HELMWAY_CACHE_COMPILE_CACHE_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cache/breaker.h"
#include "helmway/cache/entry.h"
#include "helmway/storage/retry.h"
#include "helmway/storage/store.h"

namespace helmway::cache {

// Below a scratch location.
inline constexpr absl::string_view kCacheDirectory = "helmway-cache";

// The name of an entry in a store at <scratch location>/helmway-cache.
std::string EntryName(absl::string_view key);

// How to open stores for a cache: nobody shall wait long for it.
storage::RetryPolicy CacheRetryPolicy();

struct CompileCacheOptions {
  int64_t max_memory_bytes = int64_t{512} << 20;
  // Where entries persist; null: nowhere.
  std::shared_ptr<storage::Store> store;
};

// What has happened since the cache was made.
struct CompileCacheStats {
  int64_t memory_hits = 0;
  int64_t store_hits = 0;
  int64_t misses = 0;     // the caller compiled
  int64_t rejected = 0;   // entries that were damaged, foreign, or did not load
  int64_t waits = 0;      // for somebody who compiled the same
  int64_t published = 0;  // to the store
  int64_t not_published = 0;
  int64_t memory_bytes = 0;
  int64_t memory_entries = 0;
};

// Compiled programs by key. Any thread.
class CompileCache {
 public:
  class Lease;

  explicit CompileCache(CompileCacheOptions options);
  // Writes what still waits to be written, unless the store has failed. No lease may be left.
  ~CompileCache();

  // The entry of `key`, from memory or from the store, or the task to make it: only one lease of a key is out
  // at a time, others wait for it. `plugin`: whose entries are wanted.
  Lease Acquire(const std::string& key, const std::string& plugin);

  // Whether entries outlive this cache.
  bool persists() const { return options_.store != nullptr; }

  CompileCacheStats stats() const;

  // Waits until nothing waits to be written, or the time has come, and logs what has happened until now.
  void Flush(absl::Time deadline) const;

 private:
  struct Slot {
    std::shared_ptr<const Entry> entry;
    std::list<std::string>::iterator place;
  };

  void Release(const std::string& key);
  void Remember(const std::string& key, std::shared_ptr<const Entry> entry);
  void Forget(const std::string& key);
  std::shared_ptr<const Entry> ReadStore(const std::string& key, const std::string& plugin);
  void WriteStore(const std::string& key, const std::string& plugin, std::shared_ptr<const Entry> entry);
  void WriteNow(const std::string& key, const std::string& plugin, const Entry& entry);
  void Reject(const std::string& key, const absl::Status& why, bool was_stored);

  const CompileCacheOptions options_;
  mutable base::Mutex mu_;
  absl::flat_hash_set<std::string> leased_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::list<std::string> by_use_ ABSL_GUARDED_BY(mu_);  // the least recently used first
  CompileCacheStats stats_ ABSL_GUARDED_BY(mu_);
  Breaker reads_ ABSL_GUARDED_BY(mu_);
  Breaker writes_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<async::ThreadPool> writer_;
};

// The right to an entry, or the task to make it. Other callers for the same key wait until the lease ends.
// One thread.
class CompileCache::Lease {
 public:
  Lease(Lease&& other) noexcept
      : cache_(other.cache_),
        leased_(std::exchange(other.leased_, false)),
        key_(std::move(other.key_)),
        plugin_(std::move(other.plugin_)),
        entry_(std::move(other.entry_)),
        stored_(other.stored_) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (leased_) cache_->Release(key_);
  }

  // Null: to be compiled.
  const std::shared_ptr<const Entry>& entry() const { return entry_; }
  // The entry is of no use, e.g. does not load: it is dropped, and the caller compiles.
  void Reject(const absl::Status& why);
  // What the caller has compiled. The key may then be acquired by others, though the lease still exists.
  void Publish(Entry entry);

 private:
  friend class CompileCache;
  Lease(CompileCache* cache, bool leased, std::string key, std::string plugin,
        std::shared_ptr<const Entry> entry)
      : cache_(cache),
        leased_(leased),
        key_(std::move(key)),
        plugin_(std::move(plugin)),
        entry_(std::move(entry)) {}

  CompileCache* cache_;
  bool leased_;  // others wait for the end of this
  std::string key_;
  std::string plugin_;
  std::shared_ptr<const Entry> entry_;
  bool stored_ = false;  // the store has an object of that name
};

}  // namespace helmway::cache

#endif  // HELMWAY_CACHE_COMPILE_CACHE_H_
