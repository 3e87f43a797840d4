#ifndef HELMWAY_CACHE_ENTRY_H_
#define HELMWAY_CACHE_ENTRY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cache {

struct EntryHeader {
  std::string key;
  std::string plugin;
  std::string name;
  std::string platform;
  int devices = 0;
};

// A compiled program.
struct Entry {
  std::string platform;
  std::string executable;            // as the plugin serializes it
  cluster::CompiledProgram program;  // without its devices and its `serialized`
  bool has_custom_calls = false;     // it may need handlers to be loaded before it

  int64_t size_bytes() const {
    return static_cast<int64_t>(executable.size() + program.optimized_hlo.size() + program.outline.size() +
                                sizeof(Entry));
  }
};

// Layout: "HELMWAYC", format version and size of the header (4 bytes each, little endian), size of the body
// (8), SHA-256 over all that precedes it and all that follows (32), header, body.
std::string EncodeEntry(absl::string_view key, absl::string_view plugin, const Entry& entry);

// DATA_LOSS: the bytes are damaged or cut short. FAILED_PRECONDITION: they are whole, and of another format,
// another key or another plugin.
absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes, absl::string_view key, absl::string_view plugin);

// The header of an entry from its first bytes, kHeaderBytes of them or all that there are. Its body may be
// damaged.
inline constexpr int64_t kHeaderBytes = 4096;
absl::StatusOr<EntryHeader> DecodeHeader(absl::string_view bytes);

}  // namespace helmway::cache

#endif  // HELMWAY_CACHE_ENTRY_H_
