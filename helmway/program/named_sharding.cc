#include "helmway/program/named_sharding.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/program/iota_order.h"

namespace helmway::program {
namespace {

using ::xla::AxisRefProto;
using ::xla::OpSharding;

constexpr char kReductionOpType[] = "sdy::reduction_op";
constexpr char kSum[] = "SUM";

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Named sharding: ", text));
}

// The part [begin, end) of an axis, as products of the sizes left of each end. The whole axis is [1, size).
struct AxisPart {
  int64_t axis;
  int64_t begin;
  int64_t end;
};

// An axis cut at every point that some reference needs. Factors are numbered over the whole mesh, major
// first.
struct CutAxis {
  int64_t size = 1;
  // After Number(): ascending, from 1 to the size of the axis; each divides the next.
  std::vector<int64_t> cuts;
  int64_t first_factor = 0;
};

class Mesh {
 public:
  absl::Status Init(const xla::MeshProto& mesh, int64_t num_devices) {
    int64_t total = 1;
    for (const auto& axis : mesh.axes()) {
      if (axis.size() < 1) return Bad(absl::StrCat("axis '", axis.name(), "' has size ", axis.size()));
      if (axis.size() > num_devices / total) {
        return Bad(absl::StrCat("its mesh has more than the ", num_devices, " devices that it is over"));
      }
      total *= axis.size();
      axes_.push_back(CutAxis{axis.size(), {1, axis.size()}});
    }
    if (total != num_devices) {
      return Bad(absl::StrCat("its mesh has ", total, " devices, the list ", num_devices));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AxisPart> Resolve(const AxisRefProto& ref) const {
    if (ref.mesh_axis_index() < 0 || ref.mesh_axis_index() >= static_cast<int64_t>(axes_.size())) {
      return Bad(absl::StrCat("axis ", ref.mesh_axis_index(), " of a mesh of ", axes_.size(), " axes"));
    }
    const int64_t size = axes_[ref.mesh_axis_index()].size;
    if (!ref.has_sub_axis_info()) return AxisPart{ref.mesh_axis_index(), 1, size};
    const int64_t before = ref.sub_axis_info().pre_size();
    const int64_t own = ref.sub_axis_info().size();
    if (before < 1 || own < 1 || before > size || own > size / before || size % (before * own) != 0) {
      return Bad(absl::StrCat("part (", before, ")", own, " of an axis of size ", size));
    }
    return AxisPart{ref.mesh_axis_index(), before, before * own};
  }

  void Cut(const AxisPart& part) {
    std::vector<int64_t>& cuts = axes_[part.axis].cuts;
    cuts.push_back(part.begin);
    cuts.push_back(part.end);
  }

  // After all cuts: numbers the factors.
  absl::Status Number() {
    for (CutAxis& axis : axes_) {
      std::sort(axis.cuts.begin(), axis.cuts.end());
      axis.cuts.erase(std::unique(axis.cuts.begin(), axis.cuts.end()), axis.cuts.end());
      axis.first_factor = static_cast<int64_t>(factors_.size());
      for (size_t i = 1; i < axis.cuts.size(); ++i) {
        if (axis.cuts[i] % axis.cuts[i - 1] != 0) return Bad("parts of an axis overlap");
        factors_.push_back(axis.cuts[i] / axis.cuts[i - 1]);
      }
    }
    used_.assign(factors_.size(), false);
    return absl::OkStatus();
  }

  // Appends the part's factors to `order`; returns their product.
  absl::StatusOr<int64_t> Take(const AxisPart& part, std::vector<int32_t>& order) {
    const CutAxis& axis = axes_[part.axis];
    const auto begin = std::lower_bound(axis.cuts.begin(), axis.cuts.end(), part.begin) - axis.cuts.begin();
    const auto end = std::lower_bound(axis.cuts.begin(), axis.cuts.end(), part.end) - axis.cuts.begin();
    for (auto i = begin; i < end; ++i) {
      const int64_t factor = axis.first_factor + i;
      if (used_[factor]) return Bad("uses an axis twice");
      used_[factor] = true;
      order.push_back(static_cast<int32_t>(factor));
    }
    return part.end / part.begin;
  }

  int64_t TakeRest(std::vector<int32_t>& order) {
    int64_t size = 1;
    for (size_t i = 0; i < factors_.size(); ++i) {
      if (used_[i]) continue;
      order.push_back(static_cast<int32_t>(i));
      size *= factors_[i];
    }
    return size;
  }

  const std::vector<int64_t>& factors() const { return factors_; }

 private:
  std::vector<CutAxis> axes_;
  std::vector<int64_t> factors_;
  std::vector<bool> used_;
};

// Drops factors of size 1 and joins neighbours that stay neighbours, so that one order has one spelling.
void Canonicalize(std::vector<int64_t>& dims, std::vector<int32_t>& perm) {
  std::vector<std::vector<int32_t>> groups;  // In transposed order; each a run of consecutive original dims.
  for (int32_t dim : perm) {
    if (dims[dim] == 1) continue;
    bool joins = false;
    if (!groups.empty()) {
      int32_t next = groups.back().back() + 1;
      while (next < static_cast<int32_t>(dims.size()) && dims[next] == 1) ++next;
      joins = next == dim;
    }
    if (joins) {
      groups.back().push_back(dim);
    } else {
      groups.push_back({dim});
    }
  }
  if (groups.empty()) {
    dims = {1};
    perm = {0};
    return;
  }
  std::vector<int32_t> by_origin(groups.size());
  std::iota(by_origin.begin(), by_origin.end(), 0);
  std::sort(by_origin.begin(), by_origin.end(),
            [&](int32_t a, int32_t b) { return groups[a].front() < groups[b].front(); });
  std::vector<int64_t> new_dims(groups.size(), 1);
  std::vector<int32_t> new_perm(groups.size());
  for (size_t i = 0; i < by_origin.size(); ++i) {
    for (int32_t dim : groups[by_origin[i]]) new_dims[i] *= dims[dim];
    new_perm[by_origin[i]] = static_cast<int32_t>(i);
  }
  dims = std::move(new_dims);
  perm = std::move(new_perm);
}

}  // namespace

absl::string_view ReductionOf(const OpSharding& tiled) {
  for (const xla::OpMetadata& metadata : tiled.metadata()) {
    if (metadata.op_type() != kReductionOpType || metadata.op_name() == kSum) continue;
    return metadata.op_name();
  }
  return "";
}

void SetReduction(absl::string_view reduction, OpSharding& tiled) {
  std::string name(reduction);  // may be in what is cleared
  tiled.clear_metadata();
  if (name.empty()) return;
  xla::OpMetadata& metadata = *tiled.add_metadata();
  metadata.set_op_type(kReductionOpType);
  metadata.set_op_name(std::move(name));
}

absl::StatusOr<OpSharding> NamedToTiled(const xla::NamedShardingProto& named, int64_t num_devices) {
  OpSharding result;
  const xla::MeshProto& proto = named.mesh();
  if (proto.axes().empty()) {
    for (const auto& dim : named.dim_shardings()) {
      if (!dim.axes().empty()) return Bad("splits a dimension over a mesh without axes");
    }
    if (!named.replicated_axes().empty() || !named.unreduced_axes().empty() || !named.manual_axes().empty()) {
      return Bad("names axes of a mesh without axes");
    }
    if (proto.device_ids().empty()) {
      result.set_type(OpSharding::REPLICATED);
      return result;
    }
    if (proto.device_ids_size() != 1 || proto.device_ids(0) < 0 || proto.device_ids(0) >= num_devices) {
      return Bad("its mesh without axes does not name one of the devices");
    }
    result.set_type(OpSharding::MAXIMAL);
    result.add_tile_assignment_dimensions(1);
    result.add_tile_assignment_devices(proto.device_ids(0));
    return result;
  }

  if (!xla::NamedShardingProto::ReductionOpProto_IsValid(named.reduction_op())) {
    return Bad(
        absl::StrCat("combines shards by an operation (", named.reduction_op(), ") that is not known"));
  }
  Mesh mesh;
  HELMWAY_RETURN_IF_ERROR(mesh.Init(proto, num_devices));

  std::vector<std::vector<AxisPart>> dims;
  std::vector<AxisPart> unreduced, manual;
  const auto resolve = [&](const auto& refs, std::vector<AxisPart>& parts) -> absl::Status {
    for (const AxisRefProto& ref : refs) {
      HELMWAY_ASSIGN_OR_RETURN(AxisPart part, mesh.Resolve(ref));
      mesh.Cut(part);
      parts.push_back(part);
    }
    return absl::OkStatus();
  };
  for (const auto& dim : named.dim_shardings()) {
    HELMWAY_RETURN_IF_ERROR(resolve(dim.axes(), dims.emplace_back()));
  }
  HELMWAY_RETURN_IF_ERROR(resolve(named.unreduced_axes(), unreduced));
  HELMWAY_RETURN_IF_ERROR(resolve(named.manual_axes(), manual));
  // Explicitly replicated axes mean the same as unnamed ones; only their validity counts.
  std::vector<AxisPart> replicated;
  HELMWAY_RETURN_IF_ERROR(resolve(named.replicated_axes(), replicated));
  HELMWAY_RETURN_IF_ERROR(mesh.Number());

  std::vector<int32_t> order;
  int64_t tiles = 1;
  for (const std::vector<AxisPart>& dim : dims) {
    int64_t tiles_of_dim = 1;
    for (const AxisPart& part : dim) {
      HELMWAY_ASSIGN_OR_RETURN(int64_t size, mesh.Take(part, order));
      tiles_of_dim *= size;
    }
    result.add_tile_assignment_dimensions(tiles_of_dim);
    tiles *= tiles_of_dim;
  }
  std::vector<std::pair<OpSharding::Type, int64_t>> subgroups;
  const auto subgroup = [&](OpSharding::Type type, const std::vector<AxisPart>& parts) -> absl::Status {
    int64_t size = 1;
    for (const AxisPart& part : parts) {
      HELMWAY_ASSIGN_OR_RETURN(int64_t part_size, mesh.Take(part, order));
      size *= part_size;
    }
    if (size > 1) subgroups.emplace_back(type, size);
    return absl::OkStatus();
  };
  HELMWAY_RETURN_IF_ERROR(subgroup(OpSharding::MANUAL, manual));
  HELMWAY_RETURN_IF_ERROR(subgroup(OpSharding::UNREDUCED, unreduced));
  if (const int64_t rest = mesh.TakeRest(order); rest > 1)
    subgroups.emplace_back(OpSharding::REPLICATED, rest);

  const bool only_replicated = subgroups.size() == 1 && subgroups[0].first == OpSharding::REPLICATED;
  if (tiles == 1 && (subgroups.empty() || only_replicated)) {
    result.Clear();
    result.set_type(OpSharding::REPLICATED);
    return result;
  }
  result.set_type(OpSharding::OTHER);
  if (!unreduced.empty() && named.reduction_op() != xla::NamedShardingProto::SUM) {
    SetReduction(xla::NamedShardingProto::ReductionOpProto_Name(named.reduction_op()), result);
  }
  for (const auto& [type, size] : subgroups) result.add_tile_assignment_dimensions(size);
  if (only_replicated) {
    result.set_replicate_on_last_tile_dim(true);
  } else {
    for (const auto& [type, size] : subgroups) result.add_last_tile_dims(type);
  }

  std::vector<int64_t> reshape = mesh.factors();
  Canonicalize(reshape, order);
  if (proto.device_ids().empty() && !proto.has_iota_transform()) {
    result.mutable_iota_reshape_dims()->Assign(reshape.begin(), reshape.end());
    result.mutable_iota_transpose_perm()->Assign(order.begin(), order.end());
    return result;
  }
  std::vector<int64_t> mesh_devices(proto.device_ids().begin(), proto.device_ids().end());
  if (mesh_devices.empty()) {
    std::vector<int32_t> perm;
    for (int64_t dim : proto.iota_transform().transpose_perm()) {
      if (dim < 0 || dim >= proto.iota_transform().reshape_dims_size())
        return Bad("its mesh has a device order that is not a permutation");
      perm.push_back(static_cast<int32_t>(dim));
    }
    HELMWAY_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                             IotaOrder(proto.iota_transform().reshape_dims(), perm, num_devices));
    mesh_devices.assign(ids.begin(), ids.end());
  }
  if (static_cast<int64_t>(mesh_devices.size()) != num_devices) {
    return Bad(absl::StrCat("its mesh lists ", mesh_devices.size(), " devices instead of ", num_devices));
  }
  HELMWAY_ASSIGN_OR_RETURN(std::vector<int32_t> places, IotaOrder(reshape, order, num_devices));
  for (int32_t place : places) result.add_tile_assignment_devices(mesh_devices[place]);
  return result;
}

}  // namespace helmway::program
