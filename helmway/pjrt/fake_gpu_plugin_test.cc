// Clients of a plugin that takes options and meets its peers in a key-value store.
#include <future>
#include <stdexcept>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/key_value_store_testing.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ClientOr = absl::StatusOr<std::shared_ptr<Client>>;

class FakeGpuPluginTest : public ::testing::Test {
 protected:
  FakeGpuPluginTest() : plugin_(*Plugin::Load(HELMWAY_FAKE_GPU_PLUGIN)) {}

  ClientOr Make(std::vector<Option> options, std::shared_ptr<KeyValueStore> store = nullptr) {
    return Client::Create(plugin_, std::move(options), std::move(store));
  }
  ClientOr MakeNode(int node, int nodes, std::shared_ptr<KeyValueStore> store, int64_t timeout_ms = 60'000) {
    std::vector<Option> options = OptionsFor(PluginKind::kGpu, {.nodes = nodes, .node = node}, {});
    options.push_back({"topology_timeout_ms", timeout_ms});
    return Make(std::move(options), std::move(store));
  }

  std::shared_ptr<Plugin> plugin_;
};

TEST_F(FakeGpuPluginTest, OptionsOfEveryTypeArrive) {
  const std::vector<int64_t> visible = {3, 5, 6};
  const auto client = Make({{"platform_name", std::string("cu\0da", 5)},
                            {"collective_memory_size", int64_t{1} << 40},
                            {"memory_fraction", 0.75f},
                            {"preallocate", true},
                            {"visible_devices", visible}});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->platform_name(), std::string("cu\0da", 5));
  ASSERT_EQ((*client)->devices().size(), 3u);
  const AttributeMap& attributes = (*client)->devices()[1]->attributes();
  EXPECT_EQ(attributes.at("option platform_name"), AttributeValue(std::string("cu\0da", 5)));
  EXPECT_EQ(attributes.at("option collective_memory_size"), AttributeValue(int64_t{1} << 40));
  EXPECT_EQ(attributes.at("option memory_fraction"), AttributeValue(0.75f));
  EXPECT_EQ(attributes.at("option preallocate"), AttributeValue(true));
  EXPECT_EQ(attributes.at("option visible_devices"), AttributeValue(visible));
  EXPECT_EQ((*client)->devices()[1]->local_hardware_id(), 5);
}

TEST_F(FakeGpuPluginTest, ErrorsAboutOptionsAreThePlugins) {
  const auto unknown = Make({{"no_such_option", int64_t{1}}});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              AllOf(HasSubstr(HELMWAY_FAKE_GPU_PLUGIN),
                    HasSubstr("Unexpected option name passed to PJRT_Client_Create: no_such_option")));
  const auto mistyped = Make({{"memory_fraction", int64_t{1}}});
  EXPECT_THAT(std::string(mistyped.status().message()), HasSubstr("has another type: memory_fraction"));
}

TEST_F(FakeGpuPluginTest, DevicesAndMemories) {
  const auto client = Make({});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->platform_name(), "fake_gpu");
  ASSERT_EQ((*client)->addressable_devices().size(), 2u);
  const Device* device = (*client)->addressable_devices()[1];
  EXPECT_EQ(device->kind(), "Fake GPU");
  ASSERT_EQ(device->memories().size(), 2u);
  EXPECT_EQ(device->default_memory()->kind(), "device");
  EXPECT_NE(device->FindMemory("pinned_host"), nullptr);
  EXPECT_EQ((*client)->DefaultDeviceAssignment(1, 2).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(FakeGpuPluginTest, ProgramsRunOnDevicesOfSeveralNodes) {
  auto store = std::make_shared<InMemoryKeyValueStore>();
  const auto run = [&](int node) {
    const ClientOr client = MakeNode(node, 2, store);
    const std::vector<int> devices = {3, 0, 1};
    auto compiled = (*client)->Compile({.code = "any", .serialized_options = TestCompileOptions(3, devices)});
    auto executable =
        (*client)->DeserializeAndLoad(*(*compiled)->Serialize(), TestCompileOptions(3, devices)).value();
    EXPECT_EQ(executable->num_partitions(), 3);
    std::vector<float> values;
    std::vector<std::thread> threads;
    values.resize(executable->addressable_devices().size());
    for (size_t i = 0; i < values.size(); ++i) {
      threads.emplace_back([&, i] {
        Buffer output;
        Event done;
        const absl::Status status = executable->ExecuteOn(
            executable->addressable_devices()[i], {}, absl::MakeSpan(&output, 1), &done, {.launch_id = 7});
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_TRUE(output.ToHost(&values[i], sizeof(float), {})->Await().ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return values;
  };
  auto second = std::async(std::launch::async, [&] { return run(1); });
  EXPECT_THAT(run(0), ElementsAre(7, 7));
  EXPECT_THAT(second.get(), ElementsAre(7));
}

TEST_F(FakeGpuPluginTest, ClientsOfSeveralNodesSeeAllDevices) {
  auto store = std::make_shared<InMemoryKeyValueStore>();
  auto other = std::async(std::launch::async, [&] { return MakeNode(1, 2, store); });
  const ClientOr first = MakeNode(0, 2, store);
  const ClientOr second = other.get();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  const auto ids = [](absl::Span<Device* const> devices) {
    std::vector<int> result;
    for (const Device* device : devices) result.push_back(device->id());
    return result;
  };
  EXPECT_THAT(ids((*first)->devices()), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids((*second)->devices()), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids((*first)->addressable_devices()), ElementsAre(0, 1));
  EXPECT_THAT(ids((*second)->addressable_devices()), ElementsAre(2, 3));
  EXPECT_EQ((*second)->process_index(), 1);
  EXPECT_EQ((*first)->devices()[2]->process_index(), 1);
  EXPECT_FALSE((*first)->devices()[2]->is_addressable());
  EXPECT_TRUE((*first)->devices()[2]->memories().empty());
}

TEST_F(FakeGpuPluginTest, NodeThatDoesNotCome) {
  const ClientOr client = MakeNode(0, 2, std::make_shared<InMemoryKeyValueStore>(), 0);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("nobody has put fake_gpu/topology/1"));
}

TEST_F(FakeGpuPluginTest, StoreThatIsNotEmpty) {
  auto store = std::make_shared<InMemoryKeyValueStore>();
  ASSERT_TRUE(store->Put("fake_gpu/topology/0", "").ok());
  EXPECT_EQ(MakeNode(0, 2, store).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(FakeGpuPluginTest, SeveralNodesWithoutAStore) {
  EXPECT_EQ(MakeNode(0, 2, nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FakeGpuPluginTest, CancelledWhileItWaits) {
  auto store = std::make_shared<InMemoryKeyValueStore>();
  auto client = std::async(std::launch::async, [&] { return MakeNode(0, 2, store); });
  ASSERT_TRUE(store->Get("fake_gpu/topology/0", absl::InfiniteDuration()).ok());
  store->Cancel();
  EXPECT_EQ(client.get().status().code(), absl::StatusCode::kCancelled);
}

// Stores of which every call ends in the same way.
class FailingStore final : public KeyValueStore {
 public:
  absl::StatusOr<std::string> Get(const std::string&, absl::Duration) override { return TryGet(""); }
  absl::StatusOr<std::string> TryGet(const std::string&) override {
    return absl::ResourceExhaustedError("the store is full");
  }
  absl::Status Put(const std::string&, const std::string&) override { return TryGet("").status(); }
};

class ThrowingStore final : public KeyValueStore {
 public:
  absl::StatusOr<std::string> Get(const std::string&, absl::Duration) override { throw 1; }
  absl::StatusOr<std::string> TryGet(const std::string&) override { throw std::runtime_error("thrown"); }
  absl::Status Put(const std::string&, const std::string&) override { throw 1; }
};

TEST_F(FakeGpuPluginTest, ErrorsOfTheStoreReachThePlugin) {
  const ClientOr full = MakeNode(0, 2, std::make_shared<FailingStore>());
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("the store is full"));
  const ClientOr thrown = MakeNode(0, 2, std::make_shared<ThrowingStore>());
  EXPECT_EQ(thrown.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(thrown.status().message()), HasSubstr("thrown"));
}

TEST_F(FakeGpuPluginTest, TheStoreLivesAsLongAsTheClient) {
  auto store = std::make_shared<InMemoryKeyValueStore>();
  const std::weak_ptr<InMemoryKeyValueStore> watched = store;
  ClientOr client = Make({}, std::move(store));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_FALSE(watched.expired());
  client = absl::CancelledError();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace helmway::pjrt
