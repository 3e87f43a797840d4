#include "helmway/program/sharding.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/status.h"
#include "helmway/program/iota_order.h"
#include "helmway/program/named_sharding.h"
#include "helmway/program/strides.h"
#include "helmway/wire/serialized.h"

namespace helmway::program {
namespace {

using ::xla::OpSharding;

// A tile dimension per data dimension, and some for subgroups.
constexpr int kMaxTileRank = kMaxRank + 8;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Sharding: ", text));
}

absl::Status CheckVersion(int32_t version, absl::string_view what) {
  if (version == 0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("Sharding: format version ", version, " of ", what, " (version 0 is supported)"));
}

template <typename Payload>
absl::StatusOr<Payload> ParsePayload(const xla::ifrt::Serialized& serialized) {
  auto payload = wire::ParseSerialized<Payload>(serialized, serialized.type_name());
  if (!payload.ok()) return base::Annotate(payload.status(), "Sharding");
  HELMWAY_RETURN_IF_ERROR(CheckVersion(payload->version_number(), serialized.type_name()));
  return payload;
}

absl::StatusOr<absl::Span<const int32_t>> DeviceIds(const xla::ifrt::DeviceListProto& list) {
  HELMWAY_RETURN_IF_ERROR(CheckVersion(list.version_number(), "a device list"));
  return absl::Span<const int32_t>(list.device_ids().data(), list.device_ids_size());
}

absl::StatusOr<absl::Span<const int64_t>> Dims(const xla::ifrt::ShapeProto& shape) {
  HELMWAY_RETURN_IF_ERROR(CheckVersion(shape.version_number(), "a shape"));
  return absl::Span<const int64_t>(shape.dims().data(), shape.dims_size());
}

template <typename Payload>
std::optional<absl::string_view> MemoryKind(const Payload& payload) {
  if (!payload.has_memory_kind()) return std::nullopt;
  return absl::string_view(payload.memory_kind());
}

absl::Status CheckShape(absl::Span<const int64_t> dims) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    return Bad(absl::StrCat("a shape of ", dims.size(), " dimensions (at most ", kMaxRank, ")"));
  }
  for (int64_t dim : dims) {
    if (dim < 0) return Bad(absl::StrCat("dimension of size ", dim));
  }
  return absl::OkStatus();
}

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// min(a * b, limit), without overflow; a, b, limit >= 0.
int64_t ClampedProduct(int64_t a, int64_t b, int64_t limit) {
  if (a == 0 || b == 0) return 0;
  return a > limit / b ? limit : a * b;
}

absl::string_view KindName(Sharding::Kind kind) {
  switch (kind) {
    case Sharding::Kind::kHlo:
      return wire::kHloSharding;
    case Sharding::Kind::kSingleDevice:
      return wire::kSingleDeviceSharding;
    case Sharding::Kind::kConcreteEven:
      return wire::kConcreteEvenSharding;
    case Sharding::Kind::kConcrete:
      return wire::kConcreteSharding;
    case Sharding::Kind::kOpaque:
      return wire::kOpaqueSharding;
  }
  return "unknown";
}

std::string ShapeText(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Sharding>> Sharding::Make(Kind kind, absl::Span<const int32_t> devices,
                                                         std::optional<absl::string_view> memory_kind) {
  if (devices.empty()) return Bad("no devices");
  std::vector<int32_t> sorted(devices.begin(), devices.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0) return Bad(absl::StrCat("device id ", sorted.front()));
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    return Bad(absl::StrCat("device ", *twice, " is listed twice"));
  }
  std::shared_ptr<Sharding> result(new Sharding());
  result->kind_ = kind;
  result->devices_.assign(devices.begin(), devices.end());
  if (memory_kind.has_value() && !memory_kind->empty()) result->memory_kind_ = std::string(*memory_kind);
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::SingleDevice(
    int32_t device_id, std::optional<absl::string_view> memory_kind) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result,
                           Make(Kind::kSingleDevice, {device_id}, memory_kind));
  result->fully_replicated_ = true;
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::Replicated(
    absl::Span<const int32_t> devices, std::optional<absl::string_view> memory_kind) {
  return FromOpSharding(devices, OpSharding(), memory_kind);
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::FromOpSharding(
    absl::Span<const int32_t> devices, const OpSharding& op_sharding,
    std::optional<absl::string_view> memory_kind) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result, Make(Kind::kHlo, devices, memory_kind));
  HELMWAY_RETURN_IF_ERROR(result->SetOpSharding(op_sharding));
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::ConcreteEven(
    absl::Span<const int32_t> devices, absl::Span<const int64_t> dims, absl::Span<const int64_t> shard_dims,
    bool is_fully_replicated, std::optional<absl::string_view> memory_kind) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result, Make(Kind::kConcreteEven, devices, memory_kind));
  HELMWAY_RETURN_IF_ERROR(CheckShape(dims));
  HELMWAY_RETURN_IF_ERROR(CheckShape(shard_dims));
  if (is_fully_replicated && dims != shard_dims) {
    return Bad(absl::StrCat("fully replicated, but shards of ", ShapeText(shard_dims), " of an array of ",
                            ShapeText(dims)));
  }
  result->dims_.assign(dims.begin(), dims.end());
  result->shard_dims_.emplace_back(shard_dims.begin(), shard_dims.end());
  result->fully_replicated_ = is_fully_replicated || (devices.size() == 1 && dims == shard_dims);
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::Concrete(
    absl::Span<const int32_t> devices, absl::Span<const int64_t> dims,
    std::vector<std::vector<int64_t>> shard_dims, std::optional<absl::string_view> memory_kind) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result, Make(Kind::kConcrete, devices, memory_kind));
  HELMWAY_RETURN_IF_ERROR(CheckShape(dims));
  if (shard_dims.size() != devices.size()) {
    return Bad(absl::StrCat(shard_dims.size(), " shard shapes for ", devices.size(), " devices"));
  }
  for (const std::vector<int64_t>& shard : shard_dims) HELMWAY_RETURN_IF_ERROR(CheckShape(shard));
  result->dims_.assign(dims.begin(), dims.end());
  result->shard_dims_ = std::move(shard_dims);
  result->fully_replicated_ = devices.size() == 1 && result->shard_dims_[0] == result->dims_;
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::Opaque(
    absl::Span<const int32_t> devices, std::optional<absl::string_view> memory_kind) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result, Make(Kind::kOpaque, devices, memory_kind));
  return result;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::Parse(const xla::ifrt::ShardingProto& proto) {
  const xla::ifrt::Serialized& serialized = proto.serialized_sharding();
  const std::string& name = serialized.type_name();
  if (name == wire::kHloSharding) {
    HELMWAY_ASSIGN_OR_RETURN(auto payload, ParsePayload<xla::ifrt::HloShardingProto>(serialized));
    HELMWAY_ASSIGN_OR_RETURN(auto devices, DeviceIds(payload.devices()));
    return FromOpSharding(devices, payload.xla_op_sharding(), MemoryKind(payload));
  }
  if (name == wire::kSingleDeviceSharding) {
    HELMWAY_ASSIGN_OR_RETURN(auto payload, ParsePayload<xla::ifrt::SingleDeviceShardingProto>(serialized));
    return SingleDevice(payload.device_id(), MemoryKind(payload));
  }
  if (name == wire::kConcreteEvenSharding) {
    HELMWAY_ASSIGN_OR_RETURN(auto payload, ParsePayload<xla::ifrt::ConcreteEvenShardingProto>(serialized));
    HELMWAY_ASSIGN_OR_RETURN(auto devices, DeviceIds(payload.devices()));
    HELMWAY_ASSIGN_OR_RETURN(auto dims, Dims(payload.shape()));
    HELMWAY_ASSIGN_OR_RETURN(auto shard_dims, Dims(payload.shard_shape()));
    return ConcreteEven(devices, dims, shard_dims, payload.is_fully_replicated(), MemoryKind(payload));
  }
  if (name == wire::kConcreteSharding) {
    HELMWAY_ASSIGN_OR_RETURN(auto payload, ParsePayload<xla::ifrt::ConcreteShardingProto>(serialized));
    if (payload.has_dynamic_shape() || payload.shard_dynamic_shapes_size() != 0) {
      return absl::UnimplementedError("Sharding: ConcreteSharding with dynamic shapes");
    }
    HELMWAY_ASSIGN_OR_RETURN(auto devices, DeviceIds(payload.devices()));
    HELMWAY_ASSIGN_OR_RETURN(auto dims, Dims(payload.shape()));
    std::vector<std::vector<int64_t>> shards;
    shards.reserve(payload.shard_shapes_size());
    for (const auto& shape : payload.shard_shapes()) {
      HELMWAY_ASSIGN_OR_RETURN(auto shard_dims, Dims(shape));
      shards.emplace_back(shard_dims.begin(), shard_dims.end());
    }
    return Concrete(devices, dims, std::move(shards), MemoryKind(payload));
  }
  if (name == wire::kOpaqueSharding) {
    HELMWAY_ASSIGN_OR_RETURN(auto payload, ParsePayload<xla::ifrt::OpaqueShardingProto>(serialized));
    HELMWAY_ASSIGN_OR_RETURN(auto devices, DeviceIds(payload.devices()));
    return Opaque(devices, MemoryKind(payload));
  }
  if (name.empty()) return Bad("it has no type name");
  return absl::UnimplementedError(absl::StrCat("Sharding: type '", name, "' is not supported"));
}

absl::Status Sharding::SetOpSharding(const OpSharding& op_sharding) {
  if (op_sharding.has_named_sharding()) {
    HELMWAY_ASSIGN_OR_RETURN(op_sharding_, NamedToTiled(op_sharding.named_sharding(), num_shards()));
  } else {
    op_sharding_ = op_sharding;
  }
  // Of the metadata only this tells anything of the array.
  SetReduction(ReductionOf(op_sharding_), op_sharding_);
  switch (op_sharding_.type()) {
    case OpSharding::REPLICATED:
      fully_replicated_ = true;
      return absl::OkStatus();
    case OpSharding::MAXIMAL:
      if (op_sharding_.tile_assignment_devices_size() > 1 ||
          (op_sharding_.tile_assignment_devices_size() == 1 &&
           (op_sharding_.tile_assignment_devices(0) < 0 ||
            op_sharding_.tile_assignment_devices(0) >= num_shards()))) {
        return Bad("MAXIMAL does not name one of its devices");
      }
      break;
    case OpSharding::MANUAL:
    case OpSharding::UNREDUCED:
      break;
    case OpSharding::OTHER:
      HELMWAY_RETURN_IF_ERROR(SetTiles(op_sharding_));
      break;
    case OpSharding::TUPLE:
      return absl::UnimplementedError(
          "Sharding: OpSharding of type TUPLE (one sharding per array is supported)");
    default:
      return absl::UnimplementedError(absl::StrCat("Sharding: OpSharding of type ",
                                                   OpSharding::Type_Name(op_sharding_.type()), " (",
                                                   static_cast<int>(op_sharding_.type()), ")"));
  }
  if (num_shards() == 1) fully_replicated_ = true;
  return absl::OkStatus();
}

absl::Status Sharding::SetTiles(const OpSharding& op) {
  const int tile_rank = op.tile_assignment_dimensions_size();
  if (tile_rank > kMaxTileRank) {
    return Bad(absl::StrCat(tile_rank, " tile dimensions (at most ", kMaxTileRank, ")"));
  }
  const int64_t num_devices = num_shards();
  int64_t product = 1;
  for (int64_t dim : op.tile_assignment_dimensions()) {
    if (dim < 1) return Bad(absl::StrCat("tile dimension of size ", dim));
    if (dim > num_devices / product) {
      return Bad(absl::StrCat("tiles ", absl::StrJoin(op.tile_assignment_dimensions(), "x"),
                              " need more than the ", num_devices, " devices listed"));
    }
    product *= dim;
  }
  if (product != num_devices) {
    return Bad(absl::StrCat("tiles ", absl::StrJoin(op.tile_assignment_dimensions(), "x"), " for ",
                            num_devices, " devices"));
  }

  if (op.replicate_on_last_tile_dim() && op.last_tile_dims_size() != 0) {
    return Bad("replicate_on_last_tile_dim together with last_tile_dims");
  }
  const int num_subgroups = op.replicate_on_last_tile_dim() ? 1 : op.last_tile_dims_size();
  const int data_rank = tile_rank - num_subgroups;
  if (data_rank < 0) return Bad(absl::StrCat(num_subgroups, " subgroups in ", tile_rank, " tile dimensions"));
  int64_t subgroup_size = 1;
  bool only_replicas = true;
  for (int i = 0; i < num_subgroups; ++i) {
    const OpSharding::Type type =
        op.replicate_on_last_tile_dim() ? OpSharding::REPLICATED : op.last_tile_dims(i);
    if (type != OpSharding::REPLICATED && type != OpSharding::MANUAL && type != OpSharding::UNREDUCED) {
      return Bad(absl::StrCat("a last tile dimension of type ", static_cast<int>(type)));
    }
    const int64_t size = op.tile_assignment_dimensions(data_rank + i);
    subgroup_size *= size;
    if (size == 1) continue;
    subgroups_.emplace_back(type, size);
    if (type != OpSharding::REPLICATED) only_replicas = false;
  }

  std::vector<int32_t> device_at;
  if (op.iota_reshape_dims_size() != 0) {
    if (op.tile_assignment_devices_size() != 0)
      return Bad("a device list together with an iota device order");
    if (op.iota_reshape_dims_size() > kMaxTileRank) return Bad("too many iota dimensions");
    HELMWAY_ASSIGN_OR_RETURN(device_at,
                             IotaOrder(op.iota_reshape_dims(), op.iota_transpose_perm(), num_devices));
  } else {
    if (op.tile_assignment_devices_size() != num_devices) {
      return Bad(
          absl::StrCat("tiles for ", num_devices, " devices name ", op.tile_assignment_devices_size()));
    }
    std::vector<bool> seen(num_devices, false);
    device_at.reserve(num_devices);
    for (int64_t device : op.tile_assignment_devices()) {
      if (device < 0 || device >= num_devices || seen[device]) {
        return Bad(absl::StrCat("tile device ", device, " is out of range or repeated"));
      }
      seen[device] = true;
      device_at.push_back(static_cast<int32_t>(device));
    }
  }

  tiles_.assign(op.tile_assignment_dimensions().begin(), op.tile_assignment_dimensions().begin() + data_rank);
  fully_replicated_ = only_replicas && subgroup_size == num_devices;
  if (tiles_.empty()) return absl::OkStatus();
  tile_of_position_.resize(num_devices);
  for (int64_t place = 0; place < num_devices; ++place) {
    tile_of_position_[device_at[place]] = static_cast<int32_t>(place / subgroup_size);
  }
  return absl::OkStatus();
}

bool Sharding::ReplicasAgree() const {
  if (kind_ != Kind::kHlo || op_sharding_.type() != OpSharding::OTHER) return fully_replicated_;
  for (const auto& [type, size] : subgroups_) {
    if (type != OpSharding::REPLICATED) return false;
  }
  return true;
}

absl::Status Sharding::CheckDims(absl::Span<const int64_t> dims) const {
  HELMWAY_RETURN_IF_ERROR(CheckShape(dims));
  if (!tiles_.empty() && dims.size() != tiles_.size()) {
    return Bad(absl::StrCat("an array of shape ", ShapeText(dims), " cannot have tiles ", ShapeText(tiles_)));
  }
  switch (kind_) {
    case Kind::kConcreteEven:
    case Kind::kConcrete:
      if (dims != absl::MakeConstSpan(dims_)) {
        return Bad(absl::StrCat("made for arrays of shape ", ShapeText(dims_), ", not ", ShapeText(dims)));
      }
      return absl::OkStatus();
    case Kind::kOpaque:
      return Bad("an opaque sharding does not say what its shards hold");
    case Kind::kHlo:
    case Kind::kSingleDevice:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Sharding::ShardShape(absl::Span<const int64_t> dims) const {
  HELMWAY_RETURN_IF_ERROR(CheckDims(dims));
  if (!shard_dims_.empty()) {
    for (const std::vector<int64_t>& shard : shard_dims_) {
      if (shard != shard_dims_[0]) return Bad("its shards have several shapes");
    }
    return shard_dims_[0];
  }
  std::vector<int64_t> shape(dims.begin(), dims.end());
  for (size_t i = 0; i < tiles_.size(); ++i) shape[i] = CeilDiv(shape[i], tiles_[i]);
  return shape;
}

absl::StatusOr<std::vector<int64_t>> Sharding::ShardShapeAt(absl::Span<const int64_t> dims,
                                                            int64_t position) const {
  if (position < 0 || position >= num_shards()) {
    return absl::OutOfRangeError(absl::StrCat("Sharding: shard ", position, " of ", num_shards()));
  }
  if (kind_ == Kind::kConcrete) {
    HELMWAY_RETURN_IF_ERROR(CheckDims(dims));
    return shard_dims_[position];
  }
  HELMWAY_ASSIGN_OR_RETURN(std::vector<int64_t> shape, ShardShape(dims));
  int64_t tile = tiles_.empty() ? 0 : tile_of_position_[position];
  for (size_t i = tiles_.size(); i-- > 0;) {
    const int64_t origin = ClampedProduct(tile % tiles_[i], shape[i], dims[i]);
    tile /= tiles_[i];
    shape[i] = std::min(shape[i], dims[i] - origin);
  }
  return shape;
}

absl::StatusOr<std::vector<IndexDomain>> Sharding::IndexDomains(absl::Span<const int64_t> dims) const {
  HELMWAY_ASSIGN_OR_RETURN(std::vector<int64_t> shape, ShardShape(dims));
  if (tiles_.empty()) {
    if (!shard_dims_.empty() && !fully_replicated_) {
      return Bad("a concrete sharding does not say which part of the array each shard holds");
    }
    return std::vector<IndexDomain>(devices_.size(),
                                    IndexDomain{std::vector<int64_t>(dims.size(), 0), shape});
  }
  std::vector<IndexDomain> result(devices_.size(), IndexDomain{shape, shape});
  for (size_t position = 0; position < devices_.size(); ++position) {
    int64_t tile = tile_of_position_[position];
    for (size_t i = tiles_.size(); i-- > 0;) {
      const int64_t origin = ClampedProduct(tile % tiles_[i], shape[i], dims[i]);
      tile /= tiles_[i];
      result[position].origin[i] = origin;
      result[position].shape[i] = std::min(shape[i], dims[i] - origin);
    }
  }
  return result;
}

absl::StatusOr<std::vector<int64_t>> Sharding::GlobalShape(absl::Span<const int64_t> shard_dims) const {
  HELMWAY_RETURN_IF_ERROR(CheckShape(shard_dims));
  if (kind_ == Kind::kOpaque) return Bad("an opaque sharding does not say what its shards hold");
  if (!shard_dims_.empty()) return dims_;
  if (!tiles_.empty() && shard_dims.size() != tiles_.size()) {
    return Bad(absl::StrCat("a shard of shape ", ShapeText(shard_dims), " cannot come from tiles ",
                            ShapeText(tiles_)));
  }
  std::vector<int64_t> dims(shard_dims.begin(), shard_dims.end());
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (dims[i] > std::numeric_limits<int64_t>::max() / tiles_[i]) {
      return Bad(absl::StrCat(tiles_[i], " shards of size ", dims[i], " are too large"));
    }
    dims[i] *= tiles_[i];
  }
  return dims;
}

absl::StatusOr<std::shared_ptr<const Sharding>> Sharding::WithDevicesAndMemoryKind(
    std::optional<absl::Span<const int32_t>> devices, std::optional<absl::string_view> memory_kind) const {
  if (devices.has_value() && devices->size() != devices_.size()) {
    return Bad(absl::StrCat("cannot move from ", devices_.size(), " devices to ", devices->size()));
  }
  std::optional<absl::string_view> kind;
  if (memory_kind.has_value()) {
    kind = memory_kind;
  } else if (memory_kind_.has_value()) {
    kind = *memory_kind_;
  }
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Sharding> result, Make(kind_, devices.value_or(devices_), kind));
  result->fully_replicated_ = fully_replicated_;
  result->op_sharding_ = op_sharding_;
  result->tiles_ = tiles_;
  result->tile_of_position_ = tile_of_position_;
  result->subgroups_ = subgroups_;
  result->dims_ = dims_;
  result->shard_dims_ = shard_dims_;
  return result;
}

xla::ifrt::ShardingProto Sharding::Encode() const {
  xla::ifrt::ShardingProto proto;
  const auto finish = [&](auto& payload) {
    if (memory_kind_.has_value()) payload.set_memory_kind(*memory_kind_);
    *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, KindName(kind_));
  };
  const auto set_devices = [&](xla::ifrt::DeviceListProto* list) {
    list->mutable_device_ids()->Assign(devices_.begin(), devices_.end());
  };
  const auto set_dims = [](const std::vector<int64_t>& dims, xla::ifrt::ShapeProto* shape) {
    shape->mutable_dims()->Assign(dims.begin(), dims.end());
  };
  switch (kind_) {
    case Kind::kHlo: {
      xla::ifrt::HloShardingProto payload;
      set_devices(payload.mutable_devices());
      *payload.mutable_xla_op_sharding() = op_sharding_;
      finish(payload);
      break;
    }
    case Kind::kSingleDevice: {
      xla::ifrt::SingleDeviceShardingProto payload;
      payload.set_device_id(devices_[0]);
      finish(payload);
      break;
    }
    case Kind::kConcreteEven: {
      xla::ifrt::ConcreteEvenShardingProto payload;
      set_devices(payload.mutable_devices());
      set_dims(dims_, payload.mutable_shape());
      set_dims(shard_dims_[0], payload.mutable_shard_shape());
      payload.set_is_fully_replicated(fully_replicated_);
      finish(payload);
      break;
    }
    case Kind::kConcrete: {
      xla::ifrt::ConcreteShardingProto payload;
      set_devices(payload.mutable_devices());
      set_dims(dims_, payload.mutable_shape());
      for (const std::vector<int64_t>& shard : shard_dims_) set_dims(shard, payload.add_shard_shapes());
      finish(payload);
      break;
    }
    case Kind::kOpaque: {
      xla::ifrt::OpaqueShardingProto payload;
      set_devices(payload.mutable_devices());
      finish(payload);
      break;
    }
  }
  return proto;
}

bool operator==(const Sharding& a, const Sharding& b) {
  if (&a == &b) return true;
  if (a.kind_ != b.kind_ || a.devices_ != b.devices_ || a.memory_kind_ != b.memory_kind_ ||
      a.fully_replicated_ != b.fully_replicated_ || a.dims_ != b.dims_ || a.shard_dims_ != b.shard_dims_) {
    return false;
  }
  if (a.kind_ != Sharding::Kind::kHlo || a.fully_replicated_) return true;
  if (a.op_sharding_.type() != b.op_sharding_.type()) return false;
  if (a.op_sharding_.type() == OpSharding::MAXIMAL) {
    return std::equal(
        a.op_sharding_.tile_assignment_devices().begin(), a.op_sharding_.tile_assignment_devices().end(),
        b.op_sharding_.tile_assignment_devices().begin(), b.op_sharding_.tile_assignment_devices().end());
  }
  if (ReductionOf(a.op_sharding_) != ReductionOf(b.op_sharding_)) return false;
  return a.tiles_ == b.tiles_ && a.tile_of_position_ == b.tile_of_position_ && a.subgroups_ == b.subgroups_;
}

std::string Sharding::DebugString() const {
  constexpr size_t kShown = 16;
  const auto shown = absl::MakeConstSpan(devices_).first(std::min(kShown, devices_.size()));
  std::string text =
      absl::StrCat(KindName(kind_), "(devices=[", absl::StrJoin(shown, ","),
                   devices_.size() > kShown ? absl::StrCat(",... ", devices_.size(), " in all") : "", "]");
  if (kind_ == Kind::kHlo) {
    absl::StrAppend(&text, ", ", OpSharding::Type_Name(op_sharding_.type()));
    if (!tiles_.empty()) absl::StrAppend(&text, ", tiles=", ShapeText(tiles_));
    for (const auto& [type, size] : subgroups_) {
      absl::StrAppend(&text, ", ", OpSharding::Type_Name(type), " over ", size);
    }
    if (const absl::string_view reduction = ReductionOf(op_sharding_); !reduction.empty()) {
      absl::StrAppend(&text, ", to be combined by ", reduction);
    }
  }
  if (!shard_dims_.empty()) {
    absl::StrAppend(&text, ", shape=", ShapeText(dims_), ", first shard=", ShapeText(shard_dims_[0]));
  }
  if (memory_kind_.has_value()) absl::StrAppend(&text, ", memory_kind=", *memory_kind_);
  return absl::StrCat(text, ")");
}

}  // namespace helmway::program
