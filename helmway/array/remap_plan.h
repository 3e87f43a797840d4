#ifndef HELMWAY_ARRAY_REMAP_PLAN_H_
#define HELMWAY_ARRAY_REMAP_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/array/array.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::array {

// Which shard of which input a shard of an output is.
struct RemapSource {
  int32_t array = 0;
  int64_t position = 0;  // in the devices of that input
};

// Reads a remap plan: for each output, for each position in its devices, the input shard on the same device.
// Both forms are understood: intervals of positions (version 0), and lists of devices (version 6, or without
// intervals). `inputs` and `outputs` are the specs of the arrays, as many as the plan has; the plan's own
// specs are not looked at.
//
// INVALID_ARGUMENT unless every output shard is given exactly once, every input shard is used at most once,
// both lie on the same device, and dtype, shard shape (where the shardings tell it) and layout agree.
// UNIMPLEMENTED for other versions. Never does more work than the plan is long and the arrays have shards.
// Pure; any thread.
absl::StatusOr<std::vector<std::vector<RemapSource>>> ResolveRemap(const xla::ifrt::RemapPlanProto& plan,
                                                                   absl::Span<const ArraySpec> inputs,
                                                                   absl::Span<const ArraySpec> outputs);

}  // namespace helmway::array

#endif  // HELMWAY_ARRAY_REMAP_PLAN_H_
