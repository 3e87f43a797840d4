#include "helmway/net/health_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/completion_tag.h"

namespace helmway::net {
namespace {

using cluster::Arm;
using cluster::MakeTag;
using cluster::Tag;
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
  explicit CheckCall(const Server& server) : PolledCall(server.live), server_(server) {}

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
  explicit WatchCall(const Server& server) : PolledCall(server.live), server_(server) {}

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

void HealthService::Start(CompletionThread& thread) {
  const Server server{this, thread.queue(), &live_};
  CheckCall::Expect(server);
  WatchCall::Expect(server);
}

}  // namespace helmway::net
