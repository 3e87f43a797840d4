// Two real workers behind the network, as one: cluster::WorkerGroup over net and worker.

#include "helmway/cluster/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/peers.h"
#include "helmway/net/remote_worker.h"
#include "helmway/net/worker_service.h"
#include "helmway/pjrt/pjrt_testing.h"
#include "helmway/worker/link_testing.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using cluster::BufferId;
using cluster::BufferNames;
using cluster::DeviceId;

constexpr cluster::ElementType kF32 = 11;
// Ids of the devices: 2048 times the number of the worker, plus the number on it.
const std::vector<DeviceId> kDevices = {0, 1, 2048, 2049};

// Four devices of which none needs another.
constexpr char kTwice[] = R"(
module @twice attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %1 = stablehlo.add %a, %a : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
})";

constexpr char kSum[] = R"(
module @sum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
})";

// One worker with all that a process of its own would have around it.
struct Process {
  std::shared_ptr<base::HostMemoryPool> memory = std::make_shared<base::HostMemoryPool>(64 << 20);
  net::MessageStreamClient streams;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<net::MessageStreamService> service;
  std::unique_ptr<net::GrpcServer> server;
};

class WorkerGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* plugin = std::getenv("HELMWAY_PJRT_PLUGIN");
    ASSERT_NE(plugin, nullptr);
    std::vector<std::unique_ptr<cluster::WorkerLink>> links;
    for (int p = 0; p < 2; ++p) {
      auto process = std::make_unique<Process>();
      const std::string address = absl::StrCat("127.0.0.1:", PickPort());
      auto worker =
          Worker::Create({.plugin_path = plugin,
                          .virtual_devices = 2,
                          .slice_index = p,
                          .process_id = p,
                          .peers = net::MakePeerSender({.software = "test",
                                                        .self = {address, static_cast<uint64_t>(p) + 10},
                                                        .streams = &process->streams,
                                                        .host_memory = process->memory}),
                          .host_memory = process->memory});
      ASSERT_TRUE(worker.ok()) << worker.status();
      process->worker = *std::move(worker);
      process->service = net::MakeWorkerService(
          process->worker.get(), {.incarnation = static_cast<uint64_t>(p) + 10,
                                  .host_memory = process->memory,
                                  .peer_address = address,
                                  .receive_from_peer =
                                      [w = process->worker.get()](auto session, auto buffer, auto contents) {
                                        w->TakeFromPeer(session, buffer, std::move(contents));
                                      },
                                  .collectives = process->worker->collective_receiver()});
      auto server = net::GrpcServer::Start(address, {}, {process->service.get()});
      ASSERT_TRUE(server.ok()) << server.status();
      process->server = *std::move(server);
      auto link = net::ConnectToWorker({.address = address,
                                        .name = absl::StrCat("worker ", p),
                                        .incarnation = static_cast<uint64_t>(p) + 10,
                                        .software = "test",
                                        .streams = &streams_,
                                        .host_memory = pool_});
      ASSERT_TRUE(link.ok()) << link.status();
      links.push_back(*std::move(link));
      processes_.push_back(std::move(process));
    }
    auto group = cluster::WorkerGroup::Create(std::move(links));
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    session_ = group_->OpenSession(1234);
  }

  void TearDown() override {
    if (session_ != nullptr) session_->Close();
    session_.reset();
    group_.reset();
    for (const auto& process : processes_) process->server.reset();
  }

  // A port that is free now.
  static int PickPort() {
    class None final : public net::PolledService {
      void AddQueues(grpc::ServerBuilder& builder) override { queue_ = builder.AddCompletionQueue(); }
      void Start() override {}
      void Stop() override {
        queue_->Shutdown();
        void* tag;
        bool ok;
        while (queue_->Next(&tag, &ok)) {
        }
      }
      std::unique_ptr<grpc::ServerCompletionQueue> queue_;
    } none;
    auto server = net::GrpcServer::Start("127.0.0.1:0", {}, {&none});
    EXPECT_TRUE(server.ok()) << server.status();
    return (*server)->port();
  }

  void Put(BufferId id, const std::vector<float>& values, DeviceId device) {
    session_->Declare({.targets = {{id, device}}});
    cluster::HostContents contents;
    contents.targets = {{id, device}};
    contents.element_type = kF32;
    contents.dims = {static_cast<int64_t>(values.size())};
    auto block = pool_->Allocate(static_cast<int64_t>(values.size() * sizeof(float)));
    ASSERT_TRUE(block.ok());
    if (!values.empty()) std::memcpy(block->data, values.data(), values.size() * sizeof(float));
    contents.bytes = (*std::move(block)).Finish();
    session_->Fill(std::move(contents));
  }
  absl::StatusOr<std::vector<float>> Read(BufferId id) {
    ReadAnswer answer;
    session_->Read(id, {}, answer);
    session_->Flush();
    if (!answer.Wait().ok()) return answer.Wait().status();
    return Values(*answer.Wait());
  }
  absl::Status Await(const std::vector<BufferNames>& buffers) {
    StatusAnswer answer;
    session_->Await(buffers, answer);
    return answer.Wait();
  }
  absl::StatusOr<cluster::CompiledProgram> Compile(cluster::ExecutableId id, const std::string& code) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session_->Compile({.executable = id,
                       .code = code,
                       .options = pjrt::TestCompileOptions(4, kDevices),
                       .devices = kDevices},
                      answer);
    return answer.Steal();
  }

  const std::shared_ptr<base::HostMemoryPool> pool_ = std::make_shared<base::HostMemoryPool>(64 << 20);
  net::MessageStreamClient streams_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::unique_ptr<cluster::WorkerGroup> group_;
  std::shared_ptr<cluster::SessionLink> session_;
};

TEST_F(WorkerGroupTest, ItsDevicesAreThoseOfAll) {
  std::vector<DeviceId> devices;
  for (const auto& device : group_->info().devices) devices.push_back(device.id);
  EXPECT_EQ(devices, kDevices);
  std::vector<int32_t> memories;
  for (const auto& memory : group_->info().memories) {
    memories.push_back(memory.id);
    for (const DeviceId device : memory.devices) EXPECT_THAT(kDevices, ::testing::Contains(device));
  }
  std::vector<int32_t> numbers(memories.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(memories, numbers);
  EXPECT_THAT(*group_->DefaultDeviceAssignment(1, 3), ElementsAre(0, 1, 2048));
  EXPECT_FALSE(group_->DefaultDeviceAssignment(1, 5).ok());
}

TEST_F(WorkerGroupTest, BuffersLieOnTheirWorkers) {
  for (size_t i = 0; i < 4; ++i) Put(1 + i, {static_cast<float>(i)}, kDevices[i]);
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(*Read(1 + i), ElementsAre(static_cast<float>(i)));
  EXPECT_TRUE(Await({{1, 4, {}}}).ok());
  session_->Delete({{2, 2, {}}});
  EXPECT_EQ(Read(2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(*Read(4), ElementsAre(3));
}

TEST_F(WorkerGroupTest, CopiesGoFromWorkerToWorker) {
  std::vector<float> large(1 << 20);
  std::iota(large.begin(), large.end(), 0.0F);
  Put(1, {1, 2}, 0);
  Put(2, large, 2049);
  // One stays, one goes each way.
  session_->Copy({.sources = {0, 0, {1, 1, 2}}, .results = {10, 3, {}}, .devices = {1, 2048, 0}});
  EXPECT_THAT(*Read(10), ElementsAre(1, 2));
  EXPECT_THAT(*Read(11), ElementsAre(1, 2));
  EXPECT_EQ(*Read(12), large);
  // The copies are on their own.
  session_->Delete({{1, 2, {}}});
  EXPECT_EQ(*Read(12), large);
}

TEST_F(WorkerGroupTest, AnErrorTravelsWithItsFirstCause) {
  session_->Declare({.targets = {{1, 0}}});
  session_->Copy({.sources = {1, 1, {}}, .results = {2, 1, {}}, .devices = {2048}});
  session_->Copy({.sources = {2, 1, {}}, .results = {3, 1, {}}, .devices = {1}});
  session_->Flush();
  session_->Fail({{1, 0}}, absl::AbortedError("the first cause"));
  const absl::Status status = Await({{3, 1, {}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "the first cause");
}

TEST_F(WorkerGroupTest, AProgramIsCompiledOnceAndRunsOnAll) {
  auto compiled = Compile(1, kTwice);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->devices, kDevices);
  for (size_t i = 0; i < 4; ++i) {
    Put(1 + i, {static_cast<float>(2 * i), static_cast<float>(2 * i + 1)}, kDevices[i]);
  }
  StatusAnswer done;
  cluster::Launch launch;
  launch.id = 5;
  launch.executable = 1;
  launch.arguments = {{1, 4, {}}};
  launch.results = {{11, 4, {}}};
  launch.on_done = done;
  session_->Execute(std::move(launch));
  session_->Flush();
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  EXPECT_THAT(*Read(11), ElementsAre(0, 2));
  EXPECT_THAT(*Read(14), ElementsAre(12, 14));
  session_->Unload(1);
}

TEST_F(WorkerGroupTest, ASumOverAllWorkers) {
  auto compiled = Compile(1, kSum);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t i = 0; i < 4; ++i) {
    Put(1 + i, {static_cast<float>(2 * i), static_cast<float>(2 * i + 1)}, kDevices[i]);
  }
  StatusAnswer done;
  cluster::Launch launch;
  launch.id = 5;
  launch.executable = 1;
  launch.arguments = {{1, 4, {}}};
  launch.results = {{11, 4, {}}};
  launch.on_done = done;
  session_->Execute(std::move(launch));
  session_->Flush();
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  for (BufferId id = 11; id < 15; ++id) EXPECT_THAT(*Read(id), ElementsAre(28)) << id;
}

TEST_F(WorkerGroupTest, WhatALostWorkerWasToSendFails) {
  session_->Declare({.targets = {{1, 2048}}});
  session_->Copy({.sources = {1, 1, {}}, .results = {2, 1, {}}, .devices = {0}});
  Put(3, {7}, 1);
  EXPECT_THAT(*Read(3), ElementsAre(7));
  processes_[1]->server->Shutdown();
  EXPECT_EQ(Await({{2, 1, {}}}).code(), absl::StatusCode::kDataLoss);
  // And what comes after the loss, too; the other worker goes on.
  session_->Copy({.sources = {1, 1, {}}, .results = {4, 1, {}}, .devices = {0}});
  EXPECT_EQ(Await({{4, 1, {}}}).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(*Read(3), ElementsAre(7));
}

}  // namespace
}  // namespace helmway::worker
