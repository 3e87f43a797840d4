#include "helmway/cluster/worker_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helmway/cluster/versions.h"

namespace helmway::cluster {
namespace {

using ::testing::HasSubstr;

WorkerInfo Sample() {
  WorkerInfo info;
  info.platform_name = "cpu";
  info.platform_version = "1.2";
  MemoryInfo memory;
  memory.id = 7;
  memory.kind = "device";
  memory.kind_id = -3;
  memory.debug_string = "debug";
  memory.to_string = "text";
  memory.devices = {4096, 4097};
  info.memories = {memory};
  DeviceInfo first;
  first.id = 4096;
  first.local_hardware_id = 0;
  first.kind = "cpu";
  first.debug_string = "d0";
  first.to_string = "t0";
  first.platform_name = "cpu";
  first.default_memory = 7;
  first.memories = {7};
  first.attributes = {{"text", {std::string("a")}},       {"flag", {true}},
                      {"number", {int64_t{-5}}},          {"numbers", {std::vector<int64_t>{1, -2}}},
                      {"none", {std::vector<int64_t>{}}}, {"real", {1.5f}}};
  DeviceInfo second;
  second.id = 4097;
  second.local_hardware_id = -1;
  info.devices = {first, second};
  return info;
}

TEST(WorkerInfoTest, SurvivesTheWay) {
  const WorkerInfo info = Sample();
  proto::WorkerInfo message;
  ASSERT_TRUE(message.ParseFromString(WorkerInfoToProto(info).SerializeAsString()));
  const auto back = WorkerInfoFromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->platform_name, "cpu");
  EXPECT_EQ(back->platform_version, "1.2");
  ASSERT_EQ(back->devices.size(), 2u);
  const DeviceInfo& device = back->devices[0];
  EXPECT_EQ(device.id, 4096);
  EXPECT_EQ(device.kind, "cpu");
  EXPECT_EQ(device.debug_string, "d0");
  EXPECT_EQ(device.to_string, "t0");
  EXPECT_EQ(device.platform_name, "cpu");
  EXPECT_EQ(device.default_memory, 7);
  EXPECT_EQ(device.memories, std::vector<int32_t>{7});
  ASSERT_EQ(device.attributes.size(), info.devices[0].attributes.size());
  for (const auto& [name, attribute] : info.devices[0].attributes) {
    EXPECT_EQ(device.attributes.at(name).value, attribute.value) << name;
  }
  EXPECT_EQ(back->devices[1].local_hardware_id, -1);
  EXPECT_FALSE(back->devices[1].default_memory.has_value());
  ASSERT_EQ(back->memories.size(), 1u);
  EXPECT_EQ(back->memories[0].id, 7);
  EXPECT_EQ(back->memories[0].kind, "device");
  EXPECT_EQ(back->memories[0].kind_id, -3);
  EXPECT_EQ(back->memories[0].debug_string, "debug");
  EXPECT_EQ(back->memories[0].to_string, "text");
  EXPECT_EQ(back->memories[0].devices, (std::vector<DeviceId>{4096, 4097}));
}

TEST(WorkerInfoTest, RefusesWhatMakesNoSense) {
  const auto refusal = [](void (*spoil)(proto::WorkerInfo&)) {
    proto::WorkerInfo message = WorkerInfoToProto(Sample());
    spoil(message);
    const absl::Status status = WorkerInfoFromProto(message).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) { m.mutable_devices(1)->set_id(4096); }),
              HasSubstr("two devices have the id 4096"));
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) { *m.add_memories() = m.memories(0); }),
              HasSubstr("two memories have the id 7"));
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) { m.mutable_devices(0)->add_memories(8); }),
              HasSubstr("the memory 8"));
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) { m.mutable_devices(0)->set_default_memory(9); }),
              HasSubstr("the default memory 9"));
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) { m.mutable_memories(0)->add_devices(1); }),
              HasSubstr("the device 1"));
  EXPECT_THAT(refusal([](proto::WorkerInfo& m) {
                (*m.mutable_devices(0)->mutable_attributes())["x"] = proto::AttributeValue();
              }),
              HasSubstr("without a value"));
}

TEST(VersionsTest, SkewNamesBothSides) {
  EXPECT_TRUE(CheckPeerVersion("the resource manager", "the worker", kProtocolVersion, "9.9.9").ok());
  const absl::Status status = CheckPeerVersion("the resource manager", "the worker on host a", 77, "9.9.9");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the worker on host a is helmway 9.9.9 (cluster protocol 77)"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the resource manager is helmway " + std::string(SoftwareVersion()) +
                        " (cluster protocol 1)"));
}

TEST(WorkerInfoTest, HostsOfPython) {
  WorkerInfo info;
  info.platform_name = "cpu";
  // As a group lists them, by slice.
  for (const int32_t worker : {3, 0}) {
    for (int32_t i = 0; i < 2; ++i) {
      info.devices.emplace_back().id = FirstDeviceId(worker) + i;
      SetPlace(/*slice=*/worker, /*task=*/1, &info.devices.back());
    }
  }
  const auto hosts = PythonHostsOf(info);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ::testing::ElementsAre(PythonHost{0, 2, 0, 1}, PythonHost{3, 2, 3, 1}));

  info.devices[1].id = FirstDeviceId(3) + 5;
  EXPECT_EQ(PythonHostsOf(info).status().code(), absl::StatusCode::kInternal);
  info.platform_name = "tpu";
  EXPECT_EQ(PythonHostsOf(info).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(PythonHostsOf(info).status().message()), HasSubstr("platform tpu"));
}

}  // namespace
}  // namespace helmway::cluster
