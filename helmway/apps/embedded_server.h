// One process that is the whole runtime: the IFRT proxy service in front of one worker, with no network
// between them.
#ifndef HELMWAY_APPS_EMBEDDED_SERVER_H_
#define HELMWAY_APPS_EMBEDDED_SERVER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace helmway::apps {

struct EmbeddedServerOptions {
  std::string listen_address;          // "127.0.0.1:0", "[::]:29000"
  int devices = 1;                     // virtual CPU devices of the one worker
  std::string plugin_path;             // shared library that exports GetPjrtApi
  std::string python;                  // command whose jaxlib has JAX's custom calls; empty = none
  bool allow_remote_clients = false;   // admit peers that are not on this host
  std::vector<std::string> xla_flags;  // "--xla_...=..."; of two for one option the later counts
  std::string scratch_location;        // where compiled programs persist; empty = in memory only
  int compile_cache_days = 0;          // how long they are kept there; 0 = for ever
  std::map<std::string, std::string> environment;  // how to reach it
  std::string large_transfer_directory;            // shared-directory transfers; empty = refused
};

class EmbeddedServer {
 public:
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Start(const EmbeddedServerOptions& options);
  virtual ~EmbeddedServer() = default;  // shuts down
  virtual int port() const = 0;
  virtual void Shutdown() = 0;  // ends sessions, idempotent
};

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_EMBEDDED_SERVER_H_
