#include "helmway/cache/entry.h"

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/little_endian.h"
#include "helmway/cache/entry.pb.h"
#include "helmway/cache/key.h"

namespace helmway::cache {
namespace {

constexpr absl::string_view kMagic = "HELMWAYC";
constexpr uint32_t kFormat = 2;
constexpr size_t kPrefixBytes = 8 + 4 + 4 + 8;
constexpr size_t kHashBytes = 32;

std::string Fixed(uint64_t value, size_t bytes) {
  std::string out(bytes, '\0');
  base::StoreLittleEndian(value, bytes, reinterpret_cast<uint8_t*>(out.data()));
  return out;
}

uint64_t ReadFixed(absl::string_view bytes) {
  return base::LoadLittleEndian(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string Checksum(absl::string_view prefix, absl::string_view rest) {
  return absl::HexStringToBytes(Sha256(absl::StrCat(prefix, rest)));
}

absl::Status Damaged(absl::string_view how) { return absl::DataLossError(absl::StrCat("damaged: ", how)); }
absl::Status Foreign(absl::string_view how) {
  return absl::FailedPreconditionError(absl::StrCat("foreign: ", how));
}

struct Parts {
  uint64_t header_bytes = 0;
  uint64_t body_bytes = 0;
};

absl::StatusOr<Parts> ReadPrefix(absl::string_view bytes) {
  if (bytes.size() < kPrefixBytes + kHashBytes) return Damaged("cut short");
  if (bytes.substr(0, kMagic.size()) != kMagic) return Damaged("no entry of a compile cache");
  const uint64_t format = ReadFixed(bytes.substr(8, 4));
  if (format != kFormat) return Foreign(absl::StrCat("format ", format, ", not ", kFormat));
  return Parts{ReadFixed(bytes.substr(12, 4)), ReadFixed(bytes.substr(16, 8))};
}

EntryHeader FromProto(const EntryHeaderProto& proto) {
  return {.key = proto.key(),
          .plugin = proto.plugin(),
          .name = proto.name(),
          .platform = proto.platform(),
          .devices = proto.devices()};
}

}  // namespace

std::string EncodeEntry(absl::string_view key, absl::string_view plugin, const Entry& entry) {
  EntryHeaderProto header;
  header.set_key(std::string(key));
  header.set_plugin(std::string(plugin));
  // Listings read no more than kHeaderBytes.
  header.set_name(entry.program.name.substr(0, 1024));
  header.set_platform(entry.platform);
  header.set_devices(entry.program.num_replicas * entry.program.num_partitions);
  EntryBodyProto body;
  body.set_executable(entry.executable);
  body.set_num_replicas(entry.program.num_replicas);
  body.set_num_partitions(entry.program.num_partitions);
  body.set_optimized_hlo_format(entry.program.optimized_hlo_format);
  body.set_optimized_hlo(entry.program.optimized_hlo);
  body.set_outline(entry.program.outline);
  for (const std::string& kind : entry.program.output_memory_kinds) body.add_output_memory_kinds(kind);
  body.set_fingerprint(entry.program.fingerprint);
  if (entry.program.memory_stats.ok()) {
    body.set_memory_stats(*entry.program.memory_stats);
  } else {
    body.set_memory_stats_missing(std::string(entry.program.memory_stats.status().message()));
  }
  body.set_code_size_bytes(entry.program.code_size_bytes);
  body.set_has_custom_calls(entry.has_custom_calls);
  body.set_has_collectives(entry.program.has_collectives);

  const std::string header_bytes = header.SerializeAsString();
  const std::string body_bytes = body.SerializeAsString();
  const std::string prefix =
      absl::StrCat(kMagic, Fixed(kFormat, 4), Fixed(header_bytes.size(), 4), Fixed(body_bytes.size(), 8));
  const std::string rest = absl::StrCat(header_bytes, body_bytes);
  return absl::StrCat(prefix, Checksum(prefix, rest), rest);
}

absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes, absl::string_view key, absl::string_view plugin) {
  absl::StatusOr<Parts> parts = ReadPrefix(bytes);
  if (!parts.ok()) return parts.status();
  const absl::string_view rest = bytes.substr(kPrefixBytes + kHashBytes);
  if (parts->header_bytes > rest.size() || parts->body_bytes != rest.size() - parts->header_bytes) {
    return Damaged(absl::StrCat(bytes.size(), " bytes are not as many as it says"));
  }
  if (bytes.substr(kPrefixBytes, kHashBytes) != Checksum(bytes.substr(0, kPrefixBytes), rest)) {
    return Damaged("wrong checksum");
  }
  EntryHeaderProto header;
  EntryBodyProto body;
  const absl::string_view body_bytes = rest.substr(parts->header_bytes);
  if (body_bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !header.ParseFromArray(rest.data(), static_cast<int>(parts->header_bytes)) ||
      !body.ParseFromArray(body_bytes.data(), static_cast<int>(body_bytes.size()))) {
    return Damaged("it does not parse");
  }
  if (header.key() != key) return Foreign(absl::StrCat("it has the key ", header.key()));
  if (header.plugin() != plugin) return Foreign(absl::StrCat("made by the plugin '", header.plugin(), "'"));
  Entry entry;
  entry.platform = header.platform();
  entry.executable = std::move(*body.mutable_executable());
  entry.program.name = header.name();
  entry.program.num_replicas = body.num_replicas();
  entry.program.num_partitions = body.num_partitions();
  entry.program.optimized_hlo_format = body.optimized_hlo_format();
  entry.program.optimized_hlo = std::move(*body.mutable_optimized_hlo());
  entry.program.outline = std::move(*body.mutable_outline());
  entry.program.output_memory_kinds.assign(body.output_memory_kinds().begin(),
                                           body.output_memory_kinds().end());
  entry.program.fingerprint = body.fingerprint();
  if (body.memory_case() == EntryBodyProto::kMemoryStats) {
    entry.program.memory_stats = body.memory_stats();
  } else {
    entry.program.memory_stats = absl::UnimplementedError(body.memory_stats_missing());
  }
  entry.program.code_size_bytes = body.code_size_bytes();
  entry.has_custom_calls = body.has_custom_calls();
  entry.program.has_collectives = body.has_collectives();
  return entry;
}

absl::StatusOr<EntryHeader> DecodeHeader(absl::string_view bytes) {
  absl::StatusOr<Parts> parts = ReadPrefix(bytes);
  if (!parts.ok()) return parts.status();
  const absl::string_view rest = bytes.substr(kPrefixBytes + kHashBytes);
  EntryHeaderProto header;
  if (parts->header_bytes > rest.size() ||
      !header.ParseFromArray(rest.data(), static_cast<int>(parts->header_bytes))) {
    return Damaged("its header does not parse");
  }
  return FromProto(header);
}

}  // namespace helmway::cache
