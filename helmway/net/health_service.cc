#include "helmway/net/health_service.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/net/completion_tag.h"

namespace helmway::net {
namespace {

using ::grpc::health::v1::Health;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

// What every call needs.
struct Server {
  Health::AsyncService* service;
  grpc::ServerCompletionQueue* queue;
  async::Outstanding* live;
};

HealthCheckResponse ResponseOf(const HealthCheckRequest& request) {
  HealthCheckResponse response;
  response.set_status(request.service().empty() ? HealthCheckResponse::SERVING
                                                : HealthCheckResponse::SERVICE_UNKNOWN);
  return response;
}

// One Check call, from waiting for a client to its end; owns itself.
class CheckCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new CheckCall(server);
    server.service->RequestCheck(&call->context_, &call->request_, &call->responder_, server.queue,
                                 server.queue, Arm(&call->accepted_));
  }

 private:
  explicit CheckCall(const Server& server) : server_(server) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    const HealthCheckResponse response = ResponseOf(request_);
    if (response.status() == HealthCheckResponse::SERVING) {
      responder_.Finish(response, grpc::Status::OK, Arm(&finished_));
    } else {
      responder_.FinishWithError(
          grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no service ", request_.service())),
          Arm(&finished_));
    }
  }
  void OnFinished(bool /*ok*/) { delete this; }

  const Server server_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncResponseWriter<HealthCheckResponse> responder_{&context_};
  Tag accepted_ = MakeTag<&CheckCall::OnAccepted>(this);
  Tag finished_ = MakeTag<&CheckCall::OnFinished>(this);
};

// One Watch call: says how things are, and no more, since they stay so for as long as the server lives.
class WatchCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new WatchCall(server);
    call->context_.AsyncNotifyWhenDone(Arm(&call->ended_));
    server.service->RequestWatch(&call->context_, &call->request_, &call->writer_, server.queue, server.queue,
                                 Arm(&call->accepted_));
  }

 private:
  explicit WatchCall(const Server& server) : server_(server) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    ++pending_;
    writer_.Write(ResponseOf(request_), Arm(&written_));
  }
  void OnWritten(bool /*ok*/) { OneOver(); }
  // The client has gone, or the server goes.
  void OnEnded(bool /*ok*/) {
    ++pending_;
    writer_.Finish(grpc::Status::CANCELLED, Arm(&finished_));
    OneOver();
  }
  void OnFinished(bool /*ok*/) { OneOver(); }
  void OneOver() {
    if (--pending_ == 0) delete this;
  }

  const Server server_;
  grpc::ServerContext context_;
  HealthCheckRequest request_;
  grpc::ServerAsyncWriter<HealthCheckResponse> writer_{&context_};
  // Operations that will come back from the queue; one of them is the notice of the call's end.
  int pending_ = 1;
  Tag accepted_ = MakeTag<&WatchCall::OnAccepted>(this);
  Tag written_ = MakeTag<&WatchCall::OnWritten>(this);
  Tag ended_ = MakeTag<&WatchCall::OnEnded>(this);
  Tag finished_ = MakeTag<&WatchCall::OnFinished>(this);
};

}  // namespace

class HealthService::OwnQueue final : public QueueHost {
 public:
  explicit OwnQueue(grpc::ServerBuilder& builder) : queue_(builder.AddCompletionQueue()) {}

  void Start() {
    thread_ = std::thread([this] { Poll(queue_.get(), "health"); });
  }
  void Stop() {
    live_.WaitForNone();
    queue_->Shutdown();
    thread_.join();
  }

  grpc::ServerCompletionQueue* queue() override { return queue_.get(); }
  async::Outstanding* live() override { return &live_; }

 private:
  async::Outstanding live_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
};

HealthService::HealthService(QueueHost* host) : host_(host) {}

HealthService::~HealthService() = default;

void HealthService::AddQueues(grpc::ServerBuilder& builder) {
  if (host_ == nullptr) own_ = std::make_unique<OwnQueue>(builder);
}

void HealthService::Start() {
  QueueHost* const host = own_ == nullptr ? host_ : own_.get();
  const Server server{this, host->queue(), host->live()};
  CheckCall::Expect(server);
  WatchCall::Expect(server);
  if (own_ != nullptr) own_->Start();
}

void HealthService::Stop() {
  if (own_ != nullptr) own_->Stop();
}

}  // namespace helmway::net
