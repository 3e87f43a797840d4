#ifndef HELMWAY_WORKER_WORKER_H_
#define HELMWAY_WORKER_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/available_memory.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/token.h"

namespace helmway::worker {

struct WorkerOptions {
  std::string plugin_path;  // shared library that exports GetPjrtApi
  int virtual_devices = 1;  // for the CPU platform, which makes as many as it is asked for
  int slice_index = 0;      // all devices of this worker belong to this slice
  int task_index = 0;       // number of this worker within its slice
  std::shared_ptr<base::HostMemoryPool> host_memory;
  // What is left of the host's memory, which is also the devices' on the CPU platform.
  std::function<int64_t()> available_memory = [] { return base::AvailableMemoryBytes(); };
};

// One PJRT client with its devices, and the in-process link to it. Any thread.
class Worker final : public cluster::WorkerLink {
 public:
  // Loads the plugin and makes its client. The errors name the plugin file and what to install.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const WorkerOptions& options);
  // All sessions must be closed. Waits for running work.
  ~Worker() override;

  const cluster::WorkerInfo& info() const override { return info_; }
  std::shared_ptr<cluster::SessionLink> OpenSession(cluster::SessionId session) override;
  absl::StatusOr<std::string> DefaultLayout(cluster::ElementType type,
                                            const std::vector<int64_t>& dims) override;
  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int replicas,
                                                                         int partitions) override;

  // ---- For the sessions of this worker ----
  const pjrt::Client& client() const { return *client_; }
  // Null if this worker has no such device.
  DeviceQueue* queue(cluster::DeviceId device) const;
  Sequencer& sequencer() { return sequencer_; }
  TokenMaker& tokens() { return *tokens_; }
  async::ThreadPool& compilers() { return *compilers_; }
  async::ThreadPool& transfers() { return *transfers_; }
  base::HostMemoryPool& host_memory() { return *host_memory_; }
  // RESOURCE_EXHAUSTED if so many bytes of device memory are large and more than the host has left, on the
  // CPU platform. It would give them out all the same and then be ended.
  absl::Status CheckRoom(int64_t bytes) const;

 private:
  Worker() = default;
  void Describe(const WorkerOptions& options);

  // Destroyed from the bottom up: first the pools that start work, then the queues that run it, then the
  // client.
  std::shared_ptr<pjrt::Client> client_;
  std::unique_ptr<TokenMaker> tokens_;
  cluster::WorkerInfo info_;
  std::shared_ptr<base::HostMemoryPool> host_memory_;
  std::function<int64_t()> available_memory_;
  Sequencer sequencer_;
  absl::flat_hash_map<cluster::DeviceId, std::unique_ptr<DeviceQueue>> queues_;
  std::unique_ptr<async::ThreadPool> transfers_;
  std::unique_ptr<async::ThreadPool> compilers_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_WORKER_H_
