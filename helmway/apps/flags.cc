#include "helmway/apps/flags.h"

#include <glog/logging.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace helmway::apps {
namespace {

constexpr absl::string_view kHeadVariable = "PATHWAYS_HEAD";

const FlagSpec* FindSpec(const FlagTable& table, absl::string_view name) {
  for (const FlagSpec& spec : table.flags) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const ForeignPrefix* FindForeign(const FlagTable& table, absl::string_view name) {
  for (const ForeignPrefix& foreign : table.foreign) {
    if (absl::StartsWith(name, foreign.prefix)) return &foreign;
  }
  return nullptr;
}

std::string Quoted(absl::string_view text) { return absl::StrCat("'", text, "'"); }

bool IsBlank(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

std::optional<bool> ParseBool(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (absl::string_view yes : {"true", "t", "yes", "y", "1"}) {
    if (lower == yes) return true;
  }
  for (absl::string_view no : {"false", "f", "no", "n", "0"}) {
    if (lower == no) return false;
  }
  return std::nullopt;
}

bool WhollyQuoted(absl::string_view value) {
  return value.size() >= 2 && (value.front() == '\'' || value.front() == '"') &&
         value.front() == value.back() && value.find(value.front(), 1) == value.size() - 1;
}

// The flags in one argument. More than one only if the text after the first blank starts with "--".
std::vector<std::string> SplitArgument(absl::string_view argument) {
  const size_t equals = argument.find('=');
  if (equals != absl::string_view::npos && WhollyQuoted(argument.substr(equals + 1))) {
    return {std::string(argument)};
  }
  const auto next_word = [&](size_t from) {
    while (from < argument.size() && IsBlank(argument[from])) ++from;
    return from;
  };
  const size_t blank = std::find_if(argument.begin(), argument.end(), IsBlank) - argument.begin();
  if (blank == argument.size() || !absl::StartsWith(argument.substr(next_word(blank)), "--")) {
    return {std::string(argument)};
  }
  std::vector<std::string> flags;
  size_t start = 0;
  for (size_t i = 0; i < argument.size(); ++i) {
    if (!IsBlank(argument[i])) continue;
    const size_t word = next_word(i);
    if (absl::StartsWith(argument.substr(word), "--")) {
      flags.emplace_back(absl::StripAsciiWhitespace(argument.substr(start, i - start)));
      start = word;
    }
    i = word - 1;
  }
  flags.emplace_back(absl::StripAsciiWhitespace(argument.substr(start)));
  return flags;
}

// "NAME" of the first $(NAME) in text at or after `from`; `at` receives where it starts.
std::optional<std::string> NextReference(absl::string_view text, size_t from, size_t* at) {
  while ((from = text.find("$(", from)) != absl::string_view::npos) {
    const size_t end = text.find(')', from);
    if (end == absl::string_view::npos) return std::nullopt;
    const absl::string_view name = text.substr(from + 2, end - from - 2);
    // The names that Kubernetes takes for variables.
    const bool is_name = !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
                         std::all_of(name.begin(), name.end(), [](unsigned char c) {
                           return std::isalnum(c) || c == '_' || c == '-' || c == '.';
                         });
    if (is_name) {
      *at = from;
      return std::string(name);
    }
    from += 2;
  }
  return std::nullopt;
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

absl::string_view Placeholder(FlagType type) {
  switch (type) {
    case FlagType::kBool:
      return "";
    case FlagType::kInt:
      return "=N";
    case FlagType::kString:
      return "=TEXT";
    case FlagType::kAddress:
      return "=HOST:PORT";
    case FlagType::kDuration:
      return "=DURATION";
    case FlagType::kList:
      return "=LIST";
  }
  return "";
}

// Why `value` is not a value of `spec`, or "".
std::string Complaint(const FlagSpec& spec, absl::string_view value) {
  switch (spec.type) {
    case FlagType::kBool:
      return ParseBool(value) ? "" : "neither true nor false";
    case FlagType::kInt: {
      int64_t number;
      if (!absl::SimpleAtoi(value, &number)) return "not a whole number";
      if (number < spec.min) return absl::StrCat("must be at least ", spec.min);
      if (number > spec.max) return absl::StrCat("must be at most ", spec.max);
      return "";
    }
    case FlagType::kAddress: {
      if (value.find("://") != absl::string_view::npos) return "must be host:port, without a scheme";
      const size_t colon = value.rfind(':');
      int port;
      if (colon == absl::string_view::npos || colon == 0 ||
          !absl::SimpleAtoi(value.substr(colon + 1), &port) || port < 1 || port > 65535) {
        return "must be host:port with a port from 1 to 65535";
      }
      return "";
    }
    case FlagType::kDuration: {
      absl::Duration duration;
      if (!absl::ParseDuration(value, &duration) || duration < absl::ZeroDuration()) {
        return "must be a duration such as 300s or 30m";
      }
      return "";
    }
    case FlagType::kString:
    case FlagType::kList:
      return "";
  }
  return "";
}

}  // namespace

std::optional<std::string> Lookup(const Environment& environment, absl::string_view name) {
  const auto it = environment.find(std::string(name));
  if (it == environment.end() || it->second.empty()) return std::nullopt;
  return it->second;
}

std::string StripMatchingQuotes(absl::string_view value) {
  if (WhollyQuoted(value)) value = value.substr(1, value.size() - 2);
  return std::string(value);
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

bool ParsedFlags::Has(absl::string_view name) const {
  const auto it = values_.find(name);
  return it != values_.end() && !it->second.empty();
}

const FlagSpec& ParsedFlags::Spec(absl::string_view name, FlagType type) const {
  const FlagSpec* spec = FindSpec(*table_, name);
  CHECK(spec != nullptr && spec->type == type)
      << "--" << name << " is not a flag of this type in the table of '" << table_->command << "'";
  return *spec;
}

std::string ParsedFlags::Text(absl::string_view name, const FlagSpec& spec) const {
  const auto it = values_.find(name);
  return it == values_.end() || it->second.empty() ? spec.default_value : it->second.back();
}

std::string ParsedFlags::String(absl::string_view name) const {
  const FlagSpec* spec = FindSpec(*table_, name);
  CHECK(spec != nullptr && (spec->type == FlagType::kString || spec->type == FlagType::kAddress))
      << "--" << name << " is not a text flag in the table of '" << table_->command << "'";
  return Text(name, *spec);
}

int64_t ParsedFlags::Int(absl::string_view name) const {
  int64_t number = 0;
  const std::string text = Text(name, Spec(name, FlagType::kInt));
  // Values were checked when parsed; after an error there the default stands.
  if (!absl::SimpleAtoi(text, &number)) return 0;
  return number;
}

bool ParsedFlags::Bool(absl::string_view name) const {
  return ParseBool(Text(name, Spec(name, FlagType::kBool))).value_or(false);
}

absl::Duration ParsedFlags::Duration(absl::string_view name) const {
  absl::Duration duration;
  if (!absl::ParseDuration(Text(name, Spec(name, FlagType::kDuration)), &duration))
    return absl::ZeroDuration();
  return duration;
}

std::vector<std::string> ParsedFlags::List(absl::string_view name) const {
  const FlagSpec& spec = Spec(name, FlagType::kList);
  std::vector<std::string> pieces;
  const auto it = values_.find(name);
  if (it == values_.end()) return pieces;
  for (const std::string& value : it->second) {
    for (absl::string_view piece : absl::StrSplit(value, spec.separator)) {
      piece = absl::StripAsciiWhitespace(piece);
      if (!piece.empty()) pieces.emplace_back(piece);
    }
  }
  return pieces;
}

void ParsedFlags::Error(absl::string_view flag, std::string message) {
  errors.push_back({{std::string(flag)}, std::move(message)});
}

void ParsedFlags::Warn(absl::string_view flag, std::string message) {
  warnings.push_back({{std::string(flag)}, std::move(message)});
}

// One parse. Lives on the stack of ParseFlags.
class FlagParser {
 public:
  FlagParser(const FlagTable& table, const Environment& environment)
      : table_(table), environment_(environment), result_(table) {}

  ParsedFlags Parse(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string argument(absl::StripAsciiWhitespace(arguments[i]));
      if (argument.empty()) continue;
      if (argument == "--") {
        TakeCommand({arguments.begin() + i + 1, arguments.end()});
        break;
      }
      if (argument[0] != '-' || argument == "-") {
        TakeStray(arguments[i]);
        continue;
      }
      const std::vector<std::string> flags = SplitArgument(argument);
      if (flags.size() > 1) {
        result_.Warn(NameOf(flags[0]), absl::StrCat("one argument holds ", flags.size(),
                                                    " flags and was split: ", Quoted(argument)));
      }
      for (size_t f = 0; f < flags.size(); ++f) {
        const bool last = f + 1 == flags.size();
        const std::string* next = last && i + 1 < arguments.size() ? &arguments[i + 1] : nullptr;
        if (TakeFlag(flags[f], next)) ++i;
      }
      last_flag_ = flags.back();
    }
    ReportUnknown();
    ReportNoEffect();
    return std::move(result_);
  }

 private:
  static std::string NameOf(absl::string_view flag) {
    flag.remove_prefix(absl::StartsWith(flag, "--") ? 2 : 1);
    return std::string(flag.substr(0, flag.find('=')));
  }

  // Takes one flag; true if it used `next` as its value.
  bool TakeFlag(absl::string_view flag, const std::string* next) {
    std::string name = NameOf(flag);
    const size_t equals = flag.find('=');
    std::optional<std::string> value;
    if (equals != absl::string_view::npos) value = std::string(flag.substr(equals + 1));

    if (name == "help" || name == "h") {
      result_.help = true;
      return false;
    }
    const bool undefok = name == "undefok";
    const FlagSpec* spec = FindSpec(table_, name);
    if (spec == nullptr && name.find('-') != std::string::npos) {
      // People write --devices-per-worker.
      std::string underscored = name;
      std::replace(underscored.begin(), underscored.end(), '-', '_');
      spec = FindSpec(table_, underscored);
      if (spec != nullptr) name = std::move(underscored);
    }
    if (spec == nullptr && !undefok) {
      const FlagSpec* negated = absl::StartsWith(name, "no") && !value
                                    ? FindSpec(table_, absl::string_view(name).substr(2))
                                    : nullptr;
      if (negated != nullptr && negated->type == FlagType::kBool) {
        Keep(*negated, "false");
        return false;
      }
      TakeOther(name, std::move(value));
      return false;
    }
    if (spec != nullptr && spec->type == FlagType::kBool) {
      Keep(*spec, value.value_or("true"));
      return false;
    }
    bool used_next = false;
    if (!value) {
      if (next == nullptr || absl::StartsWith(*next, "--")) {
        result_.Error(name, absl::StrCat("--", name, " needs a value: --", name, "=..."));
        return false;
      }
      value = *next;
      used_next = true;
    }
    if (undefok) {
      for (absl::string_view piece :
           absl::StrSplit(StripMatchingQuotes(*value), ',', absl::SkipWhitespace())) {
        undefok_.emplace(absl::StripAsciiWhitespace(piece));
      }
    } else {
      Keep(*spec, *std::move(value));
    }
    return used_next;
  }

  // A known flag with its value as written.
  void Keep(const FlagSpec& spec, std::string value) {
    value = std::string(absl::StripAsciiWhitespace(StripMatchingQuotes(value)));
    std::vector<std::string>& kept = result_.values_[spec.name];
    if (spec.type != FlagType::kList) kept.clear();
    if (value.empty()) return;
    if (!Expand(spec.name, spec.type == FlagType::kAddress, &value)) return;
    if (std::string complaint = Complaint(spec, value); !complaint.empty()) {
      result_.Error(spec.name, absl::StrCat("--", spec.name, "=", value, ": ", complaint));
      return;
    }
    if (!spec.no_effect.empty()) NoEffect(spec.name, spec.no_effect);
    kept.push_back(std::move(value));
  }

  // A flag that is not in the table: foreign, retired or unknown.
  void TakeOther(std::string name, std::optional<std::string> value) {
    const ForeignPrefix* foreign = FindForeign(table_, name);
    if (foreign == nullptr && !value && absl::StartsWith(name, "no")) {
      foreign = FindForeign(table_, absl::string_view(name).substr(2));
      if (foreign != nullptr) {
        name = name.substr(2);
        value = "false";
      }
    }
    if (foreign == nullptr) {
      unknown_.push_back(std::move(name));
      return;
    }
    if (value) {
      value = StripMatchingQuotes(*value);
      if (!Expand(name, false, &*value)) return;
    }
    if (!foreign->no_effect.empty()) NoEffect(name, foreign->no_effect);
    if (absl::StartsWith(name, "xla_")) {
      result_.xla_flags.push_back(value ? absl::StrCat("--", name, "=", *value) : absl::StrCat("--", name));
    }
  }

  // Replaces $(NAME) in a value. False, with an error noted, if that can't be done.
  bool Expand(const std::string& name, bool is_address, std::string* value) {
    size_t at = 0;
    for (size_t from = 0;;) {
      const std::optional<std::string> variable = NextReference(*value, from, &at);
      if (!variable) return true;
      const std::string reference = absl::StrCat("$(", *variable, ")");
      std::optional<std::string> text;
      if (*variable == kHeadVariable) {
        text = Lookup(environment_, *variable);
        if (!text && is_address) {
          text = "localhost";
          result_.Warn(name, absl::StrCat("--", name, "=", *value, ": ", *variable,
                                          " is not set here; using localhost in its place"));
        }
      }
      if (!text) {
        result_.Error(name, absl::StrCat("--", name, "=", *value, ": nothing expanded ", reference,
                                         "; set the variable ", *variable,
                                         " on this container or write the value out"));
        return false;
      }
      value->replace(at, reference.size(), *text);
      from = at + text->size();
    }
  }

  void TakeStray(const std::string& argument) {
    std::string message = absl::StrCat("unexpected argument ", Quoted(argument));
    if (table_.takes_command) {
      absl::StrAppend(&message, "; put -- before the command: ", table_.command, " -- ", argument, " ...");
    } else if (!last_flag_.empty() && last_flag_.find('=') == std::string::npos) {
      absl::StrAppend(&message, "; if it belongs to ", last_flag_, ", write ", last_flag_, "=", argument);
    }
    result_.errors.push_back({{}, std::move(message)});
  }

  void TakeCommand(std::vector<std::string> words) {
    if (!table_.takes_command && !words.empty()) {
      TakeStray(words.front());
      return;
    }
    result_.command = std::move(words);
  }

  void ReportUnknown() {
    std::vector<std::string> known = {"help", "undefok"};
    for (const FlagSpec& spec : table_.flags) known.push_back(spec.name);
    for (const std::string& name : unknown_) {
      if (undefok_.count(name) > 0 || (absl::StartsWith(name, "no") && undefok_.count(name.substr(2)) > 0))
        continue;
      const auto retired = std::find_if(table_.retired.begin(), table_.retired.end(),
                                        [&](const RetiredFlag& flag) { return flag.name == name; });
      if (retired != table_.retired.end()) {
        result_.Error(name, absl::StrCat("--", name, " is a retired flag: ", retired->replacement));
        continue;
      }
      std::string message = absl::StrCat("unknown flag --", name);
      if (const std::string nearest = NearestName(name, known); !nearest.empty()) {
        absl::StrAppend(&message, "; did you mean --", nearest, "?");
      } else {
        absl::StrAppend(&message, "; see ", table_.command, " --help");
      }
      result_.Error(name, std::move(message));
    }
  }

  void NoEffect(const std::string& name, const std::string& reason) {
    auto it = std::find_if(no_effect_.begin(), no_effect_.end(),
                           [&](const FlagNote& note) { return note.message == reason; });
    if (it == no_effect_.end()) it = no_effect_.insert(no_effect_.end(), FlagNote{{}, reason});
    if (std::find(it->flags.begin(), it->flags.end(), name) == it->flags.end()) it->flags.push_back(name);
  }

  // One warning per reason, which names every flag that it concerns.
  void ReportNoEffect() {
    for (FlagNote& note : no_effect_) {
      note.message = absl::StrCat("--", absl::StrJoin(note.flags, ", --"), ": ", note.message);
      result_.warnings.push_back(std::move(note));
    }
  }

  const FlagTable& table_;
  const Environment& environment_;
  ParsedFlags result_;
  std::set<std::string> undefok_;
  std::vector<std::string> unknown_;
  std::vector<FlagNote> no_effect_;  // message = the reason alone
  std::string last_flag_;
};

ParsedFlags ParseFlags(const FlagTable& table, const std::vector<std::string>& arguments,
                       const Environment& environment) {
  return FlagParser(table, environment).Parse(arguments);
}

std::string HelpText(const FlagTable& table) {
  std::string text = absl::StrCat("usage: ", table.usage, "\n\n", table.purpose, "\n\nflags:\n");
  for (const FlagSpec& spec : table.flags) {
    absl::StrAppend(&text, "  --", spec.name, Placeholder(spec.type));
    if (!spec.default_value.empty()) absl::StrAppend(&text, "  (default ", spec.default_value, ")");
    absl::StrAppend(&text, "\n      ", spec.help, "\n");
    if (!spec.no_effect.empty()) absl::StrAppend(&text, "      No effect: ", spec.no_effect, ".\n");
  }
  absl::StrAppend(&text,
                  "  --undefok=LIST\n      Flags, joined by commas, that are ignored if they are unknown.\n");
  absl::StrAppend(&text, "  --help\n      Print this text.\n");
  for (const ForeignPrefix& foreign : table.foreign) {
    absl::StrAppend(&text, "  --", foreign.prefix, "*\n");
    if (foreign.no_effect.empty()) {
      absl::StrAppend(&text, "      ", foreign.help, "\n");
    } else {
      absl::StrAppend(&text, "      Taken. No effect: ", foreign.no_effect, ".\n");
    }
  }
  return text;
}

void PrintArguments(const std::vector<std::string>& words, std::ostream& out) {
  for (size_t i = 0; i < words.size(); ++i) {
    out << "argv[" << i << "]: '";
    for (const char c : words[i]) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        constexpr char kDigits[] = "0123456789abcdef";
        out << "\\x" << kDigits[byte >> 4] << kDigits[byte & 15];
      } else {
        out << c;
      }
    }
    out << "'\n";
  }
  out.flush();
}

void PrintNotes(const FlagTable& table, const ParsedFlags& flags, std::ostream& out) {
  for (const FlagNote& note : flags.warnings) out << table.command << ": warning: " << note.message << "\n";
  for (const FlagNote& note : flags.errors) out << table.command << ": " << note.message << "\n";
  out.flush();
}

}  // namespace helmway::apps
