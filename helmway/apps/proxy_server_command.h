#ifndef HELMWAY_APPS_PROXY_SERVER_COMMAND_H_
#define HELMWAY_APPS_PROXY_SERVER_COMMAND_H_

#include <string>
#include <vector>

#include "helmway/apps/command.h"

namespace helmway::apps {

// `helmway proxy_server [flags]`: serves on all interfaces until SIGINT or SIGTERM and returns 0. Clients of
// other hosts are refused unless --allow_remote_clients. Logs "IFRT proxy server started with status OK" once
// it serves. Returns 2 for flags that can't be taken or ask for what is not there, 1 if it can't serve.
//
// Call it in the main thread, before there are others.
int RunProxyServer(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_PROXY_SERVER_COMMAND_H_
