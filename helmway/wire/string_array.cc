#include "helmway/wire/string_array.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/wire/ifrt_array.pb.h"

namespace helmway::wire {
namespace {

// Wire types of protobuf's encoding.
constexpr uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

bool TakeVarint(absl::Span<const uint8_t>& rest, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const uint8_t byte = rest.front();
    rest.remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<int64_t> CountStrings(absl::Span<const uint8_t> contents) {
  int64_t count = 0;
  absl::Span<const uint8_t> rest = contents;
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat("the contents of a string array cannot be read from byte ",
                                                   contents.size() - rest.size(), " on"));
  };
  while (!rest.empty()) {
    uint64_t tag, size = 0;
    if (!TakeVarint(rest, &tag) || tag >> 3 == 0) return bad();
    switch (tag & 7) {
      case kVarint: {
        uint64_t ignored;
        if (!TakeVarint(rest, &ignored)) return bad();
        break;
      }
      case kFixed64:
        size = 8;
        break;
      case kBytes:
        if (!TakeVarint(rest, &size)) return bad();
        if (tag >> 3 == xla::ifrt::proto::StringArrayContents::kStringsFieldNumber) ++count;
        break;
      case kFixed32:
        size = 4;
        break;
      default:
        return bad();
    }
    if (size > rest.size()) return bad();
    rest.remove_prefix(static_cast<size_t>(size));
  }
  return count;
}

}  // namespace helmway::wire
