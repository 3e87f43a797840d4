#include "helmway/apps/embedded_server.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "helmway/base/host_memory.h"
#include "helmway/base/status.h"
#include "helmway/net/callback_service.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/proxy.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

// Idle host blocks that are kept for the next transfers.
constexpr int64_t kMaxCachedHostBytes = int64_t{1} << 30;

int64_t CachedHostBytes() {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::min(kMaxCachedHostBytes, memory / 16);
}

class EmbeddedServerImpl final : public EmbeddedServer {
 public:
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Create(const EmbeddedServerOptions& options) {
    auto server = std::make_unique<EmbeddedServerImpl>();
    auto host_memory = std::make_shared<base::HostMemoryPool>(CachedHostBytes());
    worker::WorkerOptions worker_options;
    worker_options.plugin_path = options.plugin_path;
    worker_options.python = options.python;
    worker_options.virtual_devices = options.devices;
    worker_options.host_memory = host_memory;
    HELMWAY_ASSIGN_OR_RETURN(server->worker_, worker::Worker::Create(worker_options));
    proxy::ProxyOptions proxy_options;
    proxy_options.allow_remote_clients = options.allow_remote_clients;
    proxy_options.large_transfer_directory = options.large_transfer_directory;
    proxy_options.host_memory = host_memory;
    server->proxy_ = std::make_unique<proxy::Proxy>(server->worker_.get(), std::move(proxy_options));
    server->service_ = net::MakeIfrtService(server->proxy_.get());
    server->callback_service_ = net::MakeCallbackService(server->proxy_.get(), *server->service_);
    HELMWAY_ASSIGN_OR_RETURN(
        server->grpc_, net::GrpcServer::Start(options.listen_address,
                                              {server->service_.get(), server->callback_service_.get()}));
    return server;
  }

  ~EmbeddedServerImpl() override { Shutdown(); }
  int port() const override { return grpc_->port(); }
  void Shutdown() override {
    if (grpc_) grpc_->Shutdown();
  }

 private:
  // Destroyed from the bottom up: no stream outlives the proxy, no session the worker.
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<proxy::Proxy> proxy_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Service> callback_service_;
  std::unique_ptr<net::GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(const EmbeddedServerOptions& options) {
  return EmbeddedServerImpl::Create(options);
}

}  // namespace helmway::apps
