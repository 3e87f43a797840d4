#ifndef HELMWAY_PROGRAM_OPTIMIZED_MODULE_H_
#define HELMWAY_PROGRAM_OPTIMIZED_MODULE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {

// An optimized program as PJRT_Executable_OptimizedProgram returns it. `format` is "hlo" (`bytes` are a
// xla.HloModuleProto; the result has no config) or "hlo_with_config" (xla.HloModuleProtoWithConfig).
// INVALID_ARGUMENT for bytes that do not parse; UNIMPLEMENTED for another format.
absl::StatusOr<xla::HloModuleProtoWithConfig> ParseOptimizedModule(absl::string_view format,
                                                                   absl::string_view bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_OPTIMIZED_MODULE_H_
