#ifndef HELMWAY_STORAGE_LOCAL_STORE_H_
#define HELMWAY_STORAGE_LOCAL_STORE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "helmway/storage/store.h"

namespace helmway::storage {

// Files that are being written have names that start with this. They are no objects.
inline constexpr absl::string_view kTemporaryPrefix = ".helmway-tmp-";

// A directory. It and the directories below it are made when the first object is put. An object is written to
// a temporary file beside it, brought to the disk, and then given its name, so a writer that dies leaves at
// most a temporary file. Works on any file system with hard links (kCreate) and rename (kReplace).
class LocalStore final : public Store {
 public:
  // `directory`: an absolute path.
  explicit LocalStore(std::string directory);

  const std::string& location() const override { return directory_; }
  absl::StatusOr<std::string> Get(absl::string_view name) override;
  absl::StatusOr<std::string> GetRange(absl::string_view name, int64_t offset, int64_t length) override;
  absl::Status Put(absl::string_view name, absl::string_view bytes, PutMode mode) override;
  // Files that vanish or can't be looked at while the directory is read are left out.
  absl::StatusOr<std::vector<ObjectInfo>> List(absl::string_view prefix, size_t limit) override;
  absl::Status Delete(absl::string_view name) override;
  absl::Status RemoveUnfinished(absl::Time before) override;

 private:
  std::string PathOf(absl::string_view name) const;

  const std::string directory_;
};

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_LOCAL_STORE_H_
