#ifndef HELMWAY_WIRE_STRING_ARRAY_H_
#define HELMWAY_WIRE_STRING_ARRAY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace helmway::wire {

// The number of elements in the host buffer of a string array: serialized xla.ifrt.proto.StringArrayContents,
// of any size. Allocates nothing. INVALID_ARGUMENT for bytes that are no such message. Any thread.
absl::StatusOr<int64_t> CountStrings(absl::Span<const uint8_t> contents);

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_STRING_ARRAY_H_
