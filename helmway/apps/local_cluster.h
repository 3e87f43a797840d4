// The worker processes of `helmway up --workers`: children of this process, on this host.
#ifndef HELMWAY_APPS_LOCAL_CLUSTER_H_
#define HELMWAY_APPS_LOCAL_CLUSTER_H_

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/apps/command.h"
#include "helmway/apps/embedded_server.h"
#include "helmway/apps/flags.h"

namespace helmway::apps {

struct LocalClusterOptions {
  std::string executable;  // of helmway
  int workers = 1;
  int devices_per_worker = 1;
  int slices = 1;  // divides the workers; neighbours make up a slice
  std::string plugin_path;
  std::string python;
  std::string scratch_location;    // of the compile caches; empty: there is none
  std::vector<std::string> flags;  // of logging and timeouts, as for this process
  Environment environment;
  sigset_t signal_mask;
  absl::Duration start_timeout = absl::Minutes(2);
};

// Main thread only: children get SIGTERM when the thread that started them ends.
class LocalCluster {
 public:
  // Starts the workers and waits until all have their devices. What a worker that can't start has to say is
  // on stderr.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options);
  // Ends the workers and waits for them.
  ~LocalCluster();

  // How a proxy reaches them, in the order of their numbers.
  const std::vector<RemoteWorkerAddress>& workers() const { return addresses_; }
  // To be called when a child of this process has changed its state: says in the log which workers have
  // ended.
  void Reap();

 private:
  LocalCluster() = default;
  absl::Status StartWorker(const LocalClusterOptions& options, int number, int report_fd);

  std::vector<pid_t> children_;  // 0: has ended
  std::vector<RemoteWorkerAddress> addresses_;
};

// `helmway local_worker`: one worker of a LocalCluster. Not for people.
int RunLocalWorker(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_LOCAL_CLUSTER_H_
