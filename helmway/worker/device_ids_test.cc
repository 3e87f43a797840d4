// A worker whose plugin numbers its devices in its own way, and its place in a slice that is one client.
#include "helmway/worker/device_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/pjrt/key_value_store_testing.h"
#include "helmway/program/compile_options.h"
#include "helmway/wire/xla_compile_options.pb.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Host `task` of a slice of two hosts, whose workers are 4 and 5.
WorkerOptions OptionsOf(int task, std::shared_ptr<pjrt::KeyValueStore> store) {
  WorkerOptions options;
  options.plugin_path = HELMWAY_FAKE_GPU_PLUGIN;
  options.plugin_kind = pjrt::PluginKind::kGpu;
  options.slice_index = 2;
  options.task_index = task;
  options.slice_workers = 2;
  options.process_id = 4 + task;
  options.key_values = std::move(store);
  options.host_memory = std::make_shared<base::HostMemoryPool>(0);
  return options;
}

std::vector<cluster::DeviceId> IdsOf(const std::vector<cluster::DeviceInfo>& devices) {
  std::vector<cluster::DeviceId> ids;
  for (const cluster::DeviceInfo& device : devices) ids.push_back(device.id);
  return ids;
}

class DeviceIdsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = std::make_shared<pjrt::InMemoryKeyValueStore>();
    auto second = std::async(std::launch::async, [&] { return Worker::Create(OptionsOf(1, store)); });
    auto first = Worker::Create(OptionsOf(0, store));
    auto made = second.get();
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(made.ok()) << made.status();
    first_ = *std::move(first);
    second_ = *std::move(made);
  }

  std::unique_ptr<Worker> first_;
  std::unique_ptr<Worker> second_;
};

TEST_F(DeviceIdsTest, AWorkerTellsOfItsOwnDevices) {
  EXPECT_THAT(IdsOf(first_->info().devices), ElementsAre(8192, 8193));
  EXPECT_THAT(IdsOf(second_->info().devices), ElementsAre(10240, 10241));
  const cluster::DeviceInfo& device = second_->info().devices[1];
  EXPECT_EQ(std::get<int64_t>(device.attributes.at("slice_index").value), 2);
  EXPECT_EQ(std::get<int64_t>(device.attributes.at("virtual_task_index").value), 1);
  EXPECT_EQ(std::get<int64_t>(device.attributes.at("option node_id").value), 1);
  EXPECT_EQ(device.platform_name, "fake_gpu");
  for (const Worker* worker : {first_.get(), second_.get()}) {
    EXPECT_TRUE(cluster::WorkerInfoFromProto(cluster::WorkerInfoToProto(worker->info())).ok());
    EXPECT_EQ(worker->info().memories.size(), 4u);
  }
}

TEST_F(DeviceIdsTest, BothKnowAllDevicesByTheIdsOfTheCluster) {
  for (const Worker* worker : {first_.get(), second_.get()}) {
    const DeviceIds& ids = worker->device_ids();
    EXPECT_TRUE(ids.spans_processes());
    for (const cluster::DeviceId id : {8192, 8193, 10240, 10241}) EXPECT_TRUE(ids.Knows(id)) << id;
    EXPECT_FALSE(ids.Knows(0));
    EXPECT_EQ(ids.OfPluginId(2), 10240);
    EXPECT_EQ(ids.OfPluginId(4), std::nullopt);
  }
  EXPECT_NE(second_->queue(10241), nullptr);
  EXPECT_EQ(first_->queue(10241), nullptr);
}

TEST_F(DeviceIdsTest, OptionsForThePluginHaveItsIds) {
  xla::CompileOptionsProto options;
  auto& assignment = *options.mutable_executable_build_options()->mutable_device_assignment();
  assignment.set_replica_count(1);
  assignment.set_computation_count(2);
  for (const int id : {10241, 8192}) assignment.add_computation_devices()->add_replica_device_ids(id);
  const auto translated = second_->device_ids().OptionsForPlugin(options.SerializeAsString());
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_THAT(*program::AssignedDevices(*translated), ElementsAre(3, 0));

  assignment.mutable_computation_devices(0)->set_replica_device_ids(0, 7);
  EXPECT_EQ(second_->device_ids().OptionsForPlugin(options.SerializeAsString()).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string portable = program::SerializeDefaultCompileOptions({});
  EXPECT_EQ(*second_->device_ids().OptionsForPlugin(portable), portable);
}

TEST_F(DeviceIdsTest, WhatOnlyTheCpuPluginCanDo) {
  EXPECT_EQ(first_->CompilerFor(2).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(first_->CompilerFor(2).status().message()), HasSubstr("fake_gpu"));
  EXPECT_EQ(first_->callback_clients().Lease().status().code(), absl::StatusCode::kUnimplemented);
}

TEST(WorkerOfAnotherPluginTest, AClientOfItsOwn) {
  WorkerOptions options = OptionsOf(1, nullptr);
  options.host_devices = HostDevices{.first = 2, .count = 3};
  options.plugin_options = {{"memory_fraction", 0.5f}};
  const auto worker = Worker::Create(options);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_THAT(IdsOf((*worker)->info().devices), ElementsAre(10240, 10241, 10242));
  EXPECT_EQ((*worker)->info().devices[2].local_hardware_id, 4);
  EXPECT_EQ(std::get<float>((*worker)->info().devices[2].attributes.at("option memory_fraction").value),
            0.5f);
  EXPECT_FALSE((*worker)->device_ids().spans_processes());
}

TEST(WorkerOfAnotherPluginTest, AnotherProcessThanThePlace) {
  auto store = std::make_shared<pjrt::InMemoryKeyValueStore>();
  auto other = std::async(std::launch::async, [&] { return Worker::Create(OptionsOf(0, store)); });
  WorkerOptions options = OptionsOf(1, store);
  options.task_index = 0;
  options.plugin_options = {{"node_id", int64_t{1}}};
  const auto worker = Worker::Create(options);
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(worker.status().message()),
              HasSubstr("is process 1 of its slice, but this worker is host 0"));
  EXPECT_TRUE(other.get().ok());
}

TEST(WorkerOfAnotherPluginTest, NoDevices) {
  WorkerOptions options = OptionsOf(0, nullptr);
  options.host_devices = HostDevices{};
  EXPECT_THAT(std::string(Worker::Create(options).status().message()), HasSubstr("has found no devices"));
}

}  // namespace
}  // namespace helmway::worker
