#include "helmway/apps/logging.h"

#include <glog/logging.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace helmway::apps {
namespace {

std::optional<int> ParseLevel(const std::string& text) {
  int level;
  if (absl::SimpleAtoi(text, &level)) return std::clamp(level, 0, 3);
  const std::string name = absl::AsciiStrToUpper(text);
  if (name == "DEBUG" || name == "INFO") return 0;
  if (name == "WARNING" || name == "WARN") return 1;
  if (name == "ERROR") return 2;
  if (name == "CRITICAL" || name == "FATAL") return 3;
  return std::nullopt;
}

}  // namespace

LogSettings ResolveLogSettings(const ParsedFlags& flags, const Environment& environment, int default_level) {
  LogSettings settings;
  std::optional<int> level;
  const auto lower = [&level](std::optional<int> other) {
    if (other && (!level || *other < *level)) level = other;
  };
  if (flags.Has("minloglevel")) lower(static_cast<int>(flags.Int("minloglevel")));
  for (const char* name : {"GLOG_minloglevel", "TF_CPP_MIN_LOG_LEVEL", "TPU_MIN_LOG_LEVEL",
                           "TPU_STDERR_LOG_LEVEL", "LOGLEVEL"}) {
    if (const auto text = Lookup(environment, name)) lower(ParseLevel(*text));
  }
  int verbosity = 0;
  if (flags.Has("v")) {
    verbosity = static_cast<int>(flags.Int("v"));
  } else if (const auto text = Lookup(environment, "GLOG_v"); text && absl::SimpleAtoi(*text, &verbosity)) {
    verbosity = std::max(verbosity, 0);
  }
  settings.verbosity = verbosity;
  settings.vmodule = flags.String("vmodule");
  if (verbosity > 0 || !settings.vmodule.empty()) lower(0);
  settings.min_level = level.value_or(default_level);
  return settings;
}

void StartLogging(const std::string& program, const LogSettings& settings) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = settings.min_level;
  FLAGS_v = settings.verbosity;
  if (!settings.vmodule.empty()) FLAGS_vmodule = settings.vmodule;
  // glog keeps the pointer.
  static const auto* name = new std::string(program);
  google::InitGoogleLogging(name->c_str());
}

void LogForTools(const std::string& line) {
  LOG(INFO) << line;
  if (FLAGS_minloglevel > google::GLOG_INFO) std::cerr << line << std::endl;
}

}  // namespace helmway::apps
