#include "helmway/pjrt/client.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class ClientTest : public PjrtTest {};

TEST_F(ClientTest, DescribesDevicesAndMemories) {
  auto client = MakeClient(4);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->platform_name(), "cpu");
  EXPECT_FALSE(client->platform_version().empty());
  EXPECT_EQ(client->process_index(), 0);
  ASSERT_EQ(client->devices().size(), 4u);
  EXPECT_EQ(client->addressable_devices().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Device* device = client->devices()[i];
    EXPECT_EQ(device->id(), i);
    EXPECT_EQ(device->local_hardware_id(), i);
    EXPECT_EQ(device->process_index(), 0);
    EXPECT_TRUE(device->is_addressable());
    EXPECT_EQ(device->kind(), "cpu");
    EXPECT_THAT(device->to_string(), HasSubstr(std::to_string(i)));
    EXPECT_FALSE(device->debug_string().empty());
    EXPECT_EQ(client->FindDevice(i), device);
    EXPECT_EQ(client->FindDevice(device->get()), device);
    std::vector<std::string> kinds;
    for (const Memory* memory : device->memories()) {
      kinds.push_back(memory->kind());
      EXPECT_THAT(memory->devices(), ElementsAre(device));
      EXPECT_EQ(client->FindMemory(memory->id()), memory);
      EXPECT_FALSE(memory->debug_string().empty());
      EXPECT_FALSE(memory->to_string().empty());
      EXPECT_EQ(device->FindMemory(memory->kind()), memory);
    }
    EXPECT_THAT(kinds, UnorderedElementsAre("device", "pinned_host", "unpinned_host"));
    ASSERT_NE(device->default_memory(), nullptr);
    EXPECT_EQ(device->default_memory()->kind(), "device");
    EXPECT_EQ(device->FindMemory("tape"), nullptr);
  }
  EXPECT_EQ(client->memories().size(), 12u);
  // The kind id names the kind: equal for equal kinds only.
  for (const Memory* a : client->memories()) {
    for (const Memory* b : client->memories())
      EXPECT_EQ(a->kind() == b->kind(), a->kind_id() == b->kind_id());
  }
  EXPECT_EQ(client->FindDevice(77), nullptr);
  EXPECT_EQ(client->FindMemory(77), nullptr);
}

TEST_F(ClientTest, ProcessIdShiftsDeviceIds) {
  auto client = Client::Create(plugin_, {{"cpu_device_count", int64_t{2}}, {"process_id", int64_t{3}}});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->process_index(), 3);
  std::vector<int> ids;
  for (const Device* device : (*client)->addressable_devices()) ids.push_back(device->id());
  EXPECT_THAT(ids, ElementsAre(3 * 2048, 3 * 2048 + 1));
}

TEST_F(ClientTest, UnknownOptionIsRefused) {
  auto client = Client::Create(plugin_, {{"helmway_no_such_option", int64_t{1}}});
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("helmway_no_such_option"));
}

TEST_F(ClientTest, BuffersOutliveTheLastNameOfTheClient) {
  auto client = MakeClient();
  Buffer buffer = MakeBuffer<float>(*client, ElementType::kF32, {1, 2}, {2});
  client.reset();
  EXPECT_THAT(Read<float>(buffer), ElementsAre(1, 2));
}

TEST_F(ClientTest, DefaultDeviceAssignment) {
  auto client = MakeClient(4);
  auto ids = client->DefaultDeviceAssignment(1, 4);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(0, 1, 2, 3));
  ids = client->DefaultDeviceAssignment(2, 2);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), 4u);
  EXPECT_EQ(client->DefaultDeviceAssignment(0, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, DefaultLayout) {
  auto client = MakeClient();
  EXPECT_EQ(*client->DefaultLayout(ElementType::kF32, {2, 3}), "{1,0}");
  EXPECT_EQ(*client->DefaultLayout(ElementType::kF32, {}), "{}");
  EXPECT_EQ(*client->DefaultLayout(ElementType::kS4, {8}), "{0:E(4)}");
  EXPECT_EQ(client->DefaultLayout(ElementType::kF32, {-2}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->DefaultLayout(static_cast<ElementType>(36), {2}).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(ClientTest, CompileErrorsKeepTheirText) {
  auto client = MakeClient();
  auto executable = client->Compile(
      {.code = "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { %0 = stablehlo.nonsense %a }",
       .serialized_options = TestCompileOptions(1)});
  ASSERT_FALSE(executable.ok());
  EXPECT_THAT(std::string(executable.status().message()), HasSubstr("nonsense"));
}

TEST_F(ClientTest, UnknownProgramFormatIsRefused) {
  auto client = MakeClient();
  auto executable = client->Compile({.code = "x", .format = "fortran"});
  ASSERT_FALSE(executable.ok());
  EXPECT_THAT(std::string(executable.status().message()), HasSubstr("fortran"));
}

TEST_F(ClientTest, CompilesWithDefaultOptions) {
  auto client = MakeClient();
  auto executable = client->Compile(
      {.code = "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"});
  ASSERT_TRUE(executable.ok()) << executable.status();
}

TEST_F(ClientTest, BadCompileOptionsAreAnError) {
  auto client = MakeClient();
  constexpr char kCode[] =
      "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }";
  auto code = [&](const std::string& options) {
    return client->Compile({.code = kCode, .serialized_options = options}).status().code();
  };
  EXPECT_EQ(code("garbage"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TestCompileOptions(0)), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(code(TestCompileOptions(2)), absl::StatusCode::kOk);          // only one device
  EXPECT_NE(code(TestCompileOptions(1, {5})), absl::StatusCode::kOk);     // no such device
  EXPECT_NE(code(TestCompileOptions(1, {0, 0})), absl::StatusCode::kOk);  // too many
}

TEST_F(ClientTest, DeserializingGarbageIsAnError) {
  auto client = MakeClient();
  EXPECT_FALSE(client->DeserializeAndLoad("garbage").ok());
  EXPECT_FALSE(client->DeserializeAndLoad("").ok());
}

TEST_F(ClientTest, ErrorBufferCarriesItsError) {
  auto client = MakeClient();
  auto buffer = client->ErrorBuffer(absl::DataLossError("the disk ate it"), ElementType::kF32, {2, 3},
                                    client->devices()[0]->default_memory());
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_THAT(buffer->dimensions(), ElementsAre(2, 3));
  EXPECT_EQ(buffer->element_type(), ElementType::kF32);
  auto ready = buffer->ReadyEvent();
  ASSERT_TRUE(ready.ok()) << ready.status();
  absl::Status status = ready->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the disk ate it"));
  EXPECT_EQ(ready->Error().code(), absl::StatusCode::kDataLoss);

  float values[6];
  auto event = buffer->ToHost(values, sizeof(values));
  EXPECT_EQ(event.ok() ? event->Await().code() : event.status().code(), absl::StatusCode::kDataLoss);

  EXPECT_EQ(
      client->ErrorBuffer(absl::OkStatus(), ElementType::kF32, {}, client->memories()[0]).status().code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace helmway::pjrt
