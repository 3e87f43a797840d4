#ifndef HELMWAY_PJRT_HLO_TRANSFORM_H_
#define HELMWAY_PJRT_HLO_TRANSFORM_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/pjrt/plugin.h"

namespace helmway::pjrt {

// Sees a program that is being compiled: a serialized xla.HloModuleProto, partitioned, with layouts, fused,
// not yet scheduled. The new form of it; nullopt leaves it as it is. An error becomes that of the compilation
// (its code INTERNAL). Called on the thread that compiles, by several at once.
using HloTransform = absl::StatusOr<std::optional<std::string>>(absl::string_view module);

// Has the plugin show every program that any client of it compiles from now on, for the rest of the process.
// A second call with the same function does nothing. UNIMPLEMENTED: the plugin has no such extension. Any
// thread.
absl::Status RegisterHloTransform(const Plugin& plugin, absl::string_view name, HloTransform* transform);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_HLO_TRANSFORM_H_
