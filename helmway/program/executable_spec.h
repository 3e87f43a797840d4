#ifndef HELMWAY_PROGRAM_EXECUTABLE_SPEC_H_
#define HELMWAY_PROGRAM_EXECUTABLE_SPEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/program/layout.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::program {

// One parameter or output of a compiled program.
struct ValueSpec {
  xla::PrimitiveType element_type = xla::PRIMITIVE_TYPE_INVALID;
  bool is_token = false;             // Has no dims and no bytes; only ordered.
  std::vector<int64_t> shard_dims;   // Per device.
  std::vector<int64_t> global_dims;  // shard_dims x the tiles of the sharding.
  Layout layout;                     // Of a shard. Empty for scalars and tokens.
  // As the module says it, without metadata; absent where the module says nothing (programs of one
  // partition).
  std::optional<xla::OpSharding> op_sharding;
  // Over the executable's devices, in the default memory kind. With one replica: op_sharding, replicated
  // where it is absent. With more replicas, whose values differ: Kind::kConcreteEven.
  std::shared_ptr<const Sharding> sharding;
};

// What a server must know of a compiled program to run it and to describe it to a client. A value.
struct ExecutableSpec {
  std::string name;  // Of the module.
  std::vector<ValueSpec> parameters;
  std::vector<ValueSpec> outputs;  // The elements if the program returns a tuple.
  std::vector<int32_t>
      donated_parameters;  // Sorted, unique: a run consumes these. Not donors without an output.
  bool has_cross_device_ops =
      false;  // Some computation communicates between devices (host transfers do not).
  std::vector<std::string> custom_call_targets;  // Sorted, unique.
  // The functions of its client that the program may call (cluster/python_callback.h). Sorted, unique.
  std::vector<uint64_t> python_callbacks;
  // Straight-line code of few instructions: no loop, call, branch, custom call or transfer. What XLA says
  // such a program costs is what it costs.
  bool is_short = false;
};

// The same program with nothing but what FromOptimizedHlo looks at, in the format "hlo" (kOutlineFormat):
// some kB where the program has MB. Errors of formats and Python callbacks as there.
absl::StatusOr<std::string> OutlineOf(absl::string_view format, absl::string_view bytes);
inline constexpr char kOutlineFormat[] = "hlo";

// Reads an optimized program as PJRT_Executable_OptimizedProgram returns it. `format` is "hlo" (`bytes` are a
// xla.HloModuleProto) or "hlo_with_config" (xla.HloModuleProtoWithConfig). `devices`: replicas x partitions
// ids, replica by replica. One parameter that is a tuple counts as its elements. INVALID_ARGUMENT for bytes
// that do not parse or contradict themselves or the device list; UNIMPLEMENTED for another format, nested
// tuples, dynamic dims, and shardings and layouts that Sharding and Layout do not support.
absl::StatusOr<ExecutableSpec> FromOptimizedHlo(absl::string_view format, absl::string_view bytes,
                                                absl::Span<const int32_t> devices, int replicas,
                                                int partitions);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_EXECUTABLE_SPEC_H_
