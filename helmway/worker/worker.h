#ifndef HELMWAY_WORKER_WORKER_H_
#define HELMWAY_WORKER_WORKER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "helmway/async/growing_pool.h"
#include "helmway/async/outstanding.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/available_memory.h"
#include "helmway/base/host_memory.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/client_options.h"
#include "helmway/pjrt/key_value_store.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/collectives.h"
#include "helmway/worker/compiler.h"
#include "helmway/worker/custom_calls.h"
#include "helmway/worker/device_ids.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/dumps.h"
#include "helmway/worker/token.h"

namespace helmway::worker {

class Session;

using DeviceAttributes = std::map<std::string, cluster::AttributeValue>;

struct HostDevices {
  int first = 0;
  int count = 0;
};

struct WorkerOptions {
  std::string plugin_path;  // shared library that exports GetPjrtApi
  std::string python;       // command of the Python whose jaxlib has JAX's custom calls; empty: there is none
  pjrt::PluginKind plugin_kind = pjrt::PluginKind::kCpu;
  std::vector<pjrt::Option> plugin_options;  // for its client, besides those that follow from what is below
  int virtual_devices = 1;                   // for the CPU platform, which makes as many as it is asked for
  // For GPUs: those of this host that are this worker's. nullopt: all.
  std::optional<HostDevices> host_devices;
  int slice_index = 0;  // all devices of this worker belong to this slice
  int task_index = 0;   // number of this worker within its slice
  // Of the slice, this one included. Without key_values each has a client of its own.
  int slice_workers = 1;
  // Where the plugin's clients of one slice meet, whose processes make one client. null: nowhere.
  std::shared_ptr<pjrt::KeyValueStore> key_values;
  int process_id = 0;  // number of this worker in its cluster: its devices have the ids 2048 * process_id + i
  // Added to what the plugin says of each of its own devices that has no such attribute; may be shorter.
  std::vector<DeviceAttributes> device_attributes;
  std::shared_ptr<cluster::PeerSender> peers;                       // null: it sends nothing to other workers
  absl::Duration collective_wait_limit = absl::InfiniteDuration();  // CollectivesOptions::wait_limit
  std::shared_ptr<base::HostMemoryPool> host_memory;
  // What is left of the host's memory, which is also the devices' on the CPU platform.
  std::function<int64_t()> available_memory = [] { return base::AvailableMemoryBytes(); };
  std::map<std::string, std::string> environment;      // how to reach storage, for dumps
  std::shared_ptr<cache::CompileCache> compile_cache;  // null: every program is compiled
};

// One PJRT client with its devices, and the in-process link to it. Any thread.
class Worker final : public cluster::WorkerLink {
 public:
  // Loads the plugin and makes its client, which waits for those of the other workers of the slice if they
  // are to be one. The errors name the plugin file and what to install.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const WorkerOptions& options);
  // All sessions must be closed. Waits for running work and for everything that it calls back.
  ~Worker() override;

  const cluster::WorkerInfo& info() const override { return info_; }
  cluster::PeerAddress peer_address() const override { return {}; }
  absl::Status Loss() override { return absl::OkStatus(); }
  std::shared_ptr<cluster::SessionLink> OpenSession(
      cluster::SessionId session, std::shared_ptr<cluster::CallbackSink> callbacks) override;
  void DefaultLayout(cluster::ElementType type, const std::vector<int64_t>& dims,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override;
  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int replicas,
                                                                         int partitions) override;

  // What a peer has sent. It waits for its session if that is not open yet, and is dropped if that has ended.
  void TakeFromPeer(cluster::SessionId session, cluster::BufferId buffer,
                    absl::StatusOr<cluster::HostContents> contents);

  // Waits until compiled programs and dumps are written where they are to be kept, or the time is up.
  void FinishWriting(absl::Duration patience);

  // What takes the parts of collectives that peers send.
  std::shared_ptr<cluster::CollectiveReceiver> collective_receiver() const { return collectives_; }

  // ---- For the sessions of this worker ----
  Collectives& collectives() { return *collectives_; }
  // Whether programs that span workers get our collectives in the place of the plugin's. XLA's CPU plugin has
  // none between processes, and lets its programs be rewritten.
  bool replaces_collectives() const { return plugin_kind_ == pjrt::PluginKind::kCpu; }
  // Compiles for `devices` virtual devices and never runs anything. Blocks while it is made. Only where
  // replaces_collectives(): else UNIMPLEMENTED.
  absl::StatusOr<std::shared_ptr<pjrt::Client>> CompilerFor(int devices);
  cluster::PeerSender* peers() const { return peers_.get(); }
  void Forget(cluster::SessionId session);
  const pjrt::Client& client() const { return *client_; }
  const DeviceIds& device_ids() const { return *device_ids_; }
  // Null if this worker has no such device.
  DeviceQueue* queue(cluster::DeviceId device) const;
  // Launches count in here while they exist.
  async::Outstanding& launches() { return launches_; }
  Sequencer& sequencer() { return sequencer_; }
  CustomCalls& custom_calls() { return *custom_calls_; }
  Compiler& compiler() { return *compiler_; }
  TokenMaker& tokens() { return *tokens_; }
  CallbackClients& callback_clients() { return *callback_clients_; }
  // For launches that wait for Python, and for what comes after its calls.
  async::GrowingPool& callback_threads() { return *callback_threads_; }
  const std::string& python() const { return python_; }
  int process_id() const { return process_id_; }
  async::ThreadPool& compilers() { return *compilers_; }
  async::ThreadPool& transfers() { return *transfers_; }
  // Copies within host memory, which may be long.
  async::ThreadPool& assemblers() { return *assemblers_; }
  base::HostMemoryPool& host_memory() { return *host_memory_; }
  // RESOURCE_EXHAUSTED if so many bytes of device memory are large and more than the host has left, on the
  // CPU platform. It would give them out all the same and then be ended.
  absl::Status CheckRoom(int64_t bytes) const;

 private:
  Worker() = default;
  using EarlyArrivals = std::vector<std::pair<cluster::BufferId, absl::StatusOr<cluster::HostContents>>>;
  void Describe(const WorkerOptions& options);

  pjrt::PluginKind plugin_kind_ = pjrt::PluginKind::kCpu;
  std::string python_;
  int process_id_ = 0;
  std::shared_ptr<pjrt::Client> client_;
  std::optional<DeviceIds> device_ids_;  // always there once the worker is made
  std::unique_ptr<CustomCalls> custom_calls_;
  std::unique_ptr<Dumps> dumps_;
  std::shared_ptr<cache::CompileCache> compile_cache_;
  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<TokenMaker> tokens_;
  std::unique_ptr<CallbackClients> callback_clients_;
  cluster::WorkerInfo info_;
  std::shared_ptr<base::HostMemoryPool> host_memory_;
  std::shared_ptr<cluster::PeerSender> peers_;
  std::shared_ptr<Collectives> collectives_;
  base::Mutex mu_;
  absl::flat_hash_map<cluster::SessionId, std::weak_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
  // Of sessions that peers know already and this worker does not yet.
  absl::flat_hash_map<cluster::SessionId, EarlyArrivals> early_ ABSL_GUARDED_BY(mu_);
  std::deque<cluster::SessionId> ended_ ABSL_GUARDED_BY(mu_);  // the last ones
  absl::flat_hash_map<int, std::shared_ptr<pjrt::Client>> compiler_clients_ ABSL_GUARDED_BY(mu_);
  async::Outstanding launches_;
  std::function<int64_t()> available_memory_;
  Sequencer sequencer_;
  absl::flat_hash_map<cluster::DeviceId, std::unique_ptr<DeviceQueue>> queues_;
  std::unique_ptr<async::ThreadPool> transfers_;
  std::unique_ptr<async::ThreadPool> assemblers_;
  std::unique_ptr<async::ThreadPool> compilers_;
  std::unique_ptr<async::GrowingPool> callback_threads_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_WORKER_H_
