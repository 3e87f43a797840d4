#include "helmway/cluster/group_session.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/worker_group.h"

namespace helmway::cluster {
namespace {

// Writes down what a worker is commanded, in the order in which its stream would have it.
struct Stream {
  std::vector<std::string> commands;  // "launch 3 at 2", "release 2 at 3"
  std::vector<uint64_t> places;       // those that are not 0
  std::vector<LaunchId> awaited;      // launches whose end is
  absl::flat_hash_map<LaunchId, absl::AnyInvocable<void(const absl::Status&)>> on_done;
  // Runs before the next launch goes out.
  std::function<void()> before_launch;

  void Finish(LaunchId launch) {
    auto done = std::move(on_done[launch]);
    on_done.erase(launch);
    done(absl::OkStatus());
  }
  void Add(const char* what, LaunchId id, uint64_t place) {
    commands.push_back(absl::StrCat(what, " ", id, " at ", place));
    if (place != 0) places.push_back(place);
  }
};

// What these tests have no use for is left undone.
class FakeSession final : public SessionLink {
 public:
  explicit FakeSession(Stream* stream) : stream_(stream) {}

  void Execute(Launch launch) override {
    if (auto before = std::exchange(stream_->before_launch, nullptr)) before();
    stream_->on_done[launch.id] = std::move(launch.on_done);
    if (launch.end_is_awaited) stream_->awaited.push_back(launch.id);
    stream_->Add(launch.held ? "held" : "launch", launch.id, launch.place);
  }
  void ReleaseLaunch(LaunchId id, uint64_t place) override { stream_->Add("release", id, place); }
  // A program whose code is "calls" calls Python.
  void Compile(CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override {
    CompiledProgram compiled;
    compiled.devices = command.devices;
    compiled.calls_python = command.code == "calls";
    std::thread([&] { done(std::move(compiled)); }).join();  // never inside the call
  }

  void Declare(DeclareBuffers /*command*/) override {}
  void Fill(HostContents /*contents*/) override {}
  void Fail(const BufferTargets& /*targets*/, const absl::Status& /*status*/) override {}
  void Flush() override {}
  void Settle(LaunchId /*id*/, const absl::Status& /*status*/) override {}
  void Copy(CopyBuffers /*command*/) override {}
  void Send(SendBuffers /*command*/) override {}
  void Receive(ReceiveBuffers /*command*/) override {}
  void Assemble(AssembleBuffers /*command*/) override {}
  void Bitcast(BitcastBuffers /*command*/) override {}
  void Delete(const std::vector<BufferNames>& /*buffers*/) override {}
  void Read(BufferId /*buffer*/, ReadFormat /*format*/,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override {
    done(absl::UnimplementedError("reads"));
  }
  void Await(const std::vector<BufferNames>& /*buffers*/,
             absl::AnyInvocable<void(const absl::Status&)> done) override {
    done(absl::UnimplementedError("awaiting"));
  }
  void Load(LoadProgram /*command*/, absl::AnyInvocable<void(const absl::Status&)> done) override {
    done(absl::OkStatus());
  }
  void Unload(ExecutableId /*executable*/, std::optional<int64_t> /*stream*/) override {}
  void CostAnalysis(ExecutableId /*executable*/,
                    absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) override {
    done(absl::UnimplementedError("costs"));
  }
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) override {}
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost /*lost*/) override {}
  void WhenPythonSays(PythonSays /*says*/) override {}
  void TellPython(const std::string& /*text*/) override {}
  void Close() override {}

 private:
  Stream* const stream_;
};

class FakeWorker final : public WorkerLink {
 public:
  FakeWorker(DeviceId device, Stream* stream) : stream_(stream) {
    info_.platform_name = "fake";
    DeviceInfo& one = info_.devices.emplace_back();
    one.id = device;
  }
  const WorkerInfo& info() const override { return info_; }
  absl::Status Loss() override { return absl::OkStatus(); }
  PeerAddress peer_address() const override { return {}; }
  std::shared_ptr<SessionLink> OpenSession(SessionId /*session*/,
                                           std::shared_ptr<CallbackSink> /*callbacks*/) override {
    return std::make_shared<FakeSession>(stream_);
  }
  void DefaultLayout(ElementType /*type*/, const std::vector<int64_t>& /*dims*/,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override {
    done(absl::UnimplementedError("layouts"));
  }
  absl::StatusOr<std::vector<DeviceId>> DefaultDeviceAssignment(int /*replicas*/,
                                                                int /*partitions*/) override {
    return absl::UnimplementedError("assignments");
  }

 private:
  WorkerInfo info_;
  Stream* const stream_;
};

class GroupSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<WorkerLink>> workers;
    for (size_t w = 0; w < 2; ++w) {
      workers.push_back(std::make_unique<FakeWorker>(2048 * static_cast<DeviceId>(w), &streams_[w]));
    }
    auto group = WorkerGroup::Create(std::move(workers));
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    session_ = group_->OpenSession(7, nullptr);
  }

  void Compile(ExecutableId id, const std::string& code, const std::vector<DeviceId>& devices) {
    absl::Status status = absl::UnknownError("no answer");
    session_->Compile({.executable = id, .code = code, .devices = devices},
                      [&](const absl::StatusOr<CompiledProgram>& compiled) { status = compiled.status(); });
    ASSERT_TRUE(status.ok()) << status;
  }
  // A buffer that the client has filled, or a result.
  void Launch(LaunchId id, ExecutableId program, BufferId argument, BufferId result, uint32_t devices = 1,
              bool end_is_awaited = false) {
    cluster::Launch launch;
    launch.id = id;
    launch.executable = program;
    launch.arguments = {{argument, devices, {}}};
    launch.results = {{result, devices, {}}};
    launch.end_is_awaited = end_is_awaited;
    launch.on_done = [](const absl::Status&) {};
    session_->Execute(std::move(launch));
  }

  Stream streams_[2];
  std::unique_ptr<WorkerGroup> group_;
  std::shared_ptr<SessionLink> session_;
};

TEST_F(GroupSessionTest, PlacesComeInTheirOrderOnTheStreamOfASession) {
  Compile(1, "calls", {0});
  Compile(2, "plain", {0});
  Compile(3, "plain", {0, 2048});
  Launch(1, 1, 100, 101);
  Launch(2, 2, 101, 102);  // held until the Python function is through
  EXPECT_EQ(streams_[0].commands, (std::vector<std::string>{"launch 1 at 1", "held 2 at 0"}));
  // The function ends, on another thread, while a launch that has its places is on its way to the workers.
  streams_[0].before_launch = [this] { std::thread([this] { streams_[0].Finish(1); }).join(); };
  Launch(3, 3, 200, 300, 2);
  EXPECT_EQ(streams_[0].commands,
            (std::vector<std::string>{"launch 1 at 1", "held 2 at 0", "launch 3 at 2", "release 2 at 3"}));
  EXPECT_EQ(streams_[1].commands, (std::vector<std::string>{"launch 3 at 1"}));
  // What comes next finds nothing in its way.
  Launch(4, 3, 200, 400, 2);
  EXPECT_EQ(streams_[0].commands.back(), "launch 4 at 4");
}

TEST_F(GroupSessionTest, PlacesComeInTheirOrderFromManyThreads) {
  Compile(1, "calls", {0});
  Compile(2, "plain", {0});
  Compile(3, "plain", {0});
  constexpr LaunchId kRounds = 200;
  for (LaunchId i = 0; i < kRounds; ++i) {
    Launch(3 * i + 1, 1, 100, 1000 + 2 * i);
    Launch(3 * i + 2, 2, 1000 + 2 * i, 1001 + 2 * i);
    auto done = std::move(streams_[0].on_done[3 * i + 1]);
    std::thread python([&] { done(absl::OkStatus()); });
    Launch(3 * i + 3, 3, 100, 100'000 + i);
    python.join();
  }
  ASSERT_EQ(streams_[0].places.size(), 3 * kRounds);
  for (size_t i = 0; i < streams_[0].places.size(); ++i) EXPECT_EQ(streams_[0].places[i], i + 1);
}

TEST_F(GroupSessionTest, WorkersAreToldOfEndsThatAreAwaited) {
  Compile(1, "calls", {0, 2048});
  Compile(2, "plain", {0, 2048});
  Launch(1, 2, 100, 200, 2);
  Launch(2, 2, 100, 300, 2, /*end_is_awaited=*/true);
  Launch(3, 1, 100, 400, 2);  // what uses its results waits for the functions
  Launch(4, 2, 400, 500, 2);
  for (const Stream& stream : streams_) EXPECT_EQ(stream.awaited, (std::vector<LaunchId>{2, 3}));
}

}  // namespace
}  // namespace helmway::cluster
