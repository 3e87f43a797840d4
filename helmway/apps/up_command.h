#ifndef HELMWAY_APPS_UP_COMMAND_H_
#define HELMWAY_APPS_UP_COMMAND_H_

#include <string>
#include <vector>

#include "helmway/apps/command.h"
#include "helmway/apps/flags.h"

namespace helmway::apps {

const FlagTable& UpFlags();

// `helmway up [flags] [-- COMMAND ...]`: serves on 127.0.0.1.
//
// Without a command: prints the lines that point a shell's JAX programs here, serves until SIGINT, SIGTERM or
// SIGHUP, and returns 0. With one: runs it with these variables set, passes these signals on to it, stops
// serving when it ends, and returns its exit code, 128 + signal if a signal ended it, 127 if it is not found,
// 126 if it can't be executed. Ctrl-C reaches the command from the terminal, and the server outlives it.
//
// Call it in the main thread, before there are others.
int RunUp(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_UP_COMMAND_H_
