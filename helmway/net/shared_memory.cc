#include "helmway/net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"

namespace helmway::net {
namespace {

// In /proc/PID/fd a memfd is a link to "/memfd:" and its name.
constexpr char kLinkPrefix[] = "/memfd:helmway-";
// Pages are taken from the system in steps of this.
constexpr int64_t kReserveStep = 8 << 20;

// What lies in a lane's page. The receiver writes all but the token.
struct LanePage {
  uint64_t token;
  std::atomic<uint32_t> accepted;
  // Ids that were given back, in a ring, of which `given` were written since the beginning.
  alignas(64) std::atomic<uint64_t> given;
  static constexpr uint64_t kRing = 4096;  // more than can be under way, so that it never runs over
  std::atomic<uint64_t> ring[kRing];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the page is shared between processes");
constexpr size_t kMaxShared = LanePage::kRing / 2;

LanePage* PageOf(const SharedMapping& mapping) { return reinterpret_cast<LanePage*>(mapping.data()); }

std::string ErrorText() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMapping>> SharedMapping::Create(const char* name, int64_t size) {
  const int fd = memfd_create(absl::StrCat("helmway-", name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("no memory to share: ", ErrorText()));
  void* data = MAP_FAILED;
  if (ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    data =
        mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (data == MAP_FAILED) {
    const std::string why = ErrorText();
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat("no ", size, " bytes of memory to share: ", why));
  }
  return std::unique_ptr<SharedMapping>(new SharedMapping(fd, static_cast<uint8_t*>(data), size));
}

absl::StatusOr<std::unique_ptr<SharedMapping>> SharedMapping::Open(int64_t process, int64_t fd, int64_t size,
                                                                   bool writable) {
  const std::string path = absl::StrCat("/proc/", process, "/fd/", fd);
  auto failed = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("memory of process ", process, ": ", why));
  };
  // Before it is opened, which for a device or a pipe would have effects.
  char link[64];
  const ssize_t length = readlink(path.c_str(), link, sizeof(link));
  if (length < 0) return failed(ErrorText());
  if (!absl::StartsWith(absl::string_view(link, static_cast<size_t>(length)), kLinkPrefix)) {
    return failed("not memory to share");
  }
  const int own = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
  if (own < 0) return failed(ErrorText());
  struct stat about;
  void* data = MAP_FAILED;
  std::string why = "not of the size that was offered, or it could shrink";
  const int seals = fcntl(own, F_GET_SEALS);
  if (size > 0 && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(own, &about) == 0 &&
      about.st_size == size) {
    data =
        mmap(nullptr, static_cast<size_t>(size), PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, own, 0);
    if (data == MAP_FAILED) why = ErrorText();
  }
  close(own);
  if (data == MAP_FAILED) return failed(why);
  return std::unique_ptr<SharedMapping>(new SharedMapping(-1, static_cast<uint8_t*>(data), size));
}

SharedMapping::~SharedMapping() {
  munmap(data_, static_cast<size_t>(size_));
  if (fd_ >= 0) close(fd_);
}

absl::Status SharedMapping::Reserve(int64_t begin, int64_t size) {
  int error;
  do {
    error = fallocate(fd_, 0, begin, size) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", size, " bytes more of memory to share: ", std::strerror(error)));
  }
  // Only quicker than to find them one by one.
  madvise(data_ + begin, static_cast<size_t>(size), MADV_POPULATE_WRITE);
  return absl::OkStatus();
}

// ---- The arena -------------------------------------------------------------------------------------------

SharedArena::SharedArena(std::unique_ptr<SharedMapping> mapping) : mapping_(std::move(mapping)) {
  free_[0] = mapping_->size();
}

absl::StatusOr<std::shared_ptr<SharedArena>> SharedArena::Create(int64_t capacity) {
  HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<SharedMapping> mapping, SharedMapping::Create("arena", capacity));
  return std::shared_ptr<SharedArena>(new SharedArena(std::move(mapping)));
}

std::optional<base::HostBlock> SharedArena::Allocate(int64_t size) {
  constexpr int64_t kAlignment = base::kHostMemoryAlignment;
  if (size <= 0 || size > mapping_->size()) return std::nullopt;
  const int64_t taken = (size + kAlignment - 1) / kAlignment * kAlignment;
  int64_t offset;
  {
    base::MutexLock lock(&mu_);
    if (retired() || !status_.ok()) return std::nullopt;
    // The first that fits: what was used before lies at the beginning.
    const auto it =
        std::find_if(free_.begin(), free_.end(), [&](const auto& gap) { return gap.second >= taken; });
    if (it == free_.end()) return std::nullopt;
    offset = it->first;
    if (offset + taken > reserved_) {
      const int64_t more =
          std::min((offset + taken - reserved_ + kReserveStep - 1) / kReserveStep * kReserveStep,
                   mapping_->size() - reserved_);
      status_ = mapping_->Reserve(reserved_, more);
      if (!status_.ok()) return std::nullopt;
      reserved_ += more;
    }
    const int64_t rest = it->second - taken;
    free_.erase(it);
    if (rest > 0) free_[offset + taken] = rest;
  }
  base::HostBlock block;
  block.data = mapping_->data() + offset;
  block.size = size;
  block.owner = std::shared_ptr<void>(
      block.data, [self = shared_from_this(), offset, taken](void*) { self->Free(offset, taken); });
  return block;
}

void SharedArena::Free(int64_t offset, int64_t size) {
  base::MutexLock lock(&mu_);
  if (retired()) return;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

std::optional<int64_t> SharedArena::OffsetOf(const uint8_t* data) const {
  const auto begin = reinterpret_cast<uintptr_t>(mapping_->data());
  const auto at = reinterpret_cast<uintptr_t>(data);
  if (at < begin || at >= begin + static_cast<uintptr_t>(mapping_->size())) return std::nullopt;
  return static_cast<int64_t>(at - begin);
}

void SharedArena::Retire() {
  base::MutexLock lock(&mu_);
  retired_.store(true, std::memory_order_relaxed);
}

absl::Status SharedArena::status() const {
  base::MutexLock lock(&mu_);
  return status_;
}

// ---- The sender's end of a lane --------------------------------------------------------------------------

LaneSender::LaneSender(std::shared_ptr<SharedArena> arena, std::unique_ptr<SharedMapping> page,
                       uint64_t token)
    : arena_(std::move(arena)), page_(std::move(page)), token_(token) {}

absl::StatusOr<std::unique_ptr<LaneSender>> LaneSender::Create(std::shared_ptr<SharedArena> arena) {
  HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<SharedMapping> page,
                           SharedMapping::Create("lane", static_cast<int64_t>(sizeof(LanePage))));
  HELMWAY_RETURN_IF_ERROR(page->Reserve(0, page->size()));
  const uint64_t token = base::UnguessableId();
  PageOf(*page)->token = token;
  return std::unique_ptr<LaneSender>(new LaneSender(std::move(arena), std::move(page), token));
}

LaneSender::~LaneSender() {
  base::MutexLock lock(&mu_);
  CollectLocked();
  if (!shared_.empty()) arena_->Retire();
}

LaneOffer LaneSender::offer() const {
  return {getpid(), arena_->mapping().fd(), arena_->mapping().size(), page_->fd(), token_};
}

bool LaneSender::accepted() const { return PageOf(*page_)->accepted.load(std::memory_order_acquire) != 0; }

std::optional<LaneBytes> LaneSender::Share(const base::HostBytes& bytes) {
  const std::optional<int64_t> offset = arena_->OffsetOf(bytes.data);
  if (!offset || !accepted()) return std::nullopt;
  base::MutexLock lock(&mu_);
  CollectLocked();
  if (shared_.size() >= kMaxShared) return std::nullopt;
  const uint64_t id = next_++;
  shared_.emplace(id, bytes);
  return LaneBytes{id, *offset, bytes.size};
}

void LaneSender::Collect() {
  base::MutexLock lock(&mu_);
  CollectLocked();
}

void LaneSender::CollectLocked() {
  LanePage& page = *PageOf(*page_);
  const uint64_t given = page.given.load(std::memory_order_acquire);
  // A receiver that breaks the rules only harms itself.
  if (given - collected_ > LanePage::kRing) return;
  for (; collected_ != given && !shared_.empty(); ++collected_) {
    shared_.erase(page.ring[collected_ % LanePage::kRing].load(std::memory_order_relaxed));
  }
}

// ---- The receiver's end ----------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<LaneReceiver>> LaneReceiver::Open(const LaneOffer& offer) {
  HELMWAY_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMapping> page,
      SharedMapping::Open(offer.process, offer.lane_fd, static_cast<int64_t>(sizeof(LanePage)), true));
  // Before the arena: another process of that number has other pages.
  if (PageOf(*page)->token != offer.token) {
    return absl::FailedPreconditionError(absl::StrCat("process ", offer.process, " is another one here"));
  }
  HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<SharedMapping> arena,
                           SharedMapping::Open(offer.process, offer.arena_fd, offer.arena_size, false));
  auto lane = std::shared_ptr<LaneReceiver>(new LaneReceiver(std::move(arena), std::move(page)));
  PageOf(*lane->page_)->accepted.store(1, std::memory_order_release);
  return lane;
}

absl::StatusOr<base::HostBytes> LaneReceiver::Take(const LaneBytes& bytes) {
  if (bytes.id == 0 || bytes.offset < 0 || bytes.size < 0 || bytes.offset > arena_->size() ||
      bytes.size > arena_->size() - bytes.offset) {
    return absl::InvalidArgumentError("bytes outside the memory that is shared");
  }
  base::HostBytes taken;
  taken.data = arena_->data() + bytes.offset;
  taken.size = bytes.size;
  taken.owner = std::shared_ptr<const void>(
      taken.data, [self = shared_from_this(), id = bytes.id](const void*) { self->GiveBack(id); });
  return taken;
}

void LaneReceiver::GiveBack(uint64_t id) {
  LanePage& page = *PageOf(*page_);
  base::MutexLock lock(&mu_);
  const uint64_t given = page.given.load(std::memory_order_relaxed);
  page.ring[given % LanePage::kRing].store(id, std::memory_order_relaxed);
  page.given.store(given + 1, std::memory_order_release);
}

}  // namespace helmway::net
