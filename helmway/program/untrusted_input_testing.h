#ifndef HELMWAY_PROGRAM_UNTRUSTED_INPUT_TESTING_H_
#define HELMWAY_PROGRAM_UNTRUSTED_INPUT_TESTING_H_

#include "absl/strings/string_view.h"

namespace helmway::program {

// For tests and fuzz targets: give any bytes to a parser, use what it accepts, and abort if that breaks a
// promise of the parser's header. Returns whether the parser accepted.

// `bytes`: a xla.ifrt.ShardingProto.
bool TrySharding(absl::string_view bytes);
// `bytes`: a xla.HloModuleProto, or with `with_config` a xla.HloModuleProtoWithConfig. Tried on 1 to 4
// partitions.
bool TryExecutableSpec(absl::string_view bytes, bool with_config);
// `bytes`: a xla.ifrt.XlaCompileOptionsProto.
bool TryCompileOptions(absl::string_view bytes);
// `bytes`: the text of a layout, a xla.LayoutProto or a xla.ifrt.LayoutProto.
bool TryLayout(absl::string_view bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_UNTRUSTED_INPUT_TESTING_H_
