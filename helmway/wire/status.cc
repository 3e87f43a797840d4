#include "helmway/wire/status.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace helmway::wire {
namespace {

// Length of the valid UTF-8 character at the start of `text`, 0 if there is none (RFC 3629: no overlong
// forms, no surrogates, nothing above U+10FFFF).
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;  // bounds of the second byte
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

absl::Status WithUserContext(absl::Status status, uint64_t id) {
  if (id != 0 && !status.ok() && !status.GetPayload(kUserContextPayload).has_value()) {
    status.SetPayload(kUserContextPayload, absl::Cord(absl::StrCat(id)));
  }
  return status;
}

absl::Status WithoutUserContext(absl::Status status) {
  status.ErasePayload(kUserContextPayload);
  return status;
}

std::string ToValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) {
      out.push_back('?');
      text.remove_prefix(1);
    } else {
      out.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return out;
}

tensorflow::StatusProto StatusToProto(const absl::Status& status) {
  tensorflow::StatusProto proto;
  if (status.ok()) return proto;
  // code() and not raw_code(): it folds codes from outside the canonical set into UNKNOWN.
  proto.set_code(static_cast<tensorflow::error::Code>(status.code()));
  proto.set_message(ToValidUtf8(status.message()));
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& value) {
    (*proto.mutable_payload())[ToValidUtf8(type_url)] = std::string(value);
  });
  return proto;
}

absl::Status StatusFromProto(const tensorflow::StatusProto& proto) {
  if (proto.code() == tensorflow::error::OK) return absl::OkStatus();
  const int raw = proto.code();
  const bool known = raw > 0 && raw <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status status(known ? static_cast<absl::StatusCode>(raw) : absl::StatusCode::kUnknown,
                      proto.message());
  for (const auto& [type_url, value] : proto.payload()) status.SetPayload(type_url, absl::Cord(value));
  return status;
}

}  // namespace helmway::wire
