// XLA's flags: where they come from, and which of them a plugin takes.
#ifndef HELMWAY_APPS_XLA_FLAGS_H_
#define HELMWAY_APPS_XLA_FLAGS_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "helmway/apps/flags.h"
#include "helmway/program/compile_options.h"

namespace helmway::apps {

// The words of XLA_FLAGS as XLA reads it: separated by white space, with parts in ' or " kept together. Text
// that does not start with '-' is the name of a file that holds them; what can't be read is told on `err`.
// Then `given`.
std::vector<std::string> AllXlaFlags(const Environment& environment, const std::vector<std::string>& given,
                                     std::ostream& err);

struct XlaFlagsOutcome {
  program::XlaOptions options;
  std::vector<std::string> warnings;  // one line for each flag that is not in `options`
};

// Which of `flags` ("--name=value" or "--name") are options of the plugin, by its own judgement:
// `try_options` compiles something with them. Of two for one option the later counts. XLA's options have
// types that a flag does not show, so a value is tried as what it looks like and then as text.
XlaFlagsOutcome AcceptXlaFlags(const std::vector<std::string>& flags,
                               absl::FunctionRef<absl::Status(const program::XlaOptions&)> try_options);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_XLA_FLAGS_H_
