#ifndef HELMWAY_APPS_SERVER_COMMAND_H_
#define HELMWAY_APPS_SERVER_COMMAND_H_

#include <string>
#include <vector>

#include "helmway/apps/command.h"
#include "helmway/apps/role_flags.h"
#include "helmway/manager/settings.h"

namespace helmway::apps {

// `helmway server [flags]`: the resource manager of a cluster with --node_type=resource_manager, else a
// worker. Serves until SIGTERM or SIGINT and then returns 128 + signal, as a launcher expects of a process
// that did not end by itself. Logs "Pathways Server serving on [::]:PORT" once it listens. Returns 2 for
// flags that can't be taken, 1 if it can't serve, or if a worker can't make its devices.
//
// Neither waits for the other: a manager serves without workers, a worker listens and tries to reach its
// manager for ever.
//
// Call it in the main thread, before there are others.
int RunServer(const std::vector<std::string>& arguments, const CommandContext& context);

// The cluster that the flags describe.
manager::ManagerSettings ClusterSettings(const ResourceManagerOptions& options,
                                         const Environment& environment);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_SERVER_COMMAND_H_
