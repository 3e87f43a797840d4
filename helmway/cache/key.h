#ifndef HELMWAY_CACHE_KEY_H_
#define HELMWAY_CACHE_KEY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace helmway::cache {

// All that decides what a compiler makes of a program.
struct KeyParts {
  absl::string_view program;  // without source locations
  absl::string_view options;  // without devices
  absl::string_view plugin;   // PluginIdentity
  absl::string_view devices;  // kind of the devices
  absl::string_view host;     // HostInstructionSet if the machine code is for the host, else empty
};

// 64 hexadecimal digits.
std::string MakeKey(const KeyParts& parts);

// SHA-256 as 64 hexadecimal digits.
std::string Sha256(absl::string_view bytes);

// Names the contents of a plugin's file and the version that it gives itself. Reads the whole file: some
// tenths of a second for a large one.
absl::StatusOr<std::string> PluginIdentity(const std::string& path, absl::string_view version);

// The instructions that compilers use where the host has them.
std::string HostInstructionSet();

}  // namespace helmway::cache

#endif  // HELMWAY_CACHE_KEY_H_
