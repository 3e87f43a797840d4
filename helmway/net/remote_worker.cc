#include "helmway/net/remote_worker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/cluster/worker_messages.h"
#include "helmway/net/remote_callbacks.h"
#include "helmway/net/transfers.h"

namespace helmway::net {
namespace {

namespace proto = cluster::proto;

constexpr char kCommandsMethod[] = "/helmway.cluster.WorkerService/Commands";
constexpr char kBulkMethod[] = "/helmway.cluster.WorkerService/Bulk";
// Commands that nobody waits for go out together, so many at most.
constexpr int kMaxBatch = 64;
constexpr size_t kMaxCachedLayouts = 4096;

using Answered = absl::AnyInvocable<void(const absl::Status&, proto::Event&, const FrameReader*)>;

// The streams of one session, from the proxy's side.
class RemoteSession final : public cluster::SessionLink, public std::enable_shared_from_this<RemoteSession> {
 public:
  // `python`: takes the calls of programs to their client; null where no programs run.
  // `proxy`: the session of the proxy itself; null for that one. `devices`: the worker's, for messages.
  RemoteSession(const RemoteWorkerOptions& options, std::shared_ptr<async::ThreadPool> callbacks,
                std::shared_ptr<cluster::CallbackSink> python, std::shared_ptr<RemoteSession> proxy,
                std::string devices = "")
      : options_(options),
        devices_(std::move(devices)),
        callbacks_(std::move(callbacks)),
        python_(std::move(python)),
        proxy_(std::move(proxy)),
        transfers_(options.host_memory, MakeBulkPiece) {}
  ~RemoteSession() override = default;

  // `hello` is called with the worker's description, or with what kept it from coming.
  void Open(const std::shared_ptr<grpc::Channel>& channel, uint64_t id, Answered hello);

  // Sends a command whose answer is wanted. `answered` may be called inside.
  void Call(proto::Command command, Answered answered, const base::HostBytes& bytes = {});

  // ---- cluster::SessionLink ----
  void Declare(cluster::DeclareBuffers command) override {
    proto::Command message;
    *message.mutable_declare() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Fill(cluster::HostContents contents) override {
    proto::Command message;
    *message.mutable_fill() = cluster::ToProto(contents);
    if (contents.bytes.size > kMaxInlineBytes) {
      message.mutable_fill()->set_transfer(transfers_.Send(std::move(contents.bytes)));
      contents.bytes = {};
    }
    SendNow(std::move(message), contents.bytes);
  }
  void Fail(const cluster::BufferTargets& targets, const absl::Status& status) override {
    proto::Command message;
    cluster::AddTargets(targets, message.mutable_fail()->mutable_targets());
    *message.mutable_fail()->mutable_status() = cluster::ToProto(status);
    SendNow(std::move(message));
  }
  void Execute(cluster::Launch launch) override;
  void Flush() override;
  void ReleaseLaunch(cluster::LaunchId id, uint64_t place) override;
  void Settle(cluster::LaunchId id, const absl::Status& status) override {
    proto::Command message;
    message.mutable_settle()->set_launch(id);
    if (!status.ok()) *message.mutable_settle()->mutable_status() = cluster::ToProto(status);
    SendNow(std::move(message));
  }
  void Copy(cluster::CopyBuffers command) override {
    proto::Command message;
    *message.mutable_copy() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Assemble(cluster::AssembleBuffers command) override {
    proto::Command message;
    *message.mutable_assemble() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Bitcast(cluster::BitcastBuffers command) override {
    proto::Command message;
    *message.mutable_bitcast() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Send(cluster::SendBuffers command) override {
    proto::Command message;
    *message.mutable_send() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Receive(cluster::ReceiveBuffers command) override {
    proto::Command message;
    *message.mutable_receive() = cluster::ToProto(command);
    Post(std::move(message));
  }
  void Delete(const std::vector<cluster::BufferNames>& buffers) override {
    proto::Command message;
    for (const cluster::BufferNames& names : buffers)
      *message.mutable_delete_()->add_buffers() = cluster::ToProto(names);
    SendSoon(std::move(message));
  }
  void Read(cluster::BufferId buffer, cluster::ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override;
  void Await(const std::vector<cluster::BufferNames>& buffers,
             absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Compile(cluster::CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) override;
  void Load(cluster::LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Unload(cluster::ExecutableId executable, std::optional<int64_t> stream) override {
    proto::Command message;
    message.mutable_unload()->set_executable(executable);
    if (stream) message.mutable_unload()->set_stream(*stream);
    SendSoon(std::move(message));
  }
  void CostAnalysis(cluster::ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) override;
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> lost) override;
  absl::Status Loss() override {
    base::MutexLock lock(&mu_);
    return absl::IsCancelled(ended_) ? absl::OkStatus() : ended_;
  }
  void WhenPeerLost(PeerLost lost) override {
    base::MutexLock lock(&mu_);
    if (ended_.ok()) when_peer_lost_ = std::make_shared<PeerLost>(std::move(lost));
  }
  void WhenPythonSays(PythonSays says) override {
    base::MutexLock lock(&mu_);
    if (ended_.ok()) when_python_says_ = std::make_shared<PythonSays>(std::move(says));
  }
  void TellPython(const std::string& text) override {
    proto::Command message;
    message.set_tell_python(text);
    SendNow(std::move(message));
  }
  void Close() override;

  // Of the proxy's own session: launches of others that had these places will not come.
  void Skip(const std::vector<uint64_t>& places) {
    proto::Command message;
    message.mutable_skip()->mutable_places()->Add(places.begin(), places.end());
    SendNow(std::move(message));
  }

  // ---- From the streams ----
  absl::Status OnEvent(const grpc::ByteBuffer& message);
  absl::Status OnPiece(const grpc::ByteBuffer& message);
  std::optional<FrameRest> OnPieceBegin(absl::Span<const uint8_t> begin, size_t size) {
    return PlaceBulkPiece(transfers_, begin, size);
  }
  void OnLost(const absl::Status& status);

 private:
  using LaunchDone = absl::AnyInvocable<void(const absl::Status&)>;
  struct UnderWay {
    LaunchDone done;     // may be null
    uint64_t place = 0;  // in the worker's order, if it has one
  };

  // Goes out with the next that does not wait.
  void Post(proto::Command command);
  // With those that the handling of this and the next requests gives (CompletionThread::WhenIdle), if that is
  // what commands it; else at once.
  void SendSoon(proto::Command command);
  void SendSoonLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendNow(proto::Command command, const base::HostBytes& bytes = {});
  void SendLocked(const base::HostBytes& bytes = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& status);
  void EndLaunch(cluster::LaunchId id, const absl::Status& status);
  absl::Status OnCallback(proto::Callback message, const FrameReader& frame);
  void GiveToClient(const proto::Callback& message, absl::StatusOr<base::HostBytes> arguments);
  void AnswerCallback(proto::CallbackAnswer answer, base::HostBytes results);

  const RemoteWorkerOptions options_;
  const std::string devices_;
  const std::shared_ptr<async::ThreadPool> callbacks_;
  const std::shared_ptr<cluster::CallbackSink> python_;
  const std::shared_ptr<RemoteSession> proxy_;
  uint64_t id_ = 0;  // since Open
  Transfers transfers_;

  base::Mutex mu_;
  std::shared_ptr<MessageStream> commands_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<MessageStream> bulk_ ABSL_GUARDED_BY(mu_);
  proto::Commands batch_ ABSL_GUARDED_BY(mu_);
  bool sends_when_idle_ ABSL_GUARDED_BY(mu_) = false;  // the thread of the streams will send the batch
  bool unflushed_ ABSL_GUARDED_BY(mu_) = false;  // the worker has launches, or will, that wait for a flush
  uint64_t next_call_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Answered> calls_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::LaunchId, UnderWay> launches_ ABSL_GUARDED_BY(mu_);
  std::vector<LaunchDone> when_lost_ ABSL_GUARDED_BY(mu_);
  // Both called by the stream's thread only.
  std::shared_ptr<PeerLost> when_peer_lost_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<PythonSays> when_python_says_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // not OK: the session is over, and why
};

class EventReceiver final : public MessageReceiver {
 public:
  explicit EventReceiver(std::shared_ptr<RemoteSession> session) : session_(std::move(session)) {}
  void OnMessage(grpc::ByteBuffer& message) override {
    if (absl::Status status = session_->OnEvent(message); !status.ok()) session_->OnLost(status);
  }
  void OnEnd(const absl::Status& status) override { std::exchange(session_, nullptr)->OnLost(status); }

 private:
  std::shared_ptr<RemoteSession> session_;
};

class PieceReceiver final : public MessageReceiver {
 public:
  explicit PieceReceiver(std::shared_ptr<RemoteSession> session) : session_(std::move(session)) {}
  void OnMessage(grpc::ByteBuffer& message) override {
    if (absl::Status status = session_->OnPiece(message); !status.ok()) session_->OnLost(status);
  }
  std::optional<FrameRest> OnMessageBegin(absl::Span<const uint8_t> begin, size_t size) override {
    return session_->OnPieceBegin(begin, size);
  }
  void OnEnd(const absl::Status& status) override { std::exchange(session_, nullptr)->OnLost(status); }

 private:
  std::shared_ptr<RemoteSession> session_;
};

void RemoteSession::Open(const std::shared_ptr<grpc::Channel>& channel, uint64_t id, Answered hello) {
  proto::Hello greeting;
  greeting.set_protocol(cluster::kWorkerProtocol);
  greeting.set_software(options_.software);
  id_ = id;
  greeting.set_session(id);
  greeting.set_proxy(proxy_ == nullptr ? id : proxy_->id_);
  greeting.set_incarnation(options_.incarnation);
  auto commands =
      options_.streams->Open(channel, kCommandsMethod, std::make_shared<EventReceiver>(shared_from_this()));
  auto bulk =
      options_.streams->Open(channel, kBulkMethod, std::make_shared<PieceReceiver>(shared_from_this()));
  proto::Piece first;
  *first.mutable_hello() = greeting;
  bulk->Send(MakeFrame(first));
  transfers_.SetStream(bulk);
  {
    base::MutexLock lock(&mu_);
    if (ended_.ok()) {
      commands_ = std::move(commands);
      bulk_ = std::move(bulk);
    }
  }
  proto::Command command;
  *command.mutable_hello() = std::move(greeting);
  Call(std::move(command), std::move(hello));
}

void RemoteSession::SendLocked(const base::HostBytes& bytes) {
  if (commands_ != nullptr) commands_->Send(MakeFrame(batch_, bytes));
  batch_.Clear();
}

void RemoteSession::Post(proto::Command command) {
  base::MutexLock lock(&mu_);
  if (!ended_.ok()) return;
  *batch_.add_commands() = std::move(command);
  if (batch_.commands_size() >= kMaxBatch) SendLocked();
}

void RemoteSession::SendNow(proto::Command command, const base::HostBytes& bytes) {
  base::MutexLock lock(&mu_);
  if (!ended_.ok()) return;
  *batch_.add_commands() = std::move(command);
  SendLocked(bytes);
}

void RemoteSession::Execute(cluster::Launch launch) {
  LaunchDone on_done = std::move(launch.on_done);
  proto::Command message;
  *message.mutable_execute() = cluster::ToProto(launch);
  absl::Status ended;
  {
    base::MutexLock lock(&mu_);
    ended = ended_;
    if (ended.ok()) {
      launches_.emplace(launch.id, UnderWay{std::move(on_done), launch.place});
      *batch_.add_commands() = std::move(message);
      unflushed_ = true;
      if (batch_.commands_size() >= kMaxBatch) {
        batch_.add_commands()->set_flush(true);
        unflushed_ = false;
        SendLocked();
      }
      return;
    }
  }
  if (launch.place != 0) proxy_->Skip({launch.place});
  if (on_done) callbacks_->PostOrRun([on_done = std::move(on_done), ended]() mutable { on_done(ended); });
}

void RemoteSession::ReleaseLaunch(cluster::LaunchId id, uint64_t place) {
  proto::Command message;
  message.mutable_release_launch()->set_launch(id);
  message.mutable_release_launch()->set_place(place);
  {
    base::MutexLock lock(&mu_);
    if (const auto it = launches_.find(id); ended_.ok() && it != launches_.end()) {
      it->second.place = place;
      *batch_.add_commands() = std::move(message);
      SendLocked();
      return;
    }
  }
  if (place != 0) proxy_->Skip({place});
}

void RemoteSession::SendSoon(proto::Command command) {
  base::MutexLock lock(&mu_);
  if (!ended_.ok()) return;
  *batch_.add_commands() = std::move(command);
  SendSoonLocked();
}

void RemoteSession::Flush() {
  base::MutexLock lock(&mu_);
  // Launches may have gone out already, with a command that did not wait.
  if (std::exchange(unflushed_, false)) batch_.add_commands()->set_flush(true);
  if (batch_.commands_size() > 0) SendSoonLocked();
}

void RemoteSession::SendSoonLocked() {
  if (batch_.commands_size() >= kMaxBatch) return SendLocked();
  if (sends_when_idle_) return;
  sends_when_idle_ = options_.streams->thread().WhenIdle([self = shared_from_this()] {
    base::MutexLock lock(&self->mu_);
    self->sends_when_idle_ = false;
    if (self->batch_.commands_size() > 0) self->SendLocked();
  });
  if (!sends_when_idle_) SendLocked();
}

void RemoteSession::Call(proto::Command command, Answered answered, const base::HostBytes& bytes) {
  absl::Status ended;
  {
    base::MutexLock lock(&mu_);
    ended = ended_;
    if (ended.ok()) {
      const uint64_t call = next_call_++;
      command.set_call(call);
      calls_.emplace(call, std::move(answered));
      *batch_.add_commands() = std::move(command);
      SendLocked(bytes);
      return;
    }
  }
  proto::Event none;
  answered(ended, none, nullptr);
}

void RemoteSession::Read(cluster::BufferId buffer, cluster::ReadFormat format,
                         absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  proto::Command message;
  message.mutable_read()->set_buffer(buffer);
  if (format.byte_strides) {
    message.mutable_read()->mutable_byte_strides()->mutable_bytes()->Add(format.byte_strides->begin(),
                                                                         format.byte_strides->end());
  }
  Call(std::move(message),
       [self = shared_from_this(), done = std::move(done)](const absl::Status& status, proto::Event& event,
                                                           const FrameReader* frame) mutable {
         if (!status.ok()) return done(status);
         if (event.read().transfer() != 0)
           return self->transfers_.Await(event.read().transfer(), std::move(done));
         if (frame == nullptr || frame->size() != event.read().size()) {
           return done(absl::InternalError("a worker's answer announces other bytes than follow it"));
         }
         absl::StatusOr<base::HostBlock> block = self->options_.host_memory->Allocate(frame->size());
         if (!block.ok()) return done(block.status());
         frame->CopyTo(block->data);
         done((*std::move(block)).Finish());
       });
}

void RemoteSession::Await(const std::vector<cluster::BufferNames>& buffers,
                          absl::AnyInvocable<void(const absl::Status&)> done) {
  proto::Command message;
  for (const cluster::BufferNames& names : buffers)
    *message.mutable_await()->add_buffers() = cluster::ToProto(names);
  message.mutable_await();
  Call(std::move(message), [done = std::move(done)](const absl::Status& status, proto::Event& /*event*/,
                                                    const FrameReader* /*frame*/) mutable { done(status); });
}

void RemoteSession::Compile(cluster::CompileProgram command,
                            absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) {
  {
    // Never inside this call.
    base::MutexLock lock(&mu_);
    if (!ended_.ok()) {
      return callbacks_->PostOrRun([done = std::move(done), ended = ended_]() mutable { done(ended); });
    }
  }
  auto code = std::make_shared<const std::string>(std::move(command.code));
  base::HostBytes bytes{code, reinterpret_cast<const uint8_t*>(code->data()),
                        static_cast<int64_t>(code->size())};
  proto::Command message;
  proto::Compile& compile = *message.mutable_compile();
  compile.set_executable(command.executable);
  compile.set_options(command.options);
  compile.set_for_several_workers(command.for_several_workers);
  compile.set_only_to_see(command.only_to_see);
  if (command.python) *compile.mutable_python() = cluster::ToProto(*command.python);
  compile.mutable_devices()->Add(command.devices.begin(), command.devices.end());
  compile.set_size(bytes.size);
  if (bytes.size > kMaxInlineBytes) {
    compile.set_transfer(transfers_.Send(std::move(bytes)));
    bytes = {};
  }
  Call(
      std::move(message),
      [done = std::move(done)](const absl::Status& status, proto::Event& event,
                               const FrameReader* /*frame*/) mutable {
        if (!status.ok()) return done(status);
        done(cluster::FromProto(event.program()));
      },
      bytes);
}

void RemoteSession::Load(cluster::LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) {
  base::HostBytes bytes{command.serialized, reinterpret_cast<const uint8_t*>(command.serialized->data()),
                        static_cast<int64_t>(command.serialized->size())};
  proto::Command message;
  proto::Load& load = *message.mutable_load();
  load = cluster::ToProto(command);
  load.set_size(bytes.size);
  if (bytes.size > kMaxInlineBytes) {
    load.set_transfer(transfers_.Send(std::move(bytes)));
    bytes = {};
  }
  Call(
      std::move(message),
      [done = std::move(done)](const absl::Status& status, proto::Event& /*event*/,
                               const FrameReader* /*frame*/) mutable { done(status); },
      bytes);
}

void RemoteSession::CostAnalysis(cluster::ExecutableId executable,
                                 absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) {
  proto::Command message;
  message.set_cost_analysis(executable);
  Call(std::move(message), [done = std::move(done)](const absl::Status& status, proto::Event& event,
                                                    const FrameReader* /*frame*/) mutable {
    if (!status.ok()) return done(status);
    cluster::CostProperties properties;
    for (const auto& [name, value] : event.costs().properties()) {
      absl::StatusOr<cluster::AttributeValue> property = cluster::FromProto(value);
      if (!property.ok()) return done(property.status());
      properties[name] = *std::move(property);
    }
    done(std::move(properties));
  });
}

void RemoteSession::EndLaunch(cluster::LaunchId id, const absl::Status& status) {
  LaunchDone done;
  {
    base::MutexLock lock(&mu_);
    const auto it = launches_.find(id);
    if (it == launches_.end()) return;
    done = std::move(it->second.done);
    launches_.erase(it);
  }
  if (done) done(status);
}

absl::Status RemoteSession::OnEvent(const grpc::ByteBuffer& message) {
  proto::Event event;
  HELMWAY_ASSIGN_OR_RETURN(const FrameReader frame, FrameReader::Open(message, &event));
  const absl::Status status = event.has_status() ? cluster::FromProto(event.status()) : absl::OkStatus();
  for (const int64_t launch : event.launches_done()) EndLaunch(launch, absl::OkStatus());
  if (event.event_case() == proto::Event::kLaunchFailed) {
    EndLaunch(event.launch_failed(), status);
    return absl::OkStatus();
  }
  if (event.has_callback()) return OnCallback(std::move(*event.mutable_callback()), frame);
  if (event.has_peer_lost()) {
    std::shared_ptr<PeerLost> lost;
    {
      base::MutexLock lock(&mu_);
      lost = when_peer_lost_;
    }
    if (lost) (*lost)({event.peer_lost().address(), event.peer_lost().incarnation()}, status);
    return absl::OkStatus();
  }
  if (event.event_case() == proto::Event::kPythonSays) {
    std::shared_ptr<PythonSays> says;
    {
      base::MutexLock lock(&mu_);
      says = when_python_says_;
    }
    if (says) (*says)(event.python_says());
    return absl::OkStatus();
  }
  Answered answered;
  {
    base::MutexLock lock(&mu_);
    const auto it = calls_.find(event.call());
    if (it == calls_.end()) return absl::OkStatus();
    answered = std::move(it->second);
    calls_.erase(it);
  }
  answered(status, event, &frame);
  return absl::OkStatus();
}

absl::Status RemoteSession::OnCallback(proto::Callback message, const FrameReader& frame) {
  const int64_t size = message.size();
  const uint64_t transfer = message.transfer();
  return ReceiveBytes(
      "a Python callback", size, transfer, &frame, transfers_, *options_.host_memory,
      [self = shared_from_this(), message = std::move(message)](absl::StatusOr<base::HostBytes> arguments) {
        self->GiveToClient(message, std::move(arguments));
      });
}

void RemoteSession::GiveToClient(const proto::Callback& message, absl::StatusOr<base::HostBytes> arguments) {
  absl::Status status = arguments.status();
  if (status.ok() && python_ == nullptr) {
    status = absl::FailedPreconditionError("the session has no client to call");
  }
  if (status.ok()) {
    status = TakeCallback(message, *std::move(arguments), *options_.host_memory, *python_,
                          [self = shared_from_this()](proto::CallbackAnswer answer, base::HostBytes results) {
                            self->AnswerCallback(std::move(answer), std::move(results));
                          });
    if (status.ok()) return;
  }
  proto::CallbackAnswer answer;
  answer.set_id(message.id());
  *answer.mutable_status() = cluster::ToProto(status);
  AnswerCallback(std::move(answer), {});
}

void RemoteSession::AnswerCallback(proto::CallbackAnswer answer, base::HostBytes results) {
  answer.set_size(results.size);
  if (results.size > kMaxInlineBytes) {
    answer.set_transfer(transfers_.Send(std::move(results)));
    results = {};
  }
  proto::Command command;
  *command.mutable_callback_answer() = std::move(answer);
  SendNow(std::move(command), results);
}

absl::Status RemoteSession::OnPiece(const grpc::ByteBuffer& message) {
  proto::Piece piece;
  HELMWAY_ASSIGN_OR_RETURN(const FrameReader frame, FrameReader::Open(message, &piece));
  return transfers_.OnPiece(piece.transfer(), piece.size(), frame);
}

void RemoteSession::OnLost(const absl::Status& status) {
  // What the worker itself says of a session that it refuses is what the reader needs.
  if (absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status)) return End(status);
  End(absl::DataLossError(
      absl::StrCat(options_.name, " at ", options_.address, " is lost",
                   devices_.empty() ? "" : absl::StrCat(", with the devices ", devices_),
                   status.ok() || status.message().empty() ? "" : absl::StrCat(": ", status.message()))));
}

void RemoteSession::WhenLost(absl::AnyInvocable<void(const absl::Status&)> lost) {
  absl::Status ended;
  {
    base::MutexLock lock(&mu_);
    ended = ended_;
    if (ended.ok()) return when_lost_.push_back(std::move(lost));
  }
  if (!absl::IsCancelled(ended)) lost(ended);
}

void RemoteSession::Close() { End(absl::CancelledError("the session has ended")); }

void RemoteSession::End(const absl::Status& status) {
  std::shared_ptr<MessageStream> commands, bulk;
  decltype(calls_) calls;
  decltype(launches_) launches;
  decltype(when_lost_) when_lost;
  {
    base::MutexLock lock(&mu_);
    if (!ended_.ok()) return;
    ended_ = status;
    commands = std::move(commands_);
    bulk = std::move(bulk_);
    calls.swap(calls_);
    launches.swap(launches_);
    when_lost.swap(when_lost_);
    when_peer_lost_ = nullptr;
    when_python_says_ = nullptr;
    batch_.Clear();
  }
  // The worker frees everything when the streams end.
  if (commands != nullptr) commands->Cancel();
  if (bulk != nullptr) bulk->Cancel();
  transfers_.Fail(status);
  proto::Event none;
  for (auto& [call, answered] : calls) answered(status, none, nullptr);
  // Others are not to wait for launches that may never have got there.
  std::vector<uint64_t> places;
  for (const auto& [id, launch] : launches) {
    if (launch.place != 0) places.push_back(launch.place);
  }
  if (!places.empty()) proxy_->Skip(places);
  for (auto& [id, launch] : launches) {
    if (launch.done) launch.done(status);
  }
  if (absl::IsCancelled(status)) return;
  for (auto& lost : when_lost) lost(status);
}

// The default layouts that a worker has told: clients ask again and again for the shapes that they use. Any
// thread.
class LayoutsByShape {
 public:
  using Shape = std::pair<cluster::ElementType, std::vector<int64_t>>;

  std::optional<std::string> Find(const Shape& shape) const {
    base::MutexLock lock(&mu_);
    const auto it = layouts_.find(shape);
    if (it == layouts_.end()) return std::nullopt;
    return it->second;
  }
  void Add(Shape shape, const std::string& layout) {
    base::MutexLock lock(&mu_);
    if (layouts_.size() >= kMaxCachedLayouts) layouts_.clear();
    layouts_.emplace(std::move(shape), layout);
  }

 private:
  mutable base::Mutex mu_;
  absl::flat_hash_map<Shape, std::string> layouts_ ABSL_GUARDED_BY(mu_);
};

class RemoteWorker final : public cluster::WorkerLink {
 public:
  explicit RemoteWorker(const RemoteWorkerOptions& options)
      : options_(options),
        channel_(OpenChannel(options.address, options.timeout)),
        callbacks_(std::make_shared<async::ThreadPool>(
            async::ThreadPool::Options{.name = "lost-worker", .threads = 1, .max_queued = size_t{1} << 24})),
        control_(std::make_shared<RemoteSession>(options, callbacks_, nullptr, nullptr)) {}
  ~RemoteWorker() override { control_->Close(); }

  absl::Status Connect() {
    absl::Status outcome;
    base::Notification done;
    control_->Open(channel_, base::UnguessableId(),
                   [&](const absl::Status& status, proto::Event& event, const FrameReader* /*frame*/) {
                     outcome = status;
                     if (status.ok()) {
                       absl::StatusOr<cluster::WorkerInfo> info =
                           cluster::WorkerInfoFromProto(event.hello().info());
                       outcome = info.status();
                       if (info.ok()) info_ = *std::move(info);
                       peer_address_ = {event.hello().peer_address(), event.hello().incarnation()};
                     }
                     done.Notify();
                   });
    done.WaitForNotification();
    if (absl::IsDataLoss(outcome)) return absl::UnavailableError(outcome.message());
    if (outcome.ok() && options_.on_lost) control_->WhenLost(options_.on_lost);
    return outcome;
  }

  const cluster::WorkerInfo& info() const override { return info_; }
  cluster::PeerAddress peer_address() const override { return peer_address_; }
  absl::Status Loss() override { return control_->Loss(); }

  std::shared_ptr<cluster::SessionLink> OpenSession(
      cluster::SessionId session, std::shared_ptr<cluster::CallbackSink> callbacks) override {
    const auto append_id = [](std::string* text, const cluster::DeviceInfo& device) {
      absl::StrAppend(text, device.id);
    };
    auto link = std::make_shared<RemoteSession>(options_, callbacks_, std::move(callbacks), control_,
                                                absl::StrJoin(info_.devices, ", ", append_id));
    link->Open(channel_, session, [](const absl::Status&, proto::Event&, const FrameReader*) {});
    return link;
  }

  void DefaultLayout(cluster::ElementType type, const std::vector<int64_t>& dims,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override {
    if (std::optional<std::string> known = layouts_->Find({type, dims})) return done(*std::move(known));
    proto::Command command;
    command.mutable_default_layout()->set_element_type(type);
    command.mutable_default_layout()->mutable_dims()->Add(dims.begin(), dims.end());
    control_->Call(
        std::move(command),
        [layouts = layouts_, shape = LayoutsByShape::Shape(type, dims), done = std::move(done)](
            const absl::Status& status, proto::Event& event, const FrameReader* /*frame*/) mutable {
          if (!status.ok()) return done(status);
          layouts->Add(std::move(shape), event.layout());
          done(std::move(*event.mutable_layout()));
        });
  }

  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int replicas,
                                                                         int partitions) override {
    HELMWAY_RETURN_IF_ERROR(Loss());
    return cluster::AssignInOrder(info_, replicas, partitions);
  }

 private:
  const RemoteWorkerOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<async::ThreadPool> callbacks_;
  const std::shared_ptr<RemoteSession> control_;
  cluster::WorkerInfo info_;
  cluster::PeerAddress peer_address_;
  // Shared with questions that may be answered after the end of this object.
  const std::shared_ptr<LayoutsByShape> layouts_ = std::make_shared<LayoutsByShape>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<cluster::WorkerLink>> ConnectToWorker(const RemoteWorkerOptions& options) {
  auto worker = std::make_unique<RemoteWorker>(options);
  HELMWAY_RETURN_IF_ERROR(worker->Connect());
  return worker;
}

std::vector<absl::StatusOr<std::unique_ptr<cluster::WorkerLink>>> ConnectToWorkers(
    const std::vector<RemoteWorkerOptions>& workers) {
  constexpr size_t kMaxThreads = 32;
  std::vector<absl::StatusOr<std::unique_ptr<cluster::WorkerLink>>> links(workers.size());
  if (workers.empty()) return links;
  async::ThreadPool threads({.name = "connect",
                             .threads = static_cast<int>(std::min(workers.size(), kMaxThreads)),
                             .max_queued = workers.size()});
  for (size_t i = 0; i < workers.size(); ++i) {
    threads.PostOrRun([&links, &workers, i] { links[i] = ConnectToWorker(workers[i]); });
  }
  threads.Stop();
  return links;
}

}  // namespace helmway::net
