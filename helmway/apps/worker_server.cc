#include "helmway/apps/worker_server.h"

#include <unistd.h>

#include <utility>

#include "helmway/apps/compile_cache.h"
#include "helmway/apps/host_cache.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/status.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/peers.h"
#include "helmway/net/worker_service.h"
#include "helmway/pjrt/plugin.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

class WorkerServerImpl final : public WorkerServer {
 public:
  explicit WorkerServerImpl(const WorkerServerOptions& options)
      : options_(options), service_(net::MakeLateWorkerService()) {}
  ~WorkerServerImpl() override { Shutdown(); }

  absl::Status Listen() {
    // A plugin that can't be loaded is better known now than when there is a place.
    HELMWAY_RETURN_IF_ERROR(pjrt::Plugin::Load(options_.plugin_path).status());
    HELMWAY_ASSIGN_OR_RETURN(grpc_,
                             net::GrpcServer::Start(options_.listen_address, {}, {service_.service.get()}));
    return absl::OkStatus();
  }

  int port() const override { return grpc_->port(); }

  absl::StatusOr<cluster::WorkerInfo> Place(const WorkerPlace& place,
                                            const std::string& peer_address) override {
    auto host_memory = std::make_shared<base::HostMemoryPool>(CachedHostBytes());
    worker::WorkerOptions options;
    options.plugin_path = options_.plugin_path;
    options.python = options_.python;
    options.virtual_devices = place.devices;
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

  void FinishWriting(absl::Duration patience) override {
    if (worker_) worker_->FinishWriting(patience);
  }

  void Shutdown() override {
    if (grpc_) grpc_->Shutdown();
  }
  void EndProcess(int exit_code) override { _exit(exit_code); }

 private:
  const WorkerServerOptions options_;
  // Destroyed from the bottom up: no stream outlives the worker, and no worker the streams to its peers.
  net::MessageStreamClient streams_;
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
