#include "helmway/apps/worker_server.h"

#include <glog/logging.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/apps/host_cache.h"
#include "helmway/apps/instance_type.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/net/grpc_server.h"
#include "helmway/pjrt/plugin.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

class WorkerServerImpl final : public WorkerServer {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Create(const WorkerServerOptions& options) {
    auto server = std::make_unique<WorkerServerImpl>();
    server->options_ = options;
    // A plugin that can't be loaded is better known now than when there is a place.
    HELMWAY_ASSIGN_OR_RETURN(server->plugin_, pjrt::Plugin::Load(options.plugin_path));
    // The health service only, so far.
    HELMWAY_ASSIGN_OR_RETURN(server->grpc_, net::GrpcServer::Start(options.listen_address, {}));
    return server;
  }

  ~WorkerServerImpl() override { Shutdown(); }
  int port() const override { return grpc_->port(); }

  absl::StatusOr<cluster::WorkerInfo> Place(const cluster::AssignedPlace& placement) override {
    worker::WorkerOptions options;
    options.plugin_path = options_.plugin_path;
    options.python = options_.python;
    options.virtual_devices = placement.devices_per_host;
    options.process_id = placement.worker;
    options.slice_index = placement.slice;
    options.task_index = placement.task;
    options.device_attributes = TopologyAttributes(placement);
    options.host_memory = std::make_shared<base::HostMemoryPool>(CachedHostBytes());
    HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<worker::Worker> worker, worker::Worker::Create(options));
    cluster::WorkerInfo info = worker->info();
    base::MutexLock lock(&mu_);
    worker_ = std::move(worker);
    return info;
  }

  // There are no sessions yet, so nothing runs.
  void Drain(absl::Duration /*remaining*/) override {}

  void Shutdown() override { grpc_->Shutdown(); }

 private:
  // Where CPU devices that stand in for a TPU slice would be on it. Real ones know for themselves.
  static std::vector<worker::DeviceAttributes> TopologyAttributes(const cluster::AssignedPlace& placement) {
    std::vector<worker::DeviceAttributes> attributes;
    const auto instance = ParseInstanceType(placement.instance_type);
    if (!instance.ok()) return attributes;
    for (int device = 0; device < placement.devices_per_host; ++device) {
      const std::optional<ChipPosition> position = PositionOf(*instance, placement.task, device);
      if (!position.has_value()) return {};
      attributes.push_back({{"coords", {position->coords}}, {"core_on_chip", {position->core_on_chip}}});
    }
    return attributes;
  }

  WorkerServerOptions options_;
  std::shared_ptr<pjrt::Plugin> plugin_;
  base::Mutex mu_;
  std::unique_ptr<worker::Worker> worker_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<net::GrpcServer> grpc_;  // last: no stream outlives the worker
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> StartWorkerServer(const WorkerServerOptions& options) {
  return WorkerServerImpl::Create(options);
}

}  // namespace helmway::apps
