#ifndef HELMWAY_APPS_LOGGING_H_
#define HELMWAY_APPS_LOGGING_H_

#include <string>

#include "helmway/apps/flags.h"

namespace helmway::apps {

struct LogSettings {
  int min_level = 0;  // glog severity: 0 info, 1 warning, 2 error, 3 fatal
  int verbosity = 0;  // for VLOG
  std::string vmodule;
};

// --minloglevel, GLOG_minloglevel, TF_CPP_MIN_LOG_LEVEL, TPU_MIN_LOG_LEVEL, TPU_STDERR_LOG_LEVEL and LOGLEVEL
// (a number, or DEBUG, INFO, WARNING, ERROR, CRITICAL): the lowest of those that are given and can be read,
// else `default_level`. Verbosity: --v, else GLOG_v; any above zero lowers the level to 0. The flags must
// come from a table with LoggingFlags().
LogSettings ResolveLogSettings(const ParsedFlags& flags, const Environment& environment, int default_level);

// Sends the log of this process to stderr, in glog's form. Once per process, before there are other threads.
void StartLogging(const std::string& program, const LogSettings& settings);

// Logs a line that tools wait for: it appears whatever the level is.
void LogForTools(const std::string& line);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_LOGGING_H_
