#ifndef HELMWAY_WORKER_COLOCATED_PYTHON_H_
#define HELMWAY_WORKER_COLOCATED_PYTHON_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/async/outstanding.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/worker/sidecar.h"
#include "helmway/worker/slot.h"
#include "helmway/worker/stream_lanes.h"

namespace helmway::worker {

class Worker;

// A function of the client that has been unpickled.
struct PythonProgram {
  // An argument or output.
  struct Value {
    cluster::ElementType type = 0;
    std::string memory_kind;          // empty: the default
    std::vector<cluster::Dims> dims;  // of the shards on `devices`
  };
  std::string name;
  std::shared_ptr<Sidecar> sidecar;        // where it is
  std::vector<cluster::DeviceId> devices;  // of this worker, in the program's order
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  int64_t last_stream = 0;  // of the session's command thread
};

using PythonArrays = std::vector<std::vector<SlotRef>>;  // by number and device

// One call of a function.
struct PythonRun {
  async::Outstanding::Token under_way;
  std::shared_ptr<const PythonProgram> program;
  cluster::ExecutableId executable = 0;  // its name
  cluster::LaunchId launch = 0;
  int64_t stream = 0;
  std::vector<std::vector<ReadHold>> arguments;  // by number and device
  PythonArrays results;
  bool settles = false;  // cluster::Launch::settles
  uint64_t user_context = 0;
  absl::AnyInvocable<void(const absl::Status&)> on_done;
};

// The Python functions of one session's client that run beside the devices
// (jax.experimental.colocated_python). All of them are in one process, which begins with the first and ends
// with the session; if it ends earlier, its functions are lost, and later ones get another.
//
// Calls of one stream run in their order and wait for their inputs there, those of different streams run at
// the same time. They take no place in the queues of the devices. Any thread.
class ColocatedPython : public std::enable_shared_from_this<ColocatedPython> {
 public:
  explicit ColocatedPython(Worker* worker);

  // Unpickles the function; `done` is never called inside the call. Errors: those of the sidecar;
  // FAILED_PRECONDITION also if there is no Python here or it has other versions than the client.
  void Load(cluster::CompileProgram command,
            absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done);
  // Null: none of that name.
  std::shared_ptr<PythonProgram> Find(cluster::ExecutableId id);
  void Run(PythonRun run);
  void Settle(cluster::LaunchId launch, const absl::Status& status);
  // False: none of that name.
  bool Unload(cluster::ExecutableId id, std::optional<int64_t> stream);
  // cluster::SessionLink::WhenPythonSays and TellPython.
  void WhenSays(cluster::SessionLink::PythonSays says);
  void Tell(const std::string& text);
  // Ends the process. What runs and waits is CANCELLED.
  void Close();

 private:
  // A launch with `settles`, from its command on.
  struct Unsettled {
    PythonArrays results;
    PythonArrays made;  // in their place; empty until it has been called
  };
  absl::StatusOr<std::shared_ptr<Sidecar>> GetSidecar(const cluster::PythonFunction& function);
  absl::StatusOr<cluster::CompiledProgram> LoadNow(const cluster::CompileProgram& command);
  void RunNow(PythonRun& run);
  absl::StatusOr<PythonArrays> Call(PythonRun& run);
  absl::StatusOr<SidecarArrays> ReadArguments(PythonRun& run);
  absl::StatusOr<SlotRef> MakeBuffer(const PythonProgram::Value& value, size_t device_number,
                                     cluster::DeviceId device, base::HostBytes bytes);

  Worker* const worker_;
  const std::shared_ptr<StreamLanes> calls_;
  const std::shared_ptr<StreamLanes> loads_;  // one lane, and so the next
  const std::shared_ptr<StreamLanes> tells_;
  std::atomic<int> loading_{0};
  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Sidecar> sidecar_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<cluster::SessionLink::PythonSays> says_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::ExecutableId, std::shared_ptr<PythonProgram>> programs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::LaunchId, Unsettled> unsettled_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_COLOCATED_PYTHON_H_
