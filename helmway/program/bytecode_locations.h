#ifndef HELMWAY_PROGRAM_BYTECODE_LOCATIONS_H_
#define HELMWAY_PROGRAM_BYTECODE_LOCATIONS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace helmway::program {

// The contents of MLIR bytecode without where in the user's files it came from: names of files, lines and
// columns. For keys of caches only; the result is no bytecode. Two programs have the same result only if they
// differ in nothing else. Bytes that are not understood come back as they are.
//
// Locations are attributes of the builtin dialect. The name of a file is left out only where nothing else in
// the program can refer to the same text. Source: mlir/docs/BytecodeFormat.md and BuiltinDialectBytecode.td
// of the LLVM project.
std::string WithoutSourceLocations(absl::string_view bytecode);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_BYTECODE_LOCATIONS_H_
