#include "helmway/net/worker_service.h"

#include <glog/logging.h>

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/local_addresses.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/cluster/worker_messages.h"
#include "helmway/net/flusher.h"
#include "helmway/net/launch_order.h"
#include "helmway/net/remote_callbacks.h"
#include "helmway/net/shared_memory.h"
#include "helmway/net/transfers.h"

namespace helmway::net {
namespace {

namespace proto = cluster::proto;

constexpr char kCommandsMethod[] = "/helmway.cluster.WorkerService/Commands";
constexpr char kBulkMethod[] = "/helmway.cluster.WorkerService/Bulk";
constexpr char kPeerMethod[] = "/helmway.cluster.WorkerService/Peer";

// Commands of a session whose launch waits for its turn. Bytes of arrays are not among them, but for small
// ones.
constexpr int64_t kMaxUnreadBytes = 256 << 20;

// How late the proxy may learn that launches have ended well.
constexpr absl::Duration kPatience = absl::Milliseconds(5);

// What both streams of a session share.
struct ServedSession {
  explicit ServedSession(std::shared_ptr<base::HostMemoryPool> memory)
      : transfers(std::move(memory), MakeBulkPiece) {}
  Transfers transfers;
  std::shared_ptr<cluster::SessionLink>
      link;  // null before the stream of commands has come, and after its end
};

// Sessions that are open, or whose first stream has come.
class ServedSessions {
 public:
  // Once.
  void Bind(cluster::WorkerLink* worker, WorkerServiceOptions options) {
    options_ = std::move(options);
    worker_.store(worker, std::memory_order_release);
  }

  absl::Status Check(const proto::Hello& hello) const {
    if (worker_.load(std::memory_order_acquire) == nullptr) {
      return absl::UnavailableError("the worker has no devices yet");
    }
    if (hello.protocol() != cluster::kWorkerProtocol) {
      return absl::FailedPreconditionError(
          absl::StrCat("the peer (", hello.software(), ") speaks worker protocol ", hello.protocol(),
                       ", this worker ", cluster::kWorkerProtocol, ": run the same version of both"));
    }
    if (hello.incarnation() != 0 && hello.incarnation() != options_.incarnation) {
      return absl::FailedPreconditionError(
          "the worker that is meant has ended; this is a later one at its address");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<ServedSession>> Find(const proto::Hello& hello) {
    HELMWAY_RETURN_IF_ERROR(Check(hello));
    base::MutexLock lock(&mu_);
    std::shared_ptr<ServedSession>& session = sessions_[hello.session()];
    if (session == nullptr) session = std::make_shared<ServedSession>(options_.host_memory);
    return session;
  }

  // Both only after a Check that was OK.
  const WorkerServiceOptions& options() const { return options_; }
  cluster::WorkerLink& worker() const { return *worker_.load(std::memory_order_acquire); }

  // A worker on this host whose memory can't be mapped. Said once.
  void NoSharedMemory(const cluster::PeerAddress& peer, const absl::Status& status) {
    if (no_shared_memory_.exchange(true, std::memory_order_relaxed)) return;
    LOG(WARNING) << "bytes of the worker at " << peer.address
                 << " on this host come over the network's stream: " << status;
  }

  std::weak_ptr<Flusher> flusher() const { return flusher_; }

  void Forget(uint64_t id) {
    base::MutexLock lock(&mu_);
    sessions_.erase(id);
  }

  // The order of the launches of a proxy. Null: the proxy's own stream is not here.
  std::shared_ptr<LaunchOrder> FindOrder(uint64_t proxy) const {
    const auto it = orders_.find(proxy);
    return it == orders_.end() ? nullptr : it->second;
  }
  std::shared_ptr<LaunchOrder> MakeOrder(uint64_t proxy) {
    return orders_[proxy] = std::make_shared<LaunchOrder>();
  }
  void EndOrder(uint64_t proxy) {
    if (auto order = orders_.extract(proxy)) {
      order.mapped()->End(absl::UnavailableError("the proxy is gone that orders the session's launches"));
    }
  }

 private:
  const std::shared_ptr<Flusher> flusher_ = std::make_shared<Flusher>(kPatience);
  WorkerServiceOptions options_;  // written before worker_
  std::atomic<cluster::WorkerLink*> worker_{nullptr};
  std::atomic<bool> no_shared_memory_{false};
  // By proxy. Of the streams' one thread.
  absl::flat_hash_map<uint64_t, std::shared_ptr<LaunchOrder>> orders_;
  base::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<ServedSession>> sessions_ ABSL_GUARDED_BY(mu_);
};

// What a session tells its proxy. Any thread.
class EventSender final : public Flusher::Sender, public std::enable_shared_from_this<EventSender> {
 public:
  EventSender(std::shared_ptr<MessageStream> stream, std::weak_ptr<Flusher> flusher)
      : stream_(std::move(stream)), flusher_(std::move(flusher)) {}

  // `bytes` follow the event.
  void Send(proto::Event& event, const absl::Status& status, const base::HostBytes& bytes = {}) {
    if (!status.ok()) *event.mutable_status() = cluster::ToProto(status);
    {
      base::MutexLock lock(&mu_);
      event.mutable_launches_done()->Swap(&launches_done_);
      launches_done_.Clear();
    }
    stream_->Send(MakeFrame(event, bytes));
  }

  // Most who wait for a launch wait for what it makes; so its end, if it is not `awaited`, may be told with
  // the next event, or those of others.
  void LaunchOver(cluster::LaunchId id, const absl::Status& status, bool awaited) {
    if (!status.ok()) {
      proto::Event event;
      event.set_launch_failed(id);
      return Send(event, status);
    }
    bool now, schedule;
    {
      base::MutexLock lock(&mu_);
      launches_done_.Add(id);
      now = awaited || launches_done_.size() >= kMaxLaunchesDone;
      schedule = !now && !std::exchange(due_, true);
    }
    if (now) {
      proto::Event event;
      return Send(event, absl::OkStatus());
    }
    if (!schedule) return;
    if (const std::shared_ptr<Flusher> flusher = flusher_.lock()) flusher->Add(shared_from_this());
  }

  void Flush() override {
    {
      base::MutexLock lock(&mu_);
      due_ = false;
      if (launches_done_.empty()) return;
    }
    proto::Event event;
    Send(event, absl::OkStatus());
  }

 private:
  static constexpr int kMaxLaunchesDone = 32;

  const std::shared_ptr<MessageStream> stream_;
  const std::weak_ptr<Flusher> flusher_;  // gone: the worker ends
  base::Mutex mu_;
  google::protobuf::RepeatedField<int64_t> launches_done_ ABSL_GUARDED_BY(mu_);
  bool due_ ABSL_GUARDED_BY(mu_) = false;  // with the flusher
};

class BulkReceiver final : public MessageReceiver {
 public:
  BulkReceiver(std::shared_ptr<ServedSessions> sessions, std::shared_ptr<MessageStream> stream)
      : sessions_(std::move(sessions)), stream_(std::move(stream)) {}

  void OnMessage(grpc::ByteBuffer& message) override {
    const absl::Status status = Take(message);
    if (!status.ok()) stream_->Close(status);
  }
  std::optional<FrameRest> OnMessageBegin(absl::Span<const uint8_t> begin, size_t size) override {
    return session_ == nullptr ? std::nullopt : PlaceBulkPiece(session_->transfers, begin, size);
  }
  void OnEnd(const absl::Status& /*status*/) override {
    stream_ = nullptr;
    if (session_ == nullptr) return;
    session_->transfers.Fail(absl::UnavailableError("the stream of bytes has ended"));
    // All streams have one thread, so the link does not come or go meanwhile.
    if (session_->link == nullptr) sessions_->Forget(id_);
  }

 private:
  absl::Status Take(const grpc::ByteBuffer& message) {
    proto::Piece piece;
    HELMWAY_ASSIGN_OR_RETURN(const FrameReader frame, FrameReader::Open(message, &piece));
    if (session_ != nullptr) return session_->transfers.OnPiece(piece.transfer(), piece.size(), frame);
    id_ = piece.hello().session();
    HELMWAY_ASSIGN_OR_RETURN(session_, sessions_->Find(piece.hello()));
    session_->transfers.SetStream(stream_);
    return absl::OkStatus();
  }

  const std::shared_ptr<ServedSessions> sessions_;
  std::shared_ptr<MessageStream> stream_;
  uint64_t id_ = 0;
  std::shared_ptr<ServedSession> session_;
};

// What another worker sends.
class PeerReceiver final : public MessageReceiver {
 public:
  PeerReceiver(std::shared_ptr<ServedSessions> sessions, std::shared_ptr<MessageStream> stream, bool is_local)
      : sessions_(std::move(sessions)), stream_(std::move(stream)), is_local_(is_local) {}

  void OnMessage(grpc::ByteBuffer& message) override {
    const absl::Status status = Take(message);
    if (!status.ok()) stream_->Close(status);
  }
  std::optional<FrameRest> OnMessageBegin(absl::Span<const uint8_t> begin, size_t size) override {
    proto::PeerMessage peer;
    const std::optional<size_t> offset = FrameReader::OpenBegin(begin, &peer);
    if (!transfers_ || !offset || !peer.has_piece()) return std::nullopt;
    return transfers_->OnPieceBegin(peer.piece().transfer(), peer.piece().size(), *offset, size);
  }
  void OnEnd(const absl::Status& status) override {
    stream_ = nullptr;
    if (transfers_) transfers_->Fail(absl::DataLossError("the worker that was sending this is lost"));
    // If it is this worker that ends, the peers will notice, and nothing is to be said of them.
    if (!transfers_ || peer_.address.empty() || absl::IsCancelled(status)) return;
    if (const auto collectives = sessions_->options().collectives.lock()) {
      collectives->PeerLost(peer_, absl::UnavailableError("its stream has ended"));
    }
  }

 private:
  absl::Status Take(const grpc::ByteBuffer& message) {
    proto::PeerMessage peer;
    HELMWAY_ASSIGN_OR_RETURN(const FrameReader frame, FrameReader::Open(message, &peer));
    if (!transfers_) {
      if (!peer.has_hello()) return absl::InvalidArgumentError("a peer begins with Hello");
      HELMWAY_RETURN_IF_ERROR(sessions_->Check(peer.hello()));
      transfers_.emplace(sessions_->options().host_memory, MakeBulkPiece);
      peer_ = {peer.hello().peer_address(), peer.hello().peer_incarnation()};
      return absl::OkStatus();
    }
    if (peer.has_lane()) {
      TakeLane(peer.lane());
      return absl::OkStatus();
    }
    std::optional<base::HostBytes> shared;
    if (peer.has_shared()) {
      if (lane_ == nullptr) return absl::InvalidArgumentError("bytes in memory that is not shared");
      HELMWAY_ASSIGN_OR_RETURN(
          shared, lane_->Take({peer.shared().id(), peer.shared().offset(), peer.shared().size()}));
    }
    if (peer.has_piece()) {
      const proto::Piece& piece = peer.piece();
      if (shared) return transfers_->OnPiece(piece.transfer(), piece.size(), *shared);
      return transfers_->OnPiece(piece.transfer(), piece.size(), frame);
    }
    if (peer.has_part()) return TakePart(peer.part(), frame, std::move(shared));
    if (shared) return absl::InvalidArgumentError("bytes for a message that has none in shared memory");
    if (peer.has_abort()) {
      if (const auto collectives = sessions_->options().collectives.lock()) {
        collectives->TakeAbort(peer.abort().session(), peer.abort().launch(),
                               cluster::FromProto(peer.abort().status()));
      }
      return absl::OkStatus();
    }
    if (!peer.has_arrival())
      return absl::InvalidArgumentError("a peer's message that this worker does not know");
    const proto::Arrival& arrival = peer.arrival();
    const ReceiveFromPeer& receive = sessions_->options().receive_from_peer;
    if (!receive) return absl::UnimplementedError("this worker takes nothing from others");
    if (arrival.has_status()) {
      receive(arrival.session(), arrival.buffer(), cluster::FromProto(arrival.status()));
      return absl::OkStatus();
    }
    auto deliver = [receive, session = arrival.session(), buffer = arrival.buffer(),
                    contents =
                        cluster::FromProto(arrival.fill())](absl::StatusOr<base::HostBytes> bytes) mutable {
      if (!bytes.ok()) return receive(session, buffer, bytes.status());
      contents.bytes = *std::move(bytes);
      receive(session, buffer, std::move(contents));
    };
    return ReceiveBytes("an arrival", arrival.fill().size(), arrival.fill().transfer(), &frame, *transfers_,
                        *sessions_->options().host_memory, std::move(deliver));
  }

  void TakeLane(const proto::Lane& lane) {
    if (!is_local_) return;
    lane_ = nullptr;
    absl::StatusOr<std::shared_ptr<LaneReceiver>> opened = LaneReceiver::Open(
        {lane.process(), lane.arena_fd(), lane.arena_size(), lane.lane_fd(), lane.token()});
    if (opened.ok()) {
      lane_ = *std::move(opened);
    } else {
      sessions_->NoSharedMemory(peer_, opened.status());
    }
  }

  absl::Status TakePart(const proto::CollectivePart& message, const FrameReader& frame,
                        std::optional<base::HostBytes> shared) {
    const std::shared_ptr<cluster::CollectiveReceiver> collectives = sessions_->options().collectives.lock();
    if (collectives == nullptr) return absl::UnimplementedError("this worker has no part in collectives");
    auto deliver = [collectives,
                    part = cluster::FromProto(message)](absl::StatusOr<base::HostBytes> bytes) mutable {
      if (!bytes.ok()) return collectives->TakeAbort(part.session, part.launch, bytes.status());
      part.bytes = *std::move(bytes);
      collectives->TakePart(std::move(part));
    };
    if (shared) {
      if (shared->size != message.size()) return absl::InvalidArgumentError("a part of another size");
      // Where it lies: it is read once, soon.
      deliver(*std::move(shared));
      return absl::OkStatus();
    }
    return ReceiveBytes("a part of a collective", message.size(), message.transfer(), &frame, *transfers_,
                        *sessions_->options().host_memory, std::move(deliver));
  }

  const std::shared_ptr<ServedSessions> sessions_;
  std::shared_ptr<MessageStream> stream_;
  const bool is_local_;                 // the peer is a process of this host
  std::shared_ptr<LaneReceiver> lane_;  // its memory; null: not mapped
  std::optional<Transfers> transfers_;  // once the peer has said Hello
  cluster::PeerAddress peer_;
};

class CommandReceiver final : public MessageReceiver, private LaunchOrder::Waiter {
 public:
  CommandReceiver(std::shared_ptr<ServedSessions> sessions, std::shared_ptr<MessageStream> stream)
      : sessions_(std::move(sessions)),
        stream_(std::move(stream)),
        events_(std::make_shared<EventSender>(stream_, sessions_->flusher())) {}

  void OnMessage(grpc::ByteBuffer& message) override {
    if (refused_) return;
    if (waits_for_ == 0) return EndIfBad(Take(message));
    unread_bytes_ += static_cast<int64_t>(message.Length());
    if (unread_bytes_ > kMaxUnreadBytes) {
      return EndIfBad(absl::ResourceExhaustedError("a session sends on while its launch waits for its turn"));
    }
    unread_.emplace_back();
    unread_.back().Swap(&message);
  }

  void OnEnd(const absl::Status& /*status*/) override {
    stream_ = nullptr;
    if (session_ == nullptr) return;
    if (waits_for_ != 0) order_->StopWaiting(waits_for_, this);
    if (is_proxy_) sessions_->EndOrder(id_);
    sessions_->Forget(id_);
    session_->transfers.Fail(absl::CancelledError("the session has ended"));
    session_->link->Close();
    forwarder_->End();
    session_->link = nullptr;
  }

 private:
  void EndIfBad(const absl::Status& status) {
    if (status.ok() || refused_) return;
    refused_ = true;
    LOG(WARNING) << "ending a session: " << status;
    stream_->Close(status);
  }

  absl::Status Take(const grpc::ByteBuffer& message) {
    HELMWAY_ASSIGN_OR_RETURN(frame_, FrameReader::Open(message, &batch_));
    next_command_ = 0;
    return DoBatch();
  }

  absl::Status DoBatch() {
    for (; next_command_ < batch_.commands_size(); ++next_command_) {
      proto::Command& command = *batch_.mutable_commands(next_command_);
      if (session_ == nullptr) {
        HELMWAY_RETURN_IF_ERROR(Begin(command));
        continue;
      }
      const uint64_t place = command.has_execute()          ? command.execute().place()
                             : command.has_release_launch() ? command.release_launch().place()
                                                            : 0;
      if (place != 0) {
        HELMWAY_RETURN_IF_ERROR(AskForTurn(place));
        if (waits_for_ != 0) return absl::OkStatus();
      }
      const bool last = next_command_ + 1 == batch_.commands_size();
      HELMWAY_RETURN_IF_ERROR(Do(command, last ? &*frame_ : nullptr));
      if (place != 0) order_->Take();
    }
    frame_.reset();
    return absl::OkStatus();
  }

  // Sets waits_for_ if it is not the launch's turn.
  absl::Status AskForTurn(uint64_t place) {
    if (order_ == nullptr) return absl::InvalidArgumentError("a place in an order that does not exist");
    if (order_->IsTurnOf(place)) return absl::OkStatus();
    // The proxy gives up places of sessions that end.
    if (order_->IsOver(place)) return absl::CancelledError("the session has ended");
    if (!order_->Wait(place, this)) return absl::InvalidArgumentError("two launches with one place");
    waits_for_ = place;
    return absl::OkStatus();
  }

  // ---- LaunchOrder::Waiter ----
  void OnTurn() override {
    waits_for_ = 0;
    absl::Status status = DoBatch();
    while (status.ok() && waits_for_ == 0 && !unread_.empty()) {
      grpc::ByteBuffer message;
      message.Swap(&unread_.front());
      unread_.pop_front();
      unread_bytes_ -= static_cast<int64_t>(message.Length());
      status = Take(message);
    }
    EndIfBad(status);
  }
  void OnOrderEnd(const absl::Status& status) override {
    waits_for_ = 0;
    EndIfBad(status);
  }

  absl::Status Begin(const proto::Command& command) {
    if (!command.has_hello()) return absl::InvalidArgumentError("a session begins with Hello");
    id_ = command.hello().session();
    HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<ServedSession> session, sessions_->Find(command.hello()));
    if (session->link != nullptr) return absl::AlreadyExistsError("the session is open already");
    worker_ = &sessions_->worker();
    memory_ = sessions_->options().host_memory;
    forwarder_ = std::make_shared<CallbackForwarder>(stream_, &session->transfers, memory_);
    const uint64_t proxy = command.hello().proxy();
    is_proxy_ = proxy == id_;
    order_ = is_proxy_ ? sessions_->MakeOrder(proxy) : sessions_->FindOrder(proxy);
    session->link = worker_->OpenSession(id_, forwarder_);
    session->link->WhenPeerLost(
        [events = events_](const cluster::PeerAddress& peer, const absl::Status& status) {
          proto::Event lost;
          lost.mutable_peer_lost()->set_address(peer.address);
          lost.mutable_peer_lost()->set_incarnation(peer.incarnation);
          events->Send(lost, status);
        });
    session->link->WhenPythonSays([events = events_](const std::string& text) {
      proto::Event says;
      says.set_python_says(text);
      events->Send(says, absl::OkStatus());
    });
    session_ = std::move(session);
    proto::Event event;
    event.set_call(command.call());
    *event.mutable_hello()->mutable_info() = cluster::WorkerInfoToProto(worker_->info());
    event.mutable_hello()->set_peer_address(sessions_->options().peer_address);
    event.mutable_hello()->set_incarnation(sessions_->options().incarnation);
    events_->Send(event, absl::OkStatus());
    return absl::OkStatus();
  }

  absl::Status Bytes(int64_t size, uint64_t transfer, const FrameReader* frame, Transfers::Receive receive) {
    return ReceiveBytes("a command", size, transfer, frame, session_->transfers, *memory_,
                        std::move(receive));
  }

  absl::Status Do(proto::Command& command, const FrameReader* frame) {
    cluster::SessionLink& link = *session_->link;
    const uint64_t call = command.call();
    switch (command.command_case()) {
      case proto::Command::kDeclare:
        link.Declare(cluster::FromProto(command.declare()));
        return absl::OkStatus();
      case proto::Command::kFill: {
        const proto::Fill& fill = command.fill();
        return Bytes(fill.size(), fill.transfer(), frame,
                     [link = session_->link,
                      contents = cluster::FromProto(fill)](absl::StatusOr<base::HostBytes> bytes) mutable {
                       if (!bytes.ok()) return link->Fail(contents.targets, bytes.status());
                       contents.bytes = *std::move(bytes);
                       link->Fill(std::move(contents));
                     });
      }
      case proto::Command::kFail:
        link.Fail(cluster::TargetsFrom(command.fail().targets()),
                  cluster::FromProto(command.fail().status()));
        return absl::OkStatus();
      case proto::Command::kExecute: {
        cluster::Launch launch = cluster::FromProto(command.execute());
        launch.on_done = [events = events_, id = launch.id, awaited = launch.end_is_awaited](
                             const absl::Status& status) { events->LaunchOver(id, status, awaited); };
        link.Execute(std::move(launch));
        return absl::OkStatus();
      }
      case proto::Command::kFlush:
        link.Flush();
        return absl::OkStatus();
      case proto::Command::kReleaseLaunch:
        link.ReleaseLaunch(command.release_launch().launch(), 0);
        return absl::OkStatus();
      case proto::Command::kSettle:
        link.Settle(command.settle().launch(), command.settle().has_status()
                                                   ? cluster::FromProto(command.settle().status())
                                                   : absl::OkStatus());
        return absl::OkStatus();
      case proto::Command::kTellPython:
        link.TellPython(command.tell_python());
        return absl::OkStatus();
      case proto::Command::kCopy:
        link.Copy(cluster::FromProto(command.copy()));
        return absl::OkStatus();
      case proto::Command::kAssemble:
        link.Assemble(cluster::FromProto(command.assemble()));
        return absl::OkStatus();
      case proto::Command::kBitcast: {
        cluster::BitcastBuffers bitcast = cluster::FromProto(command.bitcast());
        if (bitcast.sources.size() != bitcast.dims.size() || bitcast.results.size() != bitcast.dims.size()) {
          return absl::InvalidArgumentError("a bitcast of so many buffers to so many others");
        }
        link.Bitcast(std::move(bitcast));
        return absl::OkStatus();
      }
      case proto::Command::kSend:
        link.Send(cluster::FromProto(command.send()));
        return absl::OkStatus();
      case proto::Command::kReceive:
        link.Receive(cluster::FromProto(command.receive()));
        return absl::OkStatus();
      case proto::Command::kDelete: {
        std::vector<cluster::BufferNames> buffers;
        for (const proto::Names& names : command.delete_().buffers())
          buffers.push_back(cluster::FromProto(names));
        link.Delete(buffers);
        return absl::OkStatus();
      }
      case proto::Command::kRead: {
        cluster::ReadFormat format;
        if (command.read().has_byte_strides()) {
          const auto& strides = command.read().byte_strides().bytes();
          format.byte_strides.emplace(strides.begin(), strides.end());
        }
        link.Read(command.read().buffer(), std::move(format),
                  [events = events_, session = session_, call](absl::StatusOr<base::HostBytes> bytes) {
                    proto::Event event;
                    event.set_call(call);
                    if (!bytes.ok()) return events->Send(event, bytes.status());
                    event.mutable_read()->set_size(bytes->size);
                    if (bytes->size <= kMaxInlineBytes) return events->Send(event, absl::OkStatus(), *bytes);
                    event.mutable_read()->set_transfer(session->transfers.Send(*std::move(bytes)));
                    events->Send(event, absl::OkStatus());
                  });
        return absl::OkStatus();
      }
      case proto::Command::kAwait: {
        std::vector<cluster::BufferNames> buffers;
        for (const proto::Names& names : command.await().buffers())
          buffers.push_back(cluster::FromProto(names));
        link.Await(buffers, [events = events_, call](const absl::Status& status) {
          proto::Event event;
          event.set_call(call);
          events->Send(event, status);
        });
        return absl::OkStatus();
      }
      case proto::Command::kCompile: {
        const proto::Compile& compile = command.compile();
        cluster::CompileProgram program;
        program.executable = compile.executable();
        program.options = compile.options();
        program.for_several_workers = compile.for_several_workers();
        program.only_to_see = compile.only_to_see();
        if (compile.has_python()) program.python = cluster::FromProto(compile.python());
        program.devices.assign(compile.devices().begin(), compile.devices().end());
        auto done = [events = events_, call](absl::StatusOr<cluster::CompiledProgram> compiled) {
          proto::Event event;
          event.set_call(call);
          if (compiled.ok()) *event.mutable_program() = cluster::ToProto(*compiled);
          events->Send(event, compiled.status());
        };
        return Bytes(compile.size(), compile.transfer(), frame,
                     [link = session_->link, program = std::move(program),
                      done = std::move(done)](absl::StatusOr<base::HostBytes> bytes) mutable {
                       if (!bytes.ok()) return done(bytes.status());
                       program.code.assign(reinterpret_cast<const char*>(bytes->data),
                                           static_cast<size_t>(bytes->size));
                       link->Compile(std::move(program), std::move(done));
                     });
      }
      case proto::Command::kLoad: {
        const proto::Load& load = command.load();
        cluster::LoadProgram program = cluster::FromProto(load);
        auto done = [events = events_, call](const absl::Status& status) {
          proto::Event event;
          event.set_call(call);
          events->Send(event, status);
        };
        return Bytes(load.size(), load.transfer(), frame,
                     [link = session_->link, program = std::move(program),
                      done](absl::StatusOr<base::HostBytes> bytes) mutable {
                       if (!bytes.ok()) return done(bytes.status());
                       program.serialized = std::make_shared<const std::string>(
                           reinterpret_cast<const char*>(bytes->data), static_cast<size_t>(bytes->size));
                       link->Load(std::move(program), done);
                     });
      }
      case proto::Command::kCallbackAnswer: {
        proto::CallbackAnswer& answer = *command.mutable_callback_answer();
        const int64_t size = answer.size();
        const uint64_t transfer = answer.transfer();
        return Bytes(
            size, transfer, frame,
            [forwarder = forwarder_, answer = std::move(answer)](absl::StatusOr<base::HostBytes> results) {
              forwarder->OnAnswer(answer, std::move(results));
            });
      }
      case proto::Command::kUnload:
        link.Unload(command.unload().executable(), command.unload().has_stream()
                                                       ? std::optional<int64_t>(command.unload().stream())
                                                       : std::nullopt);
        return absl::OkStatus();
      case proto::Command::kCostAnalysis:
        link.CostAnalysis(command.cost_analysis(),
                          [events = events_, call](absl::StatusOr<cluster::CostProperties> costs) {
                            proto::Event event;
                            event.set_call(call);
                            if (costs.ok()) {
                              auto& properties = *event.mutable_costs()->mutable_properties();
                              for (const auto& [name, value] : *costs)
                                properties[name] = cluster::ToProto(value);
                            }
                            events->Send(event, costs.status());
                          });
        return absl::OkStatus();
      case proto::Command::kDefaultLayout: {
        const proto::DefaultLayout& wanted = command.default_layout();
        worker_->DefaultLayout(wanted.element_type(), {wanted.dims().begin(), wanted.dims().end()},
                               [events = events_, call](const absl::StatusOr<std::string>& layout) {
                                 proto::Event event;
                                 event.set_call(call);
                                 if (layout.ok()) event.set_layout(*layout);
                                 events->Send(event, layout.status());
                               });
        return absl::OkStatus();
      }
      case proto::Command::kSkip:
        if (!is_proxy_) return absl::InvalidArgumentError("only a proxy's own stream gives up places");
        for (const uint64_t place : command.skip().places()) order_->Skip(place);
        return absl::OkStatus();
      case proto::Command::kHello:
      case proto::Command::COMMAND_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("a command that this worker does not know");
  }

  const std::shared_ptr<ServedSessions> sessions_;
  std::shared_ptr<MessageStream> stream_;
  const std::shared_ptr<EventSender> events_;
  // Since Hello:
  cluster::WorkerLink* worker_ = nullptr;
  std::shared_ptr<base::HostMemoryPool> memory_;
  uint64_t id_ = 0;
  std::shared_ptr<ServedSession> session_;
  std::shared_ptr<CallbackForwarder> forwarder_;  // of the session
  bool is_proxy_ = false;
  std::shared_ptr<LaunchOrder> order_;  // null: of launches without places
  bool refused_ = false;
  // The messages under way, of which commands from next_command_ on are to be done.
  std::optional<FrameReader> frame_;
  int next_command_ = 0;
  // The place for whose turn the next command waits, or 0; and the messages that have come meanwhile.
  uint64_t waits_for_ = 0;
  std::deque<grpc::ByteBuffer> unread_;
  int64_t unread_bytes_ = 0;
  proto::Commands batch_;
};

}  // namespace

LateWorkerService MakeLateWorkerService() {
  auto sessions = std::make_shared<ServedSessions>();
  LateWorkerService late;
  late.service = MessageStreamService::Create(
      {{kCommandsMethod,
        [sessions](std::shared_ptr<MessageStream> stream, const std::string& /*peer*/) {
          return std::make_shared<CommandReceiver>(sessions, std::move(stream));
        }},
       {kBulkMethod,
        [sessions](std::shared_ptr<MessageStream> stream, const std::string& /*peer*/) {
          return std::make_shared<BulkReceiver>(sessions, std::move(stream));
        }},
       {kPeerMethod, [sessions](std::shared_ptr<MessageStream> stream, const std::string& peer) {
          return std::make_shared<PeerReceiver>(sessions, std::move(stream), base::IsLocalPeer(peer));
        }}});
  late.bind = [sessions](cluster::WorkerLink* worker, WorkerServiceOptions options) {
    sessions->Bind(worker, std::move(options));
  };
  return late;
}

std::unique_ptr<MessageStreamService> MakeWorkerService(cluster::WorkerLink* worker,
                                                        WorkerServiceOptions options) {
  LateWorkerService late = MakeLateWorkerService();
  late.bind(worker, std::move(options));
  return std::move(late.service);
}

}  // namespace helmway::net
