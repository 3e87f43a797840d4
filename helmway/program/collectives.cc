#include "helmway/program/collectives.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/status.h"
#include "helmway/program/iota_order.h"
#include "helmway/program/named_sharding.h"
#include "helmway/wire/dtype.h"

namespace helmway::program {
namespace {

using xla::HloInstructionProto;
using xla::HloModuleProto;
using xla::ShapeProto;

using Groups = std::vector<std::vector<int64_t>>;

constexpr int64_t kMaxDevices = 1 << 20;

absl::Status Bad(const HloInstructionProto& instruction, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(instruction.opcode(), " ", instruction.name(), ": ", text));
}

absl::Status Missing(const HloInstructionProto& instruction, absl::string_view text) {
  return absl::UnimplementedError(
      absl::StrCat(instruction.opcode(), " ", instruction.name(), " between workers: ", text));
}

// What the numbers in the groups of an instruction are.
enum class GroupMode { kReplicas, kPartitions, kReplicasWithAllPartitions, kDevices };

GroupMode ModeOf(CollectiveKind kind, const HloInstructionProto& instruction) {
  if (instruction.channel_id() <= 0) return GroupMode::kReplicas;
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return instruction.use_global_device_ids() ? GroupMode::kDevices
                                                 : GroupMode::kReplicasWithAllPartitions;
    default:
      return GroupMode::kPartitions;
  }
}

// How many numbers there are to put into groups.
int64_t Count(const ProgramSize& size, GroupMode mode) {
  switch (mode) {
    case GroupMode::kReplicas:
    case GroupMode::kReplicasWithAllPartitions:
      return size.replicas;
    case GroupMode::kPartitions:
      return size.partitions;
    case GroupMode::kDevices:
      break;
  }
  return size.replicas * size.partitions;
}

// Groups of the numbers of the mode to groups of devices.
Groups ToDevices(const ProgramSize& size, GroupMode mode, Groups groups) {
  if (mode == GroupMode::kDevices) return groups;
  Groups result;
  switch (mode) {
    case GroupMode::kReplicas:
      for (int64_t p = 0; p < size.partitions; ++p) {
        for (const auto& group : groups) {
          auto& devices = result.emplace_back();
          for (const int64_t replica : group) devices.push_back(replica * size.partitions + p);
        }
      }
      break;
    case GroupMode::kPartitions:
      for (int64_t r = 0; r < size.replicas; ++r) {
        for (const auto& group : groups) {
          auto& devices = result.emplace_back();
          for (const int64_t partition : group) devices.push_back(r * size.partitions + partition);
        }
      }
      break;
    case GroupMode::kReplicasWithAllPartitions:
      for (const auto& group : groups) {
        auto& devices = result.emplace_back();
        for (const int64_t replica : group) {
          for (int64_t p = 0; p < size.partitions; ++p) devices.push_back(replica * size.partitions + p);
        }
      }
      break;
    case GroupMode::kDevices:
      break;
  }
  return result;
}

// The lists that a mesh and axes of it mean: devices that differ in these axes only, in their order.
absl::StatusOr<Groups> MeshGroups(const xla::MeshAxesReplicaGroupListProto& list) {
  int64_t devices = 1;
  for (const auto& axis : list.mesh().axes()) {
    if (axis.size() < 1 || axis.size() > kMaxDevices / devices) {
      return absl::InvalidArgumentError("a mesh of no size, or of too many devices");
    }
    devices *= axis.size();
  }
  xla::NamedShardingProto sharding;
  *sharding.mutable_mesh() = list.mesh();
  *sharding.add_dim_shardings()->mutable_axes() = list.axes();
  HELMWAY_ASSIGN_OR_RETURN(const xla::OpSharding tiled, NamedToTiled(sharding, devices));
  std::vector<int64_t> order;
  int64_t members = 1;
  if (tiled.type() == xla::OpSharding::OTHER) {
    members = tiled.tile_assignment_dimensions(0);
    if (tiled.tile_assignment_devices_size() > 0) {
      order.assign(tiled.tile_assignment_devices().begin(), tiled.tile_assignment_devices().end());
    } else {
      HELMWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> iota,
                               IotaOrder(tiled.iota_reshape_dims(), tiled.iota_transpose_perm(), devices));
      order.assign(iota.begin(), iota.end());
    }
  } else {
    for (int64_t d = 0; d < devices; ++d) order.push_back(d);
  }
  const auto total = static_cast<int64_t>(order.size());
  if (members < 1 || total % members != 0)
    return absl::InvalidArgumentError("a mesh that has no such groups");
  Groups groups(static_cast<size_t>(total / members));
  for (int64_t m = 0; m < members; ++m) {
    for (size_t g = 0; g < groups.size(); ++g) {
      groups[g].push_back(order[static_cast<size_t>(m) * groups.size() + g]);
    }
  }
  return groups;
}

absl::StatusOr<Groups> ReadGroups(const HloInstructionProto& instruction) {
  Groups groups;
  if (instruction.has_mesh_axes_replica_group_list()) {
    return MeshGroups(instruction.mesh_axes_replica_group_list());
  }
  if (instruction.has_iota_collective_device_list()) {
    const auto& list = instruction.iota_collective_device_list();
    const int64_t count = list.num_replica_groups(), size = list.num_devices_per_group();
    if (count < 0 || size < 0 || count > kMaxDevices || size > kMaxDevices / std::max<int64_t>(count, 1)) {
      return absl::InvalidArgumentError("too many devices");
    }
    if (count * size == 0) return groups;
    HELMWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> order,
                             IotaOrder(list.iota_reshape_dims(), list.iota_transpose_perm(), count * size));
    for (int64_t g = 0; g < count; ++g) {
      groups.emplace_back(order.begin() + g * size, order.begin() + (g + 1) * size);
    }
    return groups;
  }
  const auto& lists = instruction.has_collective_device_list()
                          ? instruction.collective_device_list().replica_groups()
                          : instruction.replica_groups();
  for (const xla::ReplicaGroup& group : lists) {
    if (group.replica_ids().empty()) continue;
    groups.emplace_back(group.replica_ids().begin(), group.replica_ids().end());
  }
  return groups;
}

absl::StatusOr<Groups> DeviceGroups(const ProgramSize& size, CollectiveKind kind,
                                    const HloInstructionProto& instruction) {
  const GroupMode mode = ModeOf(kind, instruction);
  const int64_t count = Count(size, mode);
  absl::StatusOr<Groups> read = ReadGroups(instruction);
  if (!read.ok()) return Bad(instruction, read.status().message());
  Groups groups = *std::move(read);
  if (groups.empty()) {
    auto& all = groups.emplace_back();
    for (int64_t i = 0; i < count; ++i) all.push_back(i);
  }
  std::vector<bool> seen(static_cast<size_t>(count));
  for (const auto& group : groups) {
    for (const int64_t id : group) {
      if (id < 0 || id >= count) return Bad(instruction, absl::StrCat("no participant ", id, " of ", count));
      if (seen[static_cast<size_t>(id)]) return Bad(instruction, absl::StrCat("participant ", id, " twice"));
      seen[static_cast<size_t>(id)] = true;
    }
  }
  return ToDevices(size, mode, std::move(groups));
}

absl::StatusOr<Groups> Transfers(const ProgramSize& size, const HloInstructionProto& instruction) {
  const GroupMode mode = ModeOf(CollectiveKind::kCollectivePermute, instruction);
  const int64_t count = Count(size, mode);
  Groups pairs;
  std::vector<bool> sources(static_cast<size_t>(count)), targets(static_cast<size_t>(count));
  for (const xla::SourceTarget& pair : instruction.source_target_pairs()) {
    for (const int64_t id : {pair.source(), pair.target()}) {
      if (id < 0 || id >= count) return Bad(instruction, absl::StrCat("no participant ", id, " of ", count));
    }
    if (sources[static_cast<size_t>(pair.source())] || targets[static_cast<size_t>(pair.target())]) {
      return Bad(instruction, "a source or a target twice");
    }
    sources[static_cast<size_t>(pair.source())] = targets[static_cast<size_t>(pair.target())] = true;
    pairs.push_back({pair.source(), pair.target()});
  }
  return ToDevices(size, mode, std::move(pairs));
}

std::optional<CollectiveKind> KindOf(const HloInstructionProto& instruction) {
  const std::string& opcode = instruction.opcode();
  if (opcode == "all-reduce") return CollectiveKind::kAllReduce;
  if (opcode == "all-gather") return CollectiveKind::kAllGather;
  if (opcode == "reduce-scatter") return CollectiveKind::kReduceScatter;
  if (opcode == "all-to-all") {
    return instruction.dimensions().empty() ? CollectiveKind::kAllToAllTuple : CollectiveKind::kAllToAll;
  }
  if (opcode == "collective-permute") return CollectiveKind::kCollectivePermute;
  if (opcode == "collective-broadcast") return CollectiveKind::kCollectiveBroadcast;
  return std::nullopt;
}

// Communication between devices that has no replacement.
bool IsUnknownCommunication(const HloInstructionProto& instruction) {
  const std::string& opcode = instruction.opcode();
  if (opcode == "send" || opcode == "recv" || opcode == "send-done" || opcode == "recv-done") {
    return !instruction.is_host_transfer();
  }
  for (const absl::string_view name : {"all-reduce-", "all-gather-", "reduce-scatter-", "all-to-all-",
                                       "collective-permute-", "collective-broadcast-", "ragged-all-to-all"}) {
    if (absl::StartsWith(opcode, name)) return true;
  }
  return false;
}

absl::StatusOr<Reduction> ReadReduction(const HloModuleProto& module,
                                        const HloInstructionProto& instruction) {
  if (instruction.called_computation_ids_size() != 1) return Bad(instruction, "reduces with no function");
  for (const auto& computation : module.computations()) {
    if (computation.id() != instruction.called_computation_ids(0)) continue;
    absl::flat_hash_map<int64_t, const HloInstructionProto*> by_id;
    for (const auto& one : computation.instructions()) by_id[one.id()] = &one;
    const auto root = by_id.find(computation.root_id());
    if (root == by_id.end()) break;
    const HloInstructionProto& function = *root->second;
    std::vector<int64_t> parameters;
    for (const int64_t id : function.operand_ids()) {
      const auto operand = by_id.find(id);
      if (operand != by_id.end() && operand->second->opcode() == "parameter") {
        parameters.push_back(operand->second->parameter_number());
      }
    }
    std::sort(parameters.begin(), parameters.end());
    if (parameters == std::vector<int64_t>{0, 1}) {
      const std::string& opcode = function.opcode();
      if (opcode == "add") return Reduction::kSum;
      if (opcode == "multiply") return Reduction::kProduct;
      if (opcode == "minimum") return Reduction::kMin;
      if (opcode == "maximum") return Reduction::kMax;
      if (opcode == "and") return Reduction::kAnd;
      if (opcode == "or") return Reduction::kOr;
      if (opcode == "xor") return Reduction::kXor;
    }
    return Missing(instruction, absl::StrCat("reducing with ", function.opcode()));
  }
  return Bad(instruction, "reduces with a function that the module lacks");
}

bool CanReduce(Reduction reduction, xla::PrimitiveType type) {
  const bool bitwise =
      reduction == Reduction::kAnd || reduction == Reduction::kOr || reduction == Reduction::kXor;
  switch (type) {
    case xla::PRED:
    case xla::S8:
    case xla::S16:
    case xla::S32:
    case xla::S64:
    case xla::U8:
    case xla::U16:
    case xla::U32:
    case xla::U64:
      return true;
    case xla::F16:
    case xla::BF16:
    case xla::F32:
    case xla::F64:
      return !bitwise;
    case xla::C64:
    case xla::C128:
      return reduction == Reduction::kSum || reduction == Reduction::kProduct;
    default:
      return false;
  }
}

// Minor to major; the default for a shape without a layout.
std::vector<int64_t> LayoutOf(const ShapeProto& shape) {
  if (shape.layout().minor_to_major_size() == shape.dimensions_size()) {
    return {shape.layout().minor_to_major().begin(), shape.layout().minor_to_major().end()};
  }
  std::vector<int64_t> layout;
  for (int64_t d = shape.dimensions_size(); d-- > 0;) layout.push_back(d);
  return layout;
}

// The elements of dimensions that are more major than `dimension`, and those of all.
struct Elements {
  int64_t before = 1;
  int64_t all = 1;
};
absl::StatusOr<Elements> Measure(const HloInstructionProto& instruction, const ShapeProto& shape,
                                 int64_t dimension) {
  Elements elements;
  bool found = false;
  const std::vector<int64_t> layout = LayoutOf(shape);
  for (size_t i = layout.size(); i-- > 0;) {
    if (layout[i] < 0 || layout[i] >= shape.dimensions_size()) return Bad(instruction, "a layout of others");
    if (layout[i] == dimension) found = true;
    const int64_t size = shape.dimensions(static_cast<int>(layout[i]));
    if (size < 0 || (size > 0 && elements.all > (int64_t{1} << 40) / size)) {
      return Bad(instruction, "a shape of no size");
    }
    elements.all *= size;
    if (!found) elements.before *= size;
  }
  if (!found && dimension >= 0) return Bad(instruction, absl::StrCat("no dimension ", dimension));
  return elements;
}

std::string List(const std::vector<int64_t>& values) {
  return values.empty() ? "array<i64>" : absl::StrCat("array<i64: ", absl::StrJoin(values, ", "), ">");
}

std::string Attributes(const Collective& collective) {
  std::vector<int64_t> members, sizes;
  for (const auto& group : collective.groups) {
    members.insert(members.end(), group.begin(), group.end());
    sizes.push_back(static_cast<int64_t>(group.size()));
  }
  return absl::StrCat(
      "{blocks = ", List(collective.blocks), ", id = ", collective.id,
      " : ui64, kind = ", List({static_cast<int64_t>(collective.kind)}), ", members = ", List(members),
      ", reduction = ", List({static_cast<int64_t>(collective.reduction)}), ", sizes = ", List(sizes), "}");
}

}  // namespace

absl::string_view CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllTuple:
      return "all-to-all";
    case CollectiveKind::kCollectivePermute:
      return "collective-permute";
    case CollectiveKind::kCollectiveBroadcast:
      return "collective-broadcast";
  }
  return "unknown collective";
}

int ElementBits(xla::PrimitiveType type) {
  const absl::StatusOr<wire::DTypeKind> kind = wire::FromPrimitiveType(type);
  if (!kind.ok()) return 0;
  const int bits = wire::GetDTypeFacts(*kind)->bits;
  return bits < 0 || bits == 6 ? 0 : bits;
}

absl::StatusOr<Collective> ReadCollective(const ProgramSize& size, const HloModuleProto& module,
                                          const HloInstructionProto& instruction) {
  if (size.replicas < 1 || size.partitions < 1 || size.replicas > kMaxDevices / size.partitions) {
    return absl::InvalidArgumentError("a program of no devices, or of too many");
  }
  const std::optional<CollectiveKind> kind = KindOf(instruction);
  if (!kind) return Missing(instruction, "this form");
  Collective collective;
  collective.id = instruction.id();
  collective.kind = *kind;
  if (*kind == CollectiveKind::kCollectivePermute) {
    HELMWAY_ASSIGN_OR_RETURN(collective.groups, Transfers(size, instruction));
  } else {
    HELMWAY_ASSIGN_OR_RETURN(collective.groups, DeviceGroups(size, *kind, instruction));
  }
  const bool reduces = *kind == CollectiveKind::kAllReduce || *kind == CollectiveKind::kReduceScatter;
  if (reduces) {
    HELMWAY_ASSIGN_OR_RETURN(collective.reduction, ReadReduction(module, instruction));
  }

  std::vector<const ShapeProto*> operands;
  for (const int64_t id : instruction.operand_ids()) {
    for (const auto& computation : module.computations()) {
      for (const auto& one : computation.instructions()) {
        if (one.id() == id) operands.push_back(&one.shape());
      }
    }
  }
  std::vector<const ShapeProto*> results;
  if (instruction.shape().element_type() == xla::TUPLE) {
    for (const ShapeProto& element : instruction.shape().tuple_shapes()) results.push_back(&element);
  } else {
    results.push_back(&instruction.shape());
  }
  if (operands.empty() || operands.size() != results.size() ||
      operands.size() != static_cast<size_t>(instruction.operand_ids_size())) {
    if (*kind == CollectiveKind::kCollectivePermute && operands.size() == 4) {
      return Missing(instruction, "permuting in place");
    }
    return Bad(instruction, absl::StrCat(operands.size(), " operands for ", results.size(), " results"));
  }

  const bool cuts = *kind == CollectiveKind::kReduceScatter || *kind == CollectiveKind::kAllToAll;
  const bool along = cuts || *kind == CollectiveKind::kAllGather;
  if (along && instruction.dimensions_size() != 1) return Bad(instruction, "not one dimension");
  for (size_t i = 0; i < operands.size(); ++i) {
    const ShapeProto& operand = *operands[i];
    const ShapeProto& result = *results[i];
    const int bits = ElementBits(operand.element_type());
    if (bits == 0 || operand.element_type() != result.element_type()) {
      return Missing(instruction,
                     absl::StrCat("operands of type ", xla::PrimitiveType_Name(operand.element_type())));
    }
    if (operand.layout().tiles_size() > 0 || LayoutOf(operand) != LayoutOf(result)) {
      return Missing(instruction, "a result that is laid out in another way than its operand");
    }
    if (reduces && !CanReduce(collective.reduction, operand.element_type())) {
      return Missing(instruction, absl::StrCat("reducing ", xla::PrimitiveType_Name(operand.element_type())));
    }
    HELMWAY_ASSIGN_OR_RETURN(const Elements elements,
                             Measure(instruction, operand, along ? instruction.dimensions(0) : -1));
    const int64_t blocks = along ? elements.before : 1;
    collective.blocks.push_back(blocks);
    HELMWAY_ASSIGN_OR_RETURN(const Elements of_result, Measure(instruction, result, -1));
    for (const auto& group : collective.groups) {
      const auto members = static_cast<int64_t>(group.size());
      if (*kind == CollectiveKind::kAllToAllTuple && members != static_cast<int64_t>(operands.size())) {
        return Bad(instruction, "another number of operands than the group has members");
      }
      int64_t expected = elements.all;
      if (*kind == CollectiveKind::kAllGather) expected *= members;
      if (*kind == CollectiveKind::kReduceScatter) expected /= members;
      if (elements.all == 0 && of_result.all == 0) continue;
      if (expected != of_result.all || (cuts && elements.all % (blocks * members) != 0)) {
        return Bad(instruction, "operands and results of sizes that do not fit");
      }
      const int64_t part = elements.all / (cuts ? blocks * members : blocks);
      if (along && part * bits % 8 != 0) return Missing(instruction, "parts that are no whole bytes");
    }
  }
  return collective;
}

absl::Status CheckTargetOfClient(absl::string_view target) {
  if (!absl::StartsWith(target, kOwnTargets)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the program has a custom call of ", target,
                                                 ": names that begin with ", kOwnTargets,
                                                 " are the runtime's own"));
}

absl::StatusOr<bool> ReplaceCollectives(const ProgramSize& size, HloModuleProto* module) {
  std::vector<std::pair<HloInstructionProto*, HloInstructionProto>> replaced;
  for (auto& computation : *module->mutable_computations()) {
    for (HloInstructionProto& instruction : *computation.mutable_instructions()) {
      HELMWAY_RETURN_IF_ERROR(CheckTargetOfClient(instruction.custom_call_target()));
      if (IsUnknownCommunication(instruction)) return Missing(instruction, "this form");
      if (!KindOf(instruction)) continue;
      HELMWAY_ASSIGN_OR_RETURN(const Collective collective, ReadCollective(size, *module, instruction));
      HloInstructionProto call;
      call.set_name(instruction.name());
      call.set_opcode("custom-call");
      *call.mutable_shape() = instruction.shape();
      *call.mutable_metadata() = instruction.metadata();
      call.set_id(instruction.id());
      *call.mutable_operand_ids() = instruction.operand_ids();
      *call.mutable_control_predecessor_ids() = instruction.control_predecessor_ids();
      call.set_custom_call_target(std::string(kCollectiveTarget));
      call.set_custom_call_api_version(xla::API_VERSION_TYPED_FFI);
      call.set_backend_config(Attributes(collective));
      replaced.emplace_back(&instruction, std::move(call));
    }
  }
  for (auto& [instruction, call] : replaced) *instruction = std::move(call);
  return !replaced.empty();
}

}  // namespace helmway::program
