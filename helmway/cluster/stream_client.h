#ifndef HELMWAY_CLUSTER_STREAM_CLIENT_H_
#define HELMWAY_CLUSTER_STREAM_CLIENT_H_

#include <glog/logging.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "helmway/async/backoff.h"
#include "helmway/async/event_loop.h"
#include "helmway/base/clock.h"
#include "helmway/base/mutex.h"
#include "helmway/base/random.h"
#include "helmway/cluster/channel.h"
#include "helmway/cluster/client_stream.h"

namespace helmway::cluster {

struct StreamClientOptions {
  std::string peer;                        // for messages: "the resource manager"
  std::string address;                     // host:port; need not resolve yet
  grpc::CompletionQueue* queue = nullptr;  // as ClientStream::Open's; until this is gone
  async::Backoff::Options backoff;
  absl::Duration tick = absl::InfiniteDuration();  // how often OnTick comes while there is a stream
  std::string thread_name;
};

// Keeps one stream to a peer open, for ever: when it ends, or can't be made, another is tried after a wait
// that grows. Everything happens on one thread of its own.
template <typename Out, typename In>
class StreamClient {
 public:
  // Called on the client's thread, one at a time. May block: the stream waits.
  class Delegate {
   public:
    virtual ~Delegate() = default;
    // The first message of a new stream.
    virtual Out Hello() = 0;
    // An error drops the stream; another is tried.
    virtual absl::Status OnMessage(In message) = 0;
    // The stream has ended, or could not be made.
    virtual void OnLost(const absl::Status& status) = 0;
    virtual void OnTick() {}
  };
  using Prepare = absl::AnyInvocable<std::unique_ptr<typename ClientStream<Out, In>::Call>(
      const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*, grpc::CompletionQueue*)>;

  // `prepare`: the generated method of the call. `delegate` outlives this.
  StreamClient(StreamClientOptions options, Prepare prepare, Delegate* delegate)
      : options_(std::move(options)),
        prepare_(std::move(prepare)),
        delegate_(delegate),
        backoff_(options_.backoff, base::UnguessableId()),
        loop_(std::make_shared<async::EventLoop>(options_.thread_name, [this] { OnDeadline(); })) {
    loop_->Post([this] { Connect(); });
  }

  // Ends the stream and waits for the end. Not from the delegate.
  ~StreamClient() {
    loop_->Post([this] {
      stopping_ = true;
      if (stream_ == nullptr) {
        stopped_.Notify();
      } else {
        stream_->Cancel();
      }
    });
    stopped_.WaitForNotification();
    loop_->Stop();
  }

  // Runs the task on the client's thread. Any thread.
  void Post(absl::AnyInvocable<void()> task) { loop_->Post(std::move(task)); }

  // The rest belongs to the client's thread.

  // Without a stream the message is dropped: what must be known to the peer is said again after the next
  // Hello.
  void Send(Out message) {
    if (stream_ != nullptr) stream_->Send(std::move(message));
  }
  // The peer is content: the next failure is tried again soon.
  void ResetBackoff() { backoff_.Reset(); }
  // Tries no other stream when this one ends, and passes on nothing that it still brings.
  void Halt() { halted_ = true; }
  bool halted() const { return halted_; }

 private:
  using Stream = ClientStream<Out, In>;

  void Connect() {
    if (stopping_ || halted_) return;
    channel_ = MakeChannel(options_.address);
    typename Stream::Events events;
    // The loop is kept by what may still be inside it when this object is gone.
    events.on_message = [this, loop = loop_](In message) {
      loop->Post([this, message = std::move(message)]() mutable { OnMessage(std::move(message)); });
    };
    events.on_closed = [this, loop = loop_](const absl::Status& status, std::shared_ptr<Stream> stream) {
      // The stream ends with this task, on the loop.
      loop->Post([this, status, stream = std::move(stream)] { OnClosed(status); });
    };
    refusal_ = absl::OkStatus();
    stream_ =
        Stream::Open([this](grpc::ClientContext* context,
                            grpc::CompletionQueue* queue) { return prepare_(channel_, context, queue); },
                     options_.queue, std::move(events));
    stream_->Send(delegate_->Hello());
    stream_->Read();
    next_tick_ = base::SteadyNow() + options_.tick;
    loop_->SetDeadline(next_tick_);
  }

  void OnMessage(In message) {
    if (stopping_ || stream_ == nullptr) return;
    if (halted_) {
      stream_->Read();
      return;
    }
    refusal_ = delegate_->OnMessage(std::move(message));
    if (refusal_.ok()) {
      stream_->Read();
    } else {
      stream_->Cancel();
    }
  }

  void OnClosed(absl::Status status) {
    stream_.reset();
    channel_.reset();
    if (stopping_) {
      stopped_.Notify();
      return;
    }
    if (!refusal_.ok()) status = refusal_;
    if (status.ok()) status = absl::UnavailableError("the stream was closed");
    if (!halted_) Report(status);
    delegate_->OnLost(status);
    if (!halted_) loop_->SetDeadline(base::SteadyNow() + backoff_.Next());
  }

  void OnDeadline() {
    if (stopping_ || halted_) return;
    if (stream_ == nullptr) {
      Connect();
      return;
    }
    delegate_->OnTick();
    next_tick_ = base::SteadyNow() + options_.tick;
    loop_->SetDeadline(next_tick_);
  }

  // The same text again is worth a line a minute.
  void Report(const absl::Status& status) {
    const absl::Time now = base::SteadyNow();
    if (status == reported_ && now < report_again_) return;
    reported_ = status;
    report_again_ = now + absl::Minutes(1);
    const bool transport = absl::IsUnavailable(status) || absl::IsCancelled(status);
    LOG_AT_LEVEL(transport ? google::GLOG_WARNING : google::GLOG_ERROR)
        << options_.peer << " at " << options_.address
        << (transport ? " is not reached, trying on: " : " refused, trying on: ") << status.message();
  }

  const StreamClientOptions options_;
  Prepare prepare_;
  Delegate* const delegate_;
  // Of the loop's thread.
  async::Backoff backoff_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Stream> stream_;  // null: waiting for the next attempt
  absl::Status refusal_;            // why we dropped the stream
  absl::Time next_tick_;
  absl::Status reported_;
  absl::Time report_again_;
  bool halted_ = false;
  bool stopping_ = false;

  base::Notification stopped_;
  const std::shared_ptr<async::EventLoop> loop_;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_STREAM_CLIENT_H_
