// The worker processes of `helmway up --workers`: children of this process, on this host.
#ifndef HELMWAY_APPS_LOCAL_CLUSTER_H_
#define HELMWAY_APPS_LOCAL_CLUSTER_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/apps/command.h"
#include "helmway/apps/embedded_server.h"
#include "helmway/apps/flags.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"

namespace helmway::apps {

struct LocalClusterOptions {
  std::string executable;  // of helmway
  int workers = 1;
  int devices_per_worker = 1;
  int slices = 1;                         // divides the workers; neighbours make up a slice
  std::vector<std::string> plugin_flags;  // of the plugin (FlagsOf)
  std::string python;
  std::string scratch_location;    // of the compile caches; empty: there is none
  std::vector<std::string> flags;  // of logging and timeouts, as for this process
  Environment environment;
  sigset_t signal_mask;
  absl::Duration start_timeout = absl::Minutes(2);
  // A worker that ends is started again so many times. The first time at once, later after a wait that
  // doubles up to ten seconds, unless it has lived for a minute.
  int max_restarts = 0;
  // Kills a worker now and then, chosen by numbers from this seed; the time between is from half of the
  // interval to one and a half.
  std::optional<uint64_t> chaos_seed;
  absl::Duration chaos_interval = absl::Seconds(20);
};

// Main thread only, but where stated: children get SIGTERM when the thread that started them ends.
class LocalCluster {
 public:
  // Starts the workers and waits until all have their devices. What a worker that can't start has to say is
  // on stderr.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options);
  // Ends the workers and waits for them.
  ~LocalCluster();

  // How a proxy reaches them, in the order of their numbers.
  const std::vector<RemoteWorkerAddress>& workers() const { return addresses_; }
  // Who is told, on another thread, that a worker has started again. It may block.
  using Returned = std::function<absl::Status(size_t number, const RemoteWorkerAddress& address)>;
  // From now on workers that end are started again, and chaos begins.
  void Watch(Returned returned);
  // Not any more. What was being told has been told.
  void StopWatching();
  // To be called when a child of this process has changed its state: says in the log which workers have
  // ended.
  void Reap();
  // To be called at this time (base::SteadyNow), or later.
  absl::Time next_wake_up() const;
  void WakeUp();
  // The server has lost this worker. If it still runs it is killed: it must not write any more. Any thread.
  void Condemn(size_t number, uint64_t incarnation);

 private:
  struct Child {
    pid_t pid = 0;             // 0: has ended
    uint64_t incarnation = 0;  // 0: not known yet
    absl::Time started;
    int restarts = 0;
    absl::Duration wait;                           // before the next start
    absl::Time start_at = absl::InfiniteFuture();  // of the next one
  };

  explicit LocalCluster(const LocalClusterOptions& options);
  std::string NameOf(size_t number) const;
  absl::StatusOr<pid_t> StartWorker(size_t number, int report_fd);
  absl::Status StartAgain(size_t number);
  // Waits for the report of this child, which may be over when it comes.
  absl::StatusOr<RemoteWorkerAddress> AwaitReport(size_t number, pid_t pid, int report_fd,
                                                  absl::Time deadline);
  void KillOne();

  const LocalClusterOptions options_;
  mutable base::Mutex mu_;
  std::vector<Child> children_ ABSL_GUARDED_BY(mu_);
  std::vector<RemoteWorkerAddress> addresses_;  // of the first lives
  bool watching_ = false;
  Returned returned_;  // constant while watching
  std::mt19937_64 chaos_;
  absl::Time next_kill_ = absl::InfiniteFuture();
  std::unique_ptr<async::ThreadPool> starts_;  // waits for reports
};

// `helmway local_worker`: one worker of a LocalCluster. Not for people.
int RunLocalWorker(const std::vector<std::string>& arguments, const CommandContext& context);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_LOCAL_CLUSTER_H_
