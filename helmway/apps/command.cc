#include "helmway/apps/command.h"

#include "absl/strings/str_cat.h"
#include "helmway/apps/cache_command.h"
#include "helmway/apps/local_cluster.h"
#include "helmway/apps/proxy_server_command.h"
#include "helmway/apps/server_command.h"
#include "helmway/apps/up_command.h"

namespace helmway::apps {
namespace {

constexpr char kUsage[] =
    "usage: helmway COMMAND [flags]\n"
    "\n"
    "A single-controller runtime for JAX: the server that JAX_PLATFORMS=proxy connects to.\n"
    "\n"
    "commands:\n"
    "  up            serve the devices of this machine, and run a program on them\n"
    "  proxy_server  serve the devices of this host on a port, as containers do\n"
    "  server        the resource manager of a cluster, or one of its workers\n"
    "  cache         what lies in the compile cache of a scratch location: ls, stats, purge\n"
    "\n"
    "  helmway COMMAND --help   flags of a command\n"
    "  helmway --version        version\n";

}  // namespace

int UsageOrFailure(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ? kExitUsage : kExitFailure;
}

std::string Software() { return absl::StrCat("helmway ", HELMWAY_VERSION); }

std::string LargeTransferDirectory(const Environment& environment) {
  for (const char* name : {"IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY",
                           "IFRT_PROXY_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"}) {
    if (const auto directory = Lookup(environment, name)) return *directory;
  }
  return "";
}

int RunHelmway(const std::vector<std::string>& words, const CommandContext& context) {
  if (words.size() < 2) {
    context.err << kUsage;
    return kExitUsage;
  }
  const std::string& command = words[1];
  const std::vector<std::string> arguments(words.begin() + 2, words.end());
  if (command == "up") return RunUp(arguments, context);
  if (command == "local_worker") return RunLocalWorker(arguments, context);
  if (command == "cache") return RunCache(arguments, context);
  if (command == "proxy_server") {
    PrintArguments(words, context.err);
    return RunProxyServer(arguments, context);
  }
  if (command == "server") {
    PrintArguments(words, context.err);
    return RunServer(arguments, context);
  }
  if (command == "--help" || command == "-h" || command == "help") {
    context.out << kUsage << std::flush;
    return kExitOk;
  }
  if (command == "--version" || command == "version") {
    context.out << Software() << std::endl;
    return kExitOk;
  }
  context.err << "helmway: unknown command '" << command << "'";
  if (const std::string nearest = NearestName(command, {"up", "proxy_server", "server", "cache"});
      !nearest.empty()) {
    context.err << "; did you mean '" << nearest << "'?";
  }
  context.err << "\n" << kUsage;
  return kExitUsage;
}

}  // namespace helmway::apps
