#ifndef HELMWAY_CLUSTER_CLIENT_STREAM_H_
#define HELMWAY_CLUSTER_CLIENT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/mutex.h"

namespace helmway::cluster {

// The client's end of a call with messages both ways, as a queue to send and one message at a time to read.
// Lives until the call is over, whoever holds it. Any thread.
//
// With the last reference the channel may end, and with the last channel gRPC joins the threads that call
// back: so that reference must not be dropped on one of them.
template <typename Out, typename In>
class ClientStream final : public grpc::ClientBidiReactor<Out, In>,
                           public std::enable_shared_from_this<ClientStream<Out, In>> {
 public:
  // Both run on gRPC's threads and must not block. `on_message` comes once for each Read that brings
  // something, `on_closed` once and last; it gets the stream, to drop it elsewhere.
  struct Events {
    absl::AnyInvocable<void(In)> on_message;
    absl::AnyInvocable<void(const absl::Status&, std::shared_ptr<ClientStream>)> on_closed;
  };
  // `start` is the generated method: stub->async()->Method(context, reactor).
  static std::shared_ptr<ClientStream> Open(
      absl::AnyInvocable<void(grpc::ClientContext*, grpc::ClientBidiReactor<Out, In>*)> start,
      Events events) {
    auto stream = std::shared_ptr<ClientStream>(new ClientStream(std::move(events)));
    stream->self_ = stream;
    start(&stream->context_, stream.get());
    // Reads, writes and the cancellation come from outside gRPC's calls to this object.
    stream->AddHold();
    stream->StartCall();
    return stream;
  }

  // Sends after what was sent before. A peer that takes nothing while many messages wait loses the call.
  void Send(Out message) {
    base::MutexLock lock(&mu_);
    if (over_) return;
    if (queue_.size() >= kMaxQueued) {
      context_.TryCancel();
      return;
    }
    queue_.push_back(std::move(message));
    if (!writing_) WriteNext();
  }

  // Asks for the next message. Not before the last one asked for has come.
  void Read() {
    base::MutexLock lock(&mu_);
    if (over_) return;
    reading_ = true;
    base::HappensBefore(this);
    this->StartRead(&incoming_);
  }

  // Ends the call soon; no message comes any more.
  void Cancel() {
    context_.TryCancel();
    {
      base::MutexLock lock(&mu_);
      cancelled_ = true;
      if (reading_ || over_) return;
      over_ = true;
    }
    this->RemoveHold();
  }

 private:
  static constexpr size_t kMaxQueued = 1024;

  explicit ClientStream(Events events) : events_(std::move(events)) {}

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    base::HappensBefore(this);
    this->StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    base::HappensAfter(this);
    base::MutexLock lock(&mu_);
    writing_ = false;
    // After a failed write the read fails too, and ends the call.
    if (ok && !over_ && !queue_.empty()) WriteNext();
  }

  void OnReadDone(bool ok) override {
    base::HappensAfter(this);
    {
      base::MutexLock lock(&mu_);
      reading_ = false;
      if (!ok || cancelled_) over_ = true;
      if (over_) ok = false;
    }
    if (ok) {
      events_.on_message(std::move(incoming_));
    } else {
      this->RemoveHold();
    }
  }

  void OnDone(const grpc::Status& status) override {
    base::HappensAfter(this);
    // From here on another thread may end this object.
    auto on_closed = std::move(events_.on_closed);
    on_closed(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()),
              std::move(self_));
  }

  Events events_;
  grpc::ClientContext context_;
  std::shared_ptr<ClientStream> self_;  // until the call is over
  In incoming_;
  Out outgoing_;
  base::Mutex mu_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // nothing more is started
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_CLIENT_STREAM_H_
