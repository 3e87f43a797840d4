// What every command of the program is given, and the choice among them.
#ifndef HELMWAY_APPS_COMMAND_H_
#define HELMWAY_APPS_COMMAND_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "helmway/apps/embedded_server.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/logging.h"
#include "helmway/apps/manager_server.h"
#include "helmway/apps/worker_server.h"

namespace helmway::apps {

// Exit codes besides a child's own.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // a flag that can't be taken, or asks for what is not there

struct CommandContext {
  Environment environment;
  std::string executable_path;  // absolute; empty: unknown
  std::ostream& out;
  std::ostream& err;
  std::function<absl::StatusOr<std::unique_ptr<EmbeddedServer>>(const EmbeddedServerOptions&)> start_server;
  std::function<absl::StatusOr<std::unique_ptr<ManagerServer>>(const ManagerServerOptions&)> start_manager;
  std::function<absl::StatusOr<std::unique_ptr<WorkerServer>>(const WorkerServerOptions&)> start_worker;
  std::function<void(const LogSettings&)> start_logging;
};

// Runs `helmway` with these words (the program's name first) and returns the exit code. Call it in the main
// thread, before there are others.
int RunHelmway(const std::vector<std::string>& words, const CommandContext& context);

// Of a command that can't do what it was told for this reason: kExitUsage for a bad flag.
int UsageOrFailure(const absl::Status& status);

// Name and version of this program, for messages of its peers.
std::string Software();

// The shared directory for large transfers that the environment names, or "".
std::string LargeTransferDirectory(const Environment& environment);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_COMMAND_H_
