#include "helmway/proxy/python_callbacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace helmway::proxy {
namespace {

using ::helmway::callbacks::FromClient;
using ::helmway::callbacks::FromServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kClient = 77;

class FakeStream final : public net::CallbackStream {
 public:
  void Wake() override { ++wakes; }
  void Close(const absl::Status& status) override { closed = status; }
  int wakes = 0;
  std::optional<absl::Status> closed;
};

// A program's side of one call.
struct Caller {
  cluster::CallbackCall Call(uint64_t callback, const std::string& argument, size_t result_bytes,
                             uint64_t client = kClient) {
    in = argument;
    out.assign(result_bytes, '?');
    cluster::CallbackCall call;
    call.client = client;
    call.callback = callback;
    call.arguments = {{4,
                       {static_cast<int64_t>(in.size())},
                       reinterpret_cast<uint8_t*>(in.data()),
                       static_cast<int64_t>(in.size())}};
    call.results = {{4,
                     {static_cast<int64_t>(out.size())},
                     reinterpret_cast<uint8_t*>(out.data()),
                     static_cast<int64_t>(out.size())}};
    call.done = [outcome = owned_outcome](const absl::Status& status) {
      EXPECT_FALSE(outcome->has_value());
      *outcome = status;
    };
    return call;
  }
  std::string in, out;
  // A call that is never answered fails at the end of the test, when its caller is gone.
  const std::shared_ptr<std::optional<absl::Status>> owned_outcome =
      std::make_shared<std::optional<absl::Status>>();
  std::optional<absl::Status>& outcome = *owned_outcome;
};

class PythonCallbacksTest : public ::testing::Test {
 protected:
  static constexpr PythonCallbacks::Limits kLimits{
      .max_calls = 6, .max_sent_calls = 3, .max_sent_bytes = 20, .chunk_bytes = 4, .inline_bytes = 5};

  void SetUp() override { handler_ = Open(stream_); }

  std::shared_ptr<net::CallbackStreamHandler> Open(const std::shared_ptr<FakeStream>& stream) {
    auto handler = callbacks_->Open(kClient, stream);
    EXPECT_TRUE(handler.ok()) << handler.status();
    FromServer ready;
    EXPECT_TRUE((*handler)->Next(ready));
    EXPECT_TRUE(ready.has_ready());
    return *handler;
  }
  // What goes to the client next; nothing set if there is nothing.
  FromServer Next() {
    FromServer message;
    if (!handler_->Next(message)) message.Clear();
    return message;
  }
  absl::Status Answer(uint64_t call, const std::string& data, const std::string& error = "") {
    FromClient message;
    message.mutable_answer()->set_call(call);
    message.mutable_answer()->set_data(data);
    message.mutable_answer()->set_error(error);
    return handler_->OnMessage(message);
  }
  absl::Status Data(uint64_t call, const std::string& data) {
    FromClient message;
    message.mutable_data()->set_call(call);
    message.mutable_data()->set_data(data);
    return handler_->OnMessage(message);
  }
  absl::Status Forget(uint64_t callback) {
    FromClient message;
    message.mutable_forget()->add_callbacks(callback);
    return handler_->OnMessage(message);
  }

  const std::shared_ptr<PythonCallbacks> callbacks_ = std::make_shared<PythonCallbacks>(kLimits);
  const std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  std::shared_ptr<net::CallbackStreamHandler> handler_;
};

TEST_F(PythonCallbacksTest, ACallGoesToTheClientAndItsAnswerComesBack) {
  Caller caller;
  callbacks_->Call(caller.Call(5, "abc", 2));
  EXPECT_EQ(stream_->wakes, 1);
  const FromServer call = Next();
  EXPECT_EQ(call.call().callback(), 5u);
  EXPECT_EQ(call.call().data(), "abc");
  EXPECT_EQ(call.call().bytes(), 3);
  ASSERT_EQ(call.call().arguments_size(), 1);
  EXPECT_EQ(call.call().arguments(0).type(), 4);
  EXPECT_THAT(call.call().arguments(0).dims(), ElementsAre(3));
  EXPECT_FALSE(caller.outcome.has_value());
  EXPECT_TRUE(Answer(call.call().call(), "xy").ok());
  EXPECT_EQ(caller.outcome, absl::OkStatus());
  EXPECT_EQ(caller.out, "xy");
}

TEST_F(PythonCallbacksTest, LongArgumentsAndResultsComeInPieces) {
  Caller caller;
  callbacks_->Call(caller.Call(5, "abcdefghi", 7));
  const FromServer call = Next();
  EXPECT_EQ(call.call().bytes(), 9);
  EXPECT_THAT(call.call().data(), IsEmpty());
  const uint64_t id = call.call().call();
  std::string data;
  for (int i = 0; i < 3; ++i) {
    // Not yet all there: no answer is possible.
    EXPECT_EQ(Answer(id, "").code(), absl::StatusCode::kInvalidArgument);
    const FromServer piece = Next();
    EXPECT_EQ(piece.data().call(), id);
    EXPECT_LE(piece.data().data().size(), 4u);
    data += piece.data().data();
  }
  EXPECT_EQ(data, "abcdefghi");
  EXPECT_TRUE(Data(id, "1234").ok());
  EXPECT_TRUE(Data(id, "5").ok());
  EXPECT_TRUE(Answer(id, "67").ok());
  EXPECT_EQ(caller.outcome, absl::OkStatus());
  EXPECT_EQ(caller.out, "1234567");
}

TEST_F(PythonCallbacksTest, AFunctionsErrorFailsItsCall) {
  Caller caller;
  callbacks_->Call(caller.Call(5, "a", 1));
  EXPECT_TRUE(Answer(Next().call().call(), "", "ValueError: no").ok());
  ASSERT_TRUE(caller.outcome.has_value());
  EXPECT_EQ(caller.outcome->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(caller.outcome->message(), "ValueError: no");
}

TEST_F(PythonCallbacksTest, ResultsOfAnotherSizeFailTheirCall) {
  Caller less, more;
  callbacks_->Call(less.Call(5, "a", 3));
  callbacks_->Call(more.Call(6, "a", 3));
  EXPECT_TRUE(Answer(Next().call().call(), "12").ok());
  EXPECT_TRUE(Answer(Next().call().call(), "1234").ok());
  EXPECT_THAT(std::string(less.outcome->message()), HasSubstr("less than the 3 bytes"));
  EXPECT_THAT(std::string(more.outcome->message()), HasSubstr("more bytes than the 3"));
  EXPECT_EQ(more.out, "123");
}

TEST_F(PythonCallbacksTest, WhatTheClientCannotMean) {
  EXPECT_EQ(handler_->OnMessage(FromClient()).code(), absl::StatusCode::kInvalidArgument);
  Caller caller;
  callbacks_->Call(caller.Call(5, "a", 1));
  // Sent nothing yet.
  EXPECT_EQ(Answer(1, "x").code(), absl::StatusCode::kInvalidArgument);
  const uint64_t id = Next().call().call();
  EXPECT_TRUE(Answer(id, "x").ok());
  // A call that is over: the answer may have crossed its failure.
  EXPECT_TRUE(Answer(id, "y").ok());
  EXPECT_TRUE(Answer(12345, "y").ok());
  EXPECT_EQ(caller.out, "x");
}

TEST_F(PythonCallbacksTest, TheClientHasNoMoreThanItsShare) {
  std::vector<Caller> callers(6);
  for (Caller& caller : callers) callbacks_->Call(caller.Call(5, "a", 0));
  std::vector<uint64_t> sent;
  for (FromServer call = Next(); call.has_call(); call = Next()) sent.push_back(call.call().call());
  ASSERT_EQ(sent.size(), 3u);
  // More than can wait.
  Caller one_more;
  callbacks_->Call(one_more.Call(5, "a", 0));
  EXPECT_EQ(one_more.outcome->code(), absl::StatusCode::kResourceExhausted);
  const int wakes = stream_->wakes;
  EXPECT_TRUE(Answer(sent[1], "").ok());
  EXPECT_GT(stream_->wakes, wakes);
  EXPECT_TRUE(Next().has_call());
  EXPECT_FALSE(Next().has_call());
}

TEST_F(PythonCallbacksTest, BytesOnTheWayAreLimited) {
  Caller first, second, third;
  callbacks_->Call(first.Call(5, std::string(30, 'a'), 0));  // over the limit, but alone
  callbacks_->Call(second.Call(5, std::string(6, 'b'), 0));
  const uint64_t id = Next().call().call();
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Next().has_data());
  EXPECT_EQ(Next().message_case(), FromServer::MESSAGE_NOT_SET);
  EXPECT_TRUE(Answer(id, "").ok());
  EXPECT_TRUE(Next().has_call());
}

TEST_F(PythonCallbacksTest, WithoutAStreamCallsFail) {
  auto none = std::make_shared<PythonCallbacks>();
  Caller caller;
  none->Call(caller.Call(5, "a", 1));
  EXPECT_EQ(caller.outcome->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(caller.outcome->message()), HasSubstr("Python callback 5"));
}

TEST_F(PythonCallbacksTest, FunctionsOfAnotherProcessAreRefused) {
  Caller caller;
  callbacks_->Call(caller.Call(5, "a", 1, kClient + 1));
  EXPECT_EQ(caller.outcome->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Next().has_call());
}

TEST_F(PythonCallbacksTest, TheEndOfTheStreamFailsAllCalls) {
  Caller sent, waiting, later;
  callbacks_->Call(sent.Call(5, "a", 1));
  EXPECT_TRUE(Next().has_call());
  callbacks_->Call(waiting.Call(5, "b", 1));
  handler_->OnClosed();
  EXPECT_EQ(sent.outcome->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.outcome->code(), absl::StatusCode::kUnavailable);
  callbacks_->Call(later.Call(5, "c", 1));
  EXPECT_EQ(later.outcome->code(), absl::StatusCode::kUnavailable);
}

TEST_F(PythonCallbacksTest, ANewStreamTakesThePlaceOfTheOld) {
  Caller before, after;
  callbacks_->Call(before.Call(5, "a", 1));
  auto old = handler_;
  auto stream = std::make_shared<FakeStream>();
  handler_ = Open(stream);
  EXPECT_EQ(before.outcome->code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(stream_->closed.has_value());
  EXPECT_EQ(stream_->closed->code(), absl::StatusCode::kAborted);
  callbacks_->Call(after.Call(6, "b", 1));
  FromServer message;
  EXPECT_FALSE(old->Next(message));
  old->OnClosed();  // does not concern the new one
  EXPECT_FALSE(after.outcome.has_value());
  EXPECT_EQ(Next().call().callback(), 6u);
}

TEST_F(PythonCallbacksTest, TheEndOfTheSessionFailsAllCalls) {
  Caller sent, later;
  callbacks_->Call(sent.Call(5, "a", 1));
  EXPECT_TRUE(Next().has_call());
  callbacks_->Close();
  EXPECT_EQ(sent.outcome->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stream_->closed->code(), absl::StatusCode::kCancelled);
  callbacks_->Call(later.Call(5, "a", 1));
  EXPECT_EQ(later.outcome->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(callbacks_->Open(kClient, stream_).status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(Next().has_call());
}

TEST_F(PythonCallbacksTest, AFunctionIsForgottenWhenNoProgramHasIt) {
  auto one = std::make_unique<CallbackUse>(callbacks_, std::vector<uint64_t>{5, 6});
  auto other = std::make_unique<CallbackUse>(callbacks_, std::vector<uint64_t>{5});
  EXPECT_TRUE(Forget(5).ok());
  one.reset();
  EXPECT_EQ(Next().message_case(), FromServer::MESSAGE_NOT_SET);
  other.reset();
  EXPECT_THAT(Next().forgotten().callbacks(), ElementsAre(5));
  // 6 is not used any more, but the client wants it still.
  EXPECT_EQ(Next().message_case(), FromServer::MESSAGE_NOT_SET);
  EXPECT_TRUE(Forget(6).ok());
  EXPECT_THAT(Next().forgotten().callbacks(), ElementsAre(6));
}

TEST_F(PythonCallbacksTest, AClientThatForgetsWithoutReadingIsRefused) {
  for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(Forget(i).ok());
  EXPECT_EQ(Forget(6).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace helmway::proxy
