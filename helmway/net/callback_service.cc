#include "helmway/net/callback_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/polled_call.h"
#include "helmway/net/python_callbacks.grpc.pb.h"

namespace helmway::net {
namespace {

using cluster::Arm;
using cluster::MakeTag;
using cluster::Tag;
using ::helmway::callbacks::FromClient;
using ::helmway::callbacks::FromServer;
using ::helmway::callbacks::PythonCallbacks;

using AsyncService = PythonCallbacks::WithRawMethod_Serve<PythonCallbacks::Service>;

struct Server {
  AsyncService* service;
  CallbackStreamManager* manager;
  grpc::ServerCompletionQueue* queue;
  async::Outstanding* live;
};

class ServeCall;

// What the handler holds: outlives the call.
class StreamHandle final : public CallbackStream {
 public:
  explicit StreamHandle(ServeCall* call) : call_(call) {}
  void Wake() override;
  void Close(const absl::Status& status) override;

 private:
  friend class ServeCall;
  base::Mutex mu_;
  ServeCall* call_ ABSL_GUARDED_BY(mu_);       // null once the call is finished
  bool sending_ ABSL_GUARDED_BY(mu_) = false;  // the handler is asked for a message, or one is being written
  bool woken_ ABSL_GUARDED_BY(mu_) = false;    // meanwhile
  bool handling_ ABSL_GUARDED_BY(mu_) = true;  // a message is being handled; at first, the call's beginning
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

// One Serve call, from waiting for a client to its end; owns itself.
class ServeCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new ServeCall(server);
    call->context_.AsyncNotifyWhenDone(Arm(&call->ended_));
    server.service->RequestServe(&call->context_, &call->stream_, server.queue, server.queue,
                                 Arm(&call->accepted_));
  }

 private:
  friend class StreamHandle;

  explicit ServeCall(const Server& server)
      : PolledCall(server.live), server_(server), handle_(std::make_shared<StreamHandle>(this)) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    base::MutexLock lock(&handle_->mu_);
    HandledLocked(absl::OkStatus());
  }

  void OnRead(bool ok) {
    absl::Status status;
    if (ok) {
      {
        base::MutexLock lock(&handle_->mu_);
        handle_->handling_ = true;
      }
      ++messages_;
      status = Handle();
      read_.Clear();
      base::MutexLock lock(&handle_->mu_);
      HandledLocked(status);
    } else {
      // The client has said its last word.
      base::MutexLock lock(&handle_->mu_);
      FinishLocked(grpc::Status::OK);
    }
    OneOver();
  }

  absl::Status Handle() {
    grpc::ProtoBufferReader reader(&read_);
    if (!reader.status().ok() || !message_.ParseFromZeroCopyStream(&reader)) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", messages_, " of the stream can't be parsed"));
    }
    if (handler_ != nullptr) return handler_->OnMessage(message_);
    if (!message_.has_hello()) return absl::InvalidArgumentError("the stream does not begin with Hello");
    absl::StatusOr<std::shared_ptr<CallbackStreamHandler>> handler =
        server_.manager->OpenCallbackStream(message_.hello(), context_.peer(), handle_);
    if (!handler.ok()) return handler.status();
    {
      base::MutexLock lock(&handle_->mu_);
      handler_ = *std::move(handler);
    }
    handle_->Wake();
    return absl::OkStatus();
  }

  void HandledLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    handle_->handling_ = false;
    if (!status.ok()) {
      FinishLocked(ToGrpcStatus(status));
    } else if (handle_->finish_.has_value()) {
      MaybeFinish();
    } else {
      ++pending_;
      stream_.Read(&read_, Arm(&was_read_));
    }
  }

  // Asks for the next message and writes it. Only the thread that has set sending_ comes here.
  void Send() {
    while (true) {
      FromServer message;
      const bool more = handler_->Next(message);
      grpc::ByteBuffer bytes;
      if (more) {
        grpc::Slice slice(message.ByteSizeLong());
        message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
        bytes = grpc::ByteBuffer(&slice, 1);
      }
      base::MutexLock lock(&handle_->mu_);
      if (more && !handle_->finish_.has_value()) {
        handle_->woken_ = false;
        ++pending_;
        stream_.Write(bytes, Arm(&written_));
        return;
      }
      if (!handle_->woken_ || handle_->finish_.has_value()) {
        handle_->sending_ = false;
        if (handle_->finish_.has_value()) MaybeFinish();
        return;
      }
      handle_->woken_ = false;
    }
  }

  void OnWritten(bool ok) {
    bool more;
    {
      base::MutexLock lock(&handle_->mu_);
      if (!ok) FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      more = !handle_->finish_.has_value();
      if (!more) {
        handle_->sending_ = false;
        MaybeFinish();
      }
    }
    if (more) Send();
    OneOver();
  }

  // The call is over for gRPC: finished by us, or given up by the client.
  void OnEnded(bool /*ok*/) {
    {
      base::MutexLock lock(&handle_->mu_);
      FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client has ended the stream"));
    }
    OneOver();
  }

  void OnFinished(bool /*ok*/) { OneOver(); }

  void OneOver() {
    {
      base::MutexLock lock(&handle_->mu_);
      if (--pending_ > 0) return;
    }
    if (handler_ != nullptr) handler_->OnClosed();
    delete this;
  }

  void FinishLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (!handle_->finish_.has_value()) handle_->finish_ = std::move(status);
    MaybeFinish();
  }

  // Ends the call once nothing of it is in use: no message is written, none is handled.
  void MaybeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->call_ == nullptr || handle_->sending_ || handle_->handling_) return;
    handle_->call_ = nullptr;
    ++pending_;
    stream_.Finish(*handle_->finish_, Arm(&finished_));
  }

  const Server server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  Tag accepted_ = MakeTag<&ServeCall::OnAccepted>(this);
  Tag was_read_ = MakeTag<&ServeCall::OnRead>(this);
  Tag written_ = MakeTag<&ServeCall::OnWritten>(this);
  Tag finished_ = MakeTag<&ServeCall::OnFinished>(this);
  Tag ended_ = MakeTag<&ServeCall::OnEnded>(this);

  const std::shared_ptr<StreamHandle> handle_;
  // Operations that will come back from the queue; one of them is the notice of the call's end.
  int pending_ ABSL_GUARDED_BY(handle_->mu_) = 1;
  std::shared_ptr<CallbackStreamHandler> handler_;  // written once, under the handle's lock
  grpc::ByteBuffer read_;
  FromClient message_;
  int64_t messages_ = 0;
};

void StreamHandle::Wake() {
  ServeCall* call;
  {
    base::MutexLock lock(&mu_);
    if (call_ == nullptr || finish_.has_value()) return;
    // Before there is a handler nobody has anything to send.
    if (sending_ || call_->handler_ == nullptr) {
      woken_ = true;
      return;
    }
    sending_ = true;
    call = call_;
  }
  call->Send();
}

void StreamHandle::Close(const absl::Status& status) {
  base::MutexLock lock(&mu_);
  if (call_ != nullptr) call_->FinishLocked(ToGrpcStatus(status));
}

class CallbackService final : public AsyncService, public PolledService {
 public:
  explicit CallbackService(CallbackStreamManager* manager) : manager_(manager) {}

  void Start(CompletionThread& thread) override {
    ServeCall::Expect({this, manager_, thread.queue(), &live_});
  }
  void Stop() override { live_.WaitForNone(); }

 private:
  CallbackStreamManager* const manager_;
  async::Outstanding live_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCallbackService(CallbackStreamManager* manager) {
  return std::make_unique<CallbackService>(manager);
}

}  // namespace helmway::net
