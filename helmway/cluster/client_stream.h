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
#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"

namespace helmway::cluster {

// The client's end of a call with messages both ways, as a queue to send and one message at a time to read.
// Lives until the call is over, whoever holds it. Any thread.
template <typename Out, typename In>
class ClientStream final : public std::enable_shared_from_this<ClientStream<Out, In>> {
 public:
  using Call = grpc::ClientAsyncReaderWriter<Out, In>;
  // Both run on the queue's thread and must not block. `on_message` comes once for each Read that brings
  // something, `on_closed` once and last; it gets the stream, to drop it elsewhere.
  struct Events {
    absl::AnyInvocable<void(In)> on_message;
    absl::AnyInvocable<void(const absl::Status&, std::shared_ptr<ClientStream>)> on_closed;
  };
  // `prepare` is the generated method: stub->PrepareAsyncMethod(context, queue). Somebody takes what comes
  // back on `queue`, each a Tag, until the stream is over.
  static std::shared_ptr<ClientStream> Open(
      absl::AnyInvocable<std::unique_ptr<Call>(grpc::ClientContext*, grpc::CompletionQueue*)> prepare,
      grpc::CompletionQueue* queue, Events events) {
    auto stream = std::shared_ptr<ClientStream>(new ClientStream(std::move(events)));
    base::MutexLock lock(&stream->mu_);
    stream->self_ = stream;
    stream->call_ = prepare(&stream->context_, queue);
    ++stream->owed_;
    stream->call_->StartCall(Arm(&stream->started_tag_));
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
    WriteNext();
  }

  // Asks for the next message. Not before the last one asked for has come.
  void Read() {
    base::MutexLock lock(&mu_);
    wants_read_ = true;
    ReadNext();
  }

  // Ends the call soon; no message comes any more.
  void Cancel() {
    context_.TryCancel();
    base::MutexLock lock(&mu_);
    cancelled_ = true;
    if (started_ && !reading_) Finish();
  }

 private:
  static constexpr size_t kMaxQueued = 1024;

  explicit ClientStream(Events events) : events_(std::move(events)) {}

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!started_ || over_ || writing_ || queue_.empty()) return;
    writing_ = true;
    ++owed_;
    call_->Write(queue_.front(), Arm(&written_tag_));
    queue_.pop_front();
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!started_ || over_ || !wants_read_) return;
    wants_read_ = false;
    reading_ = true;
    ++owed_;
    call_->Read(&incoming_, Arm(&read_tag_));
  }

  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (over_) return;
    over_ = true;
    queue_.clear();
    ++owed_;
    call_->Finish(&status_, Arm(&finished_tag_));
  }

  // ---- What comes back ----
  void OnStarted(bool ok) {
    {
      base::MutexLock lock(&mu_);
      started_ = true;
      if (!ok || cancelled_) Finish();
      WriteNext();
      ReadNext();
    }
    OneBack();
  }

  void OnWritten(bool /*ok*/) {
    {
      base::MutexLock lock(&mu_);
      writing_ = false;
      // After a failed write the read fails too, and ends the call.
      WriteNext();
    }
    OneBack();
  }

  void OnRead(bool ok) {
    {
      base::MutexLock lock(&mu_);
      reading_ = false;
      if (!ok || cancelled_) Finish();
      ok = !over_;
    }
    if (ok) events_.on_message(std::move(incoming_));
    OneBack();
  }

  void OnFinished(bool /*ok*/) { OneBack(); }

  void OneBack() {
    std::shared_ptr<ClientStream> self;
    {
      base::MutexLock lock(&mu_);
      // Without an operation under way it is still open until it is over.
      if (--owed_ > 0 || !over_) return;
      self = std::move(self_);
    }
    // From here on another thread may end this object.
    auto on_closed = std::move(events_.on_closed);
    on_closed(absl::Status(static_cast<absl::StatusCode>(status_.error_code()), status_.error_message()),
              std::move(self));
  }

  Events events_;
  grpc::ClientContext context_;
  std::unique_ptr<Call> call_;
  In incoming_;
  grpc::Status status_;
  Tag started_tag_ = MakeTag<&ClientStream::OnStarted>(this);
  Tag written_tag_ = MakeTag<&ClientStream::OnWritten>(this);
  Tag read_tag_ = MakeTag<&ClientStream::OnRead>(this);
  Tag finished_tag_ = MakeTag<&ClientStream::OnFinished>(this);
  base::Mutex mu_;
  std::shared_ptr<ClientStream> self_ ABSL_GUARDED_BY(mu_);  // until the call is over
  std::deque<Out> queue_ ABSL_GUARDED_BY(mu_);
  int owed_ ABSL_GUARDED_BY(mu_) = 0;  // operations that will come back
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool wants_read_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // nothing more is started
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_CLIENT_STREAM_H_
