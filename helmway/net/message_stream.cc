#include "helmway/net/message_stream.h"

#include <glog/logging.h>
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
#include "helmway/net/socket_thread.h"

namespace helmway::net {
namespace {

using cluster::Arm;
using cluster::MakeTag;
using cluster::Tag;

// In the initial metadata of the accepting end: the invitation to a connection for the messages.
constexpr char kInvitationKey[] = "helmway-socket";
// In its trailing metadata: all that it had to say is said.
constexpr char kOrderlyEndKey[] = "helmway-end";
// So long the opening end waits for the connection. A port that is closed to it may give no answer at all.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);

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

// What both ends of a stream have in common: a queue of messages with one write under way, one read of the
// call under way, the connection that messages take if there is one, and a count of what gRPC and the
// connection still owe. Keeps itself until all are back.
class End : public MessageStream, public SocketUser, public std::enable_shared_from_this<End> {
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

  // ---- SocketUser ----

  void OnConnected(absl::StatusOr<std::shared_ptr<Socket>> socket) final {
    {
      base::MutexLock lock(&mu_);
      if (socket.ok()) {
        if (over_) {
          (*socket)->Release();
          return;
        }
        if (!connects_) Owe();
        socket_ = *socket;
        if (call_over_) socket_->Release();
      }
    }
    if (!socket.ok()) {
      LOG(WARNING) << "messages for " << PeerName() << " go through gRPC: " << socket.status();
    }
    OnDecided();
    if (!socket.ok()) OneBack();
  }

  void OnFrame(grpc::ByteBuffer& frame) final {
    {
      base::MutexLock lock(&mu_);
      if (discards_) return;
    }
    receiver_->OnMessage(frame);
  }

  std::optional<FrameRest> OnFrameBegin(absl::Span<const uint8_t> begin, size_t size) final {
    {
      base::MutexLock lock(&mu_);
      if (discards_) return std::nullopt;
    }
    return receiver_->OnMessageBegin(begin, size);
  }

  void OnFlushed() final {
    base::MutexLock lock(&mu_);
    writing_ = false;
    WriteNext();
  }

  void OnPeerEnd() final { NothingMoreComes(/*lost=*/false); }
  void OnLost(const absl::Status& /*status*/) final { NothingMoreComes(/*lost=*/true); }

  void OnReleased() final {
    {
      base::MutexLock lock(&mu_);
      if (over_) return;  // it came too late
      writing_ = false;
    }
    OneBack();
  }

 protected:
  explicit End(LiveEnds* live) : live_(live) {}

  // ---- Operations of the call, each of which comes back from the queue; under mu_ ----
  virtual void StartRead(grpc::ByteBuffer* message) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& message) = 0;
  // All is written and Close was called. Called once.
  virtual void StartEnd(const absl::Status& status) = 0;
  virtual void CancelCall() = 0;

  // It is known whether messages go over a socket: they do if there is one.
  virtual void OnDecided() = 0;
  virtual std::string PeerName() = 0;

  void Owe() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++owed_; }

  void OnRead(bool ok) {
    if (ok) {
      if (IsForReceiver()) receiver_->OnMessage(message_);
      message_.Clear();
      base::MutexLock lock(&mu_);
      ReadNext();
    } else {
      bool ended;
      {
        base::MutexLock lock(&mu_);
        // The last messages may still be on their way over the socket.
        ended = socket_ == nullptr || peer_ended_ || CallBroken();
        call_read_ended_ = !ended;
      }
      if (ended) OnReadEnd();
    }
    OneBack();
  }
  // The peer has no more to say, or the call is broken.
  virtual void OnReadEnd() = 0;
  // Whether it is known without more that the end of reads is no end in good order.
  virtual bool CallBroken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return false; }
  bool IsForReceiver() {
    base::MutexLock lock(&mu_);
    if (socket_ == nullptr) return TakesMessage();
    CancelCall();  // it is one way or the other
    return false;
  }
  // Messages go through the call. Whether this one is for the receiver.
  virtual bool TakesMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return true; }

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
      socket_ = nullptr;
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
    if (!writes_) return;
    while (!writing_ && !queue_.empty()) {
      grpc::ByteBuffer next;
      next.Swap(&queue_.front());
      queue_.pop_front();
      queued_bytes_.fetch_sub(static_cast<int64_t>(next.Length()), std::memory_order_relaxed);
      writing_ = true;
      if (socket_ == nullptr) {
        Owe();
        StartWrite(next);
        return;
      }
      const Socket::Written written = socket_->Write(next);
      if (written == Socket::Written::kPending) return;
      writing_ = false;
      if (written == Socket::Written::kLost) SocketLost();
    }
    if (writing_ || !no_more_) return;
    writes_ = false;
    if (socket_ != nullptr) socket_->EndWrites();
    Owe();
    StartEnd(close_status_);
  }

  // Over the socket.
  void NothingMoreComes(bool lost) {
    bool ended;
    {
      base::MutexLock lock(&mu_);
      peer_ended_ = true;
      if (lost) SocketLost();
      if (release_at_peer_end_) socket_->Release();
      ended = std::exchange(call_read_ended_, false);
    }
    if (ended) OnReadEnd();
  }

  // The call ends with the connection.
  void SocketLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    peer_ended_ = true;
    socket_lost_ = true;
    writing_ = false;
    no_more_ = true;
    DropQueue();
    if (!call_over_) CancelCall();
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
  bool reads_ ABSL_GUARDED_BY(mu_) = false;    // reads of the call may be started
  bool writes_ ABSL_GUARDED_BY(mu_) = false;   // writes may be started, and the end that follows them
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // a write is under way
  bool no_more_ ABSL_GUARDED_BY(mu_) =
      false;  // Close, Cancel or the end of the call: nothing is queued any more
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // everything has been given back
  int owed_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);

  std::shared_ptr<Socket> socket_ ABSL_GUARDED_BY(mu_);  // null: messages go through the call
  bool peer_ended_ ABSL_GUARDED_BY(mu_) = false;         // nothing more comes over the socket
  bool call_read_ended_ ABSL_GUARDED_BY(mu_) = false;  // nothing more comes in the call, but over the socket
  bool socket_lost_ ABSL_GUARDED_BY(mu_) = false;
  bool connects_ ABSL_GUARDED_BY(mu_) = false;  // this end took up an invitation, which is among what is owed
  bool call_over_ ABSL_GUARDED_BY(mu_) = false;
  bool release_at_peer_end_ ABSL_GUARDED_BY(mu_) = false;
  bool discards_ ABSL_GUARDED_BY(mu_) = false;  // what comes over the socket

  // Used by the thread of the calls only, and by that of the sockets while messages go over one.
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
  ServiceImpl(std::vector<Method> methods, bool invites) : methods_(std::move(methods)), invites_(invites) {}

  void Register(grpc::ServerBuilder& builder) override { builder.RegisterAsyncGenericService(&service_); }
  void Start(CompletionThread& thread) override;
  void BeforeShutdown() override { ends_.store(true); }
  void Stop() override { live_.WaitForNone(); }

 private:
  friend class AcceptedEnd;
  const std::vector<Method> methods_;
  const bool invites_;
  std::atomic<bool> ends_{false};
  grpc::AsyncGenericService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // since Start
  SocketThread* sockets_ = nullptr;               // likewise
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
        receiver_ = method.accept(shared_from_this(), context_.peer());
        Invite();
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

  void Invite() {
    std::string invitation;
    if (service_->invites_) {
      absl::StatusOr<std::string> made = service_->sockets_->Invite(context_.peer(), shared_from_this());
      if (made.ok()) {
        invitation = *std::move(made);
        context_.AddInitialMetadata(kInvitationKey, invitation);
      } else {
        LOG(WARNING) << "messages of " << context_.peer() << " go through gRPC: " << made.status();
      }
    }
    base::MutexLock lock(&mu_);
    invitation_ = std::move(invitation);
    Owe();
    stream_.SendInitialMetadata(Arm(&metadata_sent_));
    reads_ = true;
    ReadNext();
  }

  void OnMetadataSent(bool /*ok*/) {
    {
      base::MutexLock lock(&mu_);
      metadata_is_sent_ = true;
      BeginWrites();
    }
    OneBack();
  }

  // It is the opening end that decides: it connects, or sends a message through the call.
  void OnDecided() override {
    base::MutexLock lock(&mu_);
    decided_ = true;
    BeginWrites();
  }
  bool TakesMessage() override {
    if (decided_) return true;
    decided_ = true;
    service_->sockets_->Withdraw(invitation_);
    BeginWrites();
    return message_.Length() > 0;
  }
  void BeginWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!decided_ || !metadata_is_sent_ || began_writes_) return;
    began_writes_ = writes_ = true;
    WriteNext();
  }
  std::string PeerName() override { return context_.peer(); }

  void StartRead(grpc::ByteBuffer* message) override { stream_.Read(message, Arm(&read_)); }
  void StartWrite(const grpc::ByteBuffer& message) override { stream_.Write(message, Arm(&written_)); }
  void StartEnd(const absl::Status& status) override {
    reads_ = false;
    discards_ = true;
    if (socket_ != nullptr) context_.AddTrailingMetadata(kOrderlyEndKey, "1");
    stream_.Finish(ToGrpcStatus(status), Arm(&finished_));
  }
  void CancelCall() override { context_.TryCancel(); }
  // The peer has no more to say.
  void OnReadEnd() override { Close(absl::OkStatus()); }
  bool CallBroken() override { return call_over_; }
  void OnFinished(bool /*ok*/) { OneBack(); }
  void OnDone(bool /*ok*/) {
    std::string invitation;
    {
      base::MutexLock lock(&mu_);
      invitation = invitation_;
      call_over_ = true;
      if (context_.IsCancelled()) {
        end_status_ = service_->ends_.load() ? absl::CancelledError("the server ends")
                                             : absl::UnavailableError("the peer has gone");
        no_more_ = true;
        DropQueue();
        decided_ = true;
        if (socket_ != nullptr) {
          writing_ = false;
          socket_->Release();
        }
        BeginWrites();
        WriteNext();
      } else {
        end_status_ = close_status_;
        if (socket_ != nullptr) socket_->ReleaseInOrder();
      }
    }
    if (!invitation.empty()) service_->sockets_->Withdraw(invitation);
    OneBack();
  }

  ServiceImpl* const service_;
  std::string invitation_ ABSL_GUARDED_BY(mu_);  // empty: none was made
  bool metadata_is_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool decided_ ABSL_GUARDED_BY(mu_) = false;
  bool began_writes_ ABSL_GUARDED_BY(mu_) = false;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag accepted_ = MakeTag<&AcceptedEnd::OnAccepted>(this);
  Tag metadata_sent_ = MakeTag<&AcceptedEnd::OnMetadataSent>(this);
  Tag read_ = MakeTag<&AcceptedEnd::OnRead>(this);
  Tag written_ = MakeTag<&AcceptedEnd::OnWritten>(this);
  Tag finished_ = MakeTag<&AcceptedEnd::OnFinished>(this);
  Tag done_ = MakeTag<&AcceptedEnd::OnDone>(this);
};

void ServiceImpl::Start(CompletionThread& thread) {
  queue_ = thread.queue();
  sockets_ = &thread.sockets();
  AcceptedEnd::Expect(this);
}

// ---- The opening end -------------------------------------------------------------------------------------

class OpenedEnd final : public End {
 public:
  OpenedEnd(LiveEnds* live, const std::shared_ptr<grpc::Channel>& channel, CompletionThread* thread)
      : End(live), thread_(thread), stub_(channel) {}

  void Start(const std::string& path, std::shared_ptr<MessageReceiver> receiver) {
    base::MutexLock lock(&mu_);
    self_ = shared_from_this();
    receiver_ = std::move(receiver);
    stream_ = stub_.PrepareCall(&context_, path, thread_->queue());
    Owe();
    stream_->StartCall(Arm(&started_));
  }

 private:
  void OnStarted(bool ok) {
    if (ok) {
      base::MutexLock lock(&mu_);
      Owe();
      stream_->ReadInitialMetadata(Arm(&metadata_));
    } else {
      Finish();
    }
    OneBack();
  }

  void OnMetadata(bool ok) {
    std::string invitation;
    if (ok) {
      const auto& metadata = context_.GetServerInitialMetadata();
      const auto found = metadata.find(kInvitationKey);
      if (found != metadata.end()) invitation.assign(found->second.data(), found->second.size());
    }
    if (invitation.empty()) {
      OnDecided();
    } else {
      {
        base::MutexLock lock(&mu_);
        Owe();
        connects_ = true;
      }
      thread_->sockets().Connect(context_.peer(), invitation, kConnectTimeout, shared_from_this());
    }
    OneBack();
  }

  void OnDecided() override {
    base::MutexLock lock(&mu_);
    reads_ = writes_ = true;
    if (socket_ == nullptr) {
      // Tells the accepting end, if there is nothing else to say yet.
      const grpc::Slice nothing;
      queue_.emplace_front(&nothing, 1);
    }
    ReadNext();
    WriteNext();
  }
  std::string PeerName() override { return context_.peer(); }

  void StartRead(grpc::ByteBuffer* message) override { stream_->Read(message, Arm(&read_)); }
  void StartWrite(const grpc::ByteBuffer& message) override { stream_->Write(message, Arm(&written_)); }
  // Reads go on until the peer ends the call.
  void StartEnd(const absl::Status& /*status*/) override { stream_->WritesDone(Arm(&writes_done_)); }
  void CancelCall() override { context_.TryCancel(); }
  // Whether it ends in good order, the status tells.
  bool CallBroken() override { return true; }
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
    // What the peer had to say may still be on its way.
    const bool in_order = context_.GetServerTrailingMetadata().count(kOrderlyEndKey) > 0;
    {
      base::MutexLock lock(&mu_);
      if (socket_lost_ && absl::IsCancelled(end_status_)) {
        end_status_ = absl::UnavailableError("the connection is lost");
      }
      call_over_ = true;
      if (socket_ != nullptr) {
        release_at_peer_end_ = in_order && !peer_ended_;
        if (!release_at_peer_end_) socket_->Release();
      }
    }
    OneBack();
  }

  CompletionThread* const thread_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  Tag started_ = MakeTag<&OpenedEnd::OnStarted>(this);
  Tag metadata_ = MakeTag<&OpenedEnd::OnMetadata>(this);
  Tag read_ = MakeTag<&OpenedEnd::OnRead>(this);
  Tag written_ = MakeTag<&OpenedEnd::OnWritten>(this);
  Tag writes_done_ = MakeTag<&OpenedEnd::OnWritesDone>(this);
  Tag finished_ = MakeTag<&OpenedEnd::OnFinished>(this);
};

}  // namespace

std::unique_ptr<MessageStreamService> MessageStreamService::Create(std::vector<Method> methods,
                                                                   bool invites) {
  return std::make_unique<ServiceImpl>(std::move(methods), invites);
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
  auto end = std::make_shared<OpenedEnd>(&state_->live, channel, state_->thread);
  state_->live.Add(end.get());
  end->Start(path, std::move(receiver));
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
