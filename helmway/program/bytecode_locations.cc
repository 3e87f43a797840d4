#include "helmway/program/bytecode_locations.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/bits.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace helmway::program {
namespace {

constexpr absl::string_view kMagic("ML\xefR", 4);

enum SectionId : uint8_t { kString = 0, kDialect = 1, kAttrType = 2, kAttrTypeOffset = 3 };
// Codes of attributes of the builtin dialect.
constexpr uint64_t kStringAttr = 2;
constexpr uint64_t kFileLineColLoc = 11;
constexpr uint64_t kFileLineColRange = 22;
// Of VHLO, the dialect of programs that shall be readable later; its encodings do not change
// (VhloBytecode.cpp).
constexpr uint64_t kVhloStringAttr = 14;

// Reads forwards; after the first fault everything is empty and ok() is false.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}
  bool ok() const { return ok_; }
  absl::string_view rest() const { return rest_; }

  absl::string_view Bytes(uint64_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  uint8_t Byte() {
    const absl::string_view byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  // The number of zero bits at the low end of the first byte is the number of bytes that follow it.
  uint64_t Varint() {
    const uint8_t first = Byte();
    if (!ok_) return 0;
    const int more = first == 0 ? 8 : absl::countr_zero(first);
    uint64_t value = first;
    int shift = 8;
    if (more == 8) {
      value = 0;
      shift = 0;
    }
    for (const char c : Bytes(static_cast<uint64_t>(more))) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(c)) << shift;
      shift += 8;
    }
    return more == 8 ? value : value >> (more + 1);
  }
  // A number of things that take a byte each at least.
  uint64_t Count() {
    const uint64_t count = Varint();
    if (count > rest_.size()) ok_ = false;
    return ok_ ? count : 0;
  }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

struct Section {
  uint8_t id = 0;
  absl::string_view bytes;
};

Section ReadSection(Reader& reader) {
  const uint8_t id = reader.Byte();
  const uint64_t length = reader.Varint();
  if ((id & 0x80) != 0) {
    reader.Varint();  // the alignment; padding follows
    while (reader.ok() && !reader.rest().empty() && static_cast<uint8_t>(reader.rest()[0]) == 0xcb)
      reader.Byte();
  }
  return {static_cast<uint8_t>(id & 0x7f), reader.Bytes(length)};
}

bool ReadStrings(absl::string_view bytes, std::vector<absl::string_view>& strings) {
  Reader reader(bytes);
  strings.resize(reader.Count());
  std::vector<uint64_t> sizes(strings.size());
  for (size_t i = sizes.size(); i-- > 0;) sizes[i] = reader.Varint();  // the last comes first
  for (size_t i = 0; i < sizes.size(); ++i) {
    // With a NUL at its end.
    strings[i] = reader.Bytes(sizes[i]);
    if (strings[i].empty() || strings[i].back() != '\0') return false;
    strings[i].remove_suffix(1);
  }
  return reader.ok() && reader.rest().empty();
}

std::optional<uint64_t> FindDialect(absl::string_view dialect, absl::string_view bytes,
                                    const std::vector<absl::string_view>& strings) {
  Reader reader(bytes);
  const uint64_t count = reader.Count();
  for (uint64_t i = 0; i < count && reader.ok(); ++i) {
    const uint64_t name = reader.Varint();
    if ((name & 1) != 0) ReadSection(reader);
    if ((name >> 1) < strings.size() && strings[name >> 1] == dialect) return i;
  }
  return std::nullopt;
}

struct Entry {
  uint64_t dialect = 0;
  bool own_encoding = false;  // of its dialect, else text
  absl::string_view bytes;
};

// Attributes first, then types.
bool ReadEntries(absl::string_view offsets, absl::string_view contents, size_t& attributes,
                 std::vector<Entry>& entries) {
  Reader reader(offsets);
  Reader content(contents);
  attributes = reader.Count();
  const uint64_t total = attributes + reader.Count();
  while (reader.ok() && entries.size() < total) {
    const uint64_t dialect = reader.Varint();
    const uint64_t count = reader.Varint();
    if (count == 0 || count > total - entries.size()) return false;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t size = reader.Varint();
      entries.push_back({dialect, (size & 1) != 0, content.Bytes(size >> 1)});
    }
  }
  return reader.ok() && content.ok() && reader.rest().empty() && content.rest().empty();
}

void Append(std::string& out, absl::string_view bytes) { absl::StrAppend(&out, bytes.size(), ":", bytes); }

}  // namespace

std::string WithoutSourceLocations(absl::string_view bytecode) {
  const auto as_it_is = [bytecode] { return std::string(bytecode); };
  if (!absl::StartsWith(bytecode, kMagic)) return as_it_is();
  Reader reader(bytecode.substr(kMagic.size()));
  const uint64_t version = reader.Varint();
  const size_t producer_size = reader.rest().find('\0');
  if (producer_size == absl::string_view::npos) return as_it_is();
  const absl::string_view producer = reader.Bytes(producer_size);
  reader.Byte();

  std::vector<Section> sections;
  absl::string_view parts[4];
  while (reader.ok() && !reader.rest().empty()) {
    sections.push_back(ReadSection(reader));
    if (sections.back().id < 4) parts[sections.back().id] = sections.back().bytes;
  }
  std::vector<absl::string_view> strings;
  std::vector<Entry> entries;
  size_t attributes = 0;
  if (!reader.ok() || !ReadStrings(parts[kString], strings) ||
      !ReadEntries(parts[kAttrTypeOffset], parts[kAttrType], attributes, entries)) {
    return as_it_is();
  }
  const std::optional<uint64_t> builtin = FindDialect("builtin", parts[kDialect], strings);
  const std::optional<uint64_t> vhlo = FindDialect("vhlo", parts[kDialect], strings);
  if (!builtin) return as_it_is();

  // Locations, and the texts that they name files with.
  std::vector<bool> is_location(entries.size());
  absl::flat_hash_set<uint64_t> files;
  for (size_t i = 0; i < attributes; ++i) {
    if (entries[i].dialect != *builtin || !entries[i].own_encoding) continue;
    Reader location(entries[i].bytes);
    const uint64_t code = location.Varint();
    if (code != kFileLineColLoc && code != kFileLineColRange) continue;
    const uint64_t attribute = location.Varint();
    if (!location.ok() || attribute >= attributes) return as_it_is();
    is_location[i] = true;
    const Entry& name = entries[attribute];
    Reader text(name.bytes);
    if (name.dialect != *builtin || !name.own_encoding || text.Varint() != kStringAttr) return as_it_is();
    const uint64_t string = text.Varint();
    if (!text.ok() || string >= strings.size()) return as_it_is();
    files.insert(string);
  }
  // Attributes of other dialects that may be that text as well: a number of their kind and then that of the
  // text. (Text without an encoding of its own is in the entry itself.)
  for (const Entry& entry : entries) {
    if (entry.dialect == *builtin) continue;
    Reader other(entry.bytes);
    const uint64_t code = other.Varint();
    const uint64_t string = other.Varint();
    if (other.ok() && (entry.dialect != vhlo || code == kVhloStringAttr)) files.erase(string);
  }

  std::string out;
  out.reserve(bytecode.size() + 64 * entries.size());
  absl::StrAppend(&out, "bytecode ", version, " ");
  Append(out, producer);
  for (const Section& section : sections) {
    absl::StrAppend(&out, " section ", section.id, " ");
    switch (section.id) {
      case kString:
        for (size_t i = 0; i < strings.size(); ++i) Append(out, files.contains(i) ? "" : strings[i]);
        break;
      case kAttrType:
        break;  // with the offsets
      case kAttrTypeOffset:
        absl::StrAppend(&out, attributes, " ");
        for (size_t i = 0; i < entries.size(); ++i) {
          absl::StrAppend(&out, entries[i].dialect, entries[i].own_encoding ? "b" : "t");
          if (is_location[i]) {
            out += "location ";
          } else {
            Append(out, entries[i].bytes);
          }
        }
        break;
      default:
        Append(out, section.bytes);
    }
  }
  return out;
}

}  // namespace helmway::program
