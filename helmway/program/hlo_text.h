#ifndef HELMWAY_PROGRAM_HLO_TEXT_H_
#define HELMWAY_PROGRAM_HLO_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace helmway::program {

// The text of an optimized program, as XLA's HloModule::ToString with default options prints it.
//
// `format` and `bytes` are what a PJRT plugin returns as an executable's optimized program: "hlo" is a
// serialized xla.HloModuleProto, "hlo_with_config" a serialized xla.HloModuleProtoWithConfig.
//
// Aims at the bytes that jaxlib 0.11.2 prints. Opcodes and attributes that this printer does not know are
// printed in the general form "name = shape opcode(operands)".
//
// INVALID_ARGUMENT: bytes that do not parse or a module that contradicts itself (ids that refer to nothing,
// a literal that does not fit its shape, computations that call each other in a circle). RESOURCE_EXHAUSTED:
// a text of more than 1 GiB. UNIMPLEMENTED: another format.
//
// A pure function: any thread.
absl::StatusOr<std::string> HloText(absl::string_view format, absl::string_view bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_HLO_TEXT_H_
