#include "helmway/net/message_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"

namespace helmway::net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

grpc::ByteBuffer Message(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  EXPECT_TRUE(message.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// Keeps what comes. `answer`: sends each message back.
class Receiver final : public MessageReceiver {
 public:
  explicit Receiver(bool answer = false) : answer_(answer) {}
  void OnMessage(grpc::ByteBuffer& message) override {
    std::shared_ptr<MessageStream> back;
    {
      base::MutexLock lock(&mu_);
      messages_.push_back(Text(message));
      if (answer_) back = stream_;
    }
    if (back != nullptr) back->Send(message);
  }
  void OnEnd(const absl::Status& status) override {
    base::MutexLock lock(&mu_);
    EXPECT_FALSE(ended_);
    ended_ = true;
    status_ = status;
  }

  void SetStream(std::shared_ptr<MessageStream> stream) {
    base::MutexLock lock(&mu_);
    stream_ = std::move(stream);
  }
  std::shared_ptr<MessageStream> stream() {
    base::MutexLock lock(&mu_);
    return stream_;
  }
  std::vector<std::string> WaitForMessages(size_t count) {
    auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return messages_.size() >= count || ended_; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&here));
    return messages_;
  }
  absl::Status WaitForEnd() {
    auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&over));
    return status_;
  }

 private:
  const bool answer_;
  base::Mutex mu_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Over sockets (true), and through the calls.
class MessageStreamTest : public ::testing::TestWithParam<bool> {
 protected:
  MessageStreamTest() {
    service_ = MessageStreamService::Create(
        {{"/test/Echo",
          [this](std::shared_ptr<MessageStream> stream, const std::string& peer) {
            EXPECT_THAT(peer, HasSubstr("127.0.0.1"));
            auto receiver = std::make_shared<Receiver>(true);
            receiver->SetStream(std::move(stream));
            base::MutexLock lock(&mu_);
            accepted_.push_back(receiver);
            peers_.insert(peer);
            return receiver;
          }}},
        GetParam());
    auto server = GrpcServer::Start("127.0.0.1:0", {}, {service_.get()}, &calls_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = OpenChannel(absl::StrCat("127.0.0.1:", server_->port()));
  }
  ~MessageStreamTest() override {
    base::MutexLock lock(&mu_);
    for (const auto& receiver : accepted_) receiver->SetStream(nullptr);
  }

  std::shared_ptr<Receiver> Accepted() {
    auto here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !accepted_.empty(); };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&here));
    return accepted_.back();
  }

  base::Mutex mu_;
  std::vector<std::shared_ptr<Receiver>> accepted_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> peers_ ABSL_GUARDED_BY(mu_);
  CompletionThread calls_;  // of both ends
  std::unique_ptr<MessageStreamService> service_;
  std::unique_ptr<GrpcServer> server_;
  MessageStreamClient client_{&calls_};
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Receiver> receiver_ = std::make_shared<Receiver>();
};

TEST_P(MessageStreamTest, MessagesGoBothWaysInOrderAndTheEndIsSeenByBoth) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) EXPECT_TRUE(stream->Send(Message(absl::StrCat(i))));
  const auto messages = receiver_->WaitForMessages(kCount);
  ASSERT_EQ(messages.size(), size_t{kCount});
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(messages[static_cast<size_t>(i)], absl::StrCat(i));
  stream->Close(absl::OkStatus());
  EXPECT_TRUE(receiver_->WaitForEnd().ok());
  EXPECT_TRUE(Accepted()->WaitForEnd().ok());
  EXPECT_FALSE(stream->Send(Message("late")));
}

TEST_P(MessageStreamTest, WhatIsQueuedGoesOutBeforeTheEnd) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  const std::string large(8 << 20, 'x');
  for (int i = 0; i < 8; ++i) stream->Send(Message(large));
  stream->Close(absl::OkStatus());
  EXPECT_TRUE(receiver_->WaitForEnd().ok());
  EXPECT_EQ(receiver_->WaitForMessages(8).size(), 8U);
  EXPECT_EQ(stream->queued_bytes(), 0);
}

TEST_P(MessageStreamTest, TheAcceptingEndGivesAStatus) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  stream->Send(Message("a"));
  receiver_->WaitForMessages(1);
  Accepted()->stream()->Close(absl::DataLossError("all is lost"));
  const absl::Status status = receiver_->WaitForEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "all is lost");
  EXPECT_EQ(Accepted()->WaitForEnd().code(), absl::StatusCode::kDataLoss);
}

TEST_P(MessageStreamTest, ACancelledStreamEndsAtBothEnds) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  stream->Send(Message("a"));
  receiver_->WaitForMessages(1);
  stream->Cancel();
  EXPECT_EQ(receiver_->WaitForEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Accepted()->WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(stream->Send(Message("late")));
}

TEST_P(MessageStreamTest, UnknownMethodsAreRefused) {
  client_.Open(channel_, "/test/Nothing", receiver_);
  const absl::Status status = receiver_->WaitForEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/test/Nothing"));
}

TEST_P(MessageStreamTest, AServerThatGoesAwayOrIsNotThere) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  stream->Send(Message("a"));
  receiver_->WaitForMessages(1);
  const auto accepted = Accepted();
  server_->Shutdown();
  EXPECT_FALSE(receiver_->WaitForEnd().ok());
  EXPECT_EQ(accepted->WaitForEnd().code(), absl::StatusCode::kCancelled);
  auto again = std::make_shared<Receiver>();
  client_.Open(channel_, "/test/Echo", again);
  EXPECT_EQ(again->WaitForEnd().code(), absl::StatusCode::kUnavailable);
}

// Else a new one fails for a second because an old one did, or ends with it.
TEST_P(MessageStreamTest, ChannelsToOneAddressShareNoConnection) {
  std::vector<std::shared_ptr<MessageStream>> streams;
  for (int i = 0; i < 3; ++i) {
    auto receiver = std::make_shared<Receiver>();
    const auto channel = OpenChannel(absl::StrCat("127.0.0.1:", server_->port()));
    streams.push_back(client_.Open(channel, "/test/Echo", receiver));
    streams.back()->Send(Message("a"));
    receiver->WaitForMessages(1);
  }
  {
    base::MutexLock lock(&mu_);
    EXPECT_EQ(peers_.size(), streams.size());
  }
  for (const auto& stream : streams) stream->Close(absl::OkStatus());
}

// As the kernel of a process that is stopped takes connections for it. gRPC would wait for 20 seconds.
TEST_P(MessageStreamTest, APeerThatOnlyTakesConnectionsIsGivenUp) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(listener, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const absl::Time begin = absl::Now();
  auto stream = client_.Open(
      OpenChannel(absl::StrCat("127.0.0.1:", ::ntohs(address.sin_port)), absl::Milliseconds(300)),
      "/test/Echo", receiver_);
  EXPECT_EQ(receiver_->WaitForEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  ::close(listener);
}

TEST_P(MessageStreamTest, TheClientsEndEndsItsStreams) {
  std::shared_ptr<MessageStream> stream;
  {
    MessageStreamClient client(&calls_);
    stream = client.Open(channel_, "/test/Echo", receiver_);
    stream->Send(Message("a"));
    receiver_->WaitForMessages(1);
  }
  EXPECT_EQ(receiver_->WaitForEnd().code(), absl::StatusCode::kCancelled);
  stream->Close(absl::OkStatus());
  stream->Cancel();
}

TEST_P(MessageStreamTest, TheAcceptingEndMaySpeakFirst) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  EXPECT_TRUE(Accepted()->stream()->Send(Message("first")));
  EXPECT_THAT(receiver_->WaitForMessages(1), ElementsAre("first"));
  Accepted()->stream()->Close(absl::AbortedError("and last"));
  EXPECT_EQ(receiver_->WaitForEnd().code(), absl::StatusCode::kAborted);
}

// What the accepting end has sent before its end arrives, whichever way is the faster.
TEST_P(MessageStreamTest, WhatTheAcceptingEndHasQueuedComesBeforeItsEnd) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  const auto back = Accepted()->stream();
  const std::string large(8 << 20, 'x');
  for (int i = 0; i < 4; ++i) back->Send(Message(large));
  back->Close(absl::DataLossError("and no more"));
  // Nobody reads these.
  for (int i = 0; i < 4; ++i) stream->Send(Message(large));
  EXPECT_EQ(receiver_->WaitForEnd().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(receiver_->WaitForMessages(4).size(), 4U);
  EXPECT_EQ(Accepted()->WaitForEnd().code(), absl::StatusCode::kDataLoss);
}

TEST_P(MessageStreamTest, EmptyMessagesAreMessages) {
  auto stream = client_.Open(channel_, "/test/Echo", receiver_);
  for (const char* text : {"", "a", "", ""}) stream->Send(Message(text));
  EXPECT_THAT(receiver_->WaitForMessages(4), ElementsAre("", "a", "", ""));
  stream->Close(absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Ways, MessageStreamTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Sockets" : "Calls"; });

// Invites every peer to a port where nobody listens, and echoes what comes in the call.
class ClosedPort final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    context->AddInitialMetadata("helmway-socket", "tcp:1:00000000000000000000000000000000");
    return new Echo();
  }

 private:
  class Echo final : public grpc::ServerGenericBidiReactor {
   public:
    Echo() {
      StartSendInitialMetadata();
      StartRead(&message_);
    }
    void OnReadDone(bool ok) override { ok ? StartWrite(&message_) : Finish(grpc::Status::OK); }
    void OnWriteDone(bool ok) override { ok ? StartRead(&message_) : Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer message_;
  };
};

TEST(MessageStream, MessagesGoThroughTheCallIfTheirConnectionCanNotBeMade) {
  ClosedPort service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CompletionThread calls;
  {
    MessageStreamClient client(&calls);
    auto receiver = std::make_shared<Receiver>();
    auto stream = client.Open(OpenChannel(absl::StrCat("127.0.0.1:", port)), "/test/Echo", receiver);
    stream->Send(Message("a"));
    // An empty one comes first, and says that others follow.
    EXPECT_THAT(receiver->WaitForMessages(2), ElementsAre("", "a"));
    stream->Close(absl::OkStatus());
    EXPECT_TRUE(receiver->WaitForEnd().ok());
  }
  server->Shutdown();
}

}  // namespace
}  // namespace helmway::net
