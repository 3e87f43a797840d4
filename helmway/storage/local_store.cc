#include "helmway/storage/local_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"

namespace helmway::storage {
namespace {

// Deeper than any of our names; also the end of a loop of bind mounts.
constexpr int kMaxDepth = 32;

absl::Status Failed(int error, absl::string_view what, absl::string_view path) {
  const absl::Status plain = absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(plain.message());
    case EROFS:
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(plain.message());
    case ENOENT:
      return absl::NotFoundError(plain.message());
    default:
      return absl::Status(
          plain.code() == absl::StatusCode::kUnknown ? absl::StatusCode::kUnavailable : plain.code(),
          plain.message());
  }
}

// Makes `directory` and those above it. NOT_FOUND becomes FAILED_PRECONDITION: it is not an object that is
// missing.
absl::Status MakeDirectories(const std::string& directory) {
  for (size_t end = directory.find('/', 1);; end = directory.find('/', end + 1)) {
    const std::string part = directory.substr(0, end);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST && errno != EISDIR) {
      // A directory that is there may refuse the attempt with another error (a read-only file system).
      const int error = errno;
      struct stat info;
      if (stat(part.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
        const absl::Status status = Failed(error, "can't make the directory", part);
        return absl::IsNotFound(status) ? absl::FailedPreconditionError(status.message()) : status;
      }
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed(errno, "can't open", directory);
  // Some file systems have nothing to bring to a disk and say EINVAL.
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  if (result != 0 && error != EINVAL) return Failed(error, "can't sync", directory);
  return absl::OkStatus();
}

// Calls `visit(name, path, info)` for each regular file; names are relative to the start. Errors below the
// first directory leave things out.
template <typename Visit>
absl::Status Walk(const std::string& directory, const std::string& relative, int depth, const Visit& visit) {
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) return Failed(errno, "can't list", directory);
  absl::Cleanup close_stream = [stream] { closedir(stream); };
  while (const dirent* entry = readdir(stream)) {
    const absl::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string path = absl::StrCat(directory == "/" ? "" : directory, "/", name);
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) continue;
    const std::string below = relative.empty() ? std::string(name) : absl::StrCat(relative, "/", name);
    if (S_ISDIR(info.st_mode)) {
      if (depth < kMaxDepth) Walk(path, below, depth + 1, visit).IgnoreError();
    } else if (S_ISREG(info.st_mode)) {
      visit(below, path, info);
    }
  }
  return absl::OkStatus();
}

bool IsTemporary(absl::string_view name) {
  return absl::StartsWith(name.substr(name.rfind('/') + 1), kTemporaryPrefix);
}

}  // namespace

LocalStore::LocalStore(std::string directory) : directory_(std::move(directory)) {}

std::string LocalStore::PathOf(absl::string_view name) const {
  return absl::StrCat(directory_ == "/" ? "" : directory_, "/", name);
}

absl::StatusOr<std::string> LocalStore::Get(absl::string_view name) {
  return GetRange(name, 0, std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::string> LocalStore::GetRange(absl::string_view name, int64_t offset, int64_t length) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  if (offset < 0 || length < 0) return absl::InvalidArgumentError("negative offset or length");
  const std::string path = PathOf(name);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    // A file where a directory would have to be: no such object either.
    if (errno == ENOTDIR) return absl::NotFoundError(absl::StrCat("can't open ", path));
    return Failed(errno, "can't open", path);
  }
  absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return Failed(errno, "can't read", path);
  if (!S_ISREG(info.st_mode)) return absl::NotFoundError(absl::StrCat(path, " is no file"));
  if (offset > info.st_size || (offset == info.st_size && offset > 0)) {
    return absl::OutOfRangeError(absl::StrCat(path, " has ", info.st_size, " bytes"));
  }
  std::string bytes;
  bytes.resize(static_cast<size_t>(std::min<int64_t>(length, info.st_size - offset)));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(fd, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(errno, "can't read", path);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

absl::Status LocalStore::Put(absl::string_view name, absl::string_view bytes, PutMode mode) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  const std::string path = PathOf(name);
  if (mode == PutMode::kCreate && access(path.c_str(), F_OK) == 0) return absl::AlreadyExistsError(path);
  const std::string directory = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  HELMWAY_RETURN_IF_ERROR(MakeDirectories(directory));
  const std::string temporary = absl::StrCat(directory == "/" ? "" : directory, "/", kTemporaryPrefix,
                                             absl::Hex(base::UnguessableId(), absl::kZeroPad16));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Failed(errno, "can't create", temporary);
  // After a rename there is nothing of that name.
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  absl::Status written;
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      written = Failed(errno, "can't write", temporary);
      break;
    }
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  if (written.ok() && fsync(fd) != 0) written = Failed(errno, "can't sync", temporary);
  if (close(fd) != 0 && written.ok()) written = Failed(errno, "can't close", temporary);
  HELMWAY_RETURN_IF_ERROR(written);
  const int result = mode == PutMode::kCreate ? link(temporary.c_str(), path.c_str())
                                              : rename(temporary.c_str(), path.c_str());
  if (result != 0) {
    if (errno == EEXIST) return absl::AlreadyExistsError(path);
    return Failed(errno, "can't publish", path);
  }
  return SyncDirectory(directory);
}

absl::StatusOr<std::vector<ObjectInfo>> LocalStore::List(absl::string_view prefix, size_t limit) {
  std::vector<ObjectInfo> found;
  const absl::Status status =
      Walk(directory_, "", 0, [&](const std::string& name, const std::string&, const struct stat& info) {
        if (!absl::StartsWith(name, prefix) || IsTemporary(name)) return;
        found.push_back({name, info.st_size, absl::TimeFromTimespec(info.st_mtim)});
      });
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (found.size() > limit) found.resize(limit);
  return found;
}

absl::Status LocalStore::Delete(absl::string_view name) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  const std::string path = PathOf(name);
  if (unlink(path.c_str()) != 0) return Failed(errno, "can't delete", path);
  return absl::OkStatus();
}

absl::Status LocalStore::RemoveUnfinished(absl::Time before) {
  absl::Status outcome;
  const absl::Status status =
      Walk(directory_, "", 0, [&](const std::string& name, const std::string& path, const struct stat& info) {
        if (!IsTemporary(name) || absl::TimeFromTimespec(info.st_mtim) >= before) return;
        if (unlink(path.c_str()) != 0 && errno != ENOENT) outcome = Failed(errno, "can't delete", path);
      });
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  return outcome;
}

}  // namespace helmway::storage
