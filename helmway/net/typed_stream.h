#ifndef HELMWAY_NET_TYPED_STREAM_H_
#define HELMWAY_NET_TYPED_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/mutex.h"
#include "helmway/net/grpc_server.h"

namespace helmway::net {

// The server's end of a call with messages both ways. Any thread; harmless after the end.
template <typename Out>
class TypedStream {
 public:
  virtual ~TypedStream() = default;
  // Name of the peer's address as gRPC writes it, "ipv4:10.0.0.1:4711".
  virtual std::string peer() const = 0;
  // Asks for the next message. Not before the last one asked for has come.
  virtual void Read() = 0;
  // Sends after what was sent before. A peer that takes nothing while many messages wait loses the call.
  virtual void Send(Out message) = 0;
  // Ends the call with this status, after what was sent before. The first status counts.
  virtual void Close(absl::Status status) = 0;
};

// What is told about one call, on gRPC's threads; OnMessage and OnSent may come at the same time. Must not
// block.
template <typename In>
class TypedHandler {
 public:
  virtual ~TypedHandler() = default;
  // Once for each Read that brings something.
  virtual void OnMessage(In message) = 0;
  // What was sent has been taken by the transport; nothing waits.
  virtual void OnSent() = 0;
  // The call is over. Once, last.
  virtual void OnClosed() = 0;
};

// A call of the callback API with such a stream and handler. Make it with Start.
template <typename In, typename Out>
class TypedServerStream final : public grpc::ServerBidiReactor<In, Out>,
                                public TypedStream<Out>,
                                public std::enable_shared_from_this<TypedServerStream<In, Out>> {
 public:
  // `accept` takes the stream and returns its handler.
  template <typename Accept>
  static grpc::ServerBidiReactor<In, Out>* Start(grpc::CallbackServerContext* context, Accept accept) {
    auto stream = std::shared_ptr<TypedServerStream>(new TypedServerStream(context->peer()));
    stream->self_ = stream;
    stream->handler_ = accept(std::shared_ptr<TypedStream<Out>>(stream));
    return stream.get();
  }

  std::string peer() const override { return peer_; }

  void Read() override {
    base::MutexLock lock(&mu_);
    if (finished_) return;
    base::HappensBefore(this);
    this->StartRead(&incoming_);
  }

  void Send(Out message) override {
    base::MutexLock lock(&mu_);
    if (status_.has_value()) return;
    if (queue_.size() >= kMaxQueued) {
      queue_.clear();
      End(absl::ResourceExhaustedError("the peer does not take what it is sent"));
      return;
    }
    queue_.push_back(std::move(message));
    if (!writing_) WriteNext();
  }

  void Close(absl::Status status) override {
    base::MutexLock lock(&mu_);
    End(std::move(status));
  }

 private:
  static constexpr size_t kMaxQueued = 1024;

  explicit TypedServerStream(std::string peer) : peer_(std::move(peer)) {}

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    base::HappensBefore(this);
    this->StartWrite(&outgoing_);
  }

  // Finishes once nothing is left to write.
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!status_.has_value()) status_ = std::move(status);
    if (writing_ || finished_) return;
    finished_ = true;
    this->Finish(ToGrpcStatus(*status_));
  }

  // What the end of a call may rely on, which gRPC tells when all else has returned.
  struct Told {
    explicit Told(const TypedServerStream* told) : stream(told) { base::HappensAfter(stream); }
    ~Told() { base::HappensBefore(stream); }
    const TypedServerStream* const stream;
  };

  void OnReadDone(bool ok) override {
    const Told told(this);
    if (ok) {
      handler_->OnMessage(std::move(incoming_));
      return;
    }
    // The client has said all that it wanted, or is gone.
    base::MutexLock lock(&mu_);
    End(absl::OkStatus());
  }

  void OnWriteDone(bool ok) override {
    const Told told(this);
    bool all_sent = false;
    {
      base::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) queue_.clear();
      if (!queue_.empty()) {
        WriteNext();
      } else if (!ok || status_.has_value()) {
        End(absl::OkStatus());
      } else {
        all_sent = true;
      }
    }
    if (all_sent) handler_->OnSent();
  }

  void OnCancel() override {
    const Told told(this);
    base::MutexLock lock(&mu_);
    queue_.clear();
    End(absl::CancelledError("the call was cancelled"));
  }

  void OnDone() override {
    base::HappensAfter(this);
    // The handler's end may let go of everything else that keeps this alive.
    auto self = std::move(self_);
    handler_->OnClosed();
    handler_.reset();
  }

  const std::string peer_;
  std::shared_ptr<TypedServerStream> self_;  // until the call is over
  std::shared_ptr<TypedHandler<In>> handler_;
  In incoming_;
  Out outgoing_;
  base::Mutex mu_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mu_);  // the end that is wanted
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_TYPED_STREAM_H_
