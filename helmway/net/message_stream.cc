#include "helmway/net/message_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <deque>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"

namespace helmway::net {
namespace {

using cluster::Arm;
using cluster::MakeTag;
using cluster::Tag;

// Calls under way, so that whoever opens or accepts them can wait for their end, and cancel them.
class End;
class LiveEnds {
 public:
  // False if everything is ending.
  bool Add(End* end) {
    base::MutexLock lock(&mu_);
    if (closed_) return false;
    ends_.insert(end);
    return true;
  }
  void Drop(End* end) {
    base::MutexLock lock(&mu_);
    ends_.erase(end);
  }
  void CancelAll();
  void WaitForNone() {
    auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ends_.empty(); };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&none));
  }

 private:
  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_set<End*> ends_ ABSL_GUARDED_BY(mu_);
};

// What both ends of a stream have in common: a queue of messages with one write under way, one read under
// way, and a count of the operations that gRPC still owes. Keeps itself until all are back.
class End : public MessageStream, public std::enable_shared_from_this<End> {
 public:
  bool Send(grpc::ByteBuffer message) override {
    const auto bytes = static_cast<int64_t>(message.Length());
    base::MutexLock lock(&mu_);
    if (no_more_) return false;
    queue_.emplace_back();
    queue_.back().Swap(&message);
    queued_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    WriteNext();
    return true;
  }

  int64_t queued_bytes() const override { return queued_bytes_.load(std::memory_order_relaxed); }

  void Close(const absl::Status& status) override {
    base::MutexLock lock(&mu_);
    if (no_more_) return;
    no_more_ = true;
    close_status_ = status;
    WriteNext();
  }

  void Cancel() override {
    base::MutexLock lock(&mu_);
    no_more_ = true;
    DropQueue();
    if (!over_) CancelCall();
  }

 protected:
  explicit End(LiveEnds* live) : live_(live) {}

  // ---- Operations of the call, each of which comes back from the queue; under mu_ ----
  virtual void StartRead(grpc::ByteBuffer* message) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& message) = 0;
  // All is written and Close was called. Called once.
  virtual void StartEnd(const absl::Status& status) = 0;
  virtual void CancelCall() = 0;

  void Owe() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++owed_; }

  // The call is open in both directions: reads and writes may start.
  void Opened(std::shared_ptr<MessageReceiver> receiver) {
    base::MutexLock lock(&mu_);
    receiver_ = std::move(receiver);
    reads_ = writes_ = true;
    ReadNext();
    WriteNext();
  }

  void OnRead(bool ok) {
    if (ok) {
      receiver_->OnMessage(message_);
      message_.Clear();
      base::MutexLock lock(&mu_);
      ReadNext();
    } else {
      OnReadEnd();
    }
    OneBack();
  }
  virtual void OnReadEnd() = 0;

  void OnWritten(bool ok) {
    {
      base::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) {
        no_more_ = true;
        DropQueue();
      }
      WriteNext();
    }
    OneBack();
  }

  void OneBack() {
    std::shared_ptr<End> keep;
    {
      base::MutexLock lock(&mu_);
      if (--owed_ > 0) return;
      no_more_ = true;
      over_ = true;
      DropQueue();
      keep = std::move(self_);
    }
    if (receiver_ != nullptr) std::exchange(receiver_, nullptr)->OnEnd(end_status_);
    // Whoever waits for it may go at once.
    LiveEnds* const live = live_;
    live->Drop(this);
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!reads_) return;
    Owe();
    StartRead(&message_);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!writes_ || writing_) return;
    if (queue_.empty()) {
      if (!no_more_) return;
      writes_ = false;
      Owe();
      StartEnd(close_status_);
      return;
    }
    grpc::ByteBuffer next;
    next.Swap(&queue_.front());
    queue_.pop_front();
    queued_bytes_.fetch_sub(static_cast<int64_t>(next.Length()), std::memory_order_relaxed);
    writing_ = true;
    Owe();
    StartWrite(next);
  }

  void DropQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    queue_.clear();
    queued_bytes_.store(0, std::memory_order_relaxed);
  }

  LiveEnds* const live_;
  base::Mutex mu_;
  std::shared_ptr<End> self_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> queued_bytes_{0};
  bool reads_ ABSL_GUARDED_BY(mu_) = false;    // reads may be started
  bool writes_ ABSL_GUARDED_BY(mu_) = false;   // writes may be started, and the end that follows them
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // a write is under way
  bool no_more_ ABSL_GUARDED_BY(mu_) =
      false;  // Close, Cancel or the end of the call: nothing is queued any more
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // gRPC has given everything back
  int owed_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);
  // Used by the polling thread only.
  grpc::ByteBuffer message_;
  std::shared_ptr<MessageReceiver> receiver_;
  absl::Status end_status_;
};

void LiveEnds::CancelAll() {
  std::vector<std::shared_ptr<End>> all;
  {
    base::MutexLock lock(&mu_);
    closed_ = true;
    for (End* end : ends_) all.push_back(end->shared_from_this());
  }
  for (const auto& end : all) end->Cancel();
}

// ---- The accepting end -----------------------------------------------------------------------------------

class ServiceImpl final : public MessageStreamService {
 public:
  explicit ServiceImpl(std::vector<Method> methods) : methods_(std::move(methods)) {}

  void Register(grpc::ServerBuilder& builder) override { builder.RegisterAsyncGenericService(&service_); }
  void Start(CompletionThread& thread) override;
  void BeforeShutdown() override { ends_.store(true); }
  void Stop() override { live_.WaitForNone(); }

 private:
  friend class AcceptedEnd;
  const std::vector<Method> methods_;
  std::atomic<bool> ends_{false};
  grpc::AsyncGenericService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // since Start
  LiveEnds live_;
};

class AcceptedEnd final : public End {
 public:
  static void Expect(ServiceImpl* service) {
    auto end = std::make_shared<AcceptedEnd>(service);
    AcceptedEnd& call = *end;
    {
      base::MutexLock lock(&call.mu_);
      call.self_ = std::move(end);
    }
    service->live_.Add(&call);
    call.context_.AsyncNotifyWhenDone(Arm(&call.done_));
    service->service_.RequestCall(&call.context_, &call.stream_, service->queue_, service->queue_,
                                  Arm(&call.accepted_));
  }

  explicit AcceptedEnd(ServiceImpl* service) : End(&service->live_), service_(service) {}

 private:
  void OnAccepted(bool ok) {
    if (!ok) {
      // The server is going down, and nothing else of this call comes back.
      std::shared_ptr<End> last;
      {
        base::MutexLock lock(&mu_);
        last = std::move(self_);
      }
      live_->Drop(this);
      return;
    }
    Expect(service_);
    {
      base::MutexLock lock(&mu_);
      owed_ = 1;  // the notice of the end
    }
    for (const MessageStreamService::Method& method : service_->methods_) {
      if (method.path == context_.method()) {
        Opened(method.accept(shared_from_this(), context_.peer()));
        return;
      }
    }
    base::MutexLock lock(&mu_);
    no_more_ = true;
    Owe();
    stream_.Finish(
        grpc::Status(grpc::StatusCode::UNIMPLEMENTED, absl::StrCat("no method ", context_.method())),
        Arm(&finished_));
  }

  void StartRead(grpc::ByteBuffer* message) override { stream_.Read(message, Arm(&read_)); }
  void StartWrite(const grpc::ByteBuffer& message) override { stream_.Write(message, Arm(&written_)); }
  void StartEnd(const absl::Status& status) override {
    reads_ = false;
    stream_.Finish(ToGrpcStatus(status), Arm(&finished_));
  }
  void CancelCall() override { context_.TryCancel(); }
  // The peer has no more to say.
  void OnReadEnd() override { Close(absl::OkStatus()); }
  void OnFinished(bool /*ok*/) { OneBack(); }
  void OnDone(bool /*ok*/) {
    {
      base::MutexLock lock(&mu_);
      if (context_.IsCancelled()) {
        end_status_ = service_->ends_.load() ? absl::CancelledError("the server ends")
                                             : absl::UnavailableError("the peer has gone");
        no_more_ = true;
        DropQueue();
        WriteNext();
      } else {
        end_status_ = close_status_;
      }
    }
    OneBack();
  }

  ServiceImpl* const service_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag accepted_ = MakeTag<&AcceptedEnd::OnAccepted>(this);
  Tag read_ = MakeTag<&AcceptedEnd::OnRead>(this);
  Tag written_ = MakeTag<&AcceptedEnd::OnWritten>(this);
  Tag finished_ = MakeTag<&AcceptedEnd::OnFinished>(this);
  Tag done_ = MakeTag<&AcceptedEnd::OnDone>(this);
};

void ServiceImpl::Start(CompletionThread& thread) {
  queue_ = thread.queue();
  AcceptedEnd::Expect(this);
}

// ---- The opening end -------------------------------------------------------------------------------------

class OpenedEnd final : public End {
 public:
  OpenedEnd(LiveEnds* live, const std::shared_ptr<grpc::Channel>& channel) : End(live), stub_(channel) {}

  void Start(const std::string& path, grpc::CompletionQueue* queue,
             std::shared_ptr<MessageReceiver> receiver) {
    base::MutexLock lock(&mu_);
    self_ = shared_from_this();
    receiver_ = std::move(receiver);
    stream_ = stub_.PrepareCall(&context_, path, queue);
    Owe();
    stream_->StartCall(Arm(&started_));
  }

 private:
  void OnStarted(bool ok) {
    if (ok) {
      Opened(receiver_);
    } else {
      Finish();
    }
    OneBack();
  }
  void StartRead(grpc::ByteBuffer* message) override { stream_->Read(message, Arm(&read_)); }
  void StartWrite(const grpc::ByteBuffer& message) override { stream_->Write(message, Arm(&written_)); }
  // Reads go on until the peer ends the call.
  void StartEnd(const absl::Status& /*status*/) override { stream_->WritesDone(Arm(&writes_done_)); }
  void CancelCall() override { context_.TryCancel(); }
  void OnReadEnd() override { Finish(); }
  void Finish() {
    base::MutexLock lock(&mu_);
    no_more_ = true;
    reads_ = writes_ = false;
    DropQueue();
    Owe();
    stream_->Finish(&status_, Arm(&finished_));
  }
  void OnWritesDone(bool /*ok*/) { OneBack(); }
  void OnFinished(bool /*ok*/) {
    end_status_ = FromGrpcStatus(status_);
    OneBack();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  Tag started_ = MakeTag<&OpenedEnd::OnStarted>(this);
  Tag read_ = MakeTag<&OpenedEnd::OnRead>(this);
  Tag written_ = MakeTag<&OpenedEnd::OnWritten>(this);
  Tag writes_done_ = MakeTag<&OpenedEnd::OnWritesDone>(this);
  Tag finished_ = MakeTag<&OpenedEnd::OnFinished>(this);
};

}  // namespace

std::unique_ptr<MessageStreamService> MessageStreamService::Create(std::vector<Method> methods) {
  return std::make_unique<ServiceImpl>(std::move(methods));
}

struct MessageStreamClient::State {
  explicit State(CompletionThread* on) : thread(on) {}
  CompletionThread* const thread;
  LiveEnds live;
};

MessageStreamClient::MessageStreamClient(CompletionThread* thread)
    : state_(std::make_unique<State>(thread)) {}

MessageStreamClient::~MessageStreamClient() {
  state_->live.CancelAll();
  state_->live.WaitForNone();
}

CompletionThread& MessageStreamClient::thread() const { return *state_->thread; }

std::shared_ptr<MessageStream> MessageStreamClient::Open(const std::shared_ptr<grpc::Channel>& channel,
                                                         const std::string& path,
                                                         std::shared_ptr<MessageReceiver> receiver) {
  auto end = std::make_shared<OpenedEnd>(&state_->live, channel);
  state_->live.Add(end.get());
  end->Start(path, state_->thread->queue(), std::move(receiver));
  return end;
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, absl::Duration timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(INT_MAX);
  arguments.SetMaxSendMessageSize(INT_MAX);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 2 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  // A connection of its own, tried at once: what gRPC remembers of failed attempts at the same address would
  // let this one wait a second before it fails, or finds whoever is there now.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (timeout < absl::InfiniteDuration()) {
    // A question often, and most of the time for the answer: a busy peer is not a lost one. Together a little
    // less than the timeout, since gRPC is not punctual.
    const auto total = static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), kMinPingMilliseconds, INT_MAX));
    // Also the time that a connection may take, for which gRPC gives a peer that is silent 20 s.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, total);
    const auto between = std::clamp(total / 6, kMinPingMilliseconds, 10'000);
    const auto answer = std::max(total - total / 10 - between, kMinPingMilliseconds);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, between);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, answer);
    // Else gRPC asks no more once nothing has been sent for a while.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, between);
  }
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace helmway::net
