#include "helmway/net/ifrt_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"
#include "helmway/net/flusher.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/polled_call.h"
#include "helmway/wire/ifrt_service.grpc.pb.h"

namespace helmway::net {
namespace {

using cluster::Arm;
using cluster::MakeTag;
using cluster::Tag;
using ::xla::ifrt::proxy::GrpcGetVersionRequest;
using ::xla::ifrt::proxy::GrpcGetVersionResponse;
using ::xla::ifrt::proxy::GrpcHostBufferDeleteRequest;
using ::xla::ifrt::proxy::GrpcHostBufferDeleteResponse;
using ::xla::ifrt::proxy::GrpcHostBufferLookupRequest;
using ::xla::ifrt::proxy::GrpcHostBufferReadFromDiskRequest;
using ::xla::ifrt::proxy::GrpcHostBufferReadFromDiskResponse;
using ::xla::ifrt::proxy::GrpcHostBufferStoreMetadata;
using ::xla::ifrt::proxy::GrpcIfrtService;
using ::xla::ifrt::proxy::GrpcIfrtSessionMetadata;
using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::IfrtResponse;

constexpr char kSessionMetadataKey[] = "ifrt-proxy-grpc-ifrt-session-metadata-bin";
constexpr char kStoreMetadataKey[] = "ifrt-proxy-grpc-host-buffer-store-metadata-bin";

// Responses that wait for the transport. Beyond this many the client gets no further requests through.
constexpr size_t kMaxQueuedResponses = 4096;
// The object of a request longer than this is not kept for the next request.
constexpr size_t kMaxKeptRequestBytes = 1 << 20;
// Responses that nobody waits for go out when this many are together, or after this time.
constexpr size_t kPatientBatch = 32;
constexpr absl::Duration kPatience = absl::Milliseconds(1);
// Piece of a host buffer in an answer. Measured: 1 MiB and 4 MiB are equally fast, less is slower.
constexpr int64_t kLookupChunkBytes = 1 << 20;

template <typename Message>
absl::Status ParseMetadata(const grpc::ServerContext& context, const char* key, Message* message) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the call lacks the header ", key));
  }
  if (!message->ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("the header ", key, " can't be parsed"));
  }
  return absl::OkStatus();
}

absl::Status NoSuchSession(uint64_t session_id) {
  return absl::NotFoundError(
      absl::StrCat("no session ", session_id, " (it has ended, or was never opened here)"));
}

bool Parse(grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::ProtoBufferReader reader(&buffer);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

// All methods are served by the process's one thread (completion_thread.h), which handles requests and moves
// host buffers between gRPC's memory and ours.
using AsyncService = GrpcIfrtService::WithAsyncMethod_GetVersion<
    GrpcIfrtService::WithRawMethod_IfrtSession<GrpcIfrtService::WithRawMethod_HostBufferStore<
        GrpcIfrtService::WithRawMethod_HostBufferLookup<GrpcIfrtService::WithAsyncMethod_HostBufferDelete<
            GrpcIfrtService::WithAsyncMethod_HostBufferReadFromDisk<GrpcIfrtService::Service>>>>>>;

// What every call needs.
struct Server {
  AsyncService* service;
  SessionManager* manager;
  Flusher* flusher;
  grpc::ServerCompletionQueue* queue;
  async::Outstanding* live;
};

// ---- The session stream --------------------------------------------------------------------------------
//
class SessionCall;
class StreamHandle;

// What the proxy holds: outlives the call.
class StreamHandle final : public SessionStream,
                           public Flusher::Sender,
                           public std::enable_shared_from_this<StreamHandle> {
 public:
  StreamHandle(SessionCall* call, Flusher* flusher) : flusher_(flusher), call_(call) {}
  void Send(const IfrtResponse& response, bool patient) override;
  void Flush() override;
  void SetPaused(bool paused) override;
  void Close(const absl::Status& status) override;

 private:
  friend class SessionCall;
  Flusher* const flusher_;
  base::Mutex mu_;
  SessionCall* call_ ABSL_GUARDED_BY(mu_);  // null once the call is finished
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  bool write_active_ ABSL_GUARDED_BY(mu_) = false;
  bool flushing_ ABSL_GUARDED_BY(mu_) = false;   // the whole queue shall go out
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;  // with the flusher
  bool read_active_ ABSL_GUARDED_BY(mu_) = false;
  bool handling_ ABSL_GUARDED_BY(mu_) =
      false;  // a request is being handled; its end decides on the next read
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

// One IfrtSession call, from waiting for a client to its end; owns itself.
class SessionCall : public PolledCall {
 public:
  // Waits for the next client.
  static void Expect(const Server& server) {
    auto* call = new SessionCall(server);
    call->context_.AsyncNotifyWhenDone(Arm(&call->ended_));
    server.service->RequestIfrtSession(&call->context_, &call->stream_, server.queue, server.queue,
                                       Arm(&call->accepted_));
  }

 private:
  friend class StreamHandle;

  explicit SessionCall(const Server& server)
      : PolledCall(server.live),
        server_(server),
        handle_(std::make_shared<StreamHandle>(this, server.flusher)) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    GrpcIfrtSessionMetadata metadata;
    absl::Status status = ParseMetadata(context_, kSessionMetadataKey, &metadata);
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<SessionHandler>> handler =
          server_.manager->OpenSession(metadata, context_.peer(), handle_);
      status = handler.status();
      if (handler.ok()) handler_ = *std::move(handler);
    }
    base::MutexLock lock(&handle_->mu_);
    if (!status.ok()) {
      FinishLocked(ToGrpcStatus(status));
      return;
    }
    StartReadIfWanted();
  }

  void OnRead(bool ok) {
    {
      base::MutexLock lock(&handle_->mu_);
      handle_->read_active_ = false;
      handle_->handling_ = true;
    }
    bool good = ok;
    if (ok) {
      ++requests_;
      if (Parse(read_, &request_)) {
        const bool keep = read_.Length() <= kMaxKeptRequestBytes;
        handler_->OnRequest(request_);
        if (!keep) request_ = IfrtRequest();
      } else {
        good = false;
      }
      read_.Clear();
    }
    {
      base::MutexLock lock(&handle_->mu_);
      handle_->handling_ = false;
      if (!good) {
        FinishLocked(
            ok ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              absl::StrCat("message ", requests_, " of the session is no IfrtRequest"))
               : grpc::Status::OK);
      } else if (handle_->finish_.has_value()) {
        MaybeFinish();
      } else {
        StartReadIfWanted();
      }
    }
    OneOver();
  }

  void OnWritten(bool ok) {
    {
      base::MutexLock lock(&handle_->mu_);
      handle_->write_active_ = false;
      if (!ok) {
        handle_->queue_.clear();
        FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      } else {
        const bool was_full = handle_->queue_.size() >= kMaxQueuedResponses;
        StartNextWrite();
        if (handle_->finish_.has_value()) {
          MaybeFinish();
        } else if (was_full) {
          StartReadIfWanted();
        }
      }
    }
    OneOver();
  }

  // The call is over for gRPC: finished by us, or given up by the client.
  void OnEnded(bool /*ok*/) {
    {
      base::MutexLock lock(&handle_->mu_);
      handle_->queue_.clear();
      FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client has ended the session"));
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

  void StartReadIfWanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->read_active_ || handle_->handling_ || handle_->paused_ || handle_->finish_.has_value() ||
        handle_->queue_.size() >= kMaxQueuedResponses) {
      return;
    }
    handle_->read_active_ = true;
    ++pending_;
    stream_.Read(&read_, Arm(&was_read_));
  }

  void StartNextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->call_ == nullptr || handle_->write_active_ || !handle_->flushing_) return;
    if (handle_->queue_.empty()) {
      handle_->flushing_ = false;
      return;
    }
    grpc::ByteBuffer response;
    response.Swap(&handle_->queue_.front());
    handle_->queue_.pop_front();
    handle_->write_active_ = true;
    ++pending_;
    // Without gRPC's buffer hint, although more may follow at once: it has been seen to hold a message back
    // for good.
    stream_.Write(response, Arm(&written_));
  }

  void FinishLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (!handle_->finish_.has_value()) handle_->finish_ = std::move(status);
    // What was answered before the end goes out, patient or not.
    handle_->flushing_ = true;
    StartNextWrite();
    MaybeFinish();
  }

  // Ends the call once nothing of it is in use: no response to write, no request in the handler.
  void MaybeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->call_ == nullptr || handle_->write_active_ || handle_->handling_ || !handle_->queue_.empty())
      return;
    handle_->call_ = nullptr;
    ++pending_;
    stream_.Finish(*handle_->finish_, Arm(&finished_));
  }

  const Server server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  Tag accepted_ = MakeTag<&SessionCall::OnAccepted>(this);
  Tag was_read_ = MakeTag<&SessionCall::OnRead>(this);
  Tag written_ = MakeTag<&SessionCall::OnWritten>(this);
  Tag finished_ = MakeTag<&SessionCall::OnFinished>(this);
  Tag ended_ = MakeTag<&SessionCall::OnEnded>(this);

  const std::shared_ptr<StreamHandle> handle_;
  // Operations that will come back from the queue; one of them is the notice of the call's end.
  int pending_ ABSL_GUARDED_BY(handle_->mu_) = 1;
  std::shared_ptr<SessionHandler> handler_;
  grpc::ByteBuffer read_;
  IfrtRequest request_;
  int64_t requests_ = 0;
};

void StreamHandle::Send(const IfrtResponse& response, bool patient) {
  grpc::ByteBuffer buffer = Serialize(response);
  bool schedule = false;
  {
    base::MutexLock lock(&mu_);
    if (call_ == nullptr || finish_.has_value()) return;
    queue_.push_back(std::move(buffer));
    if (!patient || queue_.size() >= kPatientBatch) flushing_ = true;
    if (flushing_) {
      call_->StartNextWrite();
    } else if (!scheduled_) {
      scheduled_ = schedule = true;
    }
  }
  if (schedule) flusher_->Add(shared_from_this());
}

void StreamHandle::Flush() {
  base::MutexLock lock(&mu_);
  scheduled_ = false;
  if (call_ == nullptr || finish_.has_value() || queue_.empty()) return;
  flushing_ = true;
  call_->StartNextWrite();
}

void StreamHandle::SetPaused(bool paused) {
  base::MutexLock lock(&mu_);
  if (paused_ == paused) return;
  paused_ = paused;
  if (!paused && call_ != nullptr) call_->StartReadIfWanted();
}

void StreamHandle::Close(const absl::Status& status) {
  base::MutexLock lock(&mu_);
  if (call_ != nullptr) call_->FinishLocked(ToGrpcStatus(status));
}

// ---- Host buffers --------------------------------------------------------------------------------------

// One HostBufferStore call; owns itself. Its operations come back one at a time.
class StoreCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new StoreCall(server);
    server.service->RequestHostBufferStore(&call->context_, &call->reader_, server.queue, server.queue,
                                           Arm(&call->accepted_));
  }

 private:
  explicit StoreCall(const Server& server) : PolledCall(server.live), server_(server) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    GrpcHostBufferStoreMetadata metadata;
    absl::Status status = ParseMetadata(context_, kStoreMetadataKey, &metadata);
    if (status.ok()) {
      std::shared_ptr<SessionHandler> session =
          server_.manager->FindSession(metadata.session_id(), context_.peer());
      if (session == nullptr) {
        status = NoSuchSession(metadata.session_id());
      } else {
        auto writer = session->StoreHostBuffer(metadata.handle(), metadata.buffer_size());
        status = writer.status();
        if (writer.ok()) writer_ = *std::move(writer);
      }
    }
    if (!status.ok()) {
      Finish(status);
    } else {
      reader_.Read(&read_, Arm(&was_read_));
    }
  }

  void OnRead(bool ok) {
    if (!ok) {
      // Either all is here or the client is gone; the count of bytes tells.
      Finish(writer_->Finish());
      return;
    }
    if (absl::Status status = Append(); !status.ok()) {
      writer_.reset();
      Finish(status);
      return;
    }
    reader_.Read(&read_, Arm(&was_read_));
  }

  void Finish(const absl::Status& status) {
    if (status.ok()) {
      grpc::Slice empty;
      reader_.Finish(grpc::ByteBuffer(&empty, 1), grpc::Status::OK, Arm(&finished_));
    } else {
      reader_.FinishWithError(ToGrpcStatus(status), Arm(&finished_));
    }
  }

  void OnFinished(bool /*ok*/) { delete this; }

  // Copies field 1 of a GrpcHostBufferStoreRequest from the transport's memory to where it belongs. The bytes
  // are touched once here, where a parsed message would touch them twice.
  absl::Status Append() {
    const size_t message_bytes = read_.Length();
    grpc::ProtoBufferReader reader(&read_);
    if (!reader.status().ok()) return absl::InvalidArgumentError("a piece of the host buffer can't be read");
    google::protobuf::io::CodedInputStream input(&reader);
    while (const uint32_t tag = input.ReadTag()) {
      constexpr uint32_t kDataTag = (1 << 3) | 2;
      uint32_t size;
      if (tag != kDataTag || !input.ReadVarint32(&size)) {
        return absl::InvalidArgumentError("a piece of the host buffer is no GrpcHostBufferStoreRequest");
      }
      if (size > message_bytes) return absl::InvalidArgumentError("a piece of the host buffer is cut off");
      uint8_t* target = writer_->Reserve(size);
      if (target == nullptr) {
        return absl::DataLossError("more bytes came for the host buffer than its header announced");
      }
      if (!input.ReadRaw(target, static_cast<int>(size))) {
        return absl::InvalidArgumentError("a piece of the host buffer is cut off");
      }
    }
    return input.ConsumedEntireMessage()
               ? absl::OkStatus()
               : absl::InvalidArgumentError("a piece of the host buffer is no GrpcHostBufferStoreRequest");
  }

  const Server server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReader<grpc::ByteBuffer, grpc::ByteBuffer> reader_{&context_};
  Tag accepted_ = MakeTag<&StoreCall::OnAccepted>(this);
  Tag was_read_ = MakeTag<&StoreCall::OnRead>(this);
  Tag finished_ = MakeTag<&StoreCall::OnFinished>(this);
  std::unique_ptr<HostBufferWriter> writer_;
  grpc::ByteBuffer read_;
};

// One HostBufferLookup call; owns itself. Its operations come back one at a time.
class LookupCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new LookupCall(server);
    server.service->RequestHostBufferLookup(&call->context_, &call->request_, &call->writer_, server.queue,
                                            server.queue, Arm(&call->accepted_));
  }

 private:
  explicit LookupCall(const Server& server) : PolledCall(server.live), server_(server) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    GrpcHostBufferLookupRequest request;
    absl::Status status;
    if (!Parse(request_, &request)) {
      status = absl::InvalidArgumentError("the message is no GrpcHostBufferLookupRequest");
    } else if (auto session = server_.manager->FindSession(request.session_id(), context_.peer());
               session == nullptr) {
      status = NoSuchSession(request.session_id());
    } else {
      absl::StatusOr<base::HostBytes> bytes = session->LookupHostBuffer(request.handle());
      status = bytes.status();
      if (bytes.ok()) bytes_ = *std::move(bytes);
    }
    if (!status.ok()) {
      writer_.Finish(ToGrpcStatus(status), Arm(&finished_));
    } else {
      WriteNext();
    }
  }

  void OnWritten(bool ok) {
    if (!ok) {
      writer_.Finish(grpc::Status::CANCELLED, Arm(&finished_));
    } else {
      WriteNext();
    }
  }

  void OnFinished(bool /*ok*/) { delete this; }

  // Each piece is a header of our own and a slice of the buffer's memory itself, which it keeps alive until
  // the transport has sent it. The last piece ends the call in the same write; an empty buffer is one empty
  // piece.
  void WriteNext() {
    const int64_t size = std::min(kLookupChunkBytes, bytes_.size - offset_);
    uint8_t header[1 + 10];
    header[0] = (1 << 3) | 2;
    uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(size),
                                                                                 header + 1);
    grpc::Slice slices[2] = {grpc::Slice(header, static_cast<size_t>(end - header)), grpc::Slice()};
    if (size > 0) {
      auto* owner = new std::shared_ptr<const void>(bytes_.owner);
      base::HappensBefore(owner);
      slices[1] = grpc::Slice(
          const_cast<uint8_t*>(bytes_.data + offset_), static_cast<size_t>(size),
          [](void* sent) {
            base::HappensAfter(sent);
            delete static_cast<std::shared_ptr<const void>*>(sent);
          },
          owner);
    }
    const grpc::ByteBuffer piece(slices, size > 0 ? 2 : 1);
    offset_ += size;
    if (offset_ < bytes_.size) {
      writer_.Write(piece, Arm(&written_));
    } else {
      writer_.WriteAndFinish(piece, grpc::WriteOptions(), grpc::Status::OK, Arm(&finished_));
    }
  }

  const Server server_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  Tag accepted_ = MakeTag<&LookupCall::OnAccepted>(this);
  Tag written_ = MakeTag<&LookupCall::OnWritten>(this);
  Tag finished_ = MakeTag<&LookupCall::OnFinished>(this);
  base::HostBytes bytes_;
  int64_t offset_ = 0;
};

// ---- Calls with one message each way -------------------------------------------------------------------

// One call of a unary method; owns itself. `kMethod` asks for the next call, `kAnswer` does the work and
// calls Finish, now or later, on any thread.
template <typename Request, typename Response, auto kMethod, auto kAnswer>
class UnaryCall : public PolledCall {
 public:
  static void Expect(const Server& server) {
    auto* call = new UnaryCall(server);
    (server.service->*kMethod)(&call->context_, &call->request, &call->responder_, server.queue, server.queue,
                               Arm(&call->accepted_));
  }

  std::string peer() const { return context_.peer(); }
  SessionManager& manager() const { return *server_.manager; }
  void Finish(const absl::Status& status) {
    responder_.Finish(response, ToGrpcStatus(status), Arm(&finished_));
  }

  Request request;
  Response response;

 private:
  explicit UnaryCall(const Server& server) : PolledCall(server.live), server_(server) {}

  void OnAccepted(bool ok) {
    if (!Begin(this, server_, ok)) return;
    kAnswer(this);
  }

  void OnFinished(bool /*ok*/) { delete this; }

  const Server server_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<Response> responder_{&context_};
  Tag accepted_ = MakeTag<&UnaryCall::OnAccepted>(this);
  Tag finished_ = MakeTag<&UnaryCall::OnFinished>(this);
};

constexpr auto kGetVersion = [](auto* call) {
  auto version = call->manager().NegotiateVersion(call->request, call->peer());
  if (version.ok()) *call->response.mutable_version() = *version;
  call->Finish(version.status());
};

constexpr auto kHostBufferDelete = [](auto* call) {
  auto session = call->manager().FindSession(call->request.session_id(), call->peer());
  call->Finish(session == nullptr ? NoSuchSession(call->request.session_id())
                                  : session->DeleteHostBuffer(call->request.handle()));
};

constexpr auto kHostBufferReadFromDisk = [](auto* call) {
  const GrpcHostBufferStoreMetadata& metadata = call->request.metadata();
  auto session = call->manager().FindSession(metadata.session_id(), call->peer());
  if (session == nullptr) {
    call->Finish(NoSuchSession(metadata.session_id()));
    return;
  }
  const uint64_t handle = metadata.handle();
  const int64_t size = metadata.buffer_size();
  if (!call->manager().RunBlocking(
          [session, handle, size, call] { call->Finish(session->ReadHostBufferFromDisk(handle, size)); })) {
    call->Finish(absl::ResourceExhaustedError("too many shared-directory transfers wait"));
  }
};

using GetVersionCall =
    UnaryCall<GrpcGetVersionRequest, GrpcGetVersionResponse, &AsyncService::RequestGetVersion, kGetVersion>;
using HostBufferDeleteCall = UnaryCall<GrpcHostBufferDeleteRequest, GrpcHostBufferDeleteResponse,
                                       &AsyncService::RequestHostBufferDelete, kHostBufferDelete>;
using HostBufferReadFromDiskCall =
    UnaryCall<GrpcHostBufferReadFromDiskRequest, GrpcHostBufferReadFromDiskResponse,
              &AsyncService::RequestHostBufferReadFromDisk, kHostBufferReadFromDisk>;

class IfrtService final : public AsyncService, public PolledService {
 public:
  explicit IfrtService(SessionManager* manager) : manager_(manager) {}

  void Start(CompletionThread& thread) override {
    const Server server{this, manager_, &flusher_, thread.queue(), &live_};
    SessionCall::Expect(server);
    StoreCall::Expect(server);
    LookupCall::Expect(server);
    GetVersionCall::Expect(server);
    HostBufferDeleteCall::Expect(server);
    HostBufferReadFromDiskCall::Expect(server);
  }

  void Stop() override { live_.WaitForNone(); }

 private:
  SessionManager* const manager_;
  Flusher flusher_{kPatience};
  async::Outstanding live_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeIfrtService(SessionManager* manager) {
  return std::make_unique<IfrtService>(manager);
}

}  // namespace helmway::net
