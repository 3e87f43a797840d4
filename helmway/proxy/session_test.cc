// What holds for a session as a whole: who gets one, how it is kept apart from others, and how it ends.
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "helmway/base/mutex.h"
#include "helmway/proxy/session_testing.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::xla::ifrt::proxy::InitRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataRequest;

class VersionedWholeSessionTest : public VersionedSessionTest {};
INSTANTIATE_TEST_SUITE_P(Versions, VersionedWholeSessionTest, ::testing::ValuesIn(kVersions), VersionName);

// ---- Beginning -------------------------------------------------------------------------------------------

class OpenSessionTest : public SessionTest {
 protected:
  absl::Status Open(int protocol, int serdes, const std::string& peer = TestClient::kPeer) {
    xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(protocol);
    metadata.mutable_version()->set_ifrt_serdes_version_number(serdes);
    auto stream = std::make_shared<FakeStream>(worker_.broken_promises());
    auto session = proxy().OpenSession(metadata, peer, stream);
    if (session.ok()) (*session)->OnClosed();
    return session.status();
  }
};

TEST_F(OpenSessionTest, VersionsThatAreSpoken) {
  EXPECT_THAT(Open(16, 3), IsOk());
  EXPECT_THAT(Open(20, 5), IsOk());
  EXPECT_THAT(Open(25, 6), IsOk());
  EXPECT_THAT(Open(15, 6), FailsWith(kInvalid, "protocol version 15"));
  EXPECT_THAT(Open(26, 6), FailsWith(kInvalid, "protocol version 26"));
  EXPECT_THAT(Open(25, 2), FailsWith(kInvalid, "serdes version 2"));
  EXPECT_THAT(Open(25, 7), FailsWith(kInvalid, "serdes version 7"));
  EXPECT_THAT(Open(0, 0), FailsWith(kInvalid, ""));
  // A refused client costs the worker nothing.
  EXPECT_EQ(worker_.links().size(), 3u);
}

TEST_F(OpenSessionTest, ClientsOfOtherHostsAreRefused) {
  constexpr char kElsewhere[] = "ipv4:192.0.2.1:4711";
  EXPECT_EQ(Open(25, 6, kElsewhere).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(proxy().NegotiateVersion({}, kElsewhere).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(worker_.links(), IsEmpty());
}

class RemoteClientsTest : public OpenSessionTest {
 protected:
  ProxyOptions options() override {
    ProxyOptions options = OpenSessionTest::options();
    options.allow_remote_clients = true;
    return options;
  }
};

TEST_F(RemoteClientsTest, AreTakenIfTheServerSaysSo) {
  EXPECT_THAT(Open(25, 6, "ipv4:192.0.2.1:4711"), IsOk());
}

// ---- Order -----------------------------------------------------------------------------------------------

// A program of the kind that every client runs, without waiting for anything but the first run.
TEST_P(VersionedWholeSessionTest, RequestsThatDependOnEachOther) {
  TestClient& c = client();
  ASSERT_THAT(c.Status(InitRequest()), IsOk());
  const uint64_t compile = c.Send(CompileFor({10}, serdes()));
  c.link->AnswerCompile(1, Compiled({.parameters = {{{4}}}, .outputs = {{{4}}}, .donated = {0}}));
  const uint64_t program = c.AnswerTo(compile).response.compile_response().loaded_executable_handle();
  ASSERT_THAT(c.Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  const Answer first = c.Ask(Execute({program, {1}}));
  const uint64_t made = first.response.loaded_executable_execute_response().outputs(0).array_handle();
  ASSERT_THAT(c.Status(Execute({program, {made}, {2}})), IsOk());
  ASSERT_THAT(c.Status(ShardOf(2, 3)), IsOk());
  ASSERT_THAT(c.Status(Disassemble(3, {4})), IsOk());
  const uint64_t read = c.Send(ReadInto(100, 4));
  ASSERT_THAT(c.Status(Destruct({1, made, 2, 3, 4})), IsOk());
  EXPECT_THAT(c.Commands(),
              ElementsAre("compile 1", "declare 1@10", "execute #2 program 1 (1) -> (2) donates [0] held",
                          "flush", "execute #3 program 1 (2) -> (3) donates [0] held", "delete 2", "flush",
                          "read 3", "delete 3"));
  ASSERT_THAT(c.Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(c.Commands(), ElementsAre("fill 1@10 f32[4] 16 bytes", "release #2", "release #3", "delete 1"));
  c.link->AnswerRead(3, BytesOf("0123456789abcdef"));
  EXPECT_THAT(c.AnswerTo(read).status, IsOk());
  // The launch may be known to be over after its result was read.
  c.link->FinishLaunch(2);
  c.link->FinishLaunch(3);
  EXPECT_EQ(c.stream->num_unanswered(), 0u);
}

// ---- Apart from others -----------------------------------------------------------------------------------

class TwoSessionsTest : public SessionTest {};

TEST_F(TwoSessionsTest, HandlesOfOneAreUnknownToTheOther) {
  const std::unique_ptr<TestClient> other = NewClient();
  client().MakeArray(1);
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  ASSERT_THAT(client().Status(Execute({program, {}, {2}, true, 50})), IsOk());
  ASSERT_THAT(client().Upload(60, "mine"), IsOk());

  EXPECT_THAT(other->Use(1), FailsWith(kNotFound, "1"));
  EXPECT_THAT(other->Status(Destruct({1, 2})), FailsWith(kNotFound, "1"));
  EXPECT_THAT(other->Status(Execute({program})), FailsWith(kNotFound, absl::StrCat(program)));
  EXPECT_THAT(other->Status(CheckFuture(50)), FailsWith(kNotFound, "50"));
  EXPECT_THAT(other->Status(ReadInto(100, 1)), FailsWith(kNotFound, "1"));
  EXPECT_EQ(other->session->LookupHostBuffer(60).status().code(), kNotFound);
  EXPECT_EQ(other->session->DeleteHostBuffer(60).code(), kNotFound);
  EXPECT_THAT(other->Commands(), IsEmpty());

  // The same numbers may mean something else there.
  other->MakeArray(1, {2}, OneDevice(12));
  ASSERT_THAT(other->Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_F(TwoSessionsTest, BuffersAndLaunchesHaveNamesOfTheirOwn) {
  const std::unique_ptr<TestClient> other = NewClient();
  EXPECT_EQ(client().MakeArray(1), 1u);
  EXPECT_EQ(other->MakeArray(1), 2u);
  EXPECT_EQ(client().MakeArray(2), 3u);
  const uint64_t one = client().Load({});
  const uint64_t two = other->Load({});
  ASSERT_THAT(client().Status(Execute({one})), IsOk());
  ASSERT_THAT(other->Status(Execute({two})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 () -> ()", "flush"));
  EXPECT_THAT(other->Commands(), ElementsAre("execute #3 program 2 () -> ()", "flush"));
}

TEST_F(TwoSessionsTest, OnlyTheClientsHostFindsASession) {
  const uint64_t id = client().Ask(InitRequest()).response.init_response().session_id();
  EXPECT_EQ(proxy().FindSession(id, "ipv4:127.0.0.1:999"), client().session);
  EXPECT_EQ(proxy().FindSession(id, "ipv4:127.0.0.2:999"), nullptr);
  EXPECT_EQ(proxy().FindSession(id + 1, TestClient::kPeer), nullptr);
}

TEST_F(TwoSessionsTest, EndOfOneLeavesTheOtherAlone) {
  std::unique_ptr<TestClient> other = NewClient();
  client().MakeArray(1);
  other->MakeArray(1);
  const uint64_t read = client().Send(ReadInto(100, 1));
  other->Close();
  EXPECT_THAT(other->Commands(), ElementsAre("close"));
  client().link->AnswerRead(1, BytesOf("1"));
  EXPECT_THAT(client().AnswerTo(read).status, IsOk());
  EXPECT_FALSE(client().link->closed());
}

TEST_F(TwoSessionsTest, HostBuffersShareOneLimit) {
  std::unique_ptr<TestClient> other = NewClient();
  ASSERT_THAT(other->Upload(1, std::string(static_cast<size_t>(max_host_buffer_bytes_ - 10), 'x')), IsOk());
  EXPECT_EQ(client().Upload(1, "more than 10 bytes").code(), kResourceExhausted);
  EXPECT_THAT(client().Upload(1, "10 bytes.."), IsOk());
  // What a session leaves behind is free again.
  other->Close();
  EXPECT_THAT(client().Upload(2, "more than 10 bytes"), IsOk());
}

// ---- Host buffers ----------------------------------------------------------------------------------------

class HostBufferCallsTest : public SessionTest {
 protected:
  ProxyOptions options() override {
    ProxyOptions options = SessionTest::options();
    options.large_transfer_directory = directory_;
    return options;
  }
  std::string WriteFile(uint64_t handle, const std::string& bytes) {
    const std::string path = absl::StrCat(directory_, "/lt_", static_cast<int32_t>(handle));
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string directory_ = ::testing::TempDir();
};

TEST_F(HostBufferCallsTest, FileOfTheSharedDirectory) {
  // The name has the handle's low 32 bits, with their sign.
  const uint64_t handle = 0xfffffff0;
  const std::string path = WriteFile(handle, "0123456789abcdef");
  ASSERT_THAT(client().Status(FromHost(handle, {4}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().session->ReadHostBufferFromDisk(handle, 16), IsOk());
  EXPECT_EQ(client().link->contents(1), "0123456789abcdef");
  EXPECT_FALSE(std::ifstream(path).good());
}

TEST_F(HostBufferCallsTest, FilesThatCannotBeTakenFailTheirArray) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  const absl::Status missing = client().session->ReadHostBufferFromDisk(1, 16);
  EXPECT_EQ(missing.code(), kNotFound);
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", absl::StrCat("fail 1@10 NOT_FOUND: ", missing.message())));

  ASSERT_THAT(client().Status(FromHost(2, {4}, OneDevice(10))), IsOk());
  WriteFile(2, "short");
  const absl::Status other_size = client().session->ReadHostBufferFromDisk(2, 16);
  EXPECT_EQ(other_size.code(), kInvalid);
  EXPECT_THAT(client().Commands(), ElementsAre("declare 2@10", absl::StrCat("fail 2@10 INVALID_ARGUMENT: ",
                                                                            other_size.message())));
  WriteFile(3, "");
  EXPECT_EQ(client().session->ReadHostBufferFromDisk(3, -1).code(), kInvalid);
  // Said before anybody waits, it is not forgotten.
  ASSERT_THAT(client().Status(FromHost(3, {0}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 3@10", ::testing::StartsWith("fail 3@10 INVALID_ARGUMENT")));
}

class NoSharedDirectoryTest : public SessionTest {};

TEST_F(NoSharedDirectoryTest, IsSaid) {
  EXPECT_THAT(client().session->ReadHostBufferFromDisk(1, 16),
              FailsWith(kUnimplemented, "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"));
}

// ---- The end ---------------------------------------------------------------------------------------------

class EndOfSessionTest : public SessionTest {};

TEST_F(EndOfSessionTest, WhatWaitsIsCancelled) {
  TestClient& c = client();
  const uint64_t program = c.Load({.outputs = {{{4}}}});
  c.MakeArray(1);
  ASSERT_THAT(c.Status(FromHost(2, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(c.Status(Execute({program, {}, {3}, true, 50})), IsOk());
  const std::vector<uint64_t> waiting = {c.Send(ReadInto(100, 1)), c.Send(Ready({1, 2, 3})),
                                         c.Send(CompileFor({11})), c.Send(CheckFuture(50))};
  xla::ifrt::proxy::LoadedExecutableCostAnalysisRequest costs;
  costs.set_loaded_executable_handle(program);
  const uint64_t cost = c.Send(costs);
  const std::shared_ptr<net::SessionHandler> session = c.session;
  const uint64_t id = c.Ask(InitRequest()).response.init_response().session_id();
  c.Commands();

  c.session->OnClosed();
  // One command ends it all: nothing is freed or failed one by one.
  EXPECT_THAT(c.Commands(), ElementsAre("close"));
  for (const uint64_t op_id : waiting) EXPECT_EQ(c.AnswerTo(op_id).status.code(), kCancelled);
  EXPECT_EQ(c.AnswerTo(cost).response.loaded_executable_cost_analysis_response().status().code(),
            tensorflow::error::CANCELLED);
  EXPECT_EQ(c.stream->num_unanswered(), 0u);
  EXPECT_EQ(c.link->num_waiting(), 0u);

  // Calls of the other connection that came too late.
  EXPECT_EQ(proxy().FindSession(id, TestClient::kPeer), nullptr);
  EXPECT_EQ(session->StoreHostBuffer(2, 16).status().code(), kCancelled);
  EXPECT_EQ(session->LookupHostBuffer(100).status().code(), kCancelled);
  EXPECT_EQ(session->DeleteHostBuffer(100).code(), kCancelled);
  EXPECT_THAT(c.Commands(), IsEmpty());
  c.session.reset();
}

// An upload that is under way when its session ends.
TEST_F(EndOfSessionTest, UploadUnderWay) {
  TestClient& c = client();
  ASSERT_THAT(c.Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  auto writer = c.session->StoreHostBuffer(1, 16);
  ASSERT_THAT(writer.status(), IsOk());
  c.Commands();
  c.Close();
  (*writer)->Reserve(16);
  (*writer)->Finish().IgnoreError();
  EXPECT_THAT(c.Commands(), ElementsAre("close"));
}

TEST_F(EndOfSessionTest, EndRightAfterTheBeginning) {
  client().Close();
  EXPECT_THAT(client().Commands(), ElementsAre("close"));
}

// What the worker calls back late still holds the session, and the session its proxy.
TEST(EndOfProxyTest, WaitsForWhateverStillHoldsASession) {
  FakeWorker worker;
  auto proxy = std::make_unique<Proxy>(
      &worker, ProxyOptions{.host_memory = std::make_shared<base::HostMemoryPool>(0)});
  xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
  metadata.mutable_version()->set_protocol_version(wire::kMaxProtocolVersion);
  metadata.mutable_version()->set_ifrt_serdes_version_number(wire::kMaxSerdesVersion);
  auto session =
      proxy->OpenSession(metadata, TestClient::kPeer, std::make_shared<FakeStream>(worker.broken_promises()));
  ASSERT_THAT(session.status(), IsOk());
  (*session)->OnClosed();
  base::Notification going;
  std::atomic<bool> called_back = false;
  std::thread late([&, held = *std::move(session)]() mutable {
    going.WaitForNotification();
    called_back = true;
    held.reset();
  });
  going.Notify();
  proxy.reset();
  EXPECT_TRUE(called_back);
  late.join();
}

// ---- Several threads -------------------------------------------------------------------------------------

// Requests on one thread, as always; bytes and the worker's answers on others.
TEST_F(EndOfSessionTest, BytesAndAnswersComeFromOtherThreads) {
  constexpr uint64_t kArrays = 200;
  TestClient& c = client();
  const uint64_t program = c.Load({.parameters = {{{4}}}, .outputs = {{{4}}}});
  std::thread uploads([&] {
    for (uint64_t i = 1; i <= kArrays; ++i) {
      EXPECT_THAT(c.Upload(i, std::string(16, 'x')), IsOk());
    }
  });
  std::thread worker([&] {
    for (uint64_t done = 0; done < kArrays;) {
      for (const cluster::LaunchId launch : c.link->AwaitReadyLaunches()) {
        c.link->FinishLaunch(launch);
        ++done;
      }
    }
  });
  std::vector<uint64_t> statuses;
  for (uint64_t i = 1; i <= kArrays; ++i) {
    ASSERT_THAT(c.Status(FromHost(i, {4}, OneDevice(10))), IsOk());
    ASSERT_THAT(c.Status(Execute({program, {i}, {1000 + i}, true, 5000 + i})), IsOk());
    statuses.push_back(c.Send(CheckFuture(5000 + i)));
    ASSERT_THAT(c.Status(Destruct({i, 1000 + i})), IsOk());
  }
  uploads.join();
  worker.join();
  for (const uint64_t op_id : statuses) EXPECT_THAT(c.stream->Await(op_id).status, IsOk());
  EXPECT_THAT(c.link->live_buffers(), IsEmpty());
}

}  // namespace
}  // namespace helmway::proxy
