#include "helmway/storage/store.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "helmway/storage/local_store.h"

namespace helmway::storage {
namespace {

absl::string_view TrimSlashes(absl::string_view text) {
  while (absl::ConsumePrefix(&text, "/")) {
  }
  while (absl::ConsumeSuffix(&text, "/")) {
  }
  return text;
}

}  // namespace

absl::Status CheckObjectName(absl::string_view name) {
  const auto bad = [name](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("object name '", absl::CHexEscape(name), "': ", why));
  };
  if (name.size() > 900) return bad("longer than 900 bytes");
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty() || part == "." || part == "..") return bad("an empty part, '.' or '..'");
    if (part.size() > 200) return bad("a part longer than 200 bytes");
    if (absl::StartsWith(part, kTemporaryPrefix)) return bad("reserved for unfinished files");
    for (const char c : part) {
      if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return bad("a character that is not visible");
    }
  }
  return absl::OkStatus();
}

Location Location::Below(absl::string_view name) const {
  Location below = *this;
  const absl::string_view trimmed = TrimSlashes(name);
  below.path = path.empty() ? std::string(trimmed) : absl::StrCat(path == "/" ? "" : path, "/", trimmed);
  return below;
}

std::string Location::ToString() const {
  switch (kind) {
    case Kind::kLocal:
      return path;
    case Kind::kGcs:
      return absl::StrCat("gs://", bucket, path.empty() ? "" : "/", path);
    case Kind::kMemory:
      return absl::StrCat("memory://", path);
  }
  return "";
}

absl::StatusOr<Location> ParseLocation(absl::string_view text) {
  const auto bad = [text](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", why));
  };
  Location location;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "gs://")) {
    const size_t slash = rest.find('/');
    location.kind = Location::Kind::kGcs;
    location.bucket = std::string(rest.substr(0, slash));
    location.path = slash == absl::string_view::npos ? "" : std::string(TrimSlashes(rest.substr(slash)));
    if (location.bucket.empty()) return bad("there is no bucket after gs://");
    for (const char c : location.bucket) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') {
        return bad("a bucket's name has letters, digits, '-', '_' and '.' only");
      }
    }
    if (!location.path.empty()) {
      if (absl::Status status = CheckObjectName(location.path); !status.ok()) return bad(status.message());
    }
    return location;
  }
  if (text == "memory://") return location;
  if (absl::ConsumePrefix(&rest, "file://") && !absl::StartsWith(rest, "/")) {
    return bad("the path after file:// must start with /");
  }
  if (!absl::StartsWith(rest, "/")) {
    return bad("must be gs://bucket/directory, file:///directory or an absolute path");
  }
  if (rest.find('\0') != absl::string_view::npos) return bad("a path can't hold a NUL");
  location.kind = Location::Kind::kLocal;
  location.path = absl::StrCat("/", TrimSlashes(rest));
  return location;
}

}  // namespace helmway::storage
