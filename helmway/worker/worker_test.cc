#include "helmway/worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/cache/entry.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/remote_worker.h"
#include "helmway/net/worker_service.h"
#include "helmway/pjrt/pjrt_testing.h"
#include "helmway/storage/memory_store.h"
#include "helmway/wire/ifrt_array.pb.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/status.h"
#include "helmway/worker/host_transfer.h"
#include "helmway/worker/link_testing.h"

namespace helmway::worker {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using cluster::BufferId;
using cluster::BufferNames;
using cluster::DeviceId;
using cluster::SessionLink;

constexpr cluster::ElementType kF32 = 11;
constexpr cluster::ElementType kS4 = 21;
constexpr cluster::ElementType kS32 = 4;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kCancelled = absl::StatusCode::kCancelled;
constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

// More than the worker copies out, so that a read looks at the device's own memory.
constexpr int64_t kLarge = 8192;
static_assert(kLarge * 4 > kLargestCopiedRead);

std::string AddOne(int64_t size, bool donates = false) {
  const std::string type = absl::StrCat("tensor<", size, "xf32>");
  return absl::StrCat("module @add_one { func.func public @main(%a: ", type,
                      donates ? " {tf.aliasing_output = 0 : i32}" : "", ") -> ", type,
                      " {\n %one = stablehlo.constant dense<1.0> : ", type,
                      "\n %0 = stablehlo.add %a, %one : ", type, "\n return %0 : ", type, "\n } }");
}

constexpr char kAdd[] = R"(
module @add {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";

// Each of four devices holds 2 of 8 numbers. The sum of all (an all-reduce), and every number plus one.
constexpr char kSum[] = R"(
module @sum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<f32> {mhlo.sharding = "{replicated}"}, tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<8xf32>
    %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %1 = stablehlo.add %a, %one : tensor<8xf32>
    return %0, %1 : tensor<f32>, tensor<8xf32>
  }
})";

// The same devices, but none needs another.
constexpr char kApart[] = R"(
module @apart attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %1 = stablehlo.add %a, %a : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
})";

// Costs enough for the plugin to run it on a thread of its own.
constexpr int64_t kSlowArgument = 512 * 512;
constexpr char kSlow[] = R"(
module @slow {
  func.func public @main(%a: tensor<262144xf32>) -> tensor<512x512xf32> {
    %m = stablehlo.reshape %a : (tensor<262144xf32>) -> tensor<512x512xf32>
    %0 = stablehlo.dot %m, %m : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
    return %0 : tensor<512x512xf32>
  }
})";

BufferNames One(BufferId id) { return {id, 1, {}}; }

// Whether a test has the worker in its own process or behind the network: nothing may tell them apart.
enum class LinkKind { kInProcess, kRemote };

class WorkerTest : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    const char* plugin = std::getenv("HELMWAY_PJRT_PLUGIN");
    ASSERT_NE(plugin, nullptr) << "HELMWAY_PJRT_PLUGIN is not set: configure with "
                                  "-DHELMWAY_PJRT_PLUGIN=/path/of/pjrt_c_api_cpu_plugin.so";
    auto worker = Worker::Create({.plugin_path = plugin,
                                  .virtual_devices = 4,
                                  .slice_index = 3,
                                  .task_index = 5,
                                  .host_memory = pool_,
                                  .available_memory = available_memory_,
                                  .compile_cache = cache_});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    link_ = worker_.get();
    if (GetParam() == LinkKind::kRemote) Serve();
    ASSERT_NE(link_, nullptr);
    for (const cluster::DeviceInfo& device : link_->info().devices) devices_.push_back(device.id);
    ASSERT_EQ(devices_.size(), 4u);
    session_ = OpenSession();
  }
  void TearDown() override {
    for (const auto& session : sessions_) session->Close();
    session_.reset();
    sessions_.clear();
    remote_.reset();
    streams_.reset();
    server_.reset();
    service_.reset();
    worker_.reset();
  }

  void Serve() {
    link_ = nullptr;
    service_ = net::MakeWorkerService(worker_.get(), {.incarnation = 7, .host_memory = pool_});
    auto server = net::GrpcServer::Start("127.0.0.1:0", {}, {service_.get()});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    streams_ = std::make_unique<net::MessageStreamClient>(&calls_);
    auto remote = net::ConnectToWorker({.address = absl::StrCat("127.0.0.1:", server_->port()),
                                        .name = "worker 5 of slice 3",
                                        .incarnation = 7,
                                        .software = "test",
                                        .streams = streams_.get(),
                                        .host_memory = pool_});
    ASSERT_TRUE(remote.ok()) << remote.status();
    remote_ = *std::move(remote);
    link_ = remote_.get();
  }

  std::shared_ptr<SessionLink> OpenSession() {
    sessions_.push_back(link_->OpenSession(sessions_.size() + 1, sink_));
    return sessions_.back();
  }

  template <typename T>
  base::HostBytes Bytes(const std::vector<T>& values) {
    auto block = pool_->Allocate(static_cast<int64_t>(values.size() * sizeof(T)));
    EXPECT_TRUE(block.ok()) << block.status();
    if (!values.empty()) std::memcpy(block->data, values.data(), values.size() * sizeof(T));
    return (*std::move(block)).Finish();
  }

  static void Declare(SessionLink& session, BufferId id, DeviceId device = 0) {
    session.Declare({.targets = {{id, device}}});
  }
  cluster::HostContents Contents(BufferId id, const std::vector<float>& values, DeviceId device = 0) {
    cluster::HostContents contents;
    contents.targets = {{id, device}};
    contents.element_type = kF32;
    contents.dims = {static_cast<int64_t>(values.size())};
    contents.bytes = Bytes(values);
    return contents;
  }
  void Put(SessionLink& session, BufferId id, const std::vector<float>& values, DeviceId device = 0) {
    Declare(session, id, device);
    session.Fill(Contents(id, values, device));
  }
  // Eight numbers over four devices under the names first ... first + 3.
  void PutSharded(SessionLink& session, BufferId first, const std::vector<float>& values) {
    for (size_t i = 0; i < 4; ++i) {
      Put(session, first + i, {values[2 * i], values[2 * i + 1]}, devices_[i]);
    }
  }

  static ReadAnswer StartRead(SessionLink& session, BufferId id, cluster::ReadFormat format = {}) {
    ReadAnswer answer;
    session.Read(id, std::move(format), answer);
    return answer;
  }
  template <typename T = float>
  static absl::StatusOr<std::vector<T>> Read(SessionLink& session, BufferId id,
                                             cluster::ReadFormat format = {}) {
    const ReadAnswer answer = StartRead(session, id, std::move(format));
    const auto& bytes = answer.Wait();
    if (!bytes.ok()) return bytes.status();
    return Values<T>(*bytes);
  }
  template <typename T = float>
  static std::vector<T> ReadOk(SessionLink& session, BufferId id) {
    auto values = Read<T>(session, id);
    EXPECT_TRUE(values.ok()) << values.status();
    return values.value_or(std::vector<T>());
  }
  static StatusAnswer Await(SessionLink& session, const std::vector<BufferNames>& buffers) {
    StatusAnswer answer;
    session.Await(buffers, answer);
    return answer;
  }

  static absl::StatusOr<cluster::CompiledProgram> Compile(SessionLink& session, cluster::ExecutableId id,
                                                          const std::string& code,
                                                          const std::vector<int>& devices = {0}) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session.Compile({.executable = id,
                     .code = code,
                     .options = pjrt::TestCompileOptions(static_cast<int>(devices.size()), devices)},
                    answer);
    auto compiled = answer.Steal();
    EXPECT_NE(answer.thread(), std::this_thread::get_id());
    return compiled;
  }
  static void CompileOk(SessionLink& session, cluster::ExecutableId id, const std::string& code,
                        const std::vector<int>& devices = {0}) {
    auto compiled = Compile(session, id, code, devices);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_EQ(compiled->devices, devices);
  }

  struct Run {
    cluster::ExecutableId executable = 1;
    std::vector<BufferNames> arguments;
    std::vector<BufferNames> results;
    std::vector<int32_t> donated = {};
    std::vector<int32_t> kept = {};
    bool held = false;
    int64_t stream = 0;
  };
  // Returns the answer of on_done.
  StatusAnswer Execute(SessionLink& session, Run run, cluster::LaunchId id = 0) {
    StatusAnswer answer;
    cluster::Launch launch;
    launch.id = id != 0 ? id : next_launch_++;
    launch.executable = run.executable;
    launch.arguments = std::move(run.arguments);
    launch.results = std::move(run.results);
    launch.donated = std::move(run.donated);
    launch.kept = std::move(run.kept);
    launch.held = run.held;
    launch.stream = run.stream;
    launch.on_done = answer;
    session.Execute(std::move(launch));
    session.Flush();
    return answer;
  }

  // A new session runs a program whose devices talk to each other, and gets the right numbers.
  void ExpectCollectivesRun() {
    auto session = OpenSession();
    CompileOk(*session, 1, kSum, {0, 1, 2, 3});
    PutSharded(*session, 1, {1, 2, 3, 4, 5, 6, 7, 8});
    const StatusAnswer done =
        Execute(*session, {.arguments = {{1, 4, {}}}, .results = {{11, 4, {}}, {15, 4, {}}}});
    EXPECT_TRUE(done.Wait().ok()) << done.Wait();
    EXPECT_THAT(ReadOk(*session, 11), ElementsAre(36));
    EXPECT_THAT(ReadOk(*session, 18), ElementsAre(8, 9));
  }

  const std::shared_ptr<TestSink> sink_ = std::make_shared<TestSink>();
  const std::shared_ptr<base::HostMemoryPool> pool_ = std::make_shared<base::HostMemoryPool>(64 << 20);
  std::function<int64_t()> available_memory_ = [] { return base::AvailableMemoryBytes(); };
  std::shared_ptr<cache::CompileCache> cache_ =
      std::make_shared<cache::CompileCache>(cache::CompileCacheOptions{});
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<net::MessageStreamService> service_;
  std::unique_ptr<net::GrpcServer> server_;
  net::CompletionThread calls_;  // of the proxy
  std::unique_ptr<net::MessageStreamClient> streams_;
  std::unique_ptr<cluster::WorkerLink> remote_;
  cluster::WorkerLink* link_ = nullptr;
  std::vector<std::shared_ptr<SessionLink>> sessions_;
  std::shared_ptr<SessionLink> session_;
  std::vector<DeviceId> devices_;
  cluster::LaunchId next_launch_ = 1000;
};

// ---- The worker ----------------------------------------------------------------------------------------

TEST_P(WorkerTest, DescribesItsDevices) {
  const cluster::WorkerInfo& info = link_->info();
  EXPECT_EQ(info.platform_name, "cpu");
  for (const cluster::DeviceInfo& device : info.devices) {
    EXPECT_EQ(std::get<int64_t>(device.attributes.at("slice_index").value), 3);
    EXPECT_EQ(std::get<int64_t>(device.attributes.at("virtual_task_index").value), 5);
    ASSERT_TRUE(device.default_memory.has_value());
    EXPECT_THAT(device.memories, ::testing::Contains(*device.default_memory));
  }
  for (const cluster::MemoryInfo& memory : info.memories) EXPECT_FALSE(memory.devices.empty());
}

TEST_P(WorkerTest, KnowsDefaultLayoutsAndAssignments) {
  auto layout = DefaultLayout(*link_, kF32, {2, 3});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(*layout, "{1,0}");
  EXPECT_EQ(DefaultLayout(*link_, kF32, {2, 3}).value_or("?"), "{1,0}");
  EXPECT_EQ(DefaultLayout(*link_, kF32, {}).value_or("?"), "{}");
  EXPECT_FALSE(DefaultLayout(*link_, /*type=*/12345, {2}).ok());
  auto assignment = link_->DefaultDeviceAssignment(2, 2);
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  EXPECT_EQ(assignment->size(), 4u);
}

TEST(Worker, NamesAPluginThatIsNotThere) {
  auto worker = Worker::Create(
      {.plugin_path = "/nowhere/plugin.so", .host_memory = std::make_shared<base::HostMemoryPool>(0)});
  ASSERT_FALSE(worker.ok());
  EXPECT_THAT(std::string(worker.status().message()), HasSubstr("/nowhere/plugin.so"));
}

// The end of a run finishes what was made of its results, on a thread of the plugin.
TEST_P(WorkerTest, GoesOnlyWhenNothingCallsBack) {
  CompileOk(*session_, 1, kSlow);
  Put(*session_, 1, std::vector<float>(kSlowArgument, 1.0f));
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  base::Notification begun, worker_is_gone;
  session_->Await({One(2)}, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    begun.Notify();
    // A worker that does not wait for this thread is gone long before the end.
    EXPECT_FALSE(worker_is_gone.WaitForNotificationWithTimeout(absl::Milliseconds(100)));
  });
  session_->Copy({.sources = {One(2)}, .results = {One(3)}, .devices = {devices_[1]}});
  begun.WaitForNotification();
  TearDown();
  worker_is_gone.Notify();
  EXPECT_TRUE(done.done());
}

// ---- Bytes in and out ----------------------------------------------------------------------------------

TEST_P(WorkerTest, ReadsWhatItWasFilledWith) {
  Put(*session_, 1, {1, 2, 3});
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2, 3));
}

TEST_P(WorkerTest, AReadWaitsForTheBytes) {
  Declare(*session_, 1);
  const ReadAnswer read = StartRead(*session_, 1);
  const StatusAnswer ready = Await(*session_, {One(1)});
  EXPECT_FALSE(read.done());
  EXPECT_FALSE(ready.done());
  session_->Fill(Contents(1, {7}));
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  EXPECT_THAT(Values(*read.Wait()), ElementsAre(7));
  EXPECT_TRUE(ready.Wait().ok());
  EXPECT_EQ(read.times(), 1);
}

TEST_P(WorkerTest, ScalarsAndEmptyArrays) {
  cluster::HostContents scalar = Contents(1, {5});
  scalar.dims = {};
  Declare(*session_, 1);
  session_->Fill(std::move(scalar));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(5));

  cluster::HostContents empty = Contents(2, {});
  empty.dims = {0, 3};
  Declare(*session_, 2);
  session_->Fill(std::move(empty));
  EXPECT_THAT(ReadOk(*session_, 2), IsEmpty());
  EXPECT_TRUE(Read(*session_, 2, {.byte_strides = std::vector<int64_t>{4, 8}}).ok());
}

TEST_P(WorkerTest, NarrowTypesTakeAByteEach) {
  cluster::HostContents contents;
  contents.targets = {{1, 0}};
  contents.element_type = kS4;
  contents.dims = {5};
  contents.bytes = Bytes<uint8_t>({1, 2, 3, 4, 7});
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  auto values = Read<uint8_t>(*session_, 1);
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->size(), 5u);
  for (uint8_t& value : *values) value &= 15;
  EXPECT_THAT(*values, ElementsAre(1, 2, 3, 4, 7));
}

TEST_P(WorkerTest, OneBufferForSeveralDevices) {
  cluster::HostContents contents = Contents(10, {1, 2, 3, 4});
  contents.targets.clear();
  for (size_t i = 0; i < 4; ++i) contents.targets.push_back({10 + i, devices_[i]});
  session_->Declare({.targets = contents.targets});
  session_->Fill(std::move(contents));
  for (BufferId id = 10; id < 14; ++id) EXPECT_THAT(ReadOk(*session_, id), ElementsAre(1, 2, 3, 4));

  // A run that consumes one of them leaves the others alone.
  CompileOk(*session_, 1, AddOne(4, /*donates=*/true));
  Execute(*session_, {.arguments = {One(10)}, .results = {One(20)}, .donated = {0}});
  EXPECT_THAT(ReadOk(*session_, 20), ElementsAre(2, 3, 4, 5));
  for (BufferId id = 11; id < 14; ++id) EXPECT_THAT(ReadOk(*session_, id), ElementsAre(1, 2, 3, 4));
}

TEST_P(WorkerTest, StridedFill) {
  // Column-major in the host: element (i, j) at 4 * i + 8 * j.
  cluster::HostContents contents = Contents(1, {0, 10, 1, 11, 2, 12});
  contents.dims = {2, 3};
  contents.byte_strides = std::vector<int64_t>{4, 8};
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(0, 1, 2, 10, 11, 12));
}

TEST_P(WorkerTest, StridedFillWithGaps) {
  cluster::HostContents contents = Contents(1, {1, -1, 2, -1, 3});
  contents.dims = {3};
  contents.byte_strides = std::vector<int64_t>{8};
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2, 3));
}

TEST_P(WorkerTest, LargeStridedFill) {
  constexpr int64_t kSide = 512;  // 1 MiB, which the calling thread shall not repack itself
  std::vector<float> transposed(kSide * kSide);
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t j = 0; j < kSide; ++j)
      transposed[static_cast<size_t>(j * kSide + i)] = static_cast<float>(i * kSide + j);
  }
  cluster::HostContents contents = Contents(1, transposed);
  contents.dims = {kSide, kSide};
  contents.byte_strides = std::vector<int64_t>{4, 4 * kSide};
  ASSERT_TRUE(FillIsSlow(contents));
  Declare(*session_, 1);
  const ReadAnswer read = StartRead(*session_, 1);
  session_->Fill(std::move(contents));
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  const std::vector<float> values = Values(*read.Wait());
  ASSERT_EQ(values.size(), transposed.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i));
}

TEST_P(WorkerTest, StridedRead) {
  cluster::HostContents contents = Contents(1, {0, 1, 2, 10, 11, 12});
  contents.dims = {2, 3};
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  auto transposed = Read(*session_, 1, {.byte_strides = std::vector<int64_t>{4, 8}});
  ASSERT_TRUE(transposed.ok()) << transposed.status();
  EXPECT_THAT(*transposed, ElementsAre(0, 10, 1, 11, 2, 12));
  // Gaps are zeros.
  auto gaps = Read(*session_, 1, {.byte_strides = std::vector<int64_t>{16, 4}});
  ASSERT_TRUE(gaps.ok()) << gaps.status();
  EXPECT_THAT(*gaps, ElementsAre(0, 1, 2, 0, 10, 11, 12));
  EXPECT_EQ(Read(*session_, 1, {.byte_strides = std::vector<int64_t>{4}}).status().code(), kInvalid);
}

TEST_P(WorkerTest, ADeviceLayoutDoesNotChangeWhatIsRead) {
  cluster::HostContents contents = Contents(1, {0, 1, 2, 10, 11, 12});
  contents.dims = {2, 3};
  contents.minor_to_major = std::vector<int64_t>{0, 1};
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(0, 1, 2, 10, 11, 12));
}

TEST_P(WorkerTest, FillsThatCannotBeDoneAreErrorsOfTheBuffer) {
  Declare(*session_, 1);
  session_->Fill(Contents(1, {1}, /*device=*/99));
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);

  cluster::HostContents no_memory = Contents(2, {1});
  no_memory.memory_kind = "drum";
  Declare(*session_, 2);
  session_->Fill(std::move(no_memory));
  auto read = Read(*session_, 2);
  EXPECT_EQ(read.status().code(), kInvalid);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("drum"));

  cluster::HostContents no_type = Contents(3, {1});
  no_type.element_type = 12345;
  Declare(*session_, 3);
  session_->Fill(std::move(no_type));
  EXPECT_FALSE(Read(*session_, 3).ok());
}

TEST_P(WorkerTest, FillOfADeletedOrUnknownBufferIsSkipped) {
  Declare(*session_, 1);
  session_->Delete({One(1)});
  session_->Fill(Contents(1, {1}));
  session_->Fail({{1, 0}, {2, 0}}, absl::DataLossError("x"));
  session_->Fill(Contents(3, {1}));
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
  EXPECT_EQ(Read(*session_, 3).status().code(), kInvalid);
}

TEST_P(WorkerTest, AHeldReadOutlivesItsBuffer) {
  std::vector<float> values(kLarge);
  std::iota(values.begin(), values.end(), 0.0f);
  Put(*session_, 1, values);
  const ReadAnswer read = StartRead(*session_, 1);
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  session_->Delete({One(1)});
  session_->Close();
  EXPECT_EQ(Values(*read.Wait()), values);
  EXPECT_TRUE(read.Steal().ok());  // let go of it before the worker ends
}

// ---- Launches ------------------------------------------------------------------------------------------

TEST_P(WorkerTest, RunsAProgram) {
  CompileOk(*session_, 1, kAdd);
  Put(*session_, 1, {1, 2, 3, 4});
  Put(*session_, 2, {10, 20, 30, 40});
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1), One(2)}, .results = {One(3)}});
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  EXPECT_THAT(ReadOk(*session_, 3), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(done.times(), 1);
}

TEST_P(WorkerTest, AProgramSaysWhatItIs) {
  auto compiled = Compile(*session_, 1, kSum, {3, 2, 1, 0});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_THAT(compiled->name, HasSubstr("sum"));
  EXPECT_EQ(compiled->num_replicas, 1);
  EXPECT_EQ(compiled->num_partitions, 4);
  EXPECT_THAT(compiled->devices, ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(compiled->output_memory_kinds, ElementsAre("device", "device"));
  EXPECT_THAT(compiled->optimized_hlo, Not(IsEmpty()));
  EXPECT_TRUE(compiled->memory_stats.ok()) << compiled->memory_stats.status();
}

TEST_P(WorkerTest, AProgramThatWasCompiledBeforeIsLoaded) {
  auto compiled = Compile(*session_, 1, kSum, {0, 1, 2, 3});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  auto other = OpenSession();
  auto loaded = Compile(*other, 1, kSum, {3, 2, 1, 0});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(cache_->stats().misses, 1);
  EXPECT_EQ(cache_->stats().memory_hits, 1);
  EXPECT_THAT(loaded->devices, ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(loaded->name, compiled->name);
  EXPECT_EQ(loaded->num_partitions, 4);
  EXPECT_EQ(loaded->output_memory_kinds, compiled->output_memory_kinds);
  EXPECT_EQ(loaded->optimized_hlo, compiled->optimized_hlo);
  EXPECT_EQ(loaded->memory_stats.value(), compiled->memory_stats.value());
  ExpectCollectivesRun();
  EXPECT_EQ(cache_->stats().misses, 1);
}

// Programs that come from a store and from nowhere else. They are known before they are loaded.
class StoredProgramTest : public WorkerTest {
 protected:
  StoredProgramTest() {
    cache_ = std::make_shared<cache::CompileCache>(
        cache::CompileCacheOptions{.max_memory_bytes = 0, .store = store_});
  }

  // Has the one entry of the store changed by `change`.
  template <typename Function>
  void ChangeEntry(Function change) {
    cache_->Flush(absl::InfiniteFuture());
    const auto objects = store_->List("", 10);
    ASSERT_TRUE(objects.ok() && objects->size() == 1) << objects.status();
    const std::string& name = objects->front().name;
    const std::string bytes = store_->Get(name).value();
    const cache::EntryHeader header = cache::DecodeHeader(bytes).value();
    absl::StatusOr<cache::Entry> entry = cache::DecodeEntry(bytes, header.key, header.plugin);
    ASSERT_TRUE(entry.ok()) << entry.status();
    change(*entry);
    const absl::Status put =
        store_->Put(name, cache::EncodeEntry(header.key, header.plugin, *entry), storage::PutMode::kReplace);
    ASSERT_TRUE(put.ok()) << put;
  }

  // Compiles kSlow for each of the devices, and starts it a few times on each at once, behind one another;
  // the first result is zeros, and what follows uses it.
  std::vector<StatusAnswer> StartSlowAndMore(SessionLink& session) {
    std::vector<StatusAnswer> answers;
    CompileOk(session, 1, kSlow);
    CompileOk(session, 2, kTwice);
    Put(session, 1, std::vector<float>(kSlowArgument, 0));
    Put(session, 2, std::vector<float>(kSlowArgument, 1));
    answers.push_back(Execute(session, {.executable = 1, .arguments = {One(1)}, .results = {One(10)}}));
    for (BufferId i = 0; i < 20; ++i) {
      answers.push_back(Execute(
          session, {.executable = 2, .arguments = {One(10 + i)}, .results = {One(11 + i)}, .donated = {0}}));
    }
    answers.push_back(Execute(session, {.executable = 1, .arguments = {One(2)}, .results = {One(40)}}));
    return answers;
  }

  static constexpr char kTwice[] = R"(
module @twice {
  func.func public @main(%a: tensor<512x512xf32> {tf.aliasing_output = 0 : i32}) -> tensor<512x512xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<512x512xf32>
    %0 = stablehlo.add %a, %a : tensor<512x512xf32>
    %1 = stablehlo.add %0, %one : tensor<512x512xf32>
    return %1 : tensor<512x512xf32>
  }
})";

  const std::shared_ptr<storage::MemoryStore> store_ = std::make_shared<storage::MemoryStore>();
};

TEST_P(StoredProgramTest, LaunchesWaitForTheLoadingAndKeepTheirOrder) {
  for (const bool from_store : {false, true}) {
    auto session = OpenSession();
    for (const StatusAnswer& answer : StartSlowAndMore(*session)) {
      EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
    }
    EXPECT_EQ(ReadOk(*session, 30), std::vector<float>(kSlowArgument, (1 << 20) - 1));
    EXPECT_EQ(ReadOk(*session, 40), std::vector<float>(kSlowArgument, 512));
    cache_->Flush(absl::InfiniteFuture());
    EXPECT_EQ(cache_->stats().store_hits, from_store ? 2 : 0);
    session->Close();
  }
  // Of four devices whose parts start together.
  ExpectCollectivesRun();
  cache_->Flush(absl::InfiniteFuture());
  ExpectCollectivesRun();
  EXPECT_EQ(cache_->stats().store_hits, 3);
  EXPECT_EQ(cache_->stats().rejected, 0);
}

TEST_P(StoredProgramTest, WhatDoesNotLoadIsCompiled) {
  CompileOk(*session_, 1, kSlow);
  ChangeEntry([](cache::Entry& entry) { entry.executable = "no program"; });
  auto other = OpenSession();
  for (const StatusAnswer& answer : StartSlowAndMore(*other)) {
    EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
  }
  EXPECT_EQ(ReadOk(*other, 30), std::vector<float>(kSlowArgument, (1 << 20) - 1));
  EXPECT_EQ(cache_->stats().rejected, 1);
  // A good one has taken its place.
  cache_->Flush(absl::InfiniteFuture());
  auto third = OpenSession();
  for (const StatusAnswer& answer : StartSlowAndMore(*third)) {
    EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
  }
  EXPECT_EQ(cache_->stats().rejected, 1);
}

TEST_P(StoredProgramTest, WhatDoesNotLoadAndCompilesToAnotherProgramFailsItsRuns) {
  CompileOk(*session_, 1, kSlow);
  ChangeEntry([](cache::Entry& entry) {
    entry.executable = "no program";
    entry.program.output_memory_kinds = {"unpinned_host"};
  });
  auto other = OpenSession();
  for (const StatusAnswer& answer : StartSlowAndMore(*other)) {
    EXPECT_TRUE(absl::IsInternal(answer.Wait())) << answer.Wait();
    EXPECT_THAT(std::string(answer.Wait().message()), HasSubstr("compile it again"));
  }
  Answer<absl::StatusOr<cluster::CostProperties>> costs;
  other->CostAnalysis(1, costs);
  EXPECT_TRUE(absl::IsInternal(costs.Wait().status())) << costs.Wait().status();
  CompileOk(*other, 3, kSlow);
  const StatusAnswer again = Execute(*other, {.executable = 3, .arguments = {One(1)}, .results = {One(50)}});
  EXPECT_TRUE(again.Wait().ok()) << again.Wait();
}

TEST_P(StoredProgramTest, ASessionMayEndWhileItsProgramsAreLoaded) {
  CompileOk(*session_, 1, kSlow);
  cache_->Flush(absl::InfiniteFuture());
  for (int i = 0; i < 3; ++i) {
    auto session = OpenSession();
    std::vector<StatusAnswer> answers = StartSlowAndMore(*session);
    session->Close();
    for (const StatusAnswer& answer : answers) {
      EXPECT_TRUE(answer.Wait().ok() || absl::IsCancelled(answer.Wait())) << answer.Wait();
    }
  }
  ExpectCollectivesRun();
}

TEST_P(WorkerTest, AProgramThatIsCompiledOnlyToSeeLeavesNoTrace) {
  for (const cluster::ExecutableId id : {1, 2}) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session_->Compile(
        {.executable = id, .code = kAdd, .options = pjrt::TestCompileOptions(1, {0}), .only_to_see = true},
        answer);
    EXPECT_TRUE(answer.Wait().ok()) << answer.Wait().status();
  }
  EXPECT_EQ(cache_->stats().misses + cache_->stats().memory_hits, 0);
  CompileOk(*session_, 3, kAdd);
  EXPECT_EQ(cache_->stats().misses, 1);
}

TEST_P(WorkerTest, ALaunchWaitsForItsInput) {
  CompileOk(*session_, 1, AddOne(1));
  Declare(*session_, 1);
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  const ReadAnswer read = StartRead(*session_, 2);
  EXPECT_FALSE(done.done());
  EXPECT_FALSE(read.done());
  session_->Fill(Contents(1, {1}));
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  EXPECT_THAT(Values(*read.Wait()), ElementsAre(2));
  EXPECT_TRUE(done.Wait().ok());
}

TEST_P(WorkerTest, AHeldLaunchLetsOthersGoFirst) {
  CompileOk(*session_, 1, AddOne(1));
  Declare(*session_, 1);
  const StatusAnswer held =
      Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .held = true}, /*id=*/77);
  const ReadAnswer read = StartRead(*session_, 2);

  // Another session uses the same device meanwhile.
  auto other = OpenSession();
  CompileOk(*other, 2, AddOne(1));
  Put(*other, 1, {5});
  EXPECT_TRUE(Execute(*other, {.executable = 2, .arguments = {One(1)}, .results = {One(2)}}).Wait().ok());
  EXPECT_THAT(ReadOk(*other, 2), ElementsAre(6));

  EXPECT_FALSE(held.done());
  session_->Fill(Contents(1, {1}));
  EXPECT_FALSE(held.done());
  session_->ReleaseLaunch(78, 0);  // no such launch
  session_->ReleaseLaunch(77, 0);
  EXPECT_TRUE(held.Wait().ok()) << held.Wait();
  session_->ReleaseLaunch(77, 0);
  EXPECT_THAT(Values(*read.Wait()), ElementsAre(2));
  EXPECT_EQ(held.times(), 1);
}

TEST_P(WorkerTest, AChainOfManyLaunches) {
  CompileOk(*session_, 1, AddOne(3));
  Put(*session_, 1, {0, 100, 200});
  std::vector<StatusAnswer> done;
  for (BufferId i = 1; i <= 200; ++i) {
    done.push_back(Execute(*session_, {.arguments = {One(i)}, .results = {One(i + 1)}}));
  }
  EXPECT_THAT(ReadOk(*session_, 201), ElementsAre(200, 300, 400));
  EXPECT_THAT(ReadOk(*session_, 100), ElementsAre(99, 199, 299));
  for (const StatusAnswer& answer : done) EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
}

TEST_P(WorkerTest, AChainOverDevices) {
  for (int d = 0; d < 4; ++d) CompileOk(*session_, static_cast<cluster::ExecutableId>(d + 1), AddOne(1), {d});
  Put(*session_, 1, {0});
  BufferId next = 1;
  for (int round = 0; round < 25; ++round) {
    for (size_t d = 0; d < 4; ++d) {
      Execute(*session_, {.executable = d + 1, .arguments = {One(next)}, .results = {One(next + 1)}});
      session_->Copy({.sources = One(next + 1),
                      .results = One(next + 2),
                      .devices = {devices_[(d + 1) % 4]},
                      .memory_kind = ""});
      next += 2;
    }
  }
  EXPECT_THAT(ReadOk(*session_, next), ElementsAre(100));
}

TEST_P(WorkerTest, DeletedWhileInUse) {
  CompileOk(*session_, 1, AddOne(kLarge));
  Put(*session_, 1, std::vector<float>(kLarge, 1));
  for (BufferId i = 1; i <= 50; ++i) {
    Execute(*session_, {.arguments = {One(i)}, .results = {One(i + 1)}});
    session_->Delete({One(i)});
  }
  const ReadAnswer read = StartRead(*session_, 51);
  session_->Copy({.sources = One(51), .results = One(52), .devices = {1}, .memory_kind = ""});
  session_->Delete({One(51), One(400)});
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  EXPECT_THAT(Values(*read.Wait()), Each(51));
  EXPECT_THAT(ReadOk(*session_, 52), Each(51));
  EXPECT_EQ(Read(*session_, 51).status().code(), kInvalid);
  EXPECT_TRUE(read.Steal().ok());
}

TEST_P(WorkerTest, DeletedBeforeItsBytesCome) {
  CompileOk(*session_, 1, AddOne(2));
  for (const BufferId id : {1, 2}) {
    Declare(*session_, id);
    Execute(*session_, {.arguments = {One(id)}, .results = {One(id + 10)}});
    session_->Copy({.sources = One(id), .results = One(id + 20), .devices = {1}, .memory_kind = ""});
  }
  const ReadAnswer read = StartRead(*session_, 1);
  session_->Delete({{1, 2, {}}});
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
  session_->Fill(Contents(1, {3, 4}));
  session_->Fail({{2, 0}}, absl::DataLossError("broken off"));
  EXPECT_THAT(Values(*read.Wait()), ElementsAre(3, 4));
  EXPECT_THAT(ReadOk(*session_, 11), ElementsAre(4, 5));
  EXPECT_THAT(ReadOk(*session_, 21), ElementsAre(3, 4));
  for (const BufferId id : {12, 22}) {
    EXPECT_THAT(std::string(Read(*session_, id).status().message()), HasSubstr("broken off"));
  }
  // Nothing of it is left.
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
}

TEST_P(WorkerTest, AReadOfADeletedBufferEndsWithTheSession) {
  Declare(*session_, 1);
  const ReadAnswer read = StartRead(*session_, 1);
  session_->Delete({One(1)});
  session_->Close();
  ASSERT_TRUE(read.done()) << "callbacks run once, also when the buffer was deleted before its bytes came";
  EXPECT_THAT(read.Wait().status().code(), AnyOf(kCancelled, kInvalid));
}

// The first of two arguments is donated, or both. With an all-reduce, so that no device can go on alone.
std::string AddAndSum(bool both) {
  return absl::StrCat(R"(
module @add_and_sum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(
      %a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}", tf.aliasing_output = 0 : i32},
      %b: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}")",
                      both ? ", tf.aliasing_output = 1 : i32" : "", R"(})
      -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}, tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"},
          tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    %1 = stablehlo.subtract %a, %b : tensor<8xf32>
    %2 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<f32>
  }
})");
}

// ---- Donation ------------------------------------------------------------------------------------------

TEST_P(WorkerTest, AChainOfDonations) {
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  Put(*session_, 1, std::vector<float>(kLarge, 0));
  for (BufferId i = 1; i <= 100; ++i) {
    Execute(*session_, {.arguments = {One(i)}, .results = {One(i + 1)}, .donated = {0}});
  }
  EXPECT_THAT(ReadOk(*session_, 101), Each(100));
}

TEST_P(WorkerTest, UseAfterDonationFails) {
  CompileOk(*session_, 1, AddOne(2, /*donates=*/true));
  Put(*session_, 1, {1, 2});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .donated = {0}});
  // Whether the run is over or not.
  for (int i = 0; i < 2; ++i) {
    auto read = Read(*session_, 1);
    EXPECT_EQ(read.status().code(), kInvalid);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("deleted or donated"));
    const BufferId run = 10 + static_cast<BufferId>(i), copy = 20 + static_cast<BufferId>(i);
    EXPECT_EQ(
        Execute(*session_, {.arguments = {One(1)}, .results = {One(run)}, .donated = {0}}).Wait().code(),
        kInvalid);
    EXPECT_EQ(Read(*session_, run).status().code(), kInvalid);
    session_->Copy({.sources = One(1), .results = One(copy), .devices = {1}, .memory_kind = ""});
    EXPECT_EQ(Read(*session_, copy).status().code(), kInvalid);
    EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(2, 3));
  }
}

TEST_P(WorkerTest, DonatedAndUsedInOneLaunch) {
  CompileOk(*session_, 1, AddAndSum(/*both=*/false), {0, 1, 2, 3});
  CompileOk(*session_, 2, AddAndSum(/*both=*/true), {0, 1, 2, 3});
  PutSharded(*session_, 1, {1, 2, 3, 4, 5, 6, 7, 8});
  PutSharded(*session_, 11, {1, 2, 3, 4, 5, 6, 7, 8});
  const std::vector<BufferNames> results = {{21, 4, {}}, {25, 4, {}}, {29, 4, {}}};
  // Only the third device's shard is in both. The others must not begin.
  const StatusAnswer used = Execute(
      *session_, {.arguments = {{1, 4, {}}, {0, 0, {11, 12, 3, 14}}}, .results = results, .donated = {0}});
  EXPECT_EQ(used.Wait().code(), kInvalid);
  EXPECT_THAT(std::string(used.Wait().message()), HasSubstr("previously donated in the same call"));
  EXPECT_EQ(Read(*session_, 21).status(), used.Wait());
  PutSharded(*session_, 31, {1, 2, 3, 4, 5, 6, 7, 8});
  const StatusAnswer twice = Execute(*session_, {.executable = 2,
                                                 .arguments = {{31, 4, {}}, {0, 0, {31, 12, 13, 14}}},
                                                 .results = {{41, 4, {}}, {45, 4, {}}, {49, 4, {}}},
                                                 .donated = {0, 1}});
  EXPECT_EQ(twice.Wait().code(), kInvalid);
  EXPECT_THAT(std::string(twice.Wait().message()), HasSubstr("donate the same buffer twice"));
  EXPECT_EQ(Read(*session_, 52).status(), twice.Wait());
  // Where nothing is donated, one buffer may be several arguments.
  CompileOk(*session_, 3, kAdd, {0});
  Put(*session_, 60, {1, 2, 3, 4});
  Execute(*session_, {.executable = 3, .arguments = {One(60), One(60)}, .results = {One(61)}});
  EXPECT_THAT(ReadOk(*session_, 61), ElementsAre(2, 4, 6, 8));
  ExpectCollectivesRun();
}

TEST_P(WorkerTest, DonationWhileAReadIsHeld) {
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  Put(*session_, 1, std::vector<float>(kLarge, 1));
  const ReadAnswer read = StartRead(*session_, 1);
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .donated = {0}});
  EXPECT_THAT(ReadOk(*session_, 2), Each(2));
  EXPECT_THAT(Values(*read.Wait()), Each(1));
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
  EXPECT_TRUE(read.Steal().ok());
}

TEST_P(WorkerTest, DonationAfterAReadThatIsNotOver) {
  for (const int64_t size : {int64_t{2}, kLarge}) {
    SCOPED_TRACE(size);
    auto session = OpenSession();
    CompileOk(*session, 1, AddOne(size, /*donates=*/true));
    Declare(*session, 1);
    const ReadAnswer read = StartRead(*session, 1);
    session->Copy({.sources = One(1), .results = One(3), .devices = {2}, .memory_kind = ""});
    Execute(*session, {.arguments = {One(1)}, .results = {One(2)}, .donated = {0}, .held = true}, /*id=*/5);
    session->Fill(Contents(1, std::vector<float>(static_cast<size_t>(size), 1)));
    session->ReleaseLaunch(5, 0);
    EXPECT_THAT(ReadOk(*session, 2), Each(2));
    ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
    EXPECT_THAT(Values(*read.Wait()), Each(1));
    EXPECT_THAT(ReadOk(*session, 3), Each(1));
    EXPECT_TRUE(read.Steal().ok());
  }
}

TEST_P(WorkerTest, KeptArgumentsSurvive) {
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  Put(*session_, 1, std::vector<float>(kLarge, 1));
  // Numbers that are no arguments change nothing.
  EXPECT_TRUE(
      Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .kept = {-1, 0, 1000}}).Wait().ok());
  EXPECT_THAT(ReadOk(*session_, 2), Each(2));
  EXPECT_THAT(ReadOk(*session_, 1), Each(1));
  Execute(*session_, {.arguments = {One(1)}, .results = {One(3)}, .kept = {0}});
  EXPECT_THAT(ReadOk(*session_, 3), Each(2));
}

TEST_P(WorkerTest, TheHostsBytesAreTheReadersOwn) {
  // The buffer lies in the host block; a run that consumes it may write there, but only there.
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  cluster::HostContents contents = Contents(1, std::vector<float>(kLarge, 1));
  base::HostBytes shared = contents.bytes;
  contents.bytes.exclusive = false;
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .donated = {0}});
  EXPECT_THAT(ReadOk(*session_, 2), Each(2));
  EXPECT_THAT(Values(shared), Each(1));
}

// ---- Errors as values ----------------------------------------------------------------------------------

TEST_P(WorkerTest, TheFirstCauseReachesEveryUse) {
  CompileOk(*session_, 1, kAdd);
  Put(*session_, 1, {1, 2, 3, 4});
  for (const bool fail_first : {true, false}) {
    SCOPED_TRACE(fail_first);
    const BufferId base = fail_first ? 100 : 200;
    const absl::Status cause = absl::DataLossError("the upload broke off");
    Declare(*session_, base);
    if (fail_first) session_->Fail({{base, 0}}, cause);
    std::vector<StatusAnswer> done;
    for (BufferId i = base; i < base + 5; ++i) {
      done.push_back(Execute(*session_, {.arguments = {One(1), One(i)}, .results = {One(i + 1)}}));
    }
    session_->Copy({.sources = One(base + 5), .results = One(base + 6), .devices = {1}, .memory_kind = ""});
    if (!fail_first) session_->Fail({{base, 0}}, cause);
    for (const StatusAnswer& answer : done) EXPECT_EQ(answer.Wait(), cause);
    for (BufferId i = base; i <= base + 6; ++i) {
      EXPECT_EQ(Read(*session_, i).status(), cause) << i;
      EXPECT_EQ(Await(*session_, {One(i)}).Wait(), cause) << i;
    }
    // Failing or filling again changes nothing.
    session_->Fail({{base, 0}}, absl::InternalError("later"));
    EXPECT_EQ(Read(*session_, base).status(), cause);
  }
  // The device is well.
  Execute(*session_, {.arguments = {One(1), One(1)}, .results = {One(300)}});
  EXPECT_THAT(ReadOk(*session_, 300), ElementsAre(2, 4, 6, 8));
}

TEST_P(WorkerTest, OneFailedShardFailsACollectiveOnAllDevices) {
  CompileOk(*session_, 1, kSum, {0, 1, 2, 3});
  const absl::Status cause = absl::DataLossError("a shard is lost");
  for (BufferId i = 0; i < 3; ++i) Put(*session_, 10 + i, {1, 2}, devices_[i]);
  Declare(*session_, 13, devices_[3]);
  const StatusAnswer sum =
      Execute(*session_, {.arguments = {{10, 4, {}}}, .results = {{20, 4, {}}, {24, 4, {}}}});
  session_->Fail({{13, devices_[3]}}, cause);
  EXPECT_EQ(sum.Wait(), cause);
  for (BufferId i = 20; i < 28; ++i) EXPECT_EQ(Read(*session_, i).status(), cause) << i;
  ExpectCollectivesRun();
}

// XLA's CPU client lets no program with several devices begin before every device of the one before has been
// called: a part that is left out would stop them all.
TEST_P(WorkerTest, OneFailedShardDoesNotStopLaterPrograms) {
  CompileOk(*session_, 2, kApart, {0, 1, 2, 3});
  const absl::Status cause = absl::DataLossError("a shard is lost");
  for (BufferId i = 0; i < 3; ++i) Put(*session_, 10 + i, {1, 2}, devices_[i]);
  Declare(*session_, 13, devices_[3]);
  const StatusAnswer apart =
      Execute(*session_, {.executable = 2, .arguments = {{10, 4, {}}}, .results = {{30, 4, {}}}});
  session_->Fail({{13, devices_[3]}}, cause);
  EXPECT_EQ(apart.Wait(), cause);
  EXPECT_EQ(Read(*session_, 33).status(), cause);
  ExpectCollectivesRun();
}

TEST_P(WorkerTest, ASessionThatEndsDoesNotStopProgramsOfOthers) {
  for (int round = 0; round < 5; ++round) {
    auto session = OpenSession();
    CompileOk(*session, 2, kApart, {0, 1, 2, 3});
    for (BufferId i = 0; i < 3; ++i) Put(*session, 10 + i, {1, 2}, devices_[i]);
    Declare(*session, 13, devices_[3]);
    const StatusAnswer apart =
        Execute(*session, {.executable = 2, .arguments = {{10, 4, {}}}, .results = {{30, 4, {}}}});
    // Three devices may have begun when the fourth learns that its shard will not come.
    session->Close();
    EXPECT_EQ(apart.Wait().code(), kCancelled);
  }
  ExpectCollectivesRun();
}

TEST_P(WorkerTest, ErrorsNameTheCallSiteOfTheFirstCause) {
  const auto context = [&](BufferId id) {
    const absl::Status status = Read(*session_, id).status();
    EXPECT_FALSE(status.ok()) << id;
    return std::string(status.GetPayload(wire::kUserContextPayload).value_or(absl::Cord("none")));
  };
  CompileOk(*session_, 1, kAdd);
  Put(*session_, 1, {1, 2, 3, 4});
  // A run whose argument is gone, an upload and a copy into no memory.
  StatusAnswer done;
  cluster::Launch launch;
  launch.id = 1;
  launch.executable = 1;
  launch.arguments = {One(1), One(99)};
  launch.results = {One(10)};
  launch.user_context = 5;
  launch.on_done = done;
  session_->Execute(std::move(launch));
  session_->Flush();
  EXPECT_EQ(done.Wait(), Read(*session_, 10).status());
  cluster::HostContents contents = Contents(20, {1});
  contents.memory_kind = "drum";
  contents.user_context = 6;
  Declare(*session_, 20);
  session_->Fill(std::move(contents));
  session_->Copy(
      {.sources = One(1), .results = One(30), .devices = {0}, .memory_kind = "drum", .user_context = 7});
  EXPECT_EQ(context(10), "5");
  EXPECT_EQ(context(20), "6");
  EXPECT_EQ(context(30), "7");
  // What is made of them names what made them fail.
  session_->Copy(
      {.sources = One(10), .results = One(40), .devices = {1}, .memory_kind = "", .user_context = 8});
  EXPECT_EQ(context(40), "5");
  Execute(*session_, {.arguments = {One(20), One(10)}, .results = {One(50)}});
  EXPECT_EQ(context(50), "6");
  // The reader is nobody's cause.
  EXPECT_EQ(context(999), "none");
}

TEST_P(WorkerTest, AwaitGivesTheFirstErrorInItsOrder) {
  EXPECT_TRUE(Await(*session_, {}).Wait().ok());
  Declare(*session_, 1);
  Declare(*session_, 2);
  Declare(*session_, 3);
  session_->Fail({{3, 0}}, absl::NotFoundError("three"));
  const StatusAnswer forth = Await(*session_, {{1, 3, {}}});
  const StatusAnswer back = Await(*session_, {One(3), {0, 0, {2, 1}}});
  EXPECT_FALSE(forth.done());
  session_->Fail({{2, 0}}, absl::DataLossError("two"));
  EXPECT_FALSE(forth.done()) << "it waits for all";
  EXPECT_FALSE(back.done());
  session_->Fill(Contents(1, {1}));
  EXPECT_EQ(forth.Wait().code(), kDataLoss);
  EXPECT_EQ(back.Wait().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Await(*session_, {One(1), One(99), One(2)}).Wait().code(), kInvalid);
}

// ---- Copies --------------------------------------------------------------------------------------------

TEST_P(WorkerTest, CopiesBetweenDevicesAndMemories) {
  Put(*session_, 1, {1, 2}, devices_[0]);
  Put(*session_, 2, {3, 4}, devices_[1]);
  session_->Copy({.sources = {1, 2, {}},
                  .results = {0, 0, {12, 11}},
                  .devices = {devices_[3], devices_[2]},
                  .memory_kind = ""});
  EXPECT_THAT(ReadOk(*session_, 12), ElementsAre(1, 2));
  EXPECT_THAT(ReadOk(*session_, 11), ElementsAre(3, 4));
  // The sources are still there; the copies can be used where they are.
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2));
  CompileOk(*session_, 1, AddOne(2), {3});
  Execute(*session_, {.arguments = {One(12)}, .results = {One(13)}});
  EXPECT_THAT(ReadOk(*session_, 13), ElementsAre(2, 3));

  BufferId next = 100;
  for (const cluster::MemoryInfo& memory : link_->info().memories) {
    SCOPED_TRACE(memory.to_string);
    session_->Copy({.sources = One(1),
                    .results = One(next),
                    .devices = {memory.devices[0]},
                    .memory_kind = memory.kind});
    EXPECT_THAT(ReadOk(*session_, next), ElementsAre(1, 2));
    session_->Copy(
        {.sources = One(next), .results = One(next + 1), .devices = {devices_[1]}, .memory_kind = ""});
    EXPECT_THAT(ReadOk(*session_, next + 1), ElementsAre(1, 2));
    next += 2;
  }
}

TEST_P(WorkerTest, CopiesInTheDefaultLayout) {
  cluster::HostContents contents = Contents(1, {1, 2, 3, 4, 5, 6}, devices_[0]);
  contents.dims = {2, 3};
  contents.minor_to_major = {{0, 1}};
  Declare(*session_, 1, devices_[0]);
  session_->Fill(std::move(contents));
  const auto copy = [&](BufferId from, BufferId to, bool default_layout) {
    session_->Copy({.sources = One(from),
                    .results = One(to),
                    .devices = {devices_[1]},
                    .memory_kind = "unpinned_host",
                    .default_layout = default_layout});
    EXPECT_THAT(ReadOk(*session_, to), ElementsAre(1, 2, 3, 4, 5, 6));
  };
  copy(1, 2, false);
  copy(1, 3, true);
  copy(3, 4, true);
  // A program that was compiled for row-major arrays takes the bytes as they lie.
  CompileOk(*session_, 1, R"(module @pass {
    func.func public @main(%a: tensor<2x3xf32>) -> tensor<2x3xf32> { return %a : tensor<2x3xf32> } })",
            {1});
  for (const BufferId id : {2, 3, 4}) Execute(*session_, {.arguments = {One(id)}, .results = {One(10 + id)}});
  EXPECT_THAT(ReadOk(*session_, 12), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(ReadOk(*session_, 13), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(ReadOk(*session_, 14), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_P(WorkerTest, FillsInAnyMemory) {
  BufferId next = 1;
  for (const cluster::MemoryInfo& memory : link_->info().memories) {
    SCOPED_TRACE(memory.to_string);
    cluster::HostContents contents = Contents(next, {1, 2}, memory.devices[0]);
    contents.memory_kind = memory.kind;
    Declare(*session_, next, memory.devices[0]);
    session_->Fill(std::move(contents));
    EXPECT_THAT(ReadOk(*session_, next), ElementsAre(1, 2));
    ++next;
  }
}

TEST_P(WorkerTest, ACopyWaitsForItsSource) {
  Declare(*session_, 1);
  session_->Copy({.sources = One(1), .results = One(2), .devices = {devices_[1]}, .memory_kind = ""});
  session_->Copy({.sources = One(2), .results = One(3), .devices = {devices_[2]}, .memory_kind = ""});
  const ReadAnswer read = StartRead(*session_, 3);
  EXPECT_FALSE(read.done());
  session_->Fill(Contents(1, {4}));
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  EXPECT_THAT(Values(*read.Wait()), ElementsAre(4));
}

// The memories of a CPU are one.
TEST_P(WorkerTest, ACopyToAnotherMemoryOfADeviceIsAView) {
  Put(*session_, 1, std::vector<float>(kLarge, 1));
  session_->Copy({.sources = One(1), .results = One(2), .devices = {0}, .memory_kind = "unpinned_host"});
  session_->Copy({.sources = One(1), .results = One(3), .devices = {devices_[1]}, .memory_kind = ""});
  const ReadAnswer source = StartRead(*session_, 1);
  const ReadAnswer view = StartRead(*session_, 2);
  const ReadAnswer copy = StartRead(*session_, 3);
  for (const ReadAnswer* read : {&source, &view, &copy}) {
    ASSERT_TRUE(read->Wait().ok()) << read->Wait().status();
    EXPECT_THAT(Values(*read->Wait()), Each(1));
  }
  if (GetParam() == LinkKind::kInProcess) {
    EXPECT_EQ(view.Wait()->data, source.Wait()->data);
    EXPECT_NE(copy.Wait()->data, source.Wait()->data);
  }
  session_->Delete({One(1)});
  EXPECT_THAT(ReadOk(*session_, 2), Each(1));
}

TEST_P(WorkerTest, ACopyAndItsSourceDoNotDisturbEachOther) {
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  BufferId next = 100;
  for (const char* memory : {"", "device", "pinned_host", "unpinned_host"}) {
    for (const bool consume_source : {true, false}) {
      for (const bool filled_before : {true, false}) {
        SCOPED_TRACE(absl::StrCat(memory, consume_source ? ", source consumed" : ", copy consumed",
                                  filled_before ? ", filled before" : ", filled after"));
        const BufferId source = next++, copy = next++, back = next++, sum = next++;
        Declare(*session_, source);
        const auto fill = [&] { session_->Fill(Contents(source, std::vector<float>(kLarge, 1))); };
        if (filled_before) fill();
        session_->Copy({.sources = One(source), .results = One(copy), .devices = {0}, .memory_kind = memory});
        // Programs take their arguments from the default memory.
        session_->Copy({.sources = One(copy), .results = One(back), .devices = {0}, .memory_kind = ""});
        Execute(*session_,
                {.arguments = {One(consume_source ? source : back)}, .results = {One(sum)}, .donated = {0}});
        if (!filled_before) fill();
        EXPECT_THAT(ReadOk(*session_, sum), Each(2));
        for (const BufferId id : {source, copy, back}) {
          if (id == (consume_source ? source : back)) {
            EXPECT_EQ(Read(*session_, id).status().code(), kInvalid);
          } else {
            EXPECT_THAT(ReadOk(*session_, id), Each(1));
          }
        }
      }
    }
  }
}

TEST_P(WorkerTest, CopiesThatCannotBeDone) {
  Put(*session_, 1, {1});
  session_->Copy({.sources = One(1), .results = One(2), .devices = {99}, .memory_kind = ""});
  EXPECT_EQ(Read(*session_, 2).status().code(), kInvalid);
  session_->Copy({.sources = One(1), .results = One(3), .devices = {0}, .memory_kind = "drum"});
  EXPECT_EQ(Read(*session_, 3).status().code(), kInvalid);
  session_->Copy({.sources = One(50), .results = One(4), .devices = {0}, .memory_kind = ""});
  EXPECT_EQ(Read(*session_, 4).status().code(), kInvalid);
}

// ---- What no plugin takes from the host ------------------------------------------------------------------

TEST_P(WorkerTest, StringsAndTokensAreNotPutTogetherOrBitcast) {
  xla::ifrt::proto::StringArrayContents contents;
  contents.add_strings("one");
  const std::string serialized = contents.SerializeAsString();
  cluster::HostContents strings;
  strings.targets = {{1, devices_[0]}};
  strings.element_type = xla::ifrt::DTypeProto::KIND_STRING;
  strings.dims = {1};
  strings.bytes = Bytes(std::vector<char>(serialized.begin(), serialized.end()));
  Declare(*session_, 1, devices_[0]);
  session_->Fill(std::move(strings));
  cluster::HostContents token;
  token.targets = {{2, devices_[0]}};
  token.element_type = xla::ifrt::DTypeProto::KIND_TOKEN;
  token.bytes = Bytes(std::vector<char>());
  Declare(*session_, 2, devices_[0]);
  session_->Fill(std::move(token));
  BufferId next = 10;
  for (const BufferId source : {BufferId{1}, BufferId{2}}) {
    EXPECT_TRUE(Await(*session_, {One(source)}).Wait().ok());
    for (const cluster::ElementType type : {kS32, cluster::ElementType{xla::ifrt::DTypeProto::KIND_STRING},
                                            cluster::ElementType{xla::ifrt::DTypeProto::KIND_TOKEN}}) {
      for (const cluster::Dims& dims : {cluster::Dims{}, cluster::Dims{1}}) {
        const cluster::Dims zeros(dims.size(), 0);
        cluster::AssembleBuffers assemble;
        assemble.sources = One(source);
        assemble.results.push_back({{{next, devices_[1]}}, dims, {{0, zeros, zeros, dims}}});
        assemble.element_type = type;
        session_->Assemble(std::move(assemble));
        session_->Bitcast(
            {.sources = One(source), .results = One(next + 1), .element_type = type, .dims = {dims}});
        session_->Flush();
        EXPECT_FALSE(Await(*session_, {One(next)}).Wait().ok());
        EXPECT_FALSE(Await(*session_, {One(next + 1)}).Wait().ok());
        next += 2;
      }
    }
  }
  Put(*session_, 3, {1, 2});
  EXPECT_THAT(ReadOk(*session_, 3), ElementsAre(1, 2));
}

TEST_P(WorkerTest, StringsStayWithTheWorker) {
  xla::ifrt::proto::StringArrayContents contents;
  contents.add_strings("one");
  contents.add_strings(std::string("\0\xff", 2));
  const std::string serialized = contents.SerializeAsString();
  const std::vector<char> bytes(serialized.begin(), serialized.end());
  const auto fill = [&](std::vector<BufferId> ids, const std::string& memory_kind) {
    cluster::HostContents strings;
    for (const BufferId id : ids) {
      Declare(*session_, id, devices_[id % 4]);
      strings.targets.push_back({id, devices_[id % 4]});
    }
    strings.element_type = xla::ifrt::DTypeProto::KIND_STRING;
    strings.dims = {2};
    strings.memory_kind = memory_kind;
    strings.bytes = Bytes(bytes);
    session_->Fill(std::move(strings));
  };
  fill({1, 2}, "");
  fill({3}, "pinned_host");
  fill({4}, "drum");
  for (const BufferId id : {1, 2, 3}) EXPECT_EQ(ReadOk<char>(*session_, id), bytes);
  EXPECT_EQ(Read(*session_, 4).status().code(), kInvalid);

  // Copies of them, also of what is deleted or not here yet.
  session_->Copy({.sources = One(1), .results = One(11), .devices = {devices_[3]}, .memory_kind = ""});
  session_->Copy(
      {.sources = One(11), .results = One(12), .devices = {devices_[0]}, .memory_kind = "pinned_host"});
  session_->Delete({One(1), One(11)});
  EXPECT_EQ(ReadOk<char>(*session_, 12), bytes);
  Declare(*session_, 20);
  session_->Copy({.sources = One(20), .results = One(21), .devices = {devices_[1]}, .memory_kind = ""});
  session_->Fail({{20, 0}}, absl::DataLossError("lost"));
  EXPECT_EQ(Read(*session_, 21).status(), absl::DataLossError("lost"));

  CompileOk(*session_, 1, AddOne(2));
  EXPECT_EQ(Execute(*session_, {.arguments = {One(12)}, .results = {One(13)}}).Wait().code(), kInvalid);
  EXPECT_THAT(std::string(Read(*session_, 13).status().message()), HasSubstr("strings"));
}

// A run that fails leaves tokens that are good: what comes after it in order is not to fail too.
TEST_P(WorkerTest, TokensOfRunsThatFail) {
  CompileOk(*session_, 1, R"(module @pass { func.func public @main(%t: !stablehlo.token, %a: tensor<2xf32>)
      -> (!stablehlo.token, tensor<2xf32>) {
    %0 = stablehlo.after_all %t : !stablehlo.token
    return %0, %a : !stablehlo.token, tensor<2xf32>
  } })");
  cluster::HostContents token;
  token.targets = {{1, 0}};
  token.element_type = xla::ifrt::DTypeProto::KIND_TOKEN;
  token.bytes = Bytes<char>({});
  Declare(*session_, 1);
  session_->Fill(std::move(token));
  Declare(*session_, 2);
  session_->Fail({{2, 0}}, absl::DataLossError("lost"));
  Put(*session_, 3, {1, 2});
  Execute(*session_, {.arguments = {One(1), One(2)}, .results = {One(10), One(11)}});
  Execute(*session_, {.arguments = {One(10), One(3)}, .results = {One(12), One(13)}});
  EXPECT_EQ(Read(*session_, 11).status().code(), kDataLoss);
  EXPECT_TRUE(Await(*session_, {One(10), One(12)}).Wait().ok());
  EXPECT_THAT(ReadOk(*session_, 13), ElementsAre(1, 2));
}

TEST_P(WorkerTest, TokensComeFromTheHostAndFromPrograms) {
  CompileOk(*session_, 1, R"(module @pass { func.func public @main(%t: !stablehlo.token, %a: tensor<2xf32>)
      -> (!stablehlo.token, tensor<2xf32>) {
    %0 = stablehlo.after_all %t : !stablehlo.token
    return %0, %a : !stablehlo.token, tensor<2xf32>
  } })",
            {1});
  for (const BufferId id : {1, 2}) {
    cluster::HostContents token;
    token.targets = {{id, devices_[1]}};
    token.element_type = xla::ifrt::DTypeProto::KIND_TOKEN;
    token.bytes = Bytes<char>({});
    Declare(*session_, id, devices_[1]);
    session_->Fill(std::move(token));
  }
  Put(*session_, 3, {1, 2}, devices_[1]);
  Execute(*session_, {.arguments = {One(1), One(3)}, .results = {One(10), One(11)}});
  Execute(*session_, {.arguments = {One(10), One(11)}, .results = {One(12), One(13)}});
  EXPECT_TRUE(Await(*session_, {One(2), One(10), One(12)}).Wait().ok());
  EXPECT_THAT(ReadOk(*session_, 13), ElementsAre(1, 2));
  // There is nothing to read, but they can be moved. Empty arrays of booleans stand for those of programs.
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
  EXPECT_THAT(ReadOk<char>(*session_, 12), IsEmpty());
  session_->Copy({.sources = One(12), .results = One(20), .devices = {devices_[0]}, .memory_kind = ""});
  session_->Copy({.sources = One(20), .results = One(21), .devices = {devices_[1]}, .memory_kind = ""});
  Execute(*session_, {.arguments = {One(21), One(13)}, .results = {One(22), One(23)}});
  EXPECT_TRUE(Await(*session_, {One(20), One(21), One(22)}).Wait().ok());
  EXPECT_THAT(ReadOk(*session_, 23), ElementsAre(1, 2));
  // Empty arrays of booleans stand for tokens in JAX on CPU.
  cluster::HostContents empty;
  empty.targets = {{30, devices_[1]}};
  empty.element_type = xla::ifrt::DTypeProto::KIND_PRED;
  empty.dims = {0};
  empty.bytes = Bytes<char>({});
  Declare(*session_, 30, devices_[1]);
  session_->Fill(std::move(empty));
  Execute(*session_, {.arguments = {One(30), One(13)}, .results = {One(31), One(32)}});
  EXPECT_THAT(ReadOk(*session_, 32), ElementsAre(1, 2));
}

// ---- Room ----------------------------------------------------------------------------------------------

class CrowdedWorkerTest : public WorkerTest {
 protected:
  // What is said to be left.
  std::atomic<int64_t> left_ = std::numeric_limits<int64_t>::max();
  void SetUp() override {
    available_memory_ = [this] { return left_.load(); };
    WorkerTest::SetUp();
  }
};

TEST_P(CrowdedWorkerTest, WhatDoesNotFitIsRefused) {
  constexpr int64_t kFloats = 68 << 20;
  const std::string large = absl::StrCat("tensor<", kFloats, "xf32>");
  const auto make = [&](const char* sharding, int devices) {
    return absl::StrCat("module @make attributes {mhlo.num_partitions = ", devices,
                        " : i32, mhlo.num_replicas = 1 : i32} { func.func public @main(%a: tensor<f32> "
                        "{mhlo.sharding = \"{replicated}\"}) -> (",
                        large, " {mhlo.sharding = \"", sharding,
                        "\"}) {\n %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> ", large,
                        "\n return %0 : ", large, "\n } }");
  };
  CompileOk(*session_, 1, make("{replicated}", 1));
  CompileOk(*session_, 2, make("{devices=[4]<=[4]}", 4), {0, 1, 2, 3});
  CompileOk(*session_, 3, AddOne(1));
  // Whether they were compiled or come from the cache does not matter.
  auto later = OpenSession();
  session_.swap(later);
  CompileOk(*session_, 1, make("{replicated}", 1));
  CompileOk(*session_, 2, make("{devices=[4]<=[4]}", 4), {0, 1, 2, 3});
  CompileOk(*session_, 3, AddOne(1));
  EXPECT_EQ(cache_->stats().memory_hits, 3);
  for (BufferId i = 0; i < 4; ++i) {
    cluster::HostContents scalar = Contents(1 + i, {7}, devices_[i]);
    scalar.dims = {};
    Declare(*session_, 1 + i, devices_[i]);
    session_->Fill(std::move(scalar));
  }
  left_ = 4 * kFloats - 1;
  const StatusAnswer one = Execute(*session_, {.arguments = {One(1)}, .results = {One(10)}});
  EXPECT_EQ(one.Wait().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(one.Wait().message()), HasSubstr("285212672 bytes are needed, 285212671 are left"));
  EXPECT_EQ(Read(*session_, 10).status(), one.Wait());
  // The parts of a program count together.
  const StatusAnswer four =
      Execute(*session_, {.executable = 2, .arguments = {{1, 4, {}}}, .results = {{20, 4, {}}}});
  EXPECT_EQ(four.Wait().code(), absl::StatusCode::kResourceExhausted);
  // Others go on.
  Put(*session_, 30, {1});
  Execute(*session_, {.executable = 3, .arguments = {One(30)}, .results = {One(31)}});
  EXPECT_THAT(ReadOk(*session_, 31), ElementsAre(2));

  left_ = 4 * kFloats;
  EXPECT_TRUE(Execute(*session_, {.arguments = {One(1)}, .results = {One(11)}}).Wait().ok());
  left_ = 4 * kFloats - 1;
  session_->Copy({.sources = One(11), .results = One(12), .devices = {devices_[1]}, .memory_kind = ""});
  EXPECT_EQ(Await(*session_, {One(12)}).Wait().code(), absl::StatusCode::kResourceExhausted);
}

// ---- Names ---------------------------------------------------------------------------------------------

TEST_P(WorkerTest, NamesBelongToOneSession) {
  auto other = OpenSession();
  Put(*session_, 1, {1});
  CompileOk(*session_, 1, AddOne(1));
  EXPECT_EQ(Read(*other, 1).status().code(), kInvalid);
  other->Delete({One(1)});
  other->Unload(1, std::nullopt);
  EXPECT_FALSE(Execute(*other, {.arguments = {One(1)}, .results = {One(2)}}).Wait().ok());
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(2));
}

TEST_P(WorkerTest, UnknownNames) {
  CompileOk(*session_, 1, AddOne(1));
  EXPECT_EQ(Read(*session_, 1).status().code(), kInvalid);
  EXPECT_EQ(Await(*session_, {One(1)}).Wait().code(), kInvalid);
  EXPECT_EQ(Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}}).Wait().code(), kInvalid);
  EXPECT_EQ(Read(*session_, 2).status().code(), kInvalid);
  session_->Delete({One(1), {500, 1000, {}}});
  session_->Unload(99, std::nullopt);
  // An unknown program fails its results and says so outside the call.
  Put(*session_, 3, {1});
  const StatusAnswer done =
      Execute(*session_, {.executable = 99, .arguments = {One(3)}, .results = {One(4)}});
  EXPECT_FALSE(done.Wait().ok());
  EXPECT_NE(done.thread(), std::this_thread::get_id());
  EXPECT_FALSE(Read(*session_, 4).ok());
}

// ---- Programs ------------------------------------------------------------------------------------------

TEST_P(WorkerTest, ACompilerErrorKeepsItsText) {
  auto compiled = Compile(
      *session_, 1, "module { func.func public @main() -> tensor<f32> { return %nothing : tensor<f32> } }");
  ASSERT_FALSE(compiled.ok());
  EXPECT_THAT(std::string(compiled.status().message()), HasSubstr("undeclared SSA value"));
  EXPECT_FALSE(Compile(*session_, 2, "").ok());
  EXPECT_FALSE(Compile(*session_, 3, kAdd, {77}).ok());
  // Nothing is loaded under the name, which can be tried again.
  EXPECT_FALSE(Execute(*session_, {.arguments = {}, .results = {One(1)}}).Wait().ok());
  CompileOk(*session_, 1, kAdd);
}

TEST_P(WorkerTest, CostAnalysis) {
  CompileOk(*session_, 1, kAdd);
  Answer<absl::StatusOr<cluster::CostProperties>> known, unknown;
  session_->CostAnalysis(1, known);
  const auto& properties = known.Wait();
  if (properties.ok()) {
    EXPECT_THAT(*properties, Not(IsEmpty()));
  } else {
    EXPECT_EQ(properties.status().code(), absl::StatusCode::kUnimplemented) << properties.status();
  }
  session_->CostAnalysis(2, unknown);
  EXPECT_EQ(unknown.Wait().status().code(), absl::StatusCode::kNotFound);
}

TEST_P(WorkerTest, UnloadedWhileItRuns) {
  CompileOk(*session_, 1, AddOne(kLarge));
  Declare(*session_, 1);
  std::vector<StatusAnswer> done;
  for (BufferId i = 1; i <= 50; ++i) {
    done.push_back(Execute(*session_, {.arguments = {One(i)}, .results = {One(i + 1)}}));
  }
  session_->Unload(1, std::nullopt);
  session_->Fill(Contents(1, std::vector<float>(kLarge, 0)));
  EXPECT_THAT(ReadOk(*session_, 51), Each(50));
  for (const StatusAnswer& answer : done) EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
  EXPECT_FALSE(Execute(*session_, {.arguments = {One(1)}, .results = {One(100)}}).Wait().ok());
}

TEST_P(WorkerTest, TwoSessionsOfCollectivesAtOnce) {
  constexpr int kLaunches = 300;
  std::vector<std::shared_ptr<SessionLink>> sessions = {OpenSession(), OpenSession()};
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {3, 1, 0, 2}};
  std::vector<std::vector<StatusAnswer>> done(2);
  for (size_t s = 0; s < 2; ++s) {
    CompileOk(*sessions[s], 1, kSum, orders[s]);
    for (size_t i = 0; i < 4; ++i) {
      Put(*sessions[s], 1 + i, {static_cast<float>(s), static_cast<float>(i)}, orders[s][i]);
    }
  }
  // Result i of a session: its sums from 1000 + 4 * i on, its numbers from 100000 + 4 * i on.
  std::vector<std::thread> threads;
  for (size_t s = 0; s < 2; ++s) {
    threads.emplace_back([&, s] {
      BufferNames numbers{1, 4, {}};
      for (uint64_t i = 0; i < kLaunches; ++i) {
        StatusAnswer answer;
        cluster::Launch launch;
        launch.id = static_cast<cluster::LaunchId>(1 + 2 * i + s);
        launch.executable = 1;
        launch.arguments = {numbers};
        numbers = {100000 + 4 * i, 4, {}};
        launch.results = {{1000 + 4 * i, 4, {}}, numbers};
        launch.on_done = answer;
        sessions[s]->Execute(std::move(launch));
        done[s].push_back(answer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t s = 0; s < 2; ++s) {
    const float first = static_cast<float>(4 * s + 6);
    for (uint64_t i = 0; i < kLaunches; ++i) {
      ASSERT_TRUE(done[s][i].Wait().ok()) << done[s][i].Wait();
      for (uint64_t d = 0; d < 4; ++d) {
        ASSERT_THAT(ReadOk(*sessions[s], 1000 + 4 * i + d), ElementsAre(first + 8 * static_cast<float>(i)));
      }
    }
    EXPECT_THAT(ReadOk(*sessions[s], 100000 + 4 * (kLaunches - 1) + 3),
                ElementsAre(static_cast<float>(s) + kLaunches, 3.0f + kLaunches));
  }
}

TEST_P(WorkerTest, CollectivesBesideOtherPrograms) {
  CompileOk(*session_, 1, kSum, {0, 1, 2, 3});
  CompileOk(*session_, 2, AddOne(2), {2});
  PutSharded(*session_, 1, {0, 0, 0, 0, 0, 0, 0, 0});
  BufferNames numbers{1, 4, {}};
  for (uint64_t i = 0; i < 100; ++i) {
    const BufferId base = 1000 + 20 * i;
    Execute(*session_, {.arguments = {numbers}, .results = {{base, 4, {}}, {base + 4, 4, {}}}});
    // Device 2 runs one more program on its shard.
    Execute(*session_, {.executable = 2, .arguments = {One(base + 6)}, .results = {One(base + 8)}});
    numbers = {0, 0, {base + 4, base + 5, base + 8, base + 7}};
  }
  // After each round 8 for all and 2 more for device 2.
  EXPECT_THAT(ReadOk(*session_, 1000 + 20 * 99), ElementsAre(99 * 10));
}

// ---- The end of a session ------------------------------------------------------------------------------

TEST_P(WorkerTest, CloseEndsWhatWaits) {
  CompileOk(*session_, 1, AddOne(1));
  Declare(*session_, 1);
  Declare(*session_, 2);
  const ReadAnswer pending = StartRead(*session_, 1);
  const StatusAnswer await = Await(*session_, {One(1)});
  const StatusAnswer held =
      Execute(*session_, {.arguments = {One(1)}, .results = {One(10)}, .held = true}, 5);
  const ReadAnswer of_held = StartRead(*session_, 10);
  const StatusAnswer queued = Execute(*session_, {.arguments = {One(2)}, .results = {One(11)}});
  const ReadAnswer of_queued = StartRead(*session_, 11);
  session_->Copy({.sources = One(2), .results = One(12), .devices = {1}, .memory_kind = ""});
  const ReadAnswer of_copy = StartRead(*session_, 12);

  session_->Close();
  EXPECT_EQ(pending.Wait().status().code(), kCancelled);
  EXPECT_EQ(await.Wait().code(), kCancelled);
  EXPECT_EQ(held.Wait().code(), kCancelled);
  EXPECT_EQ(of_held.Wait().status().code(), kCancelled);
  EXPECT_EQ(queued.Wait().code(), kCancelled);
  EXPECT_EQ(of_queued.Wait().status().code(), kCancelled);
  EXPECT_EQ(of_copy.Wait().status().code(), kCancelled);
  session_->Close();
  for (const StatusAnswer& answer : {await, held, queued}) EXPECT_EQ(answer.times(), 1);
  for (const ReadAnswer& answer : {pending, of_held, of_queued, of_copy}) EXPECT_EQ(answer.times(), 1);

  // The device serves others.
  auto other = OpenSession();
  CompileOk(*other, 1, AddOne(1));
  Put(*other, 1, {1});
  Execute(*other, {.arguments = {One(1)}, .results = {One(2)}});
  EXPECT_THAT(ReadOk(*other, 2), ElementsAre(2));
}

TEST_P(WorkerTest, CommandsAfterClose) {
  CompileOk(*session_, 1, AddOne(1));
  Put(*session_, 1, {1});
  session_->Close();
  Declare(*session_, 5);
  session_->Fill(Contents(5, {1}));
  session_->Fail({{5, 0}}, absl::DataLossError("x"));
  session_->Copy({.sources = One(1), .results = One(6), .devices = {0}, .memory_kind = ""});
  session_->Delete({One(1), One(5)});
  session_->Unload(1, std::nullopt);
  session_->ReleaseLaunch(1, 0);
  EXPECT_EQ(Read(*session_, 1).status().code(), kCancelled);
  EXPECT_EQ(Read(*session_, 5).status().code(), kCancelled);
  EXPECT_EQ(Read(*session_, 6).status().code(), kCancelled);
  EXPECT_EQ(Await(*session_, {One(1)}).Wait().code(), kCancelled);
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .held = true});
  EXPECT_EQ(done.Wait().code(), kCancelled);
  EXPECT_NE(done.thread(), std::this_thread::get_id());
  EXPECT_EQ(Compile(*session_, 2, kAdd).status().code(), kCancelled);
  Answer<absl::StatusOr<cluster::CostProperties>> cost;
  session_->CostAnalysis(1, cost);
  EXPECT_EQ(cost.Wait().status().code(), kCancelled);
}

TEST_P(WorkerTest, CloseWithCollectivesUnderWay) {
  auto other = OpenSession();
  CompileOk(*session_, 1, kSum, {0, 1, 2, 3});
  CompileOk(*other, 1, kSum, {0, 1, 2, 3});
  PutSharded(*session_, 1, {1, 1, 1, 1, 1, 1, 1, 1});
  PutSharded(*other, 1, {2, 2, 2, 2, 2, 2, 2, 2});
  std::vector<StatusAnswer> mine, theirs;
  for (uint64_t i = 0; i < 50; ++i) {
    const BufferId base = 100 + 8 * i;
    mine.push_back(
        Execute(*session_, {.arguments = {{1, 4, {}}}, .results = {{base, 4, {}}, {base + 4, 4, {}}}}));
    theirs.push_back(
        Execute(*other, {.arguments = {{1, 4, {}}}, .results = {{base, 4, {}}, {base + 4, 4, {}}}}));
    if (i == 25) session_->Close();
  }
  for (const StatusAnswer& answer : mine)
    EXPECT_THAT(answer.Wait().code(), AnyOf(absl::StatusCode::kOk, kCancelled));
  EXPECT_EQ(mine.back().Wait().code(), kCancelled);
  for (const StatusAnswer& answer : theirs) EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
  EXPECT_THAT(ReadOk(*other, 100 + 8 * 49), ElementsAre(16));
}

TEST_P(WorkerTest, OthersDoNotNoticeASessionThatIsDropped) {
  {
    auto dropped = worker_->OpenSession(999, sink_);
    CompileOk(*dropped, 1, AddOne(1));
    Declare(*dropped, 1);
    Execute(*dropped, {.arguments = {One(1)}, .results = {One(2)}});
  }
  CompileOk(*session_, 1, AddOne(1));
  Put(*session_, 1, {1});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(2));
}

TEST_P(WorkerTest, ManyTypesRoundTrip) {
  cluster::HostContents contents;
  contents.targets = {{1, 0}};
  contents.element_type = kS32;
  contents.dims = {2, 2};
  contents.bytes = Bytes<int32_t>({-1, 2, 1 << 30, 0});
  Declare(*session_, 1);
  session_->Fill(std::move(contents));
  EXPECT_THAT(ReadOk<int32_t>(*session_, 1), ElementsAre(-1, 2, 1 << 30, 0));
}

// ---- A worker behind the network -----------------------------------------------------------------------

class RemoteWorkerTest : public WorkerTest {};

TEST_P(RemoteWorkerTest, LargeContentsTravelInPieces) {
  std::vector<float> values(3 << 20);
  std::iota(values.begin(), values.end(), 0.0F);
  Put(*session_, 1, values);
  EXPECT_EQ(ReadOk(*session_, 1), values);
}

TEST_P(RemoteWorkerTest, WhatWaitsForALostWorkerFailsWithDataLoss) {
  CompileOk(*session_, 1, AddOne(4));
  Declare(*session_, 1);
  Put(*session_, 2, {1, 2, 3, 4});
  EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(1, 2, 3, 4));
  const ReadAnswer read = StartRead(*session_, 1);
  const StatusAnswer await = Await(*session_, {One(1)});
  const StatusAnswer run = Execute(*session_, {.arguments = {One(1)}, .results = {One(3)}, .held = true});
  server_->Shutdown();
  EXPECT_EQ(read.Wait().status().code(), kDataLoss);
  EXPECT_THAT(std::string(read.Wait().status().message()), HasSubstr("worker 5 of slice 3"));
  EXPECT_EQ(await.Wait().code(), kDataLoss);
  EXPECT_EQ(run.Wait().code(), kDataLoss);
  // And so does all that comes later.
  EXPECT_EQ(Read(*session_, 2).status().code(), kDataLoss);
  Put(*session_, 5, {1});
  EXPECT_EQ(Await(*session_, {One(5)}).Wait().code(), kDataLoss);
  const StatusAnswer late = Execute(*session_, {.arguments = {One(2)}, .results = {One(4)}});
  EXPECT_EQ(late.Wait().code(), kDataLoss);
  EXPECT_NE(late.thread(), std::this_thread::get_id());
  EXPECT_EQ(Compile(*session_, 2, AddOne(4)).status().code(), kDataLoss);
  EXPECT_EQ(link_->DefaultDeviceAssignment(1, 1).status().code(), kDataLoss);
}

TEST_P(RemoteWorkerTest, AnotherIncarnationIsRefused) {
  auto other = net::ConnectToWorker({.address = absl::StrCat("127.0.0.1:", server_->port()),
                                     .name = "worker",
                                     .incarnation = 8,
                                     .streams = streams_.get(),
                                     .host_memory = pool_});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("later one at its address"));
}

TEST_P(RemoteWorkerTest, NobodyThere) {
  const int port = server_->port();
  server_->Shutdown();
  auto other = net::ConnectToWorker({.address = absl::StrCat("127.0.0.1:", port),
                                     .name = "worker 9",
                                     .streams = streams_.get(),
                                     .host_memory = pool_});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("worker 9"));
}

// What does not parse ends the session that sent it, and no other.
TEST_P(RemoteWorkerTest, NonsenseEndsItsOwnSession) {
  class Ended final : public net::MessageReceiver {
   public:
    explicit Ended(StatusAnswer answer) : answer_(std::move(answer)) {}
    void OnMessage(grpc::ByteBuffer& /*message*/) override {}
    void OnEnd(const absl::Status& status) override { answer_(status); }

   private:
    const StatusAnswer answer_;
  };
  const auto channel = net::OpenChannel(absl::StrCat("127.0.0.1:", server_->port()));
  const std::vector<std::string> messages = {"",
                                             "ab",
                                             std::string("\xff\xff\xff\x7f", 4),
                                             std::string(4, '\0'),
                                             std::string("\1\0\0\0\xff", 5),
                                             std::string(100, 'x')};
  for (const char* method : {"Commands", "Bulk"}) {
    for (const std::string& message : messages) {
      const StatusAnswer ended;
      auto stream = streams_->Open(channel, absl::StrCat("/helmway.cluster.WorkerService/", method),
                                   std::make_shared<Ended>(ended));
      grpc::Slice slice(message);
      stream->Send(grpc::ByteBuffer(&slice, 1));
      stream->Close(absl::OkStatus());
      ended.Wait();
    }
  }
  Put(*session_, 1, {1, 2});
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2));
}

// ---- Buffers made of blocks of others ------------------------------------------------------------------

using cluster::AssembleBuffers;

// Four rows of one matrix, one on each device, under the names first ... first + 3.
class AssembleTest : public WorkerTest {
 protected:
  static constexpr int64_t kWidth = 4;

  cluster::HostContents Row(BufferId id, size_t row) {
    std::vector<float> values;
    for (int64_t i = 0; i < kWidth; ++i)
      values.push_back(static_cast<float>(10 * row) + static_cast<float>(i));
    cluster::HostContents contents = Contents(id, values, devices_[row]);
    contents.dims = {1, kWidth};
    return contents;
  }
  void PutRows(SessionLink& session, BufferId first) {
    for (size_t row = 0; row < 4; ++row) {
      Declare(session, first + row, devices_[row]);
      session.Fill(Row(first + row, row));
    }
  }
  // Column c of those rows, as result c.
  AssembleBuffers Columns(BufferId sources, BufferId results) {
    AssembleBuffers command;
    command.sources = {sources, 4, {}};
    command.element_type = kF32;
    for (size_t column = 0; column < 4; ++column) {
      AssembleBuffers::Result& result = command.results.emplace_back();
      result.targets = {{results + column, devices_[column]}};
      result.dims = {4, 1};
      for (uint32_t row = 0; row < 4; ++row) {
        result.blocks.push_back({row, {0, static_cast<int64_t>(column)}, {row, 0}, {1, 1}});
      }
    }
    return command;
  }
  // One result on the first device that is a copy of a source of the same dims.
  AssembleBuffers Whole(BufferId source, BufferId result, const cluster::Dims& dims,
                        cluster::ElementType type = kF32) {
    AssembleBuffers command;
    command.sources = One(source);
    command.element_type = type;
    const cluster::Dims zeros(dims.size(), 0);
    command.results.push_back({{{result, devices_[0]}}, dims, {{0, zeros, zeros, dims}}});
    return command;
  }
};

TEST_P(AssembleTest, RowsBecomeColumns) {
  PutRows(*session_, 1);
  session_->Assemble(Columns(1, 11));
  for (BufferId c = 0; c < 4; ++c) {
    const auto x = static_cast<float>(c);
    EXPECT_THAT(ReadOk(*session_, 11 + c), ElementsAre(x, 10 + x, 20 + x, 30 + x));
  }
  EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(10, 11, 12, 13));
  // Each lies on its device: a program there takes it.
  CompileOk(*session_, 1,
            "module @m { func.func public @main(%a: tensor<4x1xf32>) -> tensor<4x1xf32> {\n"
            " %0 = stablehlo.add %a, %a : tensor<4x1xf32>\n return %0 : tensor<4x1xf32>\n } }",
            {2});
  Execute(*session_, {.arguments = {One(13)}, .results = {One(20)}});
  EXPECT_THAT(ReadOk(*session_, 20), ElementsAre(4, 24, 44, 64));
}

TEST_P(AssembleTest, NamesComeBeforeValues) {
  CompileOk(*session_, 1, AddOne(kWidth));
  // The source is the output of a launch whose own input is not here; the result is read, consumed by a
  // program and put together once more.
  CompileOk(*session_, 2, AddOne(kWidth, /*donates=*/true));
  Declare(*session_, 1);
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  session_->Assemble(Whole(2, 3, {kWidth}));
  session_->Assemble(Whole(3, 4, {kWidth}));
  Execute(*session_, {.executable = 2, .arguments = {One(3)}, .results = {One(5)}, .donated = {0}});
  const ReadAnswer again = StartRead(*session_, 4);
  session_->Delete({One(2), One(3)});
  EXPECT_FALSE(again.done());
  session_->Fill(Contents(1, {1, 2, 3, 4}));
  ASSERT_TRUE(again.Wait().ok()) << again.Wait().status();
  EXPECT_THAT(Values(*again.Wait()), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(ReadOk(*session_, 5), ElementsAre(3, 4, 5, 6));
}

TEST_P(AssembleTest, TargetsOfOneResultDoNotDisturbEachOther) {
  PutRows(*session_, 1);
  AssembleBuffers all;
  all.sources = {1, 4, {}};
  all.element_type = kF32;
  AssembleBuffers::Result& result = all.results.emplace_back();
  result.dims = {16};
  for (size_t i = 0; i < 4; ++i) result.targets.push_back({20 + i, devices_[i]});
  // Rows are of another rank: nothing but an error.
  result.blocks.push_back({0, {0}, {0}, {16}});
  session_->Assemble(all);
  EXPECT_EQ(Read(*session_, 20).status().code(), kInvalid);

  result.dims = {4, kWidth};
  result.blocks.clear();
  for (uint32_t row = 0; row < 4; ++row) result.blocks.push_back({row, {0, 0}, {row, 0}, {1, kWidth}});
  for (size_t i = 0; i < 4; ++i) result.targets[i].buffer = 30 + i;
  session_->Assemble(all);
  const std::vector<float> expected = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33};
  CompileOk(
      *session_, 1,
      "module @m { func.func public @main(%a: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}) -> "
      "tensor<4x4xf32> {\n %0 = stablehlo.add %a, %a : tensor<4x4xf32>\n return %0 : tensor<4x4xf32>\n } }",
      {1});
  Execute(*session_, {.arguments = {One(31)}, .results = {One(40)}, .donated = {0}});
  EXPECT_EQ(ReadOk(*session_, 40)[5], 22);
  for (const BufferId id : {30, 32, 33}) EXPECT_EQ(ReadOk(*session_, id), expected);
}

TEST_P(AssembleTest, ReadsSourcesThatTheHostCannotLookInto) {
  // Packed on the device: each result is half of one source and half of another, all in one job.
  for (BufferId i = 0; i < 2; ++i) {
    cluster::HostContents narrow;
    narrow.targets = {{1 + i, devices_[i]}};
    narrow.element_type = kS4;
    narrow.dims = {2, 3};
    const auto start = static_cast<uint8_t>(8 * i);
    narrow.bytes = Bytes<uint8_t>({start, static_cast<uint8_t>(start + 1), static_cast<uint8_t>(start + 2),
                                   static_cast<uint8_t>(start + 3), static_cast<uint8_t>(start + 4),
                                   static_cast<uint8_t>(start + 5)});
    Declare(*session_, 1 + i);
    session_->Fill(std::move(narrow));
  }
  AssembleBuffers command;
  command.sources = {1, 2, {}};
  command.element_type = kS4;
  for (int64_t row = 0; row < 2; ++row) {
    AssembleBuffers::Result& result = command.results.emplace_back();
    result.targets = {{10 + static_cast<BufferId>(row), devices_[3]}};
    result.dims = {1, 6};
    result.blocks = {{0, {row, 0}, {0, 0}, {1, 3}}, {1, {row, 0}, {0, 3}, {1, 3}}};
  }
  session_->Assemble(std::move(command));
  const auto nibbles = [&](BufferId id) {
    std::vector<uint8_t> values = ReadOk<uint8_t>(*session_, id);
    for (uint8_t& value : values) value &= 15;
    return values;
  };
  EXPECT_THAT(nibbles(10), ElementsAre(0, 1, 2, 8, 9, 10));
  EXPECT_THAT(nibbles(11), ElementsAre(3, 4, 5, 11, 12, 13));

  // Column-major on the device, and then again the other way round.
  cluster::HostContents turned = Contents(20, {0, 1, 2, 10, 11, 12});
  turned.dims = {2, 3};
  turned.minor_to_major = std::vector<int64_t>{0, 1};
  Declare(*session_, 20);
  session_->Fill(std::move(turned));
  AssembleBuffers column = Whole(20, 21, {2, 1});
  column.results[0].blocks[0].source_origin = {0, 1};
  session_->Assemble(std::move(column));
  EXPECT_THAT(ReadOk(*session_, 21), ElementsAre(1, 11));
  AssembleBuffers back = Whole(20, 22, {2, 3});
  back.minor_to_major = std::vector<int64_t>{0, 1};
  session_->Assemble(std::move(back));
  EXPECT_THAT(ReadOk(*session_, 22), ElementsAre(0, 1, 2, 10, 11, 12));
}

TEST_P(AssembleTest, MemoriesScalarsAndNothing) {
  Put(*session_, 1, {1, 2, 3});
  AssembleBuffers pinned = Whole(1, 2, {3});
  pinned.memory_kind = "pinned_host";
  session_->Assemble(std::move(pinned));
  session_->Assemble(Whole(2, 3, {3}));
  EXPECT_THAT(ReadOk(*session_, 3), ElementsAre(1, 2, 3));
  AssembleBuffers drum = Whole(1, 4, {3});
  drum.memory_kind = "drum";
  session_->Assemble(std::move(drum));
  EXPECT_EQ(Read(*session_, 4).status().code(), kInvalid);

  cluster::HostContents scalar = Contents(5, {7});
  scalar.dims = {};
  Declare(*session_, 5);
  session_->Fill(std::move(scalar));
  session_->Assemble(Whole(5, 6, {}));
  EXPECT_THAT(ReadOk(*session_, 6), ElementsAre(7));

  AssembleBuffers nothing;
  nothing.element_type = kF32;
  nothing.results.push_back({{{8, devices_[1]}}, {0, 3}, {}});
  session_->Assemble(std::move(nothing));
  EXPECT_THAT(ReadOk(*session_, 8), IsEmpty());
}

TEST_P(AssembleTest, AFailedSourceFailsWhatIsMadeOfIt) {
  const absl::Status first = absl::DataLossError("the first");
  const absl::Status second = absl::DataLossError("the second");
  for (size_t i = 0; i < 4; ++i) Declare(*session_, 1 + i, devices_[i]);
  session_->Assemble(Columns(1, 11));
  AssembleBuffers rest;
  rest.sources = {1, 4, {}};
  rest.element_type = kF32;
  rest.results.push_back(
      {{{30, devices_[0]}}, {2, 1}, {{3, {0, 0}, {0, 0}, {1, 1}}, {0, {0, 0}, {1, 0}, {1, 1}}}});
  session_->Assemble(std::move(rest));
  // In time the last is the first to fail; what counts is the order of the blocks.
  session_->Fail({{3, devices_[2]}}, second);
  session_->Fail({{2, devices_[1]}}, first);
  session_->Fill(Row(1, 0));
  session_->Fill(Row(4, 3));
  for (BufferId id = 11; id < 15; ++id) EXPECT_EQ(Read(*session_, id).status(), first) << id;
  EXPECT_THAT(ReadOk(*session_, 30), ElementsAre(30, 0));
}

TEST_P(AssembleTest, SourcesThatAreGone) {
  CompileOk(*session_, 1, AddOne(2, /*donates=*/true));
  Put(*session_, 1, {1, 2});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}, .donated = {0}});
  session_->Assemble(Whole(1, 3, {2}));
  EXPECT_EQ(Read(*session_, 3).status().code(), kInvalid);
  session_->Assemble(Whole(99, 4, {2}));
  EXPECT_EQ(Read(*session_, 4).status().code(), kInvalid);

  // A program that consumes the source later waits for nothing and harms nothing.
  Declare(*session_, 5);
  session_->Assemble(Whole(5, 6, {2}));
  Execute(*session_, {.arguments = {One(5)}, .results = {One(7)}, .donated = {0}, .held = true}, /*id=*/77);
  session_->Fill(Contents(5, {1, 2}));
  session_->ReleaseLaunch(77, 0);
  EXPECT_THAT(ReadOk(*session_, 7), ElementsAre(2, 3));
  EXPECT_THAT(ReadOk(*session_, 6), ElementsAre(1, 2));
}

TEST_P(AssembleTest, CommandsThatContradictThemselves) {
  PutRows(*session_, 1);
  constexpr int64_t kHuge = int64_t{1} << 40;
  const auto code = [&](const std::function<void(AssembleBuffers&)>& change) {
    AssembleBuffers command = Columns(1, 100);
    change(command);
    session_->Assemble(std::move(command));
    const absl::StatusCode result = Read(*session_, 100).status().code();
    session_->Delete({{100, 4, {}}});
    return result;
  };
  EXPECT_EQ(code([](auto&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].source = 4; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].source_origin = {0, 4}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].source_origin = {0}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].source_origin = {-1, 0}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].result_origin = {4, 0}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].shape = {1, 2}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks[1].shape = {kHuge, kHuge}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks.pop_back(); }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].blocks.push_back(c.results[0].blocks[0]); }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].dims = {kHuge, kHuge}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].dims = {-4, 1}; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.results[0].targets[0].device = 99; }), kInvalid);
  EXPECT_EQ(code([](auto& c) { c.element_type = kS32; }), kInvalid);
  EXPECT_NE(code([](auto& c) { c.element_type = 12345; }), absl::StatusCode::kOk);
  // One bad result leaves the others alone.
  AssembleBuffers command = Columns(1, 100);
  command.results[2].blocks.pop_back();
  session_->Assemble(std::move(command));
  EXPECT_THAT(ReadOk(*session_, 103), ElementsAre(3, 13, 23, 33));
}

TEST_P(AssembleTest, CloseEndsWhatWaits) {
  Declare(*session_, 1);
  session_->Assemble(Whole(1, 2, {2}));
  session_->Bitcast({.sources = One(1), .results = One(3), .element_type = kS32, .dims = {{2}}});
  const StatusAnswer made = Await(*session_, {One(2)});
  const StatusAnswer seen = Await(*session_, {One(3)});
  session_->Close();
  EXPECT_EQ(made.Wait().code(), kCancelled);
  EXPECT_EQ(seen.Wait().code(), kCancelled);
  session_->Assemble(Whole(1, 4, {2}));
  session_->Bitcast({.sources = One(1), .results = One(5), .element_type = kS32, .dims = {{2}}});
  EXPECT_EQ(Read(*session_, 4).status().code(), kCancelled);
  EXPECT_EQ(Read(*session_, 5).status().code(), kCancelled);
}

// Bytes that say when they are given back.
struct Watched {
  base::HostBytes bytes;
  std::shared_ptr<base::Notification> freed = std::make_shared<base::Notification>();
};

TEST_P(AssembleTest, MemoryIsGivenBackOnce) {
  if (GetParam() == LinkKind::kRemote) GTEST_SKIP() << "the worker has a copy of the bytes";
  const auto watch = [](base::HostBytes bytes) {
    Watched watched;
    watched.bytes = bytes;
    watched.bytes.owner = std::shared_ptr<const void>(
        bytes.data,
        [owner = std::move(bytes.owner), freed = watched.freed](const void*) { freed->Notify(); });
    return watched;
  };
  constexpr int64_t kSize = 64 << 10;
  for (const bool before : {true, false}) {  // whether the source goes before its bytes come
    const BufferId first = before ? 1 : 11;
    cluster::HostContents contents = Contents(first, std::vector<float>(kSize, 1));
    Watched source = watch(std::move(contents.bytes));
    contents.bytes = std::move(source.bytes);
    Declare(*session_, first);
    if (!before) session_->Fill(contents);
    session_->Assemble(Whole(first, first + 1, {kSize}));
    session_->Bitcast(
        {.sources = One(first), .results = One(first + 2), .element_type = kS32, .dims = {{kSize}}});
    session_->Delete({One(first)});
    if (before) session_->Fill(contents);
    contents.bytes = {};
    EXPECT_THAT(ReadOk(*session_, first + 1), Each(1));
    EXPECT_THAT(ReadOk<int32_t>(*session_, first + 2), Each(0x3f800000));
    // The view still rests on the source's memory.
    EXPECT_FALSE(source.freed->HasBeenNotified());
    session_->Delete({One(first + 2)});
    source.freed->WaitForNotification();
    EXPECT_THAT(ReadOk(*session_, first + 1), Each(1));
  }
}

// ---- The same bytes as something else ------------------------------------------------------------------

TEST_P(WorkerTest, BitcastsShareTheBytes) {
  Put(*session_, 1, {1, 2, 3, 4});
  session_->Bitcast({.sources = One(1), .results = One(2), .element_type = kS32, .dims = {{2, 2}}});
  EXPECT_THAT(ReadOk<int32_t>(*session_, 2), ElementsAre(0x3f800000, 0x40000000, 0x40400000, 0x40800000));
  // Nibbles, low half first; and back.
  session_->Bitcast({.sources = One(2), .results = One(3), .element_type = kS4, .dims = {{4, 8}}});
  std::vector<uint8_t> nibbles = ReadOk<uint8_t>(*session_, 3);
  ASSERT_EQ(nibbles.size(), 32u);
  EXPECT_EQ(nibbles[5] & 15, 8);
  EXPECT_EQ(nibbles[6] & 15, 15);
  session_->Bitcast({.sources = One(3), .results = One(4), .element_type = kF32, .dims = {{4}}});
  session_->Delete({One(1), One(2), One(3)});
  EXPECT_THAT(ReadOk(*session_, 4), ElementsAre(1, 2, 3, 4));
}

TEST_P(WorkerTest, ABitcastAndItsSourceDoNotDisturbEachOther) {
  CompileOk(*session_, 1, AddOne(kLarge, /*donates=*/true));
  Declare(*session_, 1);
  session_->Bitcast({.sources = One(1), .results = One(2), .element_type = kF32, .dims = {{kLarge}}});
  // Either is consumed by a program, which may want to write its output there.
  Execute(*session_, {.arguments = {One(1)}, .results = {One(3)}, .donated = {0}, .held = true}, /*id=*/5);
  session_->Fill(Contents(1, std::vector<float>(kLarge, 1)));
  session_->ReleaseLaunch(5, 0);
  EXPECT_THAT(ReadOk(*session_, 3), Each(2));
  EXPECT_THAT(ReadOk(*session_, 2), Each(1));

  Put(*session_, 11, std::vector<float>(kLarge, 1));
  session_->Bitcast({.sources = One(11), .results = One(12), .element_type = kF32, .dims = {{kLarge}}});
  Execute(*session_, {.arguments = {One(12)}, .results = {One(13)}, .donated = {0}});
  EXPECT_THAT(ReadOk(*session_, 13), Each(2));
  EXPECT_THAT(ReadOk(*session_, 11), Each(1));
  EXPECT_EQ(Read(*session_, 12).status().code(), kInvalid);

  // A bitcast that is consumed before there is anything to take for another.
  Declare(*session_, 21);
  session_->Bitcast({.sources = One(21), .results = One(22), .element_type = kF32, .dims = {{kLarge}}});
  Execute(*session_, {.arguments = {One(22)}, .results = {One(23)}, .donated = {0}});
  session_->Fill(Contents(21, std::vector<float>(kLarge, 1)));
  EXPECT_THAT(ReadOk(*session_, 23), Each(2));
  EXPECT_THAT(ReadOk(*session_, 21), Each(1));
}

TEST_P(WorkerTest, BitcastsOfShardsAndOfNothing) {
  PutSharded(*session_, 1, {1, 2, 3, 4, 5, 6, 7, 8});
  session_->Bitcast({.sources = {1, 4, {}},
                     .results = {11, 4, {}},
                     .element_type = kS32,
                     .dims = {{2}, {2}, {2, 1}, {1, 2}}});
  EXPECT_THAT(ReadOk<int32_t>(*session_, 14), ElementsAre(0x40e00000, 0x41000000));
  cluster::HostContents empty = Contents(20, {});
  empty.dims = {0, 3};
  Declare(*session_, 20);
  session_->Fill(std::move(empty));
  session_->Bitcast({.sources = One(20), .results = One(21), .element_type = kS32, .dims = {{5, 0}}});
  EXPECT_THAT(ReadOk<int32_t>(*session_, 21), IsEmpty());
}

TEST_P(WorkerTest, BitcastsThatCannotBe) {
  Put(*session_, 1, {1, 2});
  BufferId next = 10;
  const auto code = [&](BufferId source, cluster::ElementType type, const cluster::Dims& dims) {
    session_->Bitcast({.sources = One(source), .results = One(++next), .element_type = type, .dims = {dims}});
    return Read(*session_, next).status().code();
  };
  EXPECT_EQ(code(1, kS32, {3}), kInvalid);
  EXPECT_EQ(code(1, kS32, {1}), kInvalid);
  EXPECT_EQ(code(1, kS32, {0}), kInvalid);
  EXPECT_EQ(code(1, kS32, {-2}), kInvalid);
  EXPECT_EQ(code(1, kS32, {int64_t{1} << 40, int64_t{1} << 40}), kInvalid);
  EXPECT_NE(code(1, 12345, {2}), absl::StatusCode::kOk);
  EXPECT_EQ(code(99, kS32, {2}), kInvalid);
  const absl::Status cause = absl::DataLossError("gone");
  Declare(*session_, 2);
  session_->Fail({{2, 0}}, cause);
  EXPECT_EQ(code(2, kS32, {2}), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2));
}

// ---- Programs that call their client -------------------------------------------------------------------

// y = callback(x + x) + 1 on one device.
std::string CallsBack(int64_t size = 4) {
  const std::string type = absl::StrCat("tensor<", size, "xf32>");
  return absl::StrCat(
      "module @calls_back { func.func public @main(%x: ", type, ") -> ", type,
      " {\n %0 = stablehlo.add %x, %x : ", type,
      "\n %1 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%0) {api_version = 4 : i32, "
      "has_side_effect = true, backend_config = {callback = 5 : ui64, client = 77 : ui64}} : (",
      type, ") -> ", type, "\n %one = stablehlo.constant dense<1.0> : ", type,
      "\n %2 = stablehlo.add %1, %one : ", type, "\n return %2 : ", type, "\n } }");
}

class CallbackTest : public WorkerTest {};

TEST_P(CallbackTest, CallsTheClient) {
  CompileOk(*session_, 1, CallsBack());
  Put(*session_, 1, {1, 2, 3, 4});
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  cluster::CallbackCall call = sink_->Next();
  EXPECT_EQ(call.client, 77u);
  EXPECT_EQ(call.callback, 5u);
  ASSERT_EQ(call.arguments.size(), 1u);
  EXPECT_EQ(call.arguments[0].element_type, kF32);
  EXPECT_THAT(call.arguments[0].dims, ElementsAre(4));
  EXPECT_THAT(Floats(call.arguments[0]), ElementsAre(2, 4, 6, 8));
  EXPECT_FALSE(done.done());
  AnswerTimesTen(std::move(call));
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  EXPECT_THAT(ReadOk(*session_, 2), ElementsAre(21, 41, 61, 81));
  EXPECT_THAT(ReadOk(*session_, 1), ElementsAre(1, 2, 3, 4));
}

TEST_P(CallbackTest, IsNotCached) {
  auto other = OpenSession();
  for (const auto& session : {session_, other}) CompileOk(*session, 1, kAllCallBack, {0, 1, 2, 3});
  EXPECT_EQ(cache_->stats().memory_entries, 0);
}

TEST_P(CallbackTest, LargeArraysComeAndGo) {
  constexpr int64_t kSize = 300'000;
  CompileOk(*session_, 1, CallsBack(kSize));
  Put(*session_, 1, std::vector<float>(kSize, 2));
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  AnswerTimesTen(sink_->Next());
  EXPECT_THAT(ReadOk(*session_, 2), Each(41));
}

TEST_P(CallbackTest, AnErrorOfTheFunctionFailsTheRunAndWhatUsesIt) {
  CompileOk(*session_, 1, CallsBack());
  CompileOk(*session_, 2, AddOne(4));
  Put(*session_, 1, {1, 2, 3, 4});
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  Execute(*session_, {.executable = 2, .arguments = {One(2)}, .results = {One(3)}});
  sink_->Next().done(absl::InternalError("ValueError: no"));
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(done.Wait().message()), HasSubstr("ValueError: no"));
  EXPECT_THAT(std::string(Read(*session_, 3).status().message()), HasSubstr("ValueError: no"));
  // The next run is a run like any other.
  Execute(*session_, {.arguments = {One(1)}, .results = {One(4)}});
  AnswerTimesTen(sink_->Next());
  EXPECT_THAT(ReadOk(*session_, 4), ElementsAre(21, 41, 61, 81));
}

TEST_P(CallbackTest, OtherProgramsRunMeanwhile) {
  CompileOk(*session_, 1, CallsBack());
  CompileOk(*session_, 2, AddOne(4));
  CompileOk(*session_, 3, kSum, {0, 1, 2, 3});
  Put(*session_, 1, {1, 2, 3, 4});
  PutSharded(*session_, 21, {1, 2, 3, 4, 5, 6, 7, 8});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  cluster::CallbackCall call = sink_->Next();
  // One that waits for the call, and behind it in the queue those that do not.
  const StatusAnswer late = Execute(*session_, {.executable = 2, .arguments = {One(2)}, .results = {One(3)}});
  Execute(*session_, {.executable = 2, .arguments = {One(1)}, .results = {One(4)}});
  Execute(*session_, {.executable = 3, .arguments = {{21, 4, {}}}, .results = {{31, 4, {}}, {35, 4, {}}}});
  session_->Copy({.sources = One(2), .results = One(5), .devices = {devices_[1]}});
  session_->Bitcast({.sources = One(2), .results = One(6), .element_type = kF32, .dims = {{4}}});
  const StatusAnswer late_too =
      Execute(*session_, {.executable = 2, .arguments = {One(6)}, .results = {One(7)}});
  EXPECT_THAT(ReadOk(*session_, 4), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(ReadOk(*session_, 31), ElementsAre(36));
  EXPECT_FALSE(late.done());
  EXPECT_FALSE(late_too.done());
  AnswerTimesTen(std::move(call));
  EXPECT_THAT(ReadOk(*session_, 3), ElementsAre(22, 42, 62, 82));
  EXPECT_THAT(ReadOk(*session_, 5), ElementsAre(21, 41, 61, 81));
  EXPECT_THAT(ReadOk(*session_, 7), ElementsAre(22, 42, 62, 82));
}

TEST_P(CallbackTest, RunsOfOneStreamFollowEachOtherAndStreamsDoNotWait) {
  CompileOk(*session_, 1, CallsBack());
  Put(*session_, 1, {1, 1, 1, 1});
  Put(*session_, 2, {2, 2, 2, 2});
  Put(*session_, 3, {3, 3, 3, 3});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(11)}, .stream = 7});
  cluster::CallbackCall first = sink_->Next();
  EXPECT_THAT(Floats(first.arguments[0]), Each(2));
  Execute(*session_, {.arguments = {One(2)}, .results = {One(12)}, .stream = 7});
  Execute(*session_, {.arguments = {One(3)}, .results = {One(13)}, .stream = 8});
  cluster::CallbackCall other = sink_->Next();
  EXPECT_THAT(Floats(other.arguments[0]), Each(6));
  EXPECT_TRUE(sink_->empty());
  AnswerTimesTen(std::move(first));
  cluster::CallbackCall second = sink_->Next();
  EXPECT_THAT(Floats(second.arguments[0]), Each(4));
  AnswerTimesTen(std::move(other));
  AnswerTimesTen(std::move(second));
  EXPECT_THAT(ReadOk(*session_, 12), Each(41));
  EXPECT_THAT(ReadOk(*session_, 13), Each(61));
}

TEST_P(CallbackTest, EveryDeviceCalls) {
  CompileOk(*session_, 1, kAllCallBack, {0, 1, 2, 3});
  PutSharded(*session_, 1, {1, 2, 3, 4, 5, 6, 7, 8});
  const StatusAnswer done = Execute(*session_, {.arguments = {{1, 4, {}}}, .results = {{11, 4, {}}}});
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  for (cluster::CallbackCall& call : calls) AnswerTimesTen(std::move(call));
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  for (BufferId id = 11; id < 15; ++id) EXPECT_THAT(ReadOk(*session_, id), ElementsAre(160, 200));
}

TEST_P(CallbackTest, AnErrorOnOneDeviceLeavesNobodyWaiting) {
  CompileOk(*session_, 1, kAllCallBack, {0, 1, 2, 3});
  PutSharded(*session_, 1, {1, 2, 3, 4, 5, 6, 7, 8});
  const StatusAnswer done = Execute(*session_, {.arguments = {{1, 4, {}}}, .results = {{11, 4, {}}}});
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  calls[0].done(absl::InternalError("ValueError: no"));
  for (size_t i = 1; i < 4; ++i) AnswerTimesTen(std::move(calls[i]));
  EXPECT_THAT(std::string(done.Wait().message()), HasSubstr("ValueError: no"));
  for (BufferId id = 11; id < 15; ++id) EXPECT_FALSE(Read(*session_, id).ok());
  ExpectCollectivesRun();
}

TEST_P(CallbackTest, AnArgumentThatFailsIsNotCalledWith) {
  CompileOk(*session_, 1, CallsBack());
  Declare(*session_, 1);
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  session_->Fail({{1, 0}}, absl::DataLossError("lost"));
  EXPECT_EQ(done.Wait().code(), kDataLoss);
  EXPECT_EQ(Read(*session_, 2).status().code(), kDataLoss);
  EXPECT_TRUE(sink_->empty());
}

TEST_P(CallbackTest, TheEndOfTheSessionLeavesCallsToTheSink) {
  CompileOk(*session_, 1, CallsBack());
  Put(*session_, 1, {1, 2, 3, 4});
  const StatusAnswer done = Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  cluster::CallbackCall call = sink_->Next();
  session_->Close();
  call.done(absl::CancelledError("the session has ended"));
  EXPECT_FALSE(done.Wait().ok());
  ExpectCollectivesRun();
}

// They enter the queues of their devices when the client has answered.
TEST_P(CallbackTest, TheWorkerGoesAfterLaunchesThatWaitForTheClient) {
  CompileOk(*session_, 1, CallsBack());
  CompileOk(*session_, 2, kAdd);
  Put(*session_, 1, {1, 2, 3, 4});
  Execute(*session_, {.arguments = {One(1)}, .results = {One(2)}});
  const StatusAnswer done =
      Execute(*session_, {.executable = 2, .arguments = {One(1), One(2)}, .results = {One(3)}});
  base::Notification going, worker_is_gone;
  std::thread client([&, call = sink_->Next()]() mutable {
    going.WaitForNotification();
    // Behind the network the end of the session has answered meanwhile.
    const bool gone = worker_is_gone.WaitForNotificationWithTimeout(absl::Milliseconds(100));
    EXPECT_TRUE(!gone || GetParam() == LinkKind::kRemote);
    call.done(absl::CancelledError("the session has ended"));
  });
  going.Notify();
  TearDown();
  worker_is_gone.Notify();
  EXPECT_TRUE(done.done());
  client.join();
}

TEST_P(CallbackTest, SessionsDoNotWaitForEachOther) {
  auto other = OpenSession();
  CompileOk(*session_, 1, kAllCallBack, {0, 1, 2, 3});
  CompileOk(*other, 1, kAllCallBack, {0, 1, 2, 3});
  PutSharded(*session_, 1, {1, 2, 3, 4, 5, 6, 7, 8});
  PutSharded(*other, 1, {0, 0, 0, 0, 0, 0, 0, 0});
  const StatusAnswer waits = Execute(*session_, {.arguments = {{1, 4, {}}}, .results = {{11, 4, {}}}});
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  Execute(*other, {.arguments = {{1, 4, {}}}, .results = {{11, 4, {}}}});
  for (int i = 0; i < 4; ++i) AnswerTimesTen(sink_->Next());
  EXPECT_THAT(ReadOk(*other, 11), ElementsAre(0, 0));
  EXPECT_FALSE(waits.done());
  for (cluster::CallbackCall& call : calls) AnswerTimesTen(std::move(call));
  EXPECT_THAT(ReadOk(*session_, 14), ElementsAre(160, 200));
}

const auto kBothLinks = ::testing::Values(LinkKind::kInProcess, LinkKind::kRemote);
std::string LinkName(const ::testing::TestParamInfo<LinkKind>& kind) {
  return kind.param == LinkKind::kRemote ? "Remote" : "InProcess";
}
INSTANTIATE_TEST_SUITE_P(Links, StoredProgramTest, kBothLinks, LinkName);
INSTANTIATE_TEST_SUITE_P(Links, WorkerTest, kBothLinks, LinkName);
INSTANTIATE_TEST_SUITE_P(Links, CrowdedWorkerTest, kBothLinks, LinkName);
INSTANTIATE_TEST_SUITE_P(Links, CallbackTest, kBothLinks, LinkName);
INSTANTIATE_TEST_SUITE_P(Links, AssembleTest, kBothLinks, LinkName);
INSTANTIATE_TEST_SUITE_P(Links, RemoteWorkerTest, ::testing::Values(LinkKind::kRemote), LinkName);

}  // namespace
}  // namespace helmway::worker
