#ifndef HELMWAY_APPS_CACHE_COMMAND_H_
#define HELMWAY_APPS_CACHE_COMMAND_H_

#include <string>
#include <vector>

#include "helmway/apps/command.h"

namespace helmway::apps {

// `helmway cache ls|stats|purge`: what lies in the compile cache of a scratch location, for people.
int RunCache(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_CACHE_COMMAND_H_
