#ifndef HELMWAY_ARRAY_ARRAY_H_
#define HELMWAY_ARRAY_ARRAY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "helmway/array/shards.h"
#include "helmway/base/ref_counted.h"
#include "helmway/program/layout.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::array {

using DType = xla::ifrt::DTypeProto::Kind;

// What an array is, apart from its contents. A value; cheap to copy.
struct ArraySpec {
  DType dtype = xla::ifrt::DTypeProto::KIND_UNSPECIFIED;
  absl::InlinedVector<int64_t, 6> dims;  // global, elements
  std::shared_ptr<const program::Sharding> sharding;
  std::optional<program::Layout> layout;  // of a shard; absent = row-major
};

// Whether shards of both arrays, of equal rank, lie alike in their memory: order of dimensions and tiles.
inline bool HaveSameLayout(const ArraySpec& a, const ArraySpec& b) {
  const program::Layout standard = program::Layout::Default(static_cast<int>(a.dims.size()));
  const program::Layout& of_a = a.layout ? *a.layout : standard;
  const program::Layout& of_b = b.layout ? *b.layout : standard;
  return of_a.minor_to_major() == of_b.minor_to_major() && of_a.tiles() == of_b.tiles();
}

// Whether a shard of these dims lies in memory as the layout says.
inline bool IsPlaced(const ArraySpec& spec, const program::Layout& layout, absl::Span<const int64_t> dims) {
  if (spec.layout) return spec.layout->PlacesLike(layout, dims);
  if (layout.IsDescending() && layout.tiles().empty()) return true;
  return program::Layout::Default(static_cast<int>(dims.size())).PlacesLike(layout, dims);
}

// Whether bytes that a client sends have come.
struct Arrival {
  bool here = false;
};

// What a client's array handle stands for: a spec and a share in buffers, or the error that every use of the
// handle meets. Deleting, donating and failing keep the handle; only its destruction forgets it.
// Guarded by its session.
class Array final : public base::RefCounted<Array> {
 public:
  Array(std::shared_ptr<const ArraySpec> array_spec, Shards array_shards)
      : spec_(std::move(array_spec)), shards_(std::move(array_shards)) {}
  explicit Array(absl::Status error) : error_(std::move(error)) {}

  // OK if the array may be used: it neither failed where it was made, nor was it deleted or donated.
  const absl::Status& status() const { return error_; }
  bool deleted() const { return deleted_; }

  // Only while status() is OK.
  const ArraySpec& spec() const { return *spec_; }
  const std::shared_ptr<const ArraySpec>& shared_spec() const { return spec_; }
  const Shards& shards() const { return shards_; }

  // Gives the share in the buffers up; later uses fail.
  void Delete() {
    shards_.Reset();
    if (!error_.ok()) return;
    deleted_ = true;
    error_ = absl::InvalidArgumentError("Array has been deleted or donated.");
  }

  // Host bytes that the contents depend on and that were not here when the array was made.
  const std::vector<std::shared_ptr<const Arrival>>& arrivals() const { return arrivals_; }
  void AddArrivals(const std::vector<std::shared_ptr<const Arrival>>& arrivals) {
    for (const auto& arrival : arrivals) {
      if (!arrival->here) arrivals_.push_back(arrival);
    }
  }

 private:
  std::shared_ptr<const ArraySpec> spec_;
  Shards shards_;
  absl::Status error_;
  bool deleted_ = false;
  std::vector<std::shared_ptr<const Arrival>> arrivals_;
};

using ArrayRef = base::Ref<Array>;

}  // namespace helmway::array

#endif  // HELMWAY_ARRAY_ARRAY_H_
