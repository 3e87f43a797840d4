#include "helmway/net/manager_service.h"

#include <utility>

#include "helmway/cluster/manager.grpc.pb.h"

namespace helmway::net {
namespace {

using cluster::proto::ManagerToProxy;
using cluster::proto::ManagerToWorker;
using cluster::proto::ProxyMessage;
using cluster::proto::WorkerMessage;

// Few messages, long streams: gRPC's callback API and its own threads serve well here.
class ManagerService final : public cluster::proto::Manager::CallbackService {
 public:
  explicit ManagerService(ManagerCalls* calls) : calls_(calls) {}

  grpc::ServerBidiReactor<WorkerMessage, ManagerToWorker>* Register(
      grpc::CallbackServerContext* context) override {
    return TypedServerStream<WorkerMessage, ManagerToWorker>::Start(
        context,
        [this](std::shared_ptr<WorkerStream> stream) { return calls_->OnWorker(std::move(stream)); });
  }

  grpc::ServerBidiReactor<ProxyMessage, ManagerToProxy>* Watch(
      grpc::CallbackServerContext* context) override {
    return TypedServerStream<ProxyMessage, ManagerToProxy>::Start(
        context, [this](std::shared_ptr<ProxyStream> stream) { return calls_->OnProxy(std::move(stream)); });
  }

 private:
  ManagerCalls* const calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeManagerService(ManagerCalls* calls) {
  return std::make_unique<ManagerService>(calls);
}

}  // namespace helmway::net
