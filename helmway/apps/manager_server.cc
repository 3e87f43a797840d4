#include "helmway/apps/manager_server.h"

#include <utility>

#include "helmway/apps/logging.h"
#include "helmway/base/status.h"
#include "helmway/manager/manager_service.h"
#include "helmway/net/grpc_server.h"

namespace helmway::apps {
namespace {

class ManagerServerImpl final : public ManagerServer {
 public:
  explicit ManagerServerImpl(manager::ManagerSettings settings)
      : manager_(std::move(settings), LogForTools), service_(net::MakeManagerService(&manager_)) {}
  ~ManagerServerImpl() override { Shutdown(); }

  absl::Status Listen(const std::string& address) {
    HELMWAY_ASSIGN_OR_RETURN(grpc_, net::GrpcServer::Start(address, {service_.get()}));
    return absl::OkStatus();
  }
  int port() const override { return grpc_->port(); }
  void Shutdown() override {
    manager_.Stop();
    if (grpc_) grpc_->Shutdown();
  }

 private:
  // Destroyed from the bottom up: no stream outlives the manager.
  manager::ManagerService manager_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<net::GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ManagerServer>> ManagerServer::Start(const ManagerServerOptions& options) {
  HELMWAY_RETURN_IF_ERROR(manager::CheckSettings(options.settings));
  auto server = std::make_unique<ManagerServerImpl>(options.settings);
  HELMWAY_RETURN_IF_ERROR(server->Listen(options.listen_address));
  return server;
}

}  // namespace helmway::apps
