#include "helmway/cache/compile_cache.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace helmway::cache {
namespace {

constexpr size_t kMaxQueuedWrites = 256;
constexpr int64_t kMaxQueuedBytes = int64_t{1} << 30;

// Whether a failure is one of the store as a whole and not of this object.
bool IsOfTheStore(const absl::Status& status) {
  return !status.ok() && !absl::IsNotFound(status) && !absl::IsAlreadyExists(status) &&
         !absl::IsDataLoss(status);
}

}  // namespace

std::string EntryName(absl::string_view key) { return absl::StrCat("v1/", key.substr(0, 2), "/", key); }

storage::RetryPolicy CacheRetryPolicy() {
  return {.max_attempts = 4,
          .first_delay = absl::Milliseconds(100),
          .max_delay = absl::Seconds(2),
          .budget = absl::Seconds(20),
          .attempt_timeout = absl::Seconds(10)};
}

CompileCache::CompileCache(CompileCacheOptions options) : options_(std::move(options)) {
  if (options_.store == nullptr) return;
  writer_ = std::make_unique<async::ThreadPool>(
      async::ThreadPool::Options{.name = "cache-writer", .threads = 1, .max_queued = kMaxQueuedWrites});
}

CompileCache::~CompileCache() {
  writer_.reset();
  Flush(absl::InfinitePast());
}

void CompileCache::Flush(absl::Time deadline) const {
  {
    const auto is_empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return queued_bytes_ == 0; };
    base::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&is_empty), deadline - absl::Now());
  }
  const CompileCacheStats end = stats();
  LOG(INFO) << "Compile cache: " << end.memory_hits << " hits in memory, " << end.store_hits << " in "
            << (options_.store == nullptr ? "no store" : options_.store->location()) << ", " << end.misses
            << " misses, " << end.rejected << " rejected, " << end.published << " published, "
            << end.not_published << " not published";
}

CompileCacheStats CompileCache::stats() const {
  base::MutexLock lock(&mu_);
  CompileCacheStats stats = stats_;
  stats.memory_entries = static_cast<int64_t>(slots_.size());
  return stats;
}

CompileCache::Lease CompileCache::Acquire(const std::string& key, const std::string& plugin) {
  {
    base::MutexLock lock(&mu_);
    const auto is_free = [this, &key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !leased_.contains(key); };
    if (!is_free()) {
      ++stats_.waits;
      mu_.Await(absl::Condition(&is_free));
    }
    if (const auto it = slots_.find(key); it != slots_.end()) {
      by_use_.splice(by_use_.end(), by_use_, it->second.place);
      ++stats_.memory_hits;
      // Many may load it at once; nobody waits for this one.
      return Lease(this, /*leased=*/false, key, plugin, it->second.entry);
    }
    leased_.insert(key);
  }
  // From here on the lease must be given back whatever happens.
  Lease lease(this, /*leased=*/true, key, plugin, nullptr);
  if (options_.store != nullptr) {
    lease.entry_ = ReadStore(key, plugin);
    lease.stored_ = lease.entry_ != nullptr;
  }
  base::MutexLock lock(&mu_);
  ++(lease.entry_ != nullptr ? stats_.store_hits : stats_.misses);
  return lease;
}

void CompileCache::Release(const std::string& key) {
  base::MutexLock lock(&mu_);
  leased_.erase(key);
}

void CompileCache::Remember(const std::string& key, std::shared_ptr<const Entry> entry) {
  const int64_t size = entry->size_bytes();
  std::list<std::shared_ptr<const Entry>> dropped;  // freed outside the lock
  base::MutexLock lock(&mu_);
  if (size > options_.max_memory_bytes || slots_.contains(key)) return;
  while (stats_.memory_bytes + size > options_.max_memory_bytes && !by_use_.empty()) {
    const auto oldest = slots_.find(by_use_.front());
    stats_.memory_bytes -= oldest->second.entry->size_bytes();
    dropped.push_back(std::move(oldest->second.entry));
    slots_.erase(oldest);
    by_use_.pop_front();
  }
  stats_.memory_bytes += size;
  slots_[key] = Slot{std::move(entry), by_use_.insert(by_use_.end(), key)};
}

void CompileCache::Forget(const std::string& key) {
  base::MutexLock lock(&mu_);
  const auto it = slots_.find(key);
  if (it == slots_.end()) return;
  stats_.memory_bytes -= it->second.entry->size_bytes();
  by_use_.erase(it->second.place);
  slots_.erase(it);
}

std::shared_ptr<const Entry> CompileCache::ReadStore(const std::string& key, const std::string& plugin) {
  {
    base::MutexLock lock(&mu_);
    if (!reads_.Allows(absl::Now())) return nullptr;
  }
  const absl::StatusOr<std::string> bytes = options_.store->Get(EntryName(key));
  {
    base::MutexLock lock(&mu_);
    if (IsOfTheStore(bytes.status())) {
      if (reads_.Failed(absl::Now())) {
        LOG(WARNING) << "The compile cache at " << options_.store->location()
                     << " can't be read; programs are compiled: " << bytes.status();
      }
    } else if (reads_.Succeeded()) {
      LOG(INFO) << "The compile cache at " << options_.store->location() << " can be read again";
    }
  }
  if (!bytes.ok()) {
    if (absl::IsDataLoss(bytes.status())) Reject(key, bytes.status(), /*was_stored=*/true);
    return nullptr;
  }
  absl::StatusOr<Entry> entry = DecodeEntry(*bytes, key, plugin);
  if (!entry.ok()) {
    Reject(key, entry.status(), /*was_stored=*/true);
    return nullptr;
  }
  auto shared = std::make_shared<const Entry>(*std::move(entry));
  Remember(key, shared);
  return shared;
}

void CompileCache::Reject(const std::string& key, const absl::Status& why, bool was_stored) {
  {
    base::MutexLock lock(&mu_);
    ++stats_.rejected;
  }
  LOG(WARNING) << "Compile cache: the entry " << key
               << " is of no use, its program is compiled anew: " << why;
  if (!was_stored || options_.store == nullptr) return;
  // So that a good one can take its place. A bucket may not allow it.
  const absl::Status deleted = options_.store->Delete(EntryName(key));
  if (!deleted.ok() && !absl::IsNotFound(deleted)) LOG(WARNING) << "It stays where it is: " << deleted;
}

void CompileCache::WriteStore(const std::string& key, const std::string& plugin,
                              std::shared_ptr<const Entry> entry) {
  if (options_.store == nullptr) return;
  const int64_t size = entry->size_bytes();
  {
    base::MutexLock lock(&mu_);
    if (!writes_.Allows(absl::Now()) || queued_bytes_ + size > kMaxQueuedBytes) {
      ++stats_.not_published;
      return;
    }
    queued_bytes_ += size;
  }
  auto write = [this, key, plugin, entry = std::move(entry), size] {
    WriteNow(key, plugin, *entry);
    base::MutexLock lock(&mu_);
    queued_bytes_ -= size;
  };
  if (writer_->Post(std::move(write))) return;
  base::MutexLock lock(&mu_);
  queued_bytes_ -= size;
  ++stats_.not_published;
}

void CompileCache::WriteNow(const std::string& key, const std::string& plugin, const Entry& entry) {
  {
    base::MutexLock lock(&mu_);
    if (!writes_.Allows(absl::Now())) {
      ++stats_.not_published;
      return;
    }
  }
  const absl::Status status =
      options_.store->Put(EntryName(key), EncodeEntry(key, plugin, entry), storage::PutMode::kCreate);
  base::MutexLock lock(&mu_);
  // Somebody else of the cluster may have been faster.
  const bool stored = status.ok() || absl::IsAlreadyExists(status);
  ++(stored ? stats_.published : stats_.not_published);
  if (IsOfTheStore(status)) {
    if (writes_.Failed(absl::Now())) {
      LOG(WARNING) << "The compile cache at " << options_.store->location()
                   << " can't be written; compiled programs are kept in memory only: " << status;
    }
  } else if (writes_.Succeeded()) {
    LOG(INFO) << "The compile cache at " << options_.store->location() << " can be written again";
  }
}

void CompileCache::Lease::Reject(const absl::Status& why) {
  {
    base::MutexLock lock(&cache_->mu_);
    --(leased_ ? cache_->stats_.store_hits : cache_->stats_.memory_hits);
    ++cache_->stats_.misses;
  }
  cache_->Forget(key_);
  cache_->Reject(key_, why, stored_);
  entry_ = nullptr;
}

void CompileCache::Lease::Publish(Entry entry) {
  auto shared = std::make_shared<const Entry>(std::move(entry));
  cache_->Remember(key_, shared);
  if (std::exchange(leased_, false)) cache_->Release(key_);
  cache_->WriteStore(key_, plugin_, std::move(shared));
}

}  // namespace helmway::cache
