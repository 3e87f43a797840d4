#include "helmway/base/available_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace helmway::base {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line.
std::optional<int64_t> Field(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t:"), absl::SkipEmpty());
    int64_t number;
    if (!words.empty() && absl::SimpleAtoi(words[0], &number)) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> Number(const std::string& path) {
  int64_t number;
  if (!absl::SimpleAtoi(Read(path), &number)) return std::nullopt;  // also "max"
  return number;
}

// What one control group leaves. Cached files count as used there, but go when memory is wanted.
int64_t LeftInGroup(const std::string& folder, const char* limit_file, const char* usage_file,
                    const char* cache_field) {
  const std::optional<int64_t> limit = Number(absl::StrCat(folder, "/", limit_file));
  const std::optional<int64_t> usage = Number(absl::StrCat(folder, "/", usage_file));
  if (!limit || !usage) return kUnlimited;
  const int64_t cache = Field(Read(absl::StrCat(folder, "/memory.stat")), cache_field).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cache));
}

}  // namespace

int64_t AvailableMemoryBytes(const MemoryFiles& files) {
  int64_t available = kUnlimited;
  if (const auto kib = Field(Read(absl::StrCat(files.proc, "/meminfo")), "MemAvailable")) {
    available = *kib * 1024;
  }
  const std::string groups = Read(absl::StrCat(files.proc, "/self/cgroup"));
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool second_version = parts[1].empty();
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (!second_version && std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) {
      continue;
    }
    // The group itself and all above it; what a container does not see has no files.
    absl::string_view group = parts[2];
    while (true) {
      group = absl::StripSuffix(group, "/");
      available =
          std::min(available, second_version ? LeftInGroup(absl::StrCat(files.cgroup, group), "memory.max",
                                                           "memory.current", "inactive_file")
                                             : LeftInGroup(absl::StrCat(files.cgroup, "/memory", group),
                                                           "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                           "total_inactive_file"));
      if (group.empty()) break;
      group = group.substr(0, group.rfind('/'));
    }
  }
  return available;
}

void ReturnFreeMemory() { malloc_trim(0); }

}  // namespace helmway::base
