// Two real workers behind the network, as one: cluster::WorkerGroup over net and worker.

#include "helmway/cluster/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "helmway/worker/worker_group_testing.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;

using cluster::BufferId;
using cluster::BufferNames;
using cluster::DeviceId;

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
