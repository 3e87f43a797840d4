#ifndef HELMWAY_WIRE_STATUS_H_
#define HELMWAY_WIRE_STATUS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/status.pb.h"

namespace helmway::wire {

// Payload type whose value is a user context id in decimal digits. A client that finds it in an error shows
// the Python call site which that id stands for.
inline constexpr absl::string_view kUserContextPayload = "type.googleapis.com/ifrt.UserContext";

// The error with that call site, unless it has one: the first cause keeps its own. For `id` 0 and OK as it
// is.
absl::Status WithUserContext(absl::Status status, uint64_t id);
absl::Status WithoutUserContext(absl::Status status);

// Code, message and payloads, both ways. An OK status has neither message nor payloads.
//
// What goes out is always valid UTF-8, as protobuf demands of message and payload names (a client that cannot
// parse the response would lose its session): every byte that is not part of a valid character becomes '?'.
// What comes in with a code that no release defines becomes UNKNOWN.
tensorflow::StatusProto StatusToProto(const absl::Status& status);
absl::Status StatusFromProto(const tensorflow::StatusProto& proto);

// `text` with every byte that is not part of a valid UTF-8 character replaced by '?'.
std::string ToValidUtf8(absl::string_view text);

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_STATUS_H_
