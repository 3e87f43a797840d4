#include "helmway/apps/worker_server.h"

#include <unistd.h>

#include <utility>

#include "helmway/apps/compile_cache.h"
#include "helmway/apps/host_cache.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/cluster/key_value_client.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/peers.h"
#include "helmway/net/worker_service.h"
#include "helmway/pjrt/key_value_store.h"
#include "helmway/pjrt/plugin.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

// The keys of a worker's slice, for its plugin.
class KeysOfTheSlice final : public pjrt::KeyValueStore {
 public:
  explicit KeysOfTheSlice(std::shared_ptr<cluster::KeyValueClient> client) : client_(std::move(client)) {}

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    return client_->Get(key, timeout);
  }
  absl::StatusOr<std::string> TryGet(const std::string& key) override {
    HELMWAY_ASSIGN_OR_RETURN(std::optional<std::string> value, client_->GetIfThere(key));
    if (!value.has_value()) return absl::NotFoundError("no worker of the slice has put the key yet");
    return *std::move(value);
  }
  absl::Status Put(const std::string& key, const std::string& value) override {
    return client_->Put(key, value);
  }

 private:
  const std::shared_ptr<cluster::KeyValueClient> client_;
};

class WorkerServerImpl final : public WorkerServer {
 public:
  explicit WorkerServerImpl(const WorkerServerOptions& options)
      : options_(options), service_(net::MakeLateWorkerService()) {}
  ~WorkerServerImpl() override { Shutdown(); }

  absl::Status Listen() {
    // A plugin that can't be loaded is better known now than when there is a place.
    HELMWAY_RETURN_IF_ERROR(pjrt::Plugin::Load(options_.plugin.path).status());
    if (options_.message_port != 0) HELMWAY_RETURN_IF_ERROR(calls_.sockets().ListenForHosts());
    HELMWAY_ASSIGN_OR_RETURN(
        grpc_, net::GrpcServer::Start(options_.listen_address, {}, {service_.service.get()}, &calls_));
    return absl::OkStatus();
  }

  int port() const override { return grpc_->port(); }

  absl::StatusOr<cluster::WorkerInfo> Place(const WorkerPlace& place,
                                            const std::string& peer_address) override {
    auto host_memory = std::make_shared<base::HostMemoryPool>(CachedHostBytes());
    worker::WorkerOptions options;
    options.plugin_path = options_.plugin.path;
    options.plugin_kind = options_.plugin.kind;
    options.plugin_options = options_.plugin.options;
    options.python = options_.python;
    options.virtual_devices = place.devices;
    if (place.first_device.has_value()) {
      options.host_devices = worker::HostDevices{.first = *place.first_device, .count = place.devices};
    }
    options.slice_workers = place.hosts;
    // The CPU plugin's clients have no peers.
    if (options_.plugin.kind != pjrt::PluginKind::kCpu && place.hosts > 1 && place.manager_incarnation != 0) {
      options.key_values = MakeKeyValues(place);
    }
    options.slice_index = place.slice;
    options.task_index = place.task;
    options.process_id = place.number;
    options.device_attributes = place.attributes;
    options.peers = net::MakePeerSender({.software = options_.software,
                                         .self = {peer_address, options_.incarnation},
                                         .timeout = options_.timeouts.peer,
                                         .streams = &streams_,
                                         .host_memory = host_memory});
    options.collective_wait_limit = options_.timeouts.collective;
    options.host_memory = host_memory;
    options.environment = options_.environment;
    HELMWAY_ASSIGN_OR_RETURN(options.compile_cache,
                             MakeCompileCache(options_.scratch_location, options_.environment));
    HELMWAY_ASSIGN_OR_RETURN(worker_, worker::Worker::Create(options));
    if (options.key_values != nullptr) slice_generation_ = KeyValues()->SetFormed();
    service_.bind(worker_.get(), {.incarnation = options_.incarnation,
                                  .host_memory = host_memory,
                                  .peer_address = peer_address,
                                  .receive_from_peer =
                                      [worker = worker_.get()](auto session, auto buffer, auto contents) {
                                        worker->TakeFromPeer(session, buffer, std::move(contents));
                                      },
                                  .collectives = worker_->collective_receiver()});
    return worker_->info();
  }

  void StopWaiting() override {
    base::MutexLock lock(&mu_);
    waits_ = false;
    if (key_values_ != nullptr) key_values_->Cancel();
  }

  uint64_t slice_generation() const override { return slice_generation_; }
  grpc::CompletionQueue* queue() override { return calls_.queue(); }

  void FinishWriting(absl::Duration patience) override {
    if (worker_) worker_->FinishWriting(patience);
  }

  void Shutdown() override {
    if (grpc_) grpc_->Shutdown();
  }
  void EndProcess(int exit_code) override { _exit(exit_code); }

 private:
  std::shared_ptr<pjrt::KeyValueStore> MakeKeyValues(const WorkerPlace& place) {
    base::MutexLock lock(&mu_);
    key_values_ = cluster::KeyValueClient::Create({.manager_address = options_.manager_address,
                                                   .incarnation = options_.incarnation,
                                                   .manager_incarnation = place.manager_incarnation});
    if (!waits_) key_values_->Cancel();
    return std::make_shared<KeysOfTheSlice>(key_values_);
  }
  std::shared_ptr<cluster::KeyValueClient> KeyValues() {
    base::MutexLock lock(&mu_);
    return key_values_;
  }

  const WorkerServerOptions options_;
  base::Mutex mu_;
  bool waits_ ABSL_GUARDED_BY(mu_) = true;
  std::shared_ptr<cluster::KeyValueClient> key_values_ ABSL_GUARDED_BY(mu_);  // null: it needs none
  uint64_t slice_generation_ = 0;  // of the thread of the registration
  // Destroyed from the bottom up: no stream outlives the worker, and no worker the streams to its peers.
  net::CompletionThread calls_{options_.message_port};
  net::MessageStreamClient streams_{&calls_};
  std::unique_ptr<worker::Worker> worker_;
  net::LateWorkerService service_;
  std::unique_ptr<net::GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const WorkerServerOptions& options) {
  auto server = std::make_unique<WorkerServerImpl>(options);
  HELMWAY_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace helmway::apps
