#ifndef HELMWAY_STORAGE_STORE_H_
#define HELMWAY_STORAGE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace helmway::storage {

struct ObjectInfo {
  std::string name;  // below the store's location, parts joined by '/'
  int64_t size_bytes = 0;
  absl::Time updated;
};

enum class PutMode {
  kCreate,   // ALREADY_EXISTS if there is an object of that name, whatever its contents
  kReplace,  // takes the place of an object of that name
};

// Objects by name below one location: a directory, a prefix of a bucket, or memory. A reader sees a whole
// object or none, whatever happens to the writer. Calls block, for as long as retries may take; any thread.
//
// Names are relative: parts of visible characters joined by single '/', none of them "." or "..", none
// starting with ".helmway-tmp-". INVALID_ARGUMENT for others.
//
// Errors: NOT_FOUND (no such object), ALREADY_EXISTS (kCreate), OUT_OF_RANGE (a range behind the end),
// PERMISSION_DENIED (also read-only file systems), RESOURCE_EXHAUSTED (no space left, or an object above the
// limit), UNAUTHENTICATED (no usable credentials), UNAVAILABLE and DEADLINE_EXCEEDED (the service did not
// answer in time; calls were repeated as the retry policy says), DATA_LOSS (the bytes are not those that the
// service says they are).
class Store {
 public:
  virtual ~Store() = default;

  // As a person writes it: "gs://bucket/prefix", "/directory", "memory://".
  virtual const std::string& location() const = 0;

  virtual absl::StatusOr<std::string> Get(absl::string_view name) = 0;
  // `length` bytes from `offset`, fewer where the object ends before.
  virtual absl::StatusOr<std::string> GetRange(absl::string_view name, int64_t offset, int64_t length) = 0;
  virtual absl::Status Put(absl::string_view name, absl::string_view bytes, PutMode mode) = 0;
  // The objects whose names start with `prefix`, sorted by name; the first `limit` of them. Empty where the
  // location itself does not exist.
  virtual absl::StatusOr<std::vector<ObjectInfo>> List(absl::string_view prefix, size_t limit) = 0;
  // NOT_FOUND if there is none.
  virtual absl::Status Delete(absl::string_view name) = 0;
  // Removes what writers that died before `before` left behind. Does nothing where nothing can be left.
  virtual absl::Status RemoveUnfinished(absl::Time before) = 0;
};

// INVALID_ARGUMENT unless `name` is one that a store takes.
absl::Status CheckObjectName(absl::string_view name);

struct Location {
  enum class Kind { kLocal, kGcs, kMemory };
  Kind kind = Kind::kMemory;
  std::string bucket;  // kGcs only
  std::string
      path;  // kLocal: absolute, without a slash at its end. kGcs: the prefix, without slashes at its ends

  // The location `name` below this one.
  Location Below(absl::string_view name) const;
  std::string ToString() const;
};

// "/directory", "file:///directory", "gs://bucket[/prefix]" or "memory://"; INVALID_ARGUMENT says what is
// wrong.
absl::StatusOr<Location> ParseLocation(absl::string_view text);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_STORE_H_
