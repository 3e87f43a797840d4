#ifndef HELMWAY_WORKER_SIDECAR_H_
#define HELMWAY_WORKER_SIDECAR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/async/completion.h"
#include "helmway/async/growing_pool.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::worker {

struct SidecarOptions {
  std::string python;  // command of the Python to run
  int process = 0;     // of this worker among `hosts`
  std::vector<cluster::PythonHost> hosts;
  // What it says to the sidecars of other hosts. On one thread of the sidecar's.
  std::function<void(const std::string&)> says;
};

// One device's part of an argument or output: dense row-major bytes, or serialized strings.
struct SidecarShard {
  cluster::DeviceId device = 0;
  base::HostBytes bytes;
};
using SidecarArrays = std::vector<std::vector<SidecarShard>>;  // by number of the argument or output

// A Python process that runs functions of one session's client: sidecar.py, which describes what goes between
// the two. In a process group of its own, which ends with it; it ends with this process. What it prints goes
// to stderr, line by line, whatever the level of the log.
//
// Any thread. Calls that block end when the process does, with DATA_LOSS that says how it ended.
class Sidecar : public std::enable_shared_from_this<Sidecar> {
 public:
  // Starts the process, on three of `threads`, which must outlive them, until it has ended.
  static std::shared_ptr<Sidecar> Start(const SidecarOptions& options, async::GrowingPool* threads);

  Sidecar(const Sidecar&) = delete;
  Sidecar& operator=(const Sidecar&) = delete;
  ~Sidecar();

  // Blocks until functions can be loaded. FAILED_PRECONDITION, for good: it could not be started, or Python
  // lacks something, by name.
  absl::Status AwaitReady(absl::Duration patience);
  // Once it is ready. "3.12" and "0.11.2".
  const std::string& python_version() const { return python_version_; }
  const std::string& jax_version() const { return jax_version_; }

  // Unpickles a function. Blocks. INVALID_ARGUMENT with the text of Python's error and its traceback.
  absl::Status Load(cluster::ExecutableId id, const std::string& name, const base::HostBytes& pickled,
                    bool x64);
  // Calls a function that is loaded. Blocks; calls of one stream must come one after the other. Errors as of
  // Load. Outputs may lie in memory that the process can write too.
  absl::StatusOr<SidecarArrays> Run(cluster::ExecutableId id, int64_t stream, const SidecarArrays& arguments);
  // Drops a function, before anything that comes later on that stream.
  void Unload(cluster::ExecutableId id, int64_t stream);

  // What another has said. Dropped if it can't be meant.
  void Tell(const std::string& text);

  // Ends the process and all that it has started. Does not wait for the end.
  void Kill();
  // OK while the process lives and nobody has ended it.
  absl::Status status() const;

 private:
  struct Message;
  struct Pending {
    base::Notification done;
    absl::Status status;
    std::string outputs;  // JSON
    base::HostBytes region;
  };

  Sidecar(SidecarOptions options, async::GrowingPool* threads);
  // The bodies of the three threads.
  void Watch();
  void Receive();
  void ForwardLines();

  absl::Status Spawn();
  absl::StatusOr<Message> ReceiveMessage();
  absl::Status OnMessage(Message message);
  // The region: the bytes of these, each at a multiple of the alignment.
  absl::Status Send(const std::string& json, const std::vector<base::HostBytes>& parts = {});
  absl::StatusOr<std::shared_ptr<Pending>> Call(uint64_t call, const std::string& json,
                                                const std::vector<base::HostBytes>& parts);
  uint64_t NewCall();
  void Ended(absl::Status status);

  const SidecarOptions options_;
  async::GrowingPool* const threads_;
  int socket_ = -1;              // this end
  int peer_ = -1;                // the other, until it is given away
  int lines_ = -1;               // what the process prints
  int lines_peer_ = -1;          // as above
  int wake_ = -1;                // readable: the process has ended
  base::Notification received_;  // nothing more comes from it
  const async::CompletionRef ready_ = base::MakeRef<async::Completion>();
  std::string python_version_;  // both written before ready_
  std::string jax_version_;

  base::Mutex send_mu_;  // of what is written to the socket
  mutable base::Mutex mu_;
  pid_t pid_ ABSL_GUARDED_BY(mu_) = 0;       // 0: not there
  bool wanted_ ABSL_GUARDED_BY(mu_) = true;  // nobody has ended it
  std::string reason_ ABSL_GUARDED_BY(mu_);  // for its end, as it says
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // not OK: it is over, and how
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_SIDECAR_H_
