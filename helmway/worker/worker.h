#ifndef HELMWAY_WORKER_WORKER_H_
#define HELMWAY_WORKER_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "helmway/async/growing_pool.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/custom_calls.h"
#include "helmway/worker/device_queue.h"

namespace helmway::worker {

struct WorkerOptions {
  std::string plugin_path;  // shared library that exports GetPjrtApi
  std::string python;       // command of the Python whose jaxlib has JAX's custom calls; empty: there is none
  int virtual_devices = 1;  // for the CPU platform, which makes as many as it is asked for
  int slice_index = 0;      // all devices of this worker belong to this slice
  int task_index = 0;       // number of this worker within its slice
  std::shared_ptr<base::HostMemoryPool> host_memory;
};

// One PJRT client with its devices, and the in-process link to it. Any thread.
class Worker final : public cluster::WorkerLink {
 public:
  // Loads the plugin and makes its client. The errors name the plugin file and what to install.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const WorkerOptions& options);
  // All sessions must be closed. Waits for running work.
  ~Worker() override;

  const cluster::WorkerInfo& info() const override { return info_; }
  std::shared_ptr<cluster::SessionLink> OpenSession(
      cluster::SessionId session, std::shared_ptr<cluster::CallbackSink> callbacks) override;
  absl::StatusOr<std::string> DefaultLayout(cluster::ElementType type,
                                            const std::vector<int64_t>& dims) override;
  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int replicas,
                                                                         int partitions) override;

  // ---- For the sessions of this worker ----
  const pjrt::Client& client() const { return *client_; }
  // Null if this worker has no such device.
  DeviceQueue* queue(cluster::DeviceId device) const;
  Sequencer& sequencer() { return sequencer_; }
  CustomCalls& custom_calls() { return *custom_calls_; }
  CallbackClients& callback_clients() { return *callback_clients_; }
  // For launches that call back, and for what comes after their calls.
  async::GrowingPool& callback_threads() { return *callback_threads_; }
  async::ThreadPool& compilers() { return *compilers_; }
  async::ThreadPool& transfers() { return *transfers_; }
  base::HostMemoryPool& host_memory() { return *host_memory_; }

 private:
  Worker() = default;
  void Describe(const WorkerOptions& options);

  // Destroyed from the bottom up: first the pools that start work, then the queues that run it, then the
  // client.
  std::shared_ptr<pjrt::Client> client_;
  std::unique_ptr<CustomCalls> custom_calls_;
  std::unique_ptr<CallbackClients> callback_clients_;
  cluster::WorkerInfo info_;
  std::shared_ptr<base::HostMemoryPool> host_memory_;
  Sequencer sequencer_;
  absl::flat_hash_map<cluster::DeviceId, std::unique_ptr<DeviceQueue>> queues_;
  std::unique_ptr<async::ThreadPool> transfers_;
  std::unique_ptr<async::ThreadPool> compilers_;
  std::unique_ptr<async::GrowingPool> callback_threads_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_WORKER_H_
