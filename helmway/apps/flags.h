// Command lines: tables of flags, and a pure parser for what templates and people really write.
//
// Command lines of a cluster are made by templates, so they are not clean: empty arguments, several flags in
// one argument, quotes inside values, `$(NAME)` that nobody expanded, the same flag twice. The parser takes
// all of these and refuses what it does not know, so that a misspelt flag never passes.
//
// What it takes:
//   --name=value, --name value   one or two dashes; a value that starts with "--" needs the first form
//   --name, --noname             bool flags: true, false
//   --a-name                     --a_name, unless there is a flag a-name
//   --name=                      as if the flag was never given, earlier values too
//   twice the same flag          the last one wins; lists add up
//   ""                           ignored
//   "--a=1 --b=2"                split when the text after the first blank starts with "--"; one warning
//   --name='value'               one matching pair of ' or " around a whole value is taken off
//   $(PATHWAYS_HEAD)             that variable of the environment; in an address else localhost, with a
//   warning.
//                                Any other $(NAME) is an error
//   --undefok=a,b                these flags are dropped if they are unknown
//   --                           the rest is a command, kept word for word, where the table allows one
#ifndef HELMWAY_APPS_FLAGS_H_
#define HELMWAY_APPS_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace helmway::apps {

// A copy of the environment, so that nothing here reads or changes global state.
using Environment = std::map<std::string, std::string>;

// The value of `name`, or nullopt if it is not set or empty.
std::optional<std::string> Lookup(const Environment& environment, absl::string_view name);

enum class FlagType {
  kBool,      // true, false, yes, no, 1, 0, t, f, y, n in any case
  kInt,       // decimal, within [min, max]
  kString,    // any text
  kAddress,   // host:port, no scheme
  kDuration,  // 300s, 30m, 1h30m
  kList,      // pieces joined by `separator`; repeated flags add up
};

struct FlagSpec {
  std::string name;  // without dashes
  FlagType type = FlagType::kString;
  std::string default_value;  // text as on a command line; empty = none
  std::string help;           // one sentence
  int64_t min = 0;            // kInt only
  int64_t max = INT64_MAX;    // kInt only
  std::string separator;      // kList only
  // Not empty: the flag is taken but does nothing; giving it prints this, once.
  std::string no_effect;
};

// Flags of other systems that a program takes by prefix without knowing each.
struct ForeignPrefix {
  std::string prefix;
  std::string no_effect;  // printed if one is given; empty: they have an effect
  std::string help;       // of those
};

// A name of the past, refused with the name to use now.
struct RetiredFlag {
  std::string name;
  std::string replacement;  // ends the sentence "--name is a retired flag: "
};

struct FlagTable {
  std::string command;  // "helmway up"
  std::string usage;    // "helmway up [flags] [-- COMMAND ...]"
  std::string purpose;  // one paragraph, for --help
  std::vector<FlagSpec> flags;
  std::vector<ForeignPrefix> foreign;
  std::vector<RetiredFlag> retired;
  bool takes_command = false;  // words after "--" are allowed
};

// Something to tell the user: one line, and the flags that it is about (without dashes).
struct FlagNote {
  std::vector<std::string> flags;
  std::string message;
};

// The result of a parse. Immutable use from any thread.
class ParsedFlags {
 public:
  explicit ParsedFlags(const FlagTable& table) : table_(&table) {}

  bool ok() const { return errors.empty(); }
  // True if the flag was given with a value that is not empty.
  bool Has(absl::string_view name) const;

  // The value given, else the default of the table, else "" / 0 / false / zero / no pieces. The name must be
  // in the table with that type; asking for another is a bug and aborts.
  std::string String(absl::string_view name) const;
  int64_t Int(absl::string_view name) const;
  bool Bool(absl::string_view name) const;
  absl::Duration Duration(absl::string_view name) const;
  std::vector<std::string> List(absl::string_view name) const;

  void Error(absl::string_view flag, std::string message);
  void Warn(absl::string_view flag, std::string message);

  std::vector<FlagNote> errors;
  std::vector<FlagNote> warnings;
  // XLA options in the order given, each as "--xla_name=value" or "--xla_name".
  std::vector<std::string> xla_flags;
  std::vector<std::string> command;  // the words after "--"
  bool help = false;                 // --help or -h was given; errors are then of no interest

 private:
  friend class FlagParser;
  const FlagSpec& Spec(absl::string_view name, FlagType type) const;
  std::string Text(absl::string_view name, const FlagSpec& spec) const;

  const FlagTable* table_;  // outlives this
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
};

// Parses `arguments` (without the program's name). `table` must outlive the result. Never fails as a whole:
// every problem found is in `errors`. Reads nothing but its arguments.
ParsedFlags ParseFlags(const FlagTable& table, const std::vector<std::string>& arguments,
                       const Environment& environment);

// The text of --help.
std::string HelpText(const FlagTable& table);

// Takes one matching pair of ' or " off a value that is wholly inside it.
std::string StripMatchingQuotes(absl::string_view value);

// Prints each word of a command line on its own line as argv[N]: '...', control characters escaped.
void PrintArguments(const std::vector<std::string>& words, std::ostream& out);

// Prints errors and warnings, one per line, as "<command>: ..." and "<command>: warning: ...".
void PrintNotes(const FlagTable& table, const ParsedFlags& flags, std::ostream& out);

// The candidate with the smallest edit distance to `name`, or "" if none is near (more than a third of the
// name).
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_FLAGS_H_
