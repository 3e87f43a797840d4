#ifndef HELMWAY_PJRT_COMPILE_OPTIONS_H_
#define HELMWAY_PJRT_COMPILE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace helmway::pjrt {

// A serialized xla.CompileOptionsProto (OpenXLA xla/pjrt/proto/compile_options.proto) for one replica and one
// partition on a device of the plugin's choice.
std::string DefaultCompileOptions();

// INVALID_ARGUMENT for options on which plugins abort the process instead of answering: bytes that are no
// message, or counts of replicas or partitions that are missing, below one or too large (their product is at
// most kMaxLogicalDevices). Everything else is left to the plugin.
inline constexpr int64_t kMaxLogicalDevices = 1 << 20;
absl::Status CheckCompileOptions(std::string_view serialized);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_COMPILE_OPTIONS_H_
