// What a worker is told about its place in the cluster shows in its devices.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <variant>
#include <vector>

#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

TEST(WorkerPlaceTest, DevicesAreNumberedByTheWorker) {
  const char* plugin = std::getenv("HELMWAY_PJRT_PLUGIN");
  ASSERT_NE(plugin, nullptr) << "HELMWAY_PJRT_PLUGIN is not set: configure with -DHELMWAY_PJRT_PLUGIN=...";
  std::set<int32_t> memories;
  for (const int number : {0, 5}) {
    auto worker = Worker::Create(
        {.plugin_path = plugin,
         .virtual_devices = 2,
         .slice_index = 1,
         .task_index = 3,
         .process_id = number,
         .device_attributes = {{{"coords", {std::vector<int64_t>{2, 1, 0}}}, {"slice_index", {int64_t{99}}}}},
         .host_memory = std::make_shared<base::HostMemoryPool>(0)});
    ASSERT_TRUE(worker.ok()) << worker.status();
    const cluster::WorkerInfo& info = (*worker)->info();
    ASSERT_EQ(info.devices.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      const cluster::DeviceInfo& device = info.devices[static_cast<size_t>(i)];
      EXPECT_EQ(device.id, cluster::FirstDeviceId(number) + i);
      EXPECT_EQ(std::get<int64_t>(device.attributes.at("slice_index").value), 1);
      EXPECT_EQ(std::get<int64_t>(device.attributes.at("virtual_task_index").value), 3);
    }
    EXPECT_EQ(std::get<std::vector<int64_t>>(info.devices[0].attributes.at("coords").value),
              (std::vector<int64_t>{2, 1, 0}));
    EXPECT_EQ(info.devices[1].attributes.count("coords"), 0u);
    for (const cluster::MemoryInfo& memory : info.memories) {
      EXPECT_TRUE(memories.insert(memory.id).second) << "two workers have a memory " << memory.id;
    }
    // What travels is what was there.
    EXPECT_TRUE(cluster::WorkerInfoFromProto(cluster::WorkerInfoToProto(info)).ok());
  }
}

}  // namespace
}  // namespace helmway::worker
