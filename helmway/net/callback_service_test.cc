#include "helmway/net/callback_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/net/python_callbacks.grpc.pb.h"

namespace helmway::net {
namespace {

using ::helmway::callbacks::FromClient;
using ::helmway::callbacks::FromServer;
using ::helmway::callbacks::Hello;
using ::helmway::callbacks::PythonCallbacks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Nobody uses the service whose thread serves the callbacks too.
class NoSessions final : public SessionManager {
 public:
  absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
      const xla::ifrt::proxy::GrpcGetVersionRequest& /*request*/, const std::string& /*peer*/) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::shared_ptr<SessionHandler>> OpenSession(
      const xla::ifrt::proxy::GrpcIfrtSessionMetadata& /*metadata*/, const std::string& /*peer*/,
      std::shared_ptr<SessionStream> /*stream*/) override {
    return absl::UnimplementedError("");
  }
  std::shared_ptr<SessionHandler> FindSession(uint64_t /*session_id*/, const std::string& /*peer*/) override {
    return nullptr;
  }
  bool RunBlocking(absl::AnyInvocable<void()> /*task*/) override { return false; }
};

// One stream, as its handler sees it. A message whose error is "refuse" ends it.
class FakeHandler final : public CallbackStreamHandler {
 public:
  absl::Status OnMessage(const FromClient& message) override {
    base::MutexLock lock(&mu_);
    answers_.push_back(message.answer().call());
    return message.answer().error() == "refuse" ? absl::OutOfRangeError("refused") : absl::OkStatus();
  }
  bool Next(FromServer& message) override {
    base::MutexLock lock(&mu_);
    if (to_send_.empty()) return false;
    message.mutable_call()->set_call(to_send_.front());
    to_send_.pop_front();
    return true;
  }
  void OnClosed() override {
    base::MutexLock lock(&mu_);
    ++closed_;
  }

  void Add(uint64_t call) {
    base::MutexLock lock(&mu_);
    to_send_.push_back(call);
  }
  std::vector<uint64_t> WaitForAnswers(size_t count) {
    auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return answers_.size() >= count; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&here));
    return answers_;
  }
  void WaitUntilClosed() {
    auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ > 0; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&closed));
    EXPECT_EQ(closed_, 1);
  }

 private:
  base::Mutex mu_;
  std::deque<uint64_t> to_send_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> answers_ ABSL_GUARDED_BY(mu_);
  int closed_ ABSL_GUARDED_BY(mu_) = 0;
};

class FakeManager final : public CallbackStreamManager {
 public:
  struct Opened {
    Hello hello;
    std::shared_ptr<FakeHandler> handler;
    std::shared_ptr<CallbackStream> stream;
  };
  absl::StatusOr<std::shared_ptr<CallbackStreamHandler>> OpenCallbackStream(
      const Hello& hello, const std::string& peer, std::shared_ptr<CallbackStream> stream) override {
    EXPECT_THAT(peer, HasSubstr("127.0.0.1"));
    if (hello.session_key() == "unknown") return absl::NotFoundError("no such session");
    auto handler = std::make_shared<FakeHandler>();
    base::MutexLock lock(&mu_);
    opened_.push_back({hello, handler, std::move(stream)});
    return handler;
  }
  Opened WaitForStream() {
    auto here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !opened_.empty(); };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&here));
    Opened opened = std::move(opened_.front());
    opened_.pop_front();
    return opened;
  }

 private:
  base::Mutex mu_;
  std::deque<Opened> opened_ ABSL_GUARDED_BY(mu_);
};

class CallbackServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = GrpcServer::Start("127.0.0.1:0", {ifrt_.get(), service_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = PythonCallbacks::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }

  using Stream = std::unique_ptr<grpc::ClientReaderWriter<FromClient, FromServer>>;
  Stream Begin(grpc::ClientContext& context, const std::string& key = "key") {
    Stream stream = stub_->Serve(&context);
    FromClient hello;
    hello.mutable_hello()->set_session_key(key);
    hello.mutable_hello()->set_client(77);
    EXPECT_TRUE(stream->Write(hello));
    return stream;
  }
  static FromClient AnAnswer(uint64_t call, const std::string& error = "") {
    FromClient message;
    message.mutable_answer()->set_call(call);
    message.mutable_answer()->set_error(error);
    return message;
  }
  static std::vector<uint64_t> ReadCalls(Stream& stream, int count) {
    std::vector<uint64_t> calls;
    FromServer message;
    for (int i = 0; i < count && stream->Read(&message); ++i) calls.push_back(message.call().call());
    return calls;
  }

  NoSessions sessions_;
  FakeManager manager_;
  std::unique_ptr<grpc::Service> ifrt_ = MakeIfrtService(&sessions_);
  std::unique_ptr<grpc::Service> service_ = MakeCallbackService(&manager_);
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<PythonCallbacks::Stub> stub_;
};

TEST_F(CallbackServiceTest, CarriesMessagesBothWaysInOrder) {
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened opened = manager_.WaitForStream();
  EXPECT_EQ(opened.hello.session_key(), "key");
  EXPECT_EQ(opened.hello.client(), 77u);
  for (uint64_t call = 1; call <= 3; ++call) opened.handler->Add(call);
  opened.stream->Wake();
  EXPECT_THAT(ReadCalls(stream, 3), ElementsAre(1, 2, 3));
  // And after it had nothing more.
  opened.handler->Add(4);
  opened.stream->Wake();
  EXPECT_THAT(ReadCalls(stream, 1), ElementsAre(4));
  EXPECT_TRUE(stream->Write(AnAnswer(2)));
  EXPECT_TRUE(stream->Write(AnAnswer(1)));
  EXPECT_THAT(opened.handler->WaitForAnswers(2), ElementsAre(2, 1));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  opened.handler->WaitUntilClosed();
}

TEST_F(CallbackServiceTest, SendsWhatWasThereBeforeTheStream) {
  // The handler has something to say as soon as it is made: the service asks by itself.
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened opened = manager_.WaitForStream();
  opened.handler->Add(9);
  opened.stream->Wake();
  opened.stream->Wake();
  EXPECT_THAT(ReadCalls(stream, 1), ElementsAre(9));
}

TEST_F(CallbackServiceTest, RefusesStreamsThatDoNotBeginRight) {
  {
    grpc::ClientContext context;
    Stream stream = stub_->Serve(&context);
    stream->Write(AnAnswer(1));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("Hello"));
  }
  grpc::ClientContext context;
  const grpc::Status status = Begin(context, "unknown")->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no such session");
}

TEST_F(CallbackServiceTest, AnErrorOfTheHandlerEndsTheStream) {
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened opened = manager_.WaitForStream();
  stream->Write(AnAnswer(1, "refuse"));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "refused");
  opened.handler->WaitUntilClosed();
  opened.stream->Wake();  // harmless afterwards
  opened.stream->Close(absl::OkStatus());
}

TEST_F(CallbackServiceTest, TheServerMayEndTheStream) {
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened opened = manager_.WaitForStream();
  opened.stream->Close(absl::CancelledError("the session has ended"));
  EXPECT_THAT(ReadCalls(stream, 1), ElementsAre());
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status.error_message(), "the session has ended");
  opened.handler->WaitUntilClosed();
}

TEST_F(CallbackServiceTest, AClientMayVanish) {
  FakeManager::Opened opened;
  {
    grpc::ClientContext context;
    Stream stream = Begin(context);
    opened = manager_.WaitForStream();
    context.TryCancel();
    stream->Finish();
  }
  opened.handler->WaitUntilClosed();
  // Others are served.
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened other = manager_.WaitForStream();
  other.handler->Add(5);
  other.stream->Wake();
  EXPECT_THAT(ReadCalls(stream, 1), ElementsAre(5));
}

TEST_F(CallbackServiceTest, TheServerEndsWhileStreamsAreOpen) {
  grpc::ClientContext context;
  Stream stream = Begin(context);
  FakeManager::Opened opened = manager_.WaitForStream();
  server_->Shutdown();
  opened.handler->WaitUntilClosed();
  EXPECT_FALSE(stream->Finish().ok());
}

}  // namespace
}  // namespace helmway::net
