#include "helmway/net/ifrt_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/net/grpc_server.h"
#include "helmway/wire/ifrt_service.grpc.pb.h"
#include "helmway/wire/serialized.h"

namespace helmway::net {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::xla::ifrt::proxy::GrpcGetVersionRequest;
using ::xla::ifrt::proxy::GrpcGetVersionResponse;
using ::xla::ifrt::proxy::GrpcHostBufferDeleteRequest;
using ::xla::ifrt::proxy::GrpcHostBufferDeleteResponse;
using ::xla::ifrt::proxy::GrpcHostBufferLookupRequest;
using ::xla::ifrt::proxy::GrpcHostBufferLookupResponse;
using ::xla::ifrt::proxy::GrpcHostBufferReadFromDiskRequest;
using ::xla::ifrt::proxy::GrpcHostBufferReadFromDiskResponse;
using ::xla::ifrt::proxy::GrpcHostBufferStoreMetadata;
using ::xla::ifrt::proxy::GrpcHostBufferStoreRequest;
using ::xla::ifrt::proxy::GrpcHostBufferStoreResponse;
using ::xla::ifrt::proxy::GrpcIfrtService;
using ::xla::ifrt::proxy::GrpcIfrtSessionMetadata;
using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::IfrtResponse;

constexpr uint64_t kSession = 42;
// The fake's uploads have this much room, whatever was announced; their pieces are checked against it.
constexpr int64_t kRoom = 8 << 20;

IfrtResponse Response(uint64_t op_id) {
  IfrtResponse response;
  response.mutable_response_metadata()->set_op_id(op_id);
  return response;
}

// What came of an upload. To be looked at when it is dropped.
struct Upload {
  int64_t announced = 0;
  std::string bytes;
  bool finished = false;
  base::Notification dropped;
};

class FakeWriter final : public HostBufferWriter {
 public:
  explicit FakeWriter(std::shared_ptr<Upload> upload) : upload_(std::move(upload)), room_(kRoom, '\0') {}
  ~FakeWriter() override {
    upload_->bytes = room_.substr(0, static_cast<size_t>(used_));
    upload_->dropped.Notify();
  }
  uint8_t* Reserve(int64_t size) override {
    EXPECT_GE(size, 0);
    if (size > upload_->announced - used_) return nullptr;
    uint8_t* target = reinterpret_cast<uint8_t*>(room_.data()) + used_;
    used_ += size;
    return target;
  }
  absl::Status Finish() override {
    upload_->finished = true;
    if (used_ != upload_->announced)
      return absl::DataLossError(absl::StrCat(used_, " of ", upload_->announced));
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Upload> upload_;
  std::string room_;
  int64_t used_ = 0;
};

// Records what the service asks of it; a test may answer.
class FakeSession final : public SessionHandler {
 public:
  explicit FakeSession(std::shared_ptr<SessionStream> session_stream) : stream(std::move(session_stream)) {}

  void OnRequest(IfrtRequest& request) override {
    const uint64_t op_id = request.request_metadata().op_id();
    std::function<void(uint64_t)> then;
    {
      base::MutexLock lock(&mu);
      EXPECT_FALSE(closed) << "a request after OnClosed";
      requests.push_back(op_id);
      then = on_request;
    }
    if (then) then(op_id);
  }
  void OnClosed() override {
    base::MutexLock lock(&mu);
    EXPECT_FALSE(closed) << "OnClosed twice";
    closed = true;
  }
  absl::StatusOr<std::unique_ptr<HostBufferWriter>> StoreHostBuffer(uint64_t handle, int64_t size) override {
    base::MutexLock lock(&mu);
    if (size < 0) return absl::InvalidArgumentError("negative");
    if (uploads.count(handle) > 0) return absl::AlreadyExistsError("there already");
    auto upload = std::make_shared<Upload>();
    upload->announced = size;
    uploads[handle] = upload;
    return std::make_unique<FakeWriter>(upload);
  }
  absl::StatusOr<base::HostBytes> LookupHostBuffer(uint64_t handle) override {
    base::MutexLock lock(&mu);
    const auto it = buffers.find(handle);
    if (it == buffers.end()) return absl::NotFoundError("no buffer");
    auto owner = it->second;
    return base::HostBytes{owner, reinterpret_cast<const uint8_t*>(owner->data()),
                           static_cast<int64_t>(owner->size()), false};
  }
  absl::Status DeleteHostBuffer(uint64_t handle) override {
    base::MutexLock lock(&mu);
    return buffers.erase(handle) > 0 ? absl::OkStatus() : absl::NotFoundError("no buffer");
  }
  absl::Status ReadHostBufferFromDisk(uint64_t handle, int64_t size) override {
    return absl::UnimplementedError(absl::StrCat("disk ", handle, " ", size));
  }

  void AwaitRequests(size_t count) {
    base::MutexLock lock(&mu);
    auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return requests.size() >= count; };
    mu.Await(absl::Condition(&here));
  }
  void SetOnRequest(std::function<void(uint64_t)> handle) {
    base::MutexLock lock(&mu);
    on_request = std::move(handle);
  }
  void AwaitClosed() {
    base::MutexLock lock(&mu);
    mu.Await(absl::Condition(&closed));
  }

  const std::shared_ptr<SessionStream> stream;
  base::Mutex mu;
  std::vector<uint64_t> requests ABSL_GUARDED_BY(mu);
  std::function<void(uint64_t)> on_request ABSL_GUARDED_BY(mu);
  bool closed ABSL_GUARDED_BY(mu) = false;
  std::map<uint64_t, std::shared_ptr<Upload>> uploads ABSL_GUARDED_BY(mu);
  std::map<uint64_t, std::shared_ptr<std::string>> buffers ABSL_GUARDED_BY(mu);
};

class FakeManager final : public SessionManager {
 public:
  absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(const GrpcGetVersionRequest& request,
                                                                      const std::string& peer) override {
    EXPECT_THAT(peer, StartsWith("ipv4:127.0.0.1:"));
    if (!request.has_max_version()) return absl::InvalidArgumentError("no versions");
    return request.max_version();
  }
  absl::StatusOr<std::shared_ptr<SessionHandler>> OpenSession(
      const GrpcIfrtSessionMetadata& metadata, const std::string& peer,
      std::shared_ptr<SessionStream> stream) override {
    EXPECT_THAT(peer, StartsWith("ipv4:127.0.0.1:"));
    if (metadata.version().protocol_version() == 1) return absl::PermissionDeniedError("not you");
    base::MutexLock lock(&mu);
    EXPECT_EQ(session, nullptr);
    session = std::make_shared<FakeSession>(std::move(stream));
    session->SetOnRequest(on_request);
    return std::shared_ptr<SessionHandler>(session);
  }
  std::shared_ptr<SessionHandler> FindSession(uint64_t session_id, const std::string&) override {
    base::MutexLock lock(&mu);
    return session_id == kSession ? session : nullptr;
  }
  bool RunBlocking(absl::AnyInvocable<void()> task) override {
    {
      base::MutexLock lock(&mu);
      if (refuse_blocking) return false;
    }
    task();
    return true;
  }

  std::shared_ptr<FakeSession> AwaitSession() {
    base::MutexLock lock(&mu);
    auto here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return session != nullptr; };
    mu.Await(absl::Condition(&here));
    return session;
  }

  void SetOnRequest(std::function<void(uint64_t)> handle) {
    base::MutexLock lock(&mu);
    on_request = std::move(handle);
  }

  base::Mutex mu;
  bool refuse_blocking ABSL_GUARDED_BY(mu) = false;
  // For the session that is opened next.
  std::function<void(uint64_t)> on_request ABSL_GUARDED_BY(mu);
  std::shared_ptr<FakeSession> session ABSL_GUARDED_BY(mu);
};

class IfrtServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    service_ = MakeIfrtService(&manager_);
    auto server = GrpcServer::Start("127.0.0.1:0", {service_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_GT(server_->port(), 0);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = GrpcIfrtService::NewStub(channel_);
  }
  void TearDown() override {
    server_.reset();
    service_.reset();
  }

  // A session as a client sees it.
  struct Client {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<IfrtRequest, IfrtResponse>> stream;

    bool Write(uint64_t op_id) {
      IfrtRequest request;
      request.mutable_request_metadata()->set_op_id(op_id);
      request.mutable_init_request();
      return stream->Write(request);
    }
    // The op id of the next response; 0 at the end of the stream.
    uint64_t Read() {
      IfrtResponse response;
      return stream->Read(&response) ? response.response_metadata().op_id() : 0;
    }
    std::vector<uint64_t> ReadAll() {
      std::vector<uint64_t> all;
      while (const uint64_t op_id = Read()) all.push_back(op_id);
      return all;
    }
  };
  std::unique_ptr<Client> Open(int protocol_version = 25) {
    auto client = std::make_unique<Client>();
    GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(protocol_version);
    client->context.AddMetadata(std::string(wire::kSessionMetadataKey), metadata.SerializeAsString());
    client->stream = stub_->IfrtSession(&client->context);
    return client;
  }

  // An upload of these pieces under the announced size.
  grpc::Status Store(uint64_t handle, int64_t announced, const std::vector<std::string>& pieces,
                     uint64_t session = kSession) {
    grpc::ClientContext context;
    AddStoreMetadata(context, handle, announced, session);
    GrpcHostBufferStoreResponse response;
    auto writer = stub_->HostBufferStore(&context, &response);
    for (const std::string& piece : pieces) {
      GrpcHostBufferStoreRequest request;
      request.set_data(piece);
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  static void AddStoreMetadata(grpc::ClientContext& context, uint64_t handle, int64_t announced,
                               uint64_t session = kSession) {
    GrpcHostBufferStoreMetadata metadata;
    metadata.set_session_id(session);
    metadata.set_handle(handle);
    metadata.set_buffer_size(announced);
    context.AddMetadata(std::string(wire::kHostBufferStoreMetadataKey), metadata.SerializeAsString());
  }

  // Sends one message of raw bytes to a streaming method and half-closes; the status of the call.
  grpc::Status SendRaw(grpc::ClientContext& context, const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    auto call = stub.PrepareCall(&context, "/xla.ifrt.proxy.GrpcIfrtService/" + method, &queue);
    auto next = [&] {
      void* tag;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    next();
    grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    next();
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (next());
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    queue.Shutdown();
    return status;
  }

  std::shared_ptr<Upload> UploadOf(uint64_t handle) {
    auto session = manager_.AwaitSession();
    base::MutexLock lock(&session->mu);
    return session->uploads[handle];
  }

  absl::StatusOr<std::string> Lookup(uint64_t handle, uint64_t session = kSession,
                                     int64_t* pieces = nullptr) {
    grpc::ClientContext context;
    GrpcHostBufferLookupRequest request;
    request.set_session_id(session);
    request.set_handle(handle);
    auto reader = stub_->HostBufferLookup(&context, request);
    std::string bytes;
    GrpcHostBufferLookupResponse piece;
    while (reader->Read(&piece)) {
      if (pieces != nullptr) ++*pieces;
      bytes += piece.data();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    return bytes;
  }

  FakeManager manager_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<GrpcIfrtService::Stub> stub_;
};

// ---- The server ----------------------------------------------------------------------------------------

TEST_F(IfrtServiceTest, ABusyPortIsSaidToBeBusy) {
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  auto second = GrpcServer::Start(address, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("already in use"));
}

TEST_F(IfrtServiceTest, Versions) {
  grpc::ClientContext good, bad;
  GrpcGetVersionRequest request;
  request.mutable_max_version()->set_protocol_version(20);
  GrpcGetVersionResponse response;
  ASSERT_TRUE(stub_->GetVersion(&good, request, &response).ok());
  EXPECT_EQ(response.version().protocol_version(), 20);
  const grpc::Status status = stub_->GetVersion(&bad, GrpcGetVersionRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "no versions");
}

TEST(GrpcStatus, BothWays) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  const absl::Status status = absl::DataLossError("gone");
  EXPECT_EQ(ToGrpcStatus(status).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
}

// ---- The session stream --------------------------------------------------------------------------------

TEST_F(IfrtServiceTest, ASessionNeedsItsHeader) {
  grpc::ClientContext none, broken;
  auto without = stub_->IfrtSession(&none);
  EXPECT_EQ(without->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  broken.AddMetadata(std::string(wire::kSessionMetadataKey), "\x0a\xff");
  auto with_broken = stub_->IfrtSession(&broken);
  const grpc::Status status = with_broken->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(std::string(wire::kSessionMetadataKey)));
  base::MutexLock lock(&manager_.mu);
  EXPECT_EQ(manager_.session, nullptr);
}

TEST_F(IfrtServiceTest, ARefusedSessionEndsWithTheReason) {
  auto client = Open(/*protocol_version=*/1);
  EXPECT_EQ(client->Read(), 0u);
  const grpc::Status status = client->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(), "not you");
}

TEST_F(IfrtServiceTest, RequestsAndResponsesKeepTheirOrder) {
  auto client = Open();
  auto session = manager_.AwaitSession();
  // Some wait for their answer, some do not.
  session->SetOnRequest(
      [stream = session->stream](uint64_t op_id) { stream->Send(Response(op_id), op_id % 3 != 0); });
  std::vector<uint64_t> expected;
  for (uint64_t i = 1; i <= 1000; ++i) {
    ASSERT_TRUE(client->Write(i));
    expected.push_back(i);
  }
  std::vector<uint64_t> got;
  while (got.size() < expected.size()) got.push_back(client->Read());
  EXPECT_EQ(got, expected);
  client->stream->WritesDone();
  EXPECT_THAT(client->ReadAll(), IsEmpty());
  EXPECT_TRUE(client->stream->Finish().ok());
  session->AwaitClosed();
  base::MutexLock lock(&session->mu);
  EXPECT_EQ(session->requests, expected);
}

TEST_F(IfrtServiceTest, AResponseThatNobodyWaitsForComesToo) {
  auto client = Open();
  auto session = manager_.AwaitSession();
  session->stream->Send(Response(1), /*patient=*/true);
  EXPECT_EQ(client->Read(), 1u);
  for (uint64_t i = 2; i < 100; ++i) session->stream->Send(Response(i), /*patient=*/true);
  for (uint64_t i = 2; i < 100; ++i) EXPECT_EQ(client->Read(), i);
}

TEST_F(IfrtServiceTest, ResponsesBeforeTheEndAreNotLost) {
  auto client = Open();
  auto session = manager_.AwaitSession();
  for (uint64_t i = 1; i <= 3; ++i) session->stream->Send(Response(i), /*patient=*/true);
  session->stream->Close(absl::OkStatus());
  EXPECT_THAT(client->ReadAll(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(client->stream->Finish().ok());
}

TEST_F(IfrtServiceTest, ResponsesAfterTheLastRequestAreNotLost) {
  manager_.SetOnRequest([this](uint64_t op_id) {
    std::shared_ptr<FakeSession> session = manager_.AwaitSession();
    session->stream->Send(Response(op_id), /*patient=*/true);
  });
  auto client = Open();
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(client->Write(i));
  client->stream->WritesDone();
  EXPECT_THAT(client->ReadAll(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(client->stream->Finish().ok());
}

TEST_F(IfrtServiceTest, AMalformedRequestEndsTheSession) {
  grpc::ClientContext context;
  GrpcIfrtSessionMetadata metadata;
  context.AddMetadata(std::string(wire::kSessionMetadataKey), metadata.SerializeAsString());
  const grpc::Status status = SendRaw(context, "IfrtSession", "\x0a\xff\xff");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("message 1"));
  auto session = manager_.AwaitSession();
  session->AwaitClosed();
  base::MutexLock lock(&session->mu);
  EXPECT_THAT(session->requests, IsEmpty());
}

TEST_F(IfrtServiceTest, AnEmptyRequestIsTheHandlersMatter) {
  grpc::ClientContext context;
  GrpcIfrtSessionMetadata metadata;
  context.AddMetadata(std::string(wire::kSessionMetadataKey), metadata.SerializeAsString());
  EXPECT_TRUE(SendRaw(context, "IfrtSession", "").ok());
  auto session = manager_.AwaitSession();
  session->AwaitClosed();
  base::MutexLock lock(&session->mu);
  EXPECT_THAT(session->requests, ElementsAre(0));
}

TEST_F(IfrtServiceTest, PausedStreamsAreNotRead) {
  manager_.SetOnRequest([this](uint64_t op_id) {
    std::shared_ptr<FakeSession> session = manager_.AwaitSession();
    if (op_id == 3) session->stream->SetPaused(true);
    session->stream->Send(Response(op_id), /*patient=*/false);
  });
  auto client = Open();
  for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(client->Write(i));
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_EQ(client->Read(), i);
  auto session = manager_.AwaitSession();
  // Other answers still pass, and none of them is about a later request.
  for (uint64_t i = 100; i < 200; ++i) session->stream->Send(Response(i), /*patient=*/i % 2 == 0);
  for (uint64_t i = 100; i < 200; ++i) EXPECT_EQ(client->Read(), i);
  {
    base::MutexLock lock(&session->mu);
    EXPECT_THAT(session->requests, ElementsAre(1, 2, 3));
  }
  session->stream->SetPaused(true);  // pauses do not nest
  session->stream->SetPaused(false);
  for (uint64_t i = 4; i <= 10; ++i) EXPECT_EQ(client->Read(), i);
}

TEST_F(IfrtServiceTest, CloseEndsTheStreamWithItsStatus) {
  auto client = Open();
  auto session = manager_.AwaitSession();
  session->stream->Send(Response(1), /*patient=*/false);
  session->stream->Close(absl::ResourceExhaustedError("enough"));
  session->stream->Close(absl::InternalError("the first one counts"));
  session->stream->Send(Response(2), /*patient=*/false);  // dropped
  EXPECT_THAT(client->ReadAll(), ElementsAre(1));
  const grpc::Status status = client->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "enough");
  session->AwaitClosed();
  // The handle outlives the call.
  session->stream->Send(Response(3), /*patient=*/true);
  session->stream->SetPaused(true);
  session->stream->SetPaused(false);
  session->stream->Close(absl::OkStatus());
}

TEST_F(IfrtServiceTest, CloseFromInsideARequest) {
  manager_.SetOnRequest([this](uint64_t op_id) {
    if (op_id == 2) manager_.AwaitSession()->stream->Close(absl::AbortedError("two"));
  });
  auto client = Open();
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(client->Write(i));
  EXPECT_EQ(client->Read(), 0u);
  EXPECT_EQ(client->stream->Finish().error_code(), grpc::StatusCode::ABORTED);
  auto session = manager_.AwaitSession();
  session->AwaitClosed();
  base::MutexLock lock(&session->mu);
  EXPECT_THAT(session->requests, ElementsAre(1, 2));
}

TEST_F(IfrtServiceTest, AClientThatCancelsClosesItsSession) {
  auto client = Open();
  ASSERT_TRUE(client->Write(1));
  auto session = manager_.AwaitSession();
  session->AwaitRequests(1);
  client->context.TryCancel();
  session->AwaitClosed();
  EXPECT_EQ(client->stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(IfrtServiceTest, AClientThatCancelsWhilePausedClosesItsSession) {
  auto client = Open();
  auto session = manager_.AwaitSession();
  session->stream->SetPaused(true);
  ASSERT_TRUE(client->Write(1));
  client->context.TryCancel();
  session->AwaitClosed();
}

TEST_F(IfrtServiceTest, AServerThatEndsClosesItsSessions) {
  auto client = Open();
  ASSERT_TRUE(client->Write(1));
  auto session = manager_.AwaitSession();
  session->AwaitRequests(1);
  server_->Shutdown();
  session->AwaitClosed();
  EXPECT_EQ(client->Read(), 0u);
  EXPECT_FALSE(client->stream->Finish().ok());
}

TEST_F(IfrtServiceTest, LargeRequests) {
  auto client = Open();
  IfrtRequest request;
  request.mutable_request_metadata()->set_op_id(7);
  request.mutable_compile_request()->mutable_program()->set_data(std::string(20 << 20, 'x'));
  ASSERT_TRUE(client->stream->Write(request));
  ASSERT_TRUE(client->Write(8));
  auto session = manager_.AwaitSession();
  session->AwaitRequests(2);
  base::MutexLock lock(&session->mu);
  EXPECT_THAT(session->requests, ElementsAre(7, 8));
}

// ---- Uploads -------------------------------------------------------------------------------------------

class UploadTest : public IfrtServiceTest {
 protected:
  void SetUp() override {
    IfrtServiceTest::SetUp();
    client_ = Open();
    session_ = manager_.AwaitSession();
  }
  void TearDown() override {
    client_->context.TryCancel();
    IfrtServiceTest::TearDown();
  }
  std::unique_ptr<Client> client_;
  std::shared_ptr<FakeSession> session_;
};

TEST_F(UploadTest, InPieces) {
  std::string all;
  std::vector<std::string> pieces;
  for (int i = 0; i < 5; ++i) {
    pieces.push_back(std::string(static_cast<size_t>(1 + i * 300000), static_cast<char>('a' + i)));
    all += pieces.back();
  }
  const grpc::Status status = Store(1, static_cast<int64_t>(all.size()), pieces);
  EXPECT_TRUE(status.ok()) << status.error_message();
  auto upload = UploadOf(1);
  upload->dropped.WaitForNotification();
  EXPECT_TRUE(upload->finished);
  EXPECT_TRUE(upload->bytes == all);
}

TEST_F(UploadTest, Empty) {
  for (const std::vector<std::string>& pieces : {std::vector<std::string>{}, std::vector<std::string>{""}}) {
    const uint64_t handle = 1 + pieces.size();
    EXPECT_TRUE(Store(handle, 0, pieces).ok());
    auto upload = UploadOf(handle);
    upload->dropped.WaitForNotification();
    EXPECT_TRUE(upload->finished);
  }
}

TEST_F(UploadTest, TooShort) {
  const grpc::Status status = Store(1, 10, {"12345"});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message(), "5 of 10");
}

TEST_F(UploadTest, TooLong) {
  const grpc::Status status = Store(1, 5, {"123", "456"});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  auto upload = UploadOf(1);
  upload->dropped.WaitForNotification();
  EXPECT_FALSE(upload->finished);
}

TEST_F(UploadTest, Twice) {
  EXPECT_TRUE(Store(1, 3, {"123"}).ok());
  EXPECT_EQ(Store(1, 3, {"123"}).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Store(2, -1, {}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(UploadTest, OfASessionThatIsNotThere) {
  const grpc::Status status = Store(1, 3, {"123"}, /*session=*/7);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("7"));
}

TEST_F(UploadTest, WithoutHeader) {
  grpc::ClientContext none, broken;
  GrpcHostBufferStoreResponse response;
  EXPECT_EQ(stub_->HostBufferStore(&none, &response)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  broken.AddMetadata(std::string(wire::kHostBufferStoreMetadataKey), "\x09\x01");
  EXPECT_EQ(stub_->HostBufferStore(&broken, &response)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(UploadTest, CancelledInTheMiddle) {
  grpc::ClientContext context;
  AddStoreMetadata(context, 1, 10);
  GrpcHostBufferStoreResponse response;
  auto writer = stub_->HostBufferStore(&context, &response);
  GrpcHostBufferStoreRequest request;
  request.set_data("12345");
  ASSERT_TRUE(writer->Write(request));
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The stream may not have come to the server at all.
  std::shared_ptr<Upload> upload;
  {
    base::MutexLock lock(&session_->mu);
    const auto it = session_->uploads.find(1);
    if (it != session_->uploads.end()) upload = it->second;
  }
  if (upload == nullptr) return;
  upload->dropped.WaitForNotification();
  EXPECT_LT(upload->bytes.size(), 10u);
}

TEST_F(UploadTest, MalformedPieces) {
  const std::vector<std::string> cases = {
      "\x12\x01x",           // another field
      "\x08\x01",            // another wire type
      "\x0a",                // no length
      "\x0a\x05xyz",         // cut off
      std::string("\0", 1),  // tag 0
      "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
  };
  uint64_t handle = 100;
  for (const std::string& bytes : cases) {
    SCOPED_TRACE(testing::PrintToString(bytes));
    grpc::ClientContext context;
    AddStoreMetadata(context, ++handle, 100);
    EXPECT_THAT(SendRaw(context, "HostBufferStore", bytes).error_code(),
                AnyOf(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::DATA_LOSS));
    auto upload = UploadOf(handle);
    upload->dropped.WaitForNotification();
    EXPECT_FALSE(upload->finished);
  }
}

TEST_F(UploadTest, SeveralFieldsInOnePiece) {
  grpc::ClientContext context;
  AddStoreMetadata(context, 1, 5);
  // A message may be the concatenation of two; the later field would win if it were parsed.
  EXPECT_TRUE(SendRaw(context, "HostBufferStore",
                      "\x0a\x02"
                      "ab"
                      "\x0a\x03"
                      "cde")
                  .ok());
  auto upload = UploadOf(1);
  upload->dropped.WaitForNotification();
  EXPECT_EQ(upload->bytes, "abcde");
}

TEST_F(UploadTest, ALengthBeyondTheMessage) {
  // 3 GiB are announced, and one piece says that it has 2 GiB + 1.
  grpc::ClientContext context;
  AddStoreMetadata(context, 1, int64_t{3} << 30);
  EXPECT_EQ(SendRaw(context, "HostBufferStore", "\x0a\x81\x80\x80\x80\x08xyz").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  auto upload = UploadOf(1);
  upload->dropped.WaitForNotification();
  EXPECT_FALSE(upload->finished);
}

// ---- Other host buffer calls ---------------------------------------------------------------------------

TEST_F(UploadTest, Lookups) {
  std::string large(size_t{5} << 20 | 12345, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 13);
  {
    base::MutexLock lock(&session_->mu);
    session_->buffers[1] = std::make_shared<std::string>();
    session_->buffers[2] = std::make_shared<std::string>("abc");
    session_->buffers[3] = std::make_shared<std::string>(large);
    session_->buffers[4] = std::make_shared<std::string>(size_t{2} << 20, 'x');
  }
  int64_t pieces = 0;
  auto empty = Lookup(1, kSession, &pieces);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(*empty, "");
  EXPECT_EQ(pieces, 1);
  EXPECT_EQ(Lookup(2).value_or("?"), "abc");
  pieces = 0;
  auto got = Lookup(3, kSession, &pieces);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(*got == large);
  EXPECT_GT(pieces, 1);
  EXPECT_EQ(Lookup(4).value_or("?").size(), size_t{2} << 20);
  EXPECT_EQ(Lookup(5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Lookup(1, /*session=*/7).status().code(), absl::StatusCode::kNotFound);

  grpc::ClientContext raw;
  EXPECT_EQ(SendRaw(raw, "HostBufferLookup", "\x09\x01").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(UploadTest, ALookupKeepsItsBytes) {
  auto buffer = std::make_shared<std::string>(size_t{4} << 20, 'y');
  std::weak_ptr<std::string> weak = buffer;
  {
    base::MutexLock lock(&session_->mu);
    session_->buffers[1] = std::move(buffer);
  }
  grpc::ClientContext context;
  GrpcHostBufferLookupRequest request;
  request.set_session_id(kSession);
  request.set_handle(1);
  auto reader = stub_->HostBufferLookup(&context, request);
  GrpcHostBufferLookupResponse piece;
  ASSERT_TRUE(reader->Read(&piece));
  ASSERT_TRUE(session_->DeleteHostBuffer(1).ok());
  size_t size = piece.data().size();
  while (reader->Read(&piece)) {
    EXPECT_EQ(piece.data().find_first_not_of('y'), std::string::npos);
    size += piece.data().size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(size, size_t{4} << 20);
  // Once the call is over on the server, nobody holds them.
  client_->context.TryCancel();
  server_.reset();
  EXPECT_TRUE(weak.expired());
}

TEST_F(UploadTest, ALookupThatIsCancelled) {
  {
    base::MutexLock lock(&session_->mu);
    session_->buffers[1] = std::make_shared<std::string>(size_t{64} << 20, 'z');
  }
  grpc::ClientContext context;
  GrpcHostBufferLookupRequest request;
  request.set_session_id(kSession);
  request.set_handle(1);
  auto reader = stub_->HostBufferLookup(&context, request);
  GrpcHostBufferLookupResponse piece;
  ASSERT_TRUE(reader->Read(&piece));
  context.TryCancel();
  while (reader->Read(&piece)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(UploadTest, Deletes) {
  {
    base::MutexLock lock(&session_->mu);
    session_->buffers[1] = std::make_shared<std::string>("abc");
  }
  auto remove = [this](uint64_t handle, uint64_t session) {
    grpc::ClientContext context;
    GrpcHostBufferDeleteRequest request;
    request.set_session_id(session);
    request.set_handle(handle);
    GrpcHostBufferDeleteResponse response;
    return stub_->HostBufferDelete(&context, request, &response).error_code();
  };
  EXPECT_EQ(remove(1, 7), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(remove(1, kSession), grpc::StatusCode::OK);
  EXPECT_EQ(remove(1, kSession), grpc::StatusCode::NOT_FOUND);
}

TEST_F(UploadTest, ReadsFromDisk) {
  auto read = [this](uint64_t session) {
    grpc::ClientContext context;
    GrpcHostBufferReadFromDiskRequest request;
    request.mutable_metadata()->set_session_id(session);
    request.mutable_metadata()->set_handle(5);
    request.mutable_metadata()->set_buffer_size(6);
    GrpcHostBufferReadFromDiskResponse response;
    return stub_->HostBufferReadFromDisk(&context, request, &response);
  };
  EXPECT_EQ(read(7).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(read(kSession).error_message(), "disk 5 6");
  EXPECT_EQ(read(kSession).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  {
    base::MutexLock lock(&manager_.mu);
    manager_.refuse_blocking = true;
  }
  EXPECT_EQ(read(kSession).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace helmway::net
