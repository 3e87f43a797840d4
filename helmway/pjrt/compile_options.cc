#include "helmway/pjrt/compile_options.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace helmway::pjrt {
namespace {

// Field numbers of CompileOptionsProto and ExecutableBuildOptionsProto.
constexpr uint64_t kExecutableBuildOptions = 3;
constexpr uint64_t kNumReplicas = 4;
constexpr uint64_t kNumPartitions = 5;

std::optional<uint64_t> ReadVarint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Calls `field(number, varint, submessage)` for each field; false if the bytes are no message. Groups, which
// proto3 does not have, count as malformed.
template <typename Field>
bool ForEachField(std::string_view bytes, const Field& field) {
  while (!bytes.empty()) {
    std::optional<uint64_t> tag = ReadVarint(bytes);
    if (!tag.has_value()) return false;
    uint64_t number = 0;
    std::string_view data;
    size_t size = 0;
    switch (*tag & 7) {
      case 0: {
        std::optional<uint64_t> value = ReadVarint(bytes);
        if (!value.has_value()) return false;
        number = *value;
        break;
      }
      case 1:
        size = 8;
        break;
      case 2: {
        std::optional<uint64_t> length = ReadVarint(bytes);
        if (!length.has_value() || *length > bytes.size()) return false;
        size = static_cast<size_t>(*length);
        break;
      }
      case 5:
        size = 4;
        break;
      default:
        return false;
    }
    if (size > bytes.size()) return false;
    data = bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (!field(*tag, number, data)) return false;
  }
  return true;
}

}  // namespace

std::string DefaultCompileOptions() {
  // executable_build_options { device_ordinal: -1 num_replicas: 1 num_partitions: 1 }
  return std::string("\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01", 17);
}

absl::Status CheckCompileOptions(std::string_view serialized) {
  // As signed numbers: protobuf writes int64 as its two's complement. The last value of a field counts.
  int64_t replicas = 0;
  int64_t partitions = 0;
  const bool well_formed = ForEachField(serialized, [&](uint64_t tag, uint64_t, std::string_view build) {
    if (tag != (kExecutableBuildOptions << 3 | 2)) return true;
    return ForEachField(build, [&](uint64_t build_tag, uint64_t number, std::string_view) {
      if (build_tag == kNumReplicas << 3) replicas = static_cast<int64_t>(number);
      if (build_tag == kNumPartitions << 3) partitions = static_cast<int64_t>(number);
      return true;
    });
  });
  if (!well_formed)
    return absl::InvalidArgumentError("the compile options are no serialized CompileOptionsProto");
  if (replicas < 1 || partitions < 1 || replicas > kMaxLogicalDevices || partitions > kMaxLogicalDevices ||
      replicas * partitions > kMaxLogicalDevices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the compile options ask for ", replicas, " replicas and ", partitions,
        " partitions; both must be at least 1 and their ", "product at most ", kMaxLogicalDevices));
  }
  return absl::OkStatus();
}

}  // namespace helmway::pjrt
