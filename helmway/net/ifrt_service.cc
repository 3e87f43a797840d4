#include "helmway/net/ifrt_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "helmway/net/grpc_server.h"
#include "helmway/wire/ifrt_service.grpc.pb.h"

namespace helmway::net {
namespace {

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
absl::Status ParseMetadata(const grpc::CallbackServerContext& context, const char* key, Message* message) {
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
  return absl::NotFoundError(absl::StrCat("no session ", session_id, " (it has ended, or was never opened here)"));
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

// ---- The session stream --------------------------------------------------------------------------------

class SessionReactor;
class StreamHandle;

// Sends the responses for which nobody waits, a little later. One thread, idle while there are none.
class Flusher {
 public:
  Flusher() : thread_([this] { Run(); }) {}
  ~Flusher() {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    thread_.join();
  }
  void Add(std::shared_ptr<StreamHandle> stream) {
    absl::MutexLock lock(&mu_);
    due_.push_back(std::move(stream));
  }

 private:
  void Run();
  absl::Mutex mu_;
  std::vector<std::shared_ptr<StreamHandle>> due_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// What the proxy holds: outlives the reactor, which gRPC deletes when the call is over.
class StreamHandle final : public SessionStream, public std::enable_shared_from_this<StreamHandle> {
 public:
  StreamHandle(SessionReactor* reactor, Flusher* flusher) : flusher_(flusher), reactor_(reactor) {}
  void Send(const IfrtResponse& response, bool patient) override;
  void Flush();
  void SetPaused(bool paused) override;
  void Close(const absl::Status& status) override;

 private:
  friend class SessionReactor;
  Flusher* const flusher_;
  absl::Mutex mu_;
  SessionReactor* reactor_ ABSL_GUARDED_BY(mu_);  // null once the call is finished
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer writing_ ABSL_GUARDED_BY(mu_);
  bool write_active_ ABSL_GUARDED_BY(mu_) = false;
  bool flushing_ ABSL_GUARDED_BY(mu_) = false;   // the whole queue shall go out
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;  // with the flusher
  bool read_active_ ABSL_GUARDED_BY(mu_) = false;
  bool handling_ ABSL_GUARDED_BY(mu_) = false;  // a request is being handled; its end decides on the next read
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mu_);
};

class SessionReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  SessionReactor(SessionManager* manager, Flusher* flusher, grpc::CallbackServerContext* context)
      : handle_(std::make_shared<StreamHandle>(this, flusher)) {
    GrpcIfrtSessionMetadata metadata;
    absl::Status status = ParseMetadata(*context, kSessionMetadataKey, &metadata);
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<SessionHandler>> handler =
          manager->OpenSession(metadata, context->peer(), handle_);
      status = handler.status();
      if (handler.ok()) handler_ = *std::move(handler);
    }
    absl::MutexLock lock(&handle_->mu_);
    if (!status.ok()) {
      FinishLocked(ToGrpcStatus(status));
      return;
    }
    StartReadIfWanted();
  }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&handle_->mu_);
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
    absl::MutexLock lock(&handle_->mu_);
    handle_->handling_ = false;
    if (!good) {
      FinishLocked(ok ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                     absl::StrCat("message ", requests_, " of the session is no IfrtRequest"))
                      : grpc::Status::OK);
      return;
    }
    if (handle_->finish_.has_value()) {
      MaybeFinish();
    } else {
      StartReadIfWanted();
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&handle_->mu_);
    handle_->write_active_ = false;
    if (!ok) {
      handle_->queue_.clear();
      FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      return;
    }
    const bool was_full = handle_->queue_.size() >= kMaxQueuedResponses;
    StartNextWrite();
    if (handle_->finish_.has_value()) {
      MaybeFinish();
    } else if (was_full) {
      StartReadIfWanted();
    }
  }

  void OnCancel() override {
    absl::MutexLock lock(&handle_->mu_);
    handle_->queue_.clear();
    FinishLocked(grpc::Status(grpc::StatusCode::CANCELLED, "the client has ended the session"));
  }

  void OnDone() override {
    if (handler_ != nullptr) handler_->OnClosed();
    delete this;
  }

 private:
  friend class StreamHandle;

  void StartReadIfWanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->read_active_ || handle_->handling_ || handle_->paused_ || handle_->finish_.has_value() ||
        handle_->queue_.size() >= kMaxQueuedResponses) {
      return;
    }
    handle_->read_active_ = true;
    StartRead(&read_);
  }

  void StartNextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->write_active_ || !handle_->flushing_) return;
    if (handle_->queue_.empty()) {
      handle_->flushing_ = false;
      return;
    }
    handle_->writing_ = std::move(handle_->queue_.front());
    handle_->queue_.pop_front();
    handle_->write_active_ = true;
    grpc::WriteOptions options;
    // The transport may wait for the message behind this one and send both in one system call.
    if (!handle_->queue_.empty()) options.set_buffer_hint();
    StartWrite(&handle_->writing_, options);
  }

  void FinishLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (!handle_->finish_.has_value()) handle_->finish_ = std::move(status);
    MaybeFinish();
  }

  // Ends the call once nothing of it is in use: no write at the transport, no request in the handler.
  void MaybeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(handle_->mu_) {
    if (handle_->reactor_ == nullptr || handle_->write_active_ || handle_->handling_) return;
    handle_->reactor_ = nullptr;
    Finish(*handle_->finish_);
  }

  const std::shared_ptr<StreamHandle> handle_;
  std::shared_ptr<SessionHandler> handler_;
  grpc::ByteBuffer read_;
  IfrtRequest request_;
  int64_t requests_ = 0;
};

void StreamHandle::Send(const IfrtResponse& response, bool patient) {
  grpc::ByteBuffer buffer = Serialize(response);
  bool schedule = false;
  {
    absl::MutexLock lock(&mu_);
    if (reactor_ == nullptr || finish_.has_value()) return;
    queue_.push_back(std::move(buffer));
    if (!patient || queue_.size() >= kPatientBatch) flushing_ = true;
    if (flushing_) {
      reactor_->StartNextWrite();
    } else if (!scheduled_) {
      scheduled_ = schedule = true;
    }
  }
  if (schedule) flusher_->Add(shared_from_this());
}

void StreamHandle::Flush() {
  absl::MutexLock lock(&mu_);
  scheduled_ = false;
  if (reactor_ == nullptr || finish_.has_value() || queue_.empty()) return;
  flushing_ = true;
  reactor_->StartNextWrite();
}

void Flusher::Run() {
  auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !due_.empty(); };
  auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    std::vector<std::shared_ptr<StreamHandle>> due;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (mu_.AwaitWithTimeout(absl::Condition(&stop), kPatience)) return;
      due.swap(due_);
    }
    for (const auto& stream : due) stream->Flush();
  }
}

void StreamHandle::SetPaused(bool paused) {
  absl::MutexLock lock(&mu_);
  if (paused_ == paused) return;
  paused_ = paused;
  if (!paused && reactor_ != nullptr) reactor_->StartReadIfWanted();
}

void StreamHandle::Close(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (reactor_ != nullptr) reactor_->FinishLocked(ToGrpcStatus(status));
}

// ---- Host buffers --------------------------------------------------------------------------------------

class StoreReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  StoreReactor(SessionManager* manager, grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
    grpc::Slice empty;
    *response = grpc::ByteBuffer(&empty, 1);
    GrpcHostBufferStoreMetadata metadata;
    absl::Status status = ParseMetadata(*context, kStoreMetadataKey, &metadata);
    if (status.ok()) {
      std::shared_ptr<SessionHandler> session = manager->FindSession(metadata.session_id(), context->peer());
      if (session == nullptr) {
        status = NoSuchSession(metadata.session_id());
      } else {
        auto writer = session->StoreHostBuffer(metadata.handle(), metadata.buffer_size());
        status = writer.status();
        if (writer.ok()) writer_ = *std::move(writer);
      }
    }
    if (!status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(cancelled_.load() ? grpc::Status::CANCELLED : ToGrpcStatus(writer_->Finish()));
      return;
    }
    if (absl::Status status = Append(); !status.ok()) {
      writer_.reset();
      Finish(ToGrpcStatus(status));
      return;
    }
    StartRead(&read_);
  }

  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override { delete this; }

 private:
  // Copies field 1 of a GrpcHostBufferStoreRequest from the transport's memory to where it belongs. The bytes
  // are touched once here, where a parsed message would touch them twice.
  absl::Status Append() {
    grpc::ProtoBufferReader reader(&read_);
    if (!reader.status().ok()) return absl::InvalidArgumentError("a piece of the host buffer can't be read");
    google::protobuf::io::CodedInputStream input(&reader);
    while (const uint32_t tag = input.ReadTag()) {
      constexpr uint32_t kDataTag = (1 << 3) | 2;
      uint32_t size;
      if (tag != kDataTag || !input.ReadVarint32(&size)) {
        return absl::InvalidArgumentError("a piece of the host buffer is no GrpcHostBufferStoreRequest");
      }
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

  std::unique_ptr<HostBufferWriter> writer_;
  grpc::ByteBuffer read_;
  std::atomic<bool> cancelled_{false};
};

class LookupReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  LookupReactor(SessionManager* manager, grpc::CallbackServerContext* context, const grpc::ByteBuffer* buffer) {
    GrpcHostBufferLookupRequest request;
    grpc::ByteBuffer copy(*buffer);
    absl::Status status;
    if (!Parse(copy, &request)) {
      status = absl::InvalidArgumentError("the message is no GrpcHostBufferLookupRequest");
    } else if (auto session = manager->FindSession(request.session_id(), context->peer()); session == nullptr) {
      status = NoSuchSession(request.session_id());
    } else {
      absl::StatusOr<base::HostBytes> bytes = session->LookupHostBuffer(request.handle());
      status = bytes.status();
      if (bytes.ok()) bytes_ = *std::move(bytes);
    }
    if (!status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else {
      WriteNext();
    }
  }
  void OnDone() override { delete this; }

 private:
  // Each piece is a header of our own and a slice of the buffer's memory itself, which it keeps alive until the
  // transport has sent it. The last piece ends the call in the same write; an empty buffer is one empty piece.
  void WriteNext() {
    const int64_t size = std::min(kLookupChunkBytes, bytes_.size - offset_);
    uint8_t header[1 + 10];
    header[0] = (1 << 3) | 2;
    uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(size), header + 1);
    grpc::Slice slices[2] = {grpc::Slice(header, static_cast<size_t>(end - header)), grpc::Slice()};
    if (size > 0) {
      slices[1] = grpc::Slice(
          const_cast<uint8_t*>(bytes_.data + offset_), static_cast<size_t>(size),
          [](void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); },
          new std::shared_ptr<const void>(bytes_.owner));
    }
    write_ = grpc::ByteBuffer(slices, size > 0 ? 2 : 1);
    offset_ += size;
    if (offset_ < bytes_.size) {
      StartWrite(&write_);
    } else {
      StartWriteAndFinish(&write_, grpc::WriteOptions(), grpc::Status::OK);
    }
  }

  base::HostBytes bytes_;
  int64_t offset_ = 0;
  grpc::ByteBuffer write_;
};

class IfrtService final
    : public GrpcIfrtService::WithCallbackMethod_GetVersion<GrpcIfrtService::WithRawCallbackMethod_IfrtSession<
          GrpcIfrtService::WithRawCallbackMethod_HostBufferStore<GrpcIfrtService::WithRawCallbackMethod_HostBufferLookup<
              GrpcIfrtService::WithCallbackMethod_HostBufferDelete<
                  GrpcIfrtService::WithCallbackMethod_HostBufferReadFromDisk<GrpcIfrtService::Service>>>>>> {
 public:
  explicit IfrtService(SessionManager* manager) : manager_(manager) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context, const GrpcGetVersionRequest* request,
                                       GrpcGetVersionResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto version = manager_->NegotiateVersion(*request, context->peer());
    if (version.ok()) *response->mutable_version() = *version;
    reactor->Finish(ToGrpcStatus(version.status()));
    return reactor;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* IfrtSession(
      grpc::CallbackServerContext* context) override {
    return new SessionReactor(manager_, &flusher_, context);
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* HostBufferStore(grpc::CallbackServerContext* context,
                                                             grpc::ByteBuffer* response) override {
    return new StoreReactor(manager_, context, response);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* HostBufferLookup(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) override {
    return new LookupReactor(manager_, context, request);
  }

  grpc::ServerUnaryReactor* HostBufferDelete(grpc::CallbackServerContext* context,
                                             const GrpcHostBufferDeleteRequest* request,
                                             GrpcHostBufferDeleteResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto session = manager_->FindSession(request->session_id(), context->peer());
    reactor->Finish(ToGrpcStatus(session == nullptr ? NoSuchSession(request->session_id())
                                                    : session->DeleteHostBuffer(request->handle())));
    return reactor;
  }

  grpc::ServerUnaryReactor* HostBufferReadFromDisk(grpc::CallbackServerContext* context,
                                                   const GrpcHostBufferReadFromDiskRequest* request,
                                                   GrpcHostBufferReadFromDiskResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const GrpcHostBufferStoreMetadata& metadata = request->metadata();
    auto session = manager_->FindSession(metadata.session_id(), context->peer());
    if (session == nullptr) {
      reactor->Finish(ToGrpcStatus(NoSuchSession(metadata.session_id())));
      return reactor;
    }
    const uint64_t handle = metadata.handle();
    const int64_t size = metadata.buffer_size();
    if (!manager_->RunBlocking([session, handle, size, reactor] {
          reactor->Finish(ToGrpcStatus(session->ReadHostBufferFromDisk(handle, size)));
        })) {
      reactor->Finish(ToGrpcStatus(absl::ResourceExhaustedError("too many shared-directory transfers wait")));
    }
    return reactor;
  }

 private:
  SessionManager* const manager_;
  Flusher flusher_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeIfrtService(SessionManager* manager) {
  return std::make_unique<IfrtService>(manager);
}

}  // namespace helmway::net
