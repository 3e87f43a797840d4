#include "helmway/cluster/absent_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace helmway::cluster {
namespace {

using ::testing::ElementsAre;

DeviceInfo Device(DeviceId id, int64_t slice, int64_t task) {
  DeviceInfo device;
  device.id = id;
  device.debug_string = absl::StrCat("CpuDevice(id=", id, ")");
  device.to_string = absl::StrCat("cpu:", id);
  device.memories = {7};
  device.default_memory = 7;
  device.attributes = {
      {"slice_index", {slice}}, {"virtual_task_index", {task}}, {"colocation_id", {int64_t{id}}}};
  return device;
}

WorkerInfo Sibling() {
  WorkerInfo info;
  info.platform_name = "cpu";
  info.devices = {Device(2048, 0, 1), Device(2049, 0, 1)};
  MemoryInfo memory;
  memory.id = 7;
  memory.devices = {2048, 2049};
  info.memories = {memory};
  return info;
}

TEST(AbsentWorker, IsExpectedToBeLikeItsSibling) {
  const auto info =
      ExpectWorker(Sibling(), {.worker = 1, .slice = 0, .task = 1}, {.worker = 6, .slice = 3, .task = 0});
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_EQ(info->devices.size(), 2);
  EXPECT_EQ(info->devices[1].id, 6 * 2048 + 1);
  EXPECT_EQ(info->devices[1].debug_string, "CpuDevice(id=12289)");
  EXPECT_EQ(info->devices[1].to_string, "cpu:12289");
  EXPECT_EQ(std::get<int64_t>(info->devices[1].attributes.at("slice_index").value), 3);
  EXPECT_EQ(std::get<int64_t>(info->devices[1].attributes.at("virtual_task_index").value), 0);
  EXPECT_EQ(std::get<int64_t>(info->devices[1].attributes.at("colocation_id").value), 12289);
  EXPECT_THAT(info->memories[0].devices, ElementsAre(12288, 12289));
}

TEST(AbsentWorker, WhatCannotBeExpected) {
  const WorkerPlaceInCluster here{.worker = 1, .slice = 0, .task = 1};
  const WorkerPlaceInCluster there{.worker = 6, .slice = 3, .task = 0};
  EXPECT_EQ(ExpectWorker(Sibling(), {.worker = 2, .slice = 1, .task = 0}, there).status().code(),
            absl::StatusCode::kUnimplemented);
  WorkerInfo placed = Sibling();
  for (DeviceInfo& device : placed.devices) device.attributes["coords"] = {std::vector<int64_t>{0, 0, 0}};
  EXPECT_EQ(ExpectWorker(placed, here, there).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(ExpectWorker(placed, here, {.worker = 7, .slice = 3, .task = 1}).ok());
}

TEST(AbsentWorker, AnswersWithItsLoss) {
  const absl::Status loss = absl::DataLossError("worker 1 of slice 0 has not come yet");
  const auto worker = MakeAbsentWorker(Sibling(), loss);
  EXPECT_EQ(worker->Loss(), loss);
  const auto session = worker->OpenSession(1, nullptr);
  EXPECT_EQ(session->Loss(), loss);
  int answers = 0;
  session->Await({}, [&](const absl::Status& status) { answers += status == loss; });
  session->Read(1, {},
                [&](const absl::StatusOr<base::HostBytes>& bytes) { answers += bytes.status() == loss; });
  EXPECT_EQ(answers, 2);
}

}  // namespace
}  // namespace helmway::cluster
