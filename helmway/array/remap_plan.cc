#include "helmway/array/remap_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/status.h"
#include "helmway/wire/dtype.h"

namespace helmway::array {
namespace {

using ::helmway::program::Sharding;

constexpr int32_t kDeviceListVersion = 6;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Remap plan: ", text));
}

// start, start + step, ... before end, as `count` positions that exist.
struct Interval {
  int64_t start;
  int64_t step;
  int64_t count;
};

absl::StatusOr<Interval> MakeInterval(int64_t start, int64_t end, int64_t step, int64_t num_shards) {
  if (start < 0 || step <= 0) return Bad(absl::StrCat("an interval from ", start, " in steps of ", step));
  const int64_t count = end <= start ? 0 : (end - start - 1) / step + 1;
  if (count > 0 && (start >= num_shards || (count - 1) > (num_shards - 1 - start) / step)) {
    return Bad(absl::StrCat("the interval from ", start, " to ", end, " in steps of ", step,
                            " of an array of ", num_shards, " shards"));
  }
  return Interval{start, step, count};
}

// Collects the result and checks each shard.
class Resolver {
 public:
  Resolver(absl::Span<const ArraySpec> inputs, absl::Span<const ArraySpec> outputs)
      : inputs_(inputs), outputs_(outputs), positions_(inputs.size() + outputs.size()) {
    for (const ArraySpec& input : inputs) used_.emplace_back(input.sharding->devices().size(), false);
    for (const ArraySpec& output : outputs) given_.emplace_back(output.sharding->devices().size());
  }

  // Before Assign with these numbers.
  absl::Status CheckPair(int32_t in_array, int32_t out_array) const {
    if (in_array < 0 || static_cast<size_t>(in_array) >= inputs_.size()) {
      return Bad(absl::StrCat("it names input ", in_array, " of ", inputs_.size()));
    }
    if (out_array < 0 || static_cast<size_t>(out_array) >= outputs_.size()) {
      return Bad(absl::StrCat("it names output ", out_array, " of ", outputs_.size()));
    }
    const ArraySpec& input = Input(in_array);
    const ArraySpec& output = Output(out_array);
    if (input.dtype != output.dtype) {
      return Bad(absl::StrCat("input ", in_array, " of type ", wire::DTypeName(input.dtype), " for output ",
                              out_array, " of type ", wire::DTypeName(output.dtype)));
    }
    if (input.dims.size() != output.dims.size() || !HaveSameLayout(input, output)) {
      return Bad(
          absl::StrCat("input ", in_array, " and output ", out_array, " differ in their rank or layout"));
    }
    return absl::OkStatus();
  }

  absl::Status Assign(int32_t in_array, int64_t in_position, int32_t out_array, int64_t out_position) {
    const Sharding& in_sharding = *Input(in_array).sharding;
    const Sharding& out_sharding = *Output(out_array).sharding;
    const int32_t in_device = in_sharding.devices()[static_cast<size_t>(in_position)];
    const int32_t out_device = out_sharding.devices()[static_cast<size_t>(out_position)];
    if (in_device != out_device) {
      return Bad(absl::StrCat("shard ", in_position, " of input ", in_array, " lies on device ", in_device,
                              ", shard ", out_position, " of output ", out_array, " on ", out_device));
    }
    std::optional<RemapSource>& given =
        given_[static_cast<size_t>(out_array)][static_cast<size_t>(out_position)];
    if (given.has_value()) {
      return Bad(absl::StrCat("shard ", out_position, " of output ", out_array, " is given twice"));
    }
    if (std::vector<bool>::reference used =
            used_[static_cast<size_t>(in_array)][static_cast<size_t>(in_position)];
        used) {
      return Bad(absl::StrCat("shard ", in_position, " of input ", in_array, " is used twice"));
    } else {
      used = true;
    }
    if (in_sharding.kind() != Sharding::Kind::kOpaque && out_sharding.kind() != Sharding::Kind::kOpaque) {
      HELMWAY_ASSIGN_OR_RETURN(const auto in_dims,
                               in_sharding.ShardShapeAt(Input(in_array).dims, in_position));
      HELMWAY_ASSIGN_OR_RETURN(const auto out_dims,
                               out_sharding.ShardShapeAt(Output(out_array).dims, out_position));
      if (in_dims != out_dims) {
        return Bad(absl::StrCat("shard ", in_position, " of input ", in_array, " has the shape [",
                                absl::StrJoin(in_dims, ","), "], shard ", out_position, " of output ",
                                out_array, " [", absl::StrJoin(out_dims, ","), "]"));
      }
    }
    given = RemapSource{in_array, in_position};
    return absl::OkStatus();
  }

  // The position of a device in an array, or nothing.
  std::optional<int64_t> PositionInInput(int32_t array, int32_t device) {
    return Position(static_cast<size_t>(array), *Input(array).sharding, device);
  }
  std::optional<int64_t> PositionInOutput(int32_t array, int32_t device) {
    return Position(inputs_.size() + static_cast<size_t>(array), *Output(array).sharding, device);
  }

  absl::StatusOr<std::vector<std::vector<RemapSource>>> Finish() const {
    std::vector<std::vector<RemapSource>> result;
    for (size_t o = 0; o < given_.size(); ++o) {
      std::vector<RemapSource>& sources = result.emplace_back();
      for (size_t i = 0; i < given_[o].size(); ++i) {
        if (!given_[o][i].has_value()) {
          return Bad(absl::StrCat("nothing is given for shard ", i, " of output ", o));
        }
        sources.push_back(*given_[o][i]);
      }
    }
    return result;
  }

  int64_t InputShards(int32_t array) const { return Input(array).sharding->num_shards(); }
  int64_t OutputShards(int32_t array) const { return Output(array).sharding->num_shards(); }

 private:
  using Positions = absl::flat_hash_map<int32_t, int64_t>;

  const ArraySpec& Input(int32_t array) const { return inputs_[static_cast<size_t>(array)]; }
  const ArraySpec& Output(int32_t array) const { return outputs_[static_cast<size_t>(array)]; }

  std::optional<int64_t> Position(size_t index, const Sharding& sharding, int32_t device) {
    Positions& positions = positions_[index];
    if (positions.empty()) {
      for (size_t i = 0; i < sharding.devices().size(); ++i) {
        positions[sharding.devices()[i]] = static_cast<int64_t>(i);
      }
    }
    const auto it = positions.find(device);
    if (it == positions.end()) return std::nullopt;
    return it->second;
  }

  const absl::Span<const ArraySpec> inputs_;
  const absl::Span<const ArraySpec> outputs_;
  std::vector<std::vector<bool>> used_;                         // per input shard
  std::vector<std::vector<std::optional<RemapSource>>> given_;  // per output shard
  std::vector<Positions> positions_;                            // of inputs, then outputs; made when needed
};

absl::Status ReadIntervals(const xla::ifrt::RemapPlanProto& plan, Resolver& resolver) {
  for (const auto& mapping : plan.mappings()) {
    HELMWAY_RETURN_IF_ERROR(resolver.CheckPair(mapping.in_array(), mapping.out_array()));
    const int count = mapping.from_start_size();
    for (const int size : {mapping.from_end_size(), mapping.from_step_size(), mapping.to_start_size(),
                           mapping.to_end_size(), mapping.to_step_size()}) {
      if (size != count) return Bad("a mapping whose lists differ in length");
    }
    for (int i = 0; i < count; ++i) {
      HELMWAY_ASSIGN_OR_RETURN(const Interval from,
                               MakeInterval(mapping.from_start(i), mapping.from_end(i), mapping.from_step(i),
                                            resolver.InputShards(mapping.in_array())));
      HELMWAY_ASSIGN_OR_RETURN(const Interval to,
                               MakeInterval(mapping.to_start(i), mapping.to_end(i), mapping.to_step(i),
                                            resolver.OutputShards(mapping.out_array())));
      if (from.count != to.count) {
        return Bad(absl::StrCat("an interval of ", from.count, " shards for one of ", to.count));
      }
      for (int64_t n = 0; n < from.count; ++n) {
        HELMWAY_RETURN_IF_ERROR(resolver.Assign(mapping.in_array(), from.start + n * from.step,
                                                mapping.out_array(), to.start + n * to.step));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDevices(const xla::ifrt::RemapPlanProto& plan, Resolver& resolver) {
  for (const auto& output : plan.input_devices_for_output()) {
    for (const auto& input : output.input_devices()) {
      HELMWAY_RETURN_IF_ERROR(resolver.CheckPair(input.in_array(), output.out_array()));
      for (const int32_t device : input.device_list().device_ids()) {
        const std::optional<int64_t> from = resolver.PositionInInput(input.in_array(), device);
        const std::optional<int64_t> to = resolver.PositionInOutput(output.out_array(), device);
        if (!from || !to) {
          return Bad(absl::StrCat("device ", device, " has no shard of input ", input.in_array(),
                                  " or of output ", output.out_array()));
        }
        HELMWAY_RETURN_IF_ERROR(resolver.Assign(input.in_array(), *from, output.out_array(), *to));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::vector<RemapSource>>> ResolveRemap(const xla::ifrt::RemapPlanProto& plan,
                                                                   absl::Span<const ArraySpec> inputs,
                                                                   absl::Span<const ArraySpec> outputs) {
  if (plan.version_number() != 0 && plan.version_number() != kDeviceListVersion) {
    return absl::UnimplementedError(absl::StrCat("Remap plan: format version ", plan.version_number(),
                                                 " (versions 0 and ", kDeviceListVersion, " are supported)"));
  }
  Resolver resolver(inputs, outputs);
  const bool by_devices = plan.version_number() == kDeviceListVersion || plan.mappings().empty();
  HELMWAY_RETURN_IF_ERROR(by_devices ? ReadDevices(plan, resolver) : ReadIntervals(plan, resolver));
  return resolver.Finish();
}

}  // namespace helmway::array
