#ifndef HELMWAY_PROGRAM_BACKEND_CONFIG_H_
#define HELMWAY_PROGRAM_BACKEND_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {

// The backend config of an instruction of `module`, wherever the module keeps it; empty if it has none.
// INVALID_ARGUMENT if it lies where the module has nothing.
absl::StatusOr<std::string> BackendConfig(const xla::HloModuleProto& module,
                                          const xla::HloInstructionProto& instruction);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_BACKEND_CONFIG_H_
