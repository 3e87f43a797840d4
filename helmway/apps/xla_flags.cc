#include "helmway/apps/xla_flags.h"

#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace helmway::apps {
namespace {

std::vector<std::string> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word.push_back(c);
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      inside = true;
    } else if (absl::ascii_isspace(static_cast<unsigned char>(c))) {
      if (inside) words.push_back(std::move(word));
      word.clear();
      inside = false;
    } else {
      word.push_back(c);
      inside = true;
    }
  }
  if (inside) words.push_back(std::move(word));
  return words;
}

xla::OptionOverrideProto Bool(bool value) {
  xla::OptionOverrideProto option;
  option.set_bool_field(value);
  return option;
}

xla::OptionOverrideProto Text(absl::string_view value) {
  xla::OptionOverrideProto option;
  option.set_string_field(std::string(value));
  return option;
}

// What a flag may mean, likeliest first. The plugin reads numbers and names out of text by itself, but not
// "true".
std::vector<xla::OptionOverrideProto> Readings(absl::string_view flag) {
  const size_t equals = flag.find('=');
  if (equals == absl::string_view::npos) return {Bool(true)};
  const absl::string_view value = flag.substr(equals + 1);
  if (absl::EqualsIgnoreCase(value, "true")) return {Bool(true), Text(value)};
  if (absl::EqualsIgnoreCase(value, "false")) return {Bool(false), Text(value)};
  if (value == "1" || value == "0") return {Text(value), Bool(value == "1")};
  return {Text(value)};
}

// Options that belong to the process, not to a compile. The plugin takes and ignores them.
const char* WithoutEffect(absl::string_view name) {
  if (name == "xla_force_host_platform_device_count") return "the number of devices is that of --devices";
  return nullptr;
}

}  // namespace

std::vector<std::string> AllXlaFlags(const Environment& environment, const std::vector<std::string>& given,
                                     std::ostream& err) {
  std::vector<std::string> flags;
  if (const auto text = Lookup(environment, "XLA_FLAGS")) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(*text);
    if (stripped.empty() || stripped.front() == '-') {
      flags = SplitWords(stripped);
    } else {
      std::ifstream file{std::string(stripped)};
      if (file.is_open()) {
        flags =
            SplitWords(std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()));
      } else {
        err << "helmway: warning: XLA_FLAGS=" << stripped
            << ": neither flags nor a file that can be read, ignored" << std::endl;
      }
    }
  }
  flags.insert(flags.end(), given.begin(), given.end());
  return flags;
}

XlaFlagsOutcome AcceptXlaFlags(const std::vector<std::string>& flags,
                               absl::FunctionRef<absl::Status(const program::XlaOptions&)> try_options) {
  XlaFlagsOutcome outcome;
  std::map<std::string, std::string> by_name;  // without dashes; name -> the flag as given
  for (const std::string& flag : flags) {
    absl::string_view bare = flag;
    if (!absl::ConsumePrefix(&bare, "--")) absl::ConsumePrefix(&bare, "-");
    const std::string name(bare.substr(0, bare.find('=')));
    if (const char* reason = WithoutEffect(name)) {
      outcome.warnings.push_back(absl::StrCat(flag, ": no effect: ", reason));
    } else {
      by_name[name] = flag;
    }
  }
  if (by_name.empty()) return outcome;

  // All at once, which is all there is to do for flags without a fault.
  for (const auto& [name, flag] : by_name) outcome.options[name] = Readings(flag).front();
  if (try_options(outcome.options).ok()) return outcome;

  outcome.options.clear();
  for (const auto& [name, flag] : by_name) {
    absl::Status refusal;
    bool taken = false;
    for (const xla::OptionOverrideProto& reading : Readings(flag)) {
      refusal = try_options({{name, reading}});
      if (!refusal.ok()) continue;
      outcome.options[name] = reading;
      taken = true;
      break;
    }
    if (!taken) outcome.warnings.push_back(absl::StrCat(flag, ": not applied: ", refusal.message()));
  }
  // Flags that each are good may contradict each other.
  if (!outcome.options.empty()) {
    if (const absl::Status together = try_options(outcome.options); !together.ok()) {
      std::string names;
      for (const auto& [name, option] : outcome.options)
        absl::StrAppend(&names, names.empty() ? "" : " ", by_name[name]);
      outcome.warnings.push_back(
          absl::StrCat(names, ": not applied, since they don't go together: ", together.message()));
      outcome.options.clear();
    }
  }
  return outcome;
}

}  // namespace helmway::apps
