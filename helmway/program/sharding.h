#ifndef HELMWAY_PROGRAM_SHARDING_H_
#define HELMWAY_PROGRAM_SHARDING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::program {

// The part of a global array that one shard holds. Both vectors have the rank of the array. Elements.
struct IndexDomain {
  std::vector<int64_t> origin;
  std::vector<int64_t> shape;

  friend bool operator==(const IndexDomain& a, const IndexDomain& b) {
    return a.origin == b.origin && a.shape == b.shape;
  }
};

// How a global array is split over a list of devices, and in which memory of them it lies.
//
// Position i of devices() holds shard i. Device ids are whatever ids the maker uses (a client's session ids
// when parsed from the wire). A memory kind is the client's name of it; none (never an empty string) means
// the default kind of the devices. Devices are at least one, unique and not negative.
//
// Immutable: any thread. All validation happens when a Sharding is made; the number of shards, the tiles and
// the place of every shard are computed once, so ShardShape and IndexDomains only do arithmetic on the given
// dims.
//
// Sources: the payloads of ShardingProto in wire/ifrt_types.proto; OpSharding in wire/xla_data.proto.
class Sharding {
 public:
  enum class Kind {
    kHlo,           // An XLA OpSharding; positions in devices() are its device numbers.
    kSingleDevice,  // The whole array on one device.
    kConcreteEven,  // Known only for one global shape: every shard has the same shape.
    kConcrete,      // Known only for one global shape: a shape per shard.
    kOpaque,        // Only the devices are known.
  };

  // INVALID_ARGUMENT: bytes that do not parse or contradict themselves. UNIMPLEMENTED: an unknown or
  // unsupported type name, format version or form of sharding (named).
  static absl::StatusOr<std::shared_ptr<const Sharding>> Parse(const xla::ifrt::ShardingProto& proto);

  // INVALID_ARGUMENT for negative or repeated ids, or none. An empty memory kind is the default kind.
  static absl::StatusOr<std::shared_ptr<const Sharding>> SingleDevice(
      int32_t device_id, std::optional<absl::string_view> memory_kind);
  static absl::StatusOr<std::shared_ptr<const Sharding>> Replicated(
      absl::Span<const int32_t> devices, std::optional<absl::string_view> memory_kind);
  // Supports REPLICATED (also an empty message), MAXIMAL, OTHER (explicit and iota device order, replicas on
  // the last tile dimension, last_tile_dims), MANUAL and UNREDUCED. TUPLE, UNKNOWN and named shardings:
  // UNIMPLEMENTED.
  static absl::StatusOr<std::shared_ptr<const Sharding>> FromOpSharding(
      absl::Span<const int32_t> devices, const xla::OpSharding& op_sharding,
      std::optional<absl::string_view> memory_kind);
  // `dims` is the only global shape that the result answers for.
  static absl::StatusOr<std::shared_ptr<const Sharding>> ConcreteEven(
      absl::Span<const int32_t> devices, absl::Span<const int64_t> dims, absl::Span<const int64_t> shard_dims,
      bool is_fully_replicated, std::optional<absl::string_view> memory_kind);
  // One element of `shard_dims` per device.
  static absl::StatusOr<std::shared_ptr<const Sharding>> Concrete(
      absl::Span<const int32_t> devices, absl::Span<const int64_t> dims,
      std::vector<std::vector<int64_t>> shard_dims, std::optional<absl::string_view> memory_kind);
  static absl::StatusOr<std::shared_ptr<const Sharding>> Opaque(absl::Span<const int32_t> devices,
                                                                std::optional<absl::string_view> memory_kind);

  Kind kind() const { return kind_; }
  absl::Span<const int32_t> devices() const { return devices_; }
  int64_t num_shards() const { return static_cast<int64_t>(devices_.size()); }
  const std::optional<std::string>& memory_kind() const { return memory_kind_; }

  // Every device holds the whole array. True for any kHlo sharding over one device; false when unknown.
  bool IsFullyReplicated() const { return fully_replicated_; }
  // One device in the list, of whatever kind.
  bool IsSingleDevice() const { return devices_.size() == 1; }

  // Whether positions that hold the same part of the array (IndexDomains) hold the same values. False for
  // MANUAL and UNREDUCED, for MAXIMAL over several devices, and where IndexDomains cannot tell the parts.
  bool ReplicasAgree() const;

  // The XLA form, without metadata and never a named sharding (those become tiles, which clients accept):
  // what was parsed for kHlo, an empty (replicated) message for other kinds.
  const xla::OpSharding& op_sharding() const { return op_sharding_; }

  // Dims of a full shard: dimension / tiles, rounded up, as XLA does; the shape of every shard when the
  // dimensions divide evenly. INVALID_ARGUMENT when `dims` do not fit this sharding (rank, negative, or not
  // the dims of a concrete sharding), when a kConcrete sharding has shards of several shapes, and for
  // kOpaque.
  absl::StatusOr<std::vector<int64_t>> ShardShape(absl::Span<const int64_t> dims) const;

  // Dims of the shard at one position of devices(): those of ShardShape, less where the array ends (down to
  // 0). Also answers for kConcrete. OUT_OF_RANGE for a position that does not exist.
  absl::StatusOr<std::vector<int64_t>> ShardShapeAt(absl::Span<const int64_t> dims, int64_t position) const;

  // What each position of devices() holds, in that order. Shards past the end of a dimension are empty and
  // start at its end. Replicated, MAXIMAL, MANUAL and UNREDUCED: the whole array everywhere. INVALID_ARGUMENT
  // as ShardShape, and where a concrete sharding does not say (more than one device and not fully
  // replicated).
  absl::StatusOr<std::vector<IndexDomain>> IndexDomains(absl::Span<const int64_t> dims) const;

  // The global dims whose shards have `shard_dims`, if all shards are full. INVALID_ARGUMENT for a rank that
  // does not fit or an overflow; of a concrete sharding, its dims.
  absl::StatusOr<std::vector<int64_t>> GlobalShape(absl::Span<const int64_t> shard_dims) const;

  // The same partitioning elsewhere, in the terms of CopyArrays: nullopt = unchanged; an empty memory kind =
  // the default kind. INVALID_ARGUMENT unless there are as many devices as before.
  absl::StatusOr<std::shared_ptr<const Sharding>> WithDevicesAndMemoryKind(
      std::optional<absl::Span<const int32_t>> devices, std::optional<absl::string_view> memory_kind) const;

  // Encode and Parse are inverse but for OpSharding metadata (of which only how unreduced shards are to be
  // combined is kept) and an explicit empty memory kind.
  xla::ifrt::ShardingProto Encode() const;

  // Same kind, devices, memory kind and placement of shards. Two spellings of one device order are equal.
  friend bool operator==(const Sharding& a, const Sharding& b);
  friend bool operator!=(const Sharding& a, const Sharding& b) { return !(a == b); }

  // For messages and logs.
  std::string DebugString() const;

 private:
  Sharding() = default;

  static absl::StatusOr<std::shared_ptr<Sharding>> Make(Kind kind, absl::Span<const int32_t> devices,
                                                        std::optional<absl::string_view> memory_kind);
  absl::Status SetOpSharding(const xla::OpSharding& op_sharding);
  absl::Status SetTiles(const xla::OpSharding& op_sharding);
  absl::Status CheckDims(absl::Span<const int64_t> dims) const;

  Kind kind_ = Kind::kOpaque;
  std::vector<int32_t> devices_;
  std::optional<std::string> memory_kind_;
  bool fully_replicated_ = false;

  // kHlo. tiles_: tiles per data dimension; empty when every device holds the whole array, whatever its rank.
  // tile_of_position_: which tile (row-major number) each position of devices_ holds; as long as devices_ if
  // tiles_ is not empty.
  xla::OpSharding op_sharding_;
  std::vector<int64_t> tiles_;
  std::vector<int32_t> tile_of_position_;
  std::vector<std::pair<xla::OpSharding::Type, int64_t>> subgroups_;  // Kind and size of the other tile dims.

  // kConcreteEven and kConcrete. shard_dims_ has one element for kConcreteEven.
  std::vector<int64_t> dims_;
  std::vector<std::vector<int64_t>> shard_dims_;
};

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_SHARDING_H_
