#include "helmway/net/manager_service.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/manager.grpc.pb.h"
#include "helmway/net/grpc_server.h"

namespace helmway::net {
namespace {

using cluster::proto::KeyValueAnswer;
using cluster::proto::KeyValueRequest;
using cluster::proto::ManagerToProxy;
using cluster::proto::ManagerToWorker;
using cluster::proto::ProxyMessage;
using cluster::proto::WorkerMessage;

// Belongs to gRPC, and ends with the call; what is given away is a handle that may live longer.
class KeyValueReactor final : public grpc::ServerUnaryReactor {
 public:
  static grpc::ServerUnaryReactor* Start(ManagerCalls* calls, const KeyValueRequest& request,
                                         KeyValueAnswer* answer) {
    auto* reactor = new KeyValueReactor(answer);
    // gRPC tells of the end only after this function.
    reactor->gone_ = calls->OnKeyValue(reactor->call_, request);
    return reactor;
  }

 private:
  class Call final : public KeyValueCall {
   public:
    Call(KeyValueReactor* reactor, KeyValueAnswer* answer) : reactor_(reactor), answer_(answer) {}

    void Answer(absl::StatusOr<KeyValueAnswer> answer) override {
      base::MutexLock lock(&mu_);
      KeyValueReactor* reactor = std::exchange(reactor_, nullptr);
      if (reactor == nullptr) return;
      const absl::Status status = answer.status();
      if (answer.ok()) *answer_ = *std::move(answer);
      base::HappensBefore(reactor);
      reactor->Finish(ToGrpcStatus(status));
    }
    // The reactor is not used any more after this.
    void LetGo() {
      base::MutexLock lock(&mu_);
      reactor_ = nullptr;
    }

   private:
    base::Mutex mu_;
    KeyValueReactor* reactor_ ABSL_GUARDED_BY(mu_);  // null once it is answered
    KeyValueAnswer* const answer_;                   // gRPC's, until then
  };

  explicit KeyValueReactor(KeyValueAnswer* answer) : call_(std::make_shared<Call>(this, answer)) {}

  void OnCancel() override {
    base::HappensAfter(this);
    gone_();
    call_->Answer(absl::CancelledError("the call was cancelled"));
    base::HappensBefore(this);
  }

  void OnDone() override {
    base::HappensAfter(this);
    call_->LetGo();
    delete this;
  }

  const std::shared_ptr<Call> call_;
  absl::AnyInvocable<void()> gone_;
};

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

  grpc::ServerUnaryReactor* KeyValue(grpc::CallbackServerContext* /*context*/, const KeyValueRequest* request,
                                     KeyValueAnswer* answer) override {
    return KeyValueReactor::Start(calls_, *request, answer);
  }

 private:
  ManagerCalls* const calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeManagerService(ManagerCalls* calls) {
  return std::make_unique<ManagerService>(calls);
}

}  // namespace helmway::net
