#ifndef HELMWAY_PJRT_PJRT_TESTING_H_
#define HELMWAY_PJRT_PJRT_TESTING_H_

// For tests that run a real plugin: its path comes from the environment variable HELMWAY_PJRT_PLUGIN.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "helmway/pjrt/client.h"

namespace helmway::pjrt {

// Serialized xla.CompileOptionsProto (xla/pjrt/proto/compile_options.proto) for `partitions` SPMD partitions
// on `devices` (ids, one per partition; empty: the plugin's choice). `portable` takes no devices.
inline std::string TestCompileOptions(int partitions, absl::Span<const int> devices = {},
                                      bool portable = false) {
  auto varint = [](uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
    bytes.push_back(static_cast<char>(value));
    return bytes;
  };
  auto number = [&](int field, int64_t value) {
    return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(value));
  };
  auto message = [&](int field, const std::string& bytes) {
    return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
  };
  std::string build = number(1, -1) + number(4, 1) + number(5, partitions) + number(6, partitions > 1);
  if (!devices.empty()) {
    std::string assignment = number(1, 1) + number(2, partitions);
    for (int device : devices) assignment += message(3, number(1, device));
    build += message(9, assignment);
  }
  return message(3, build) + (portable ? number(4, 1) : "");
}

// Loads the plugin once per process. A test that cannot fails with a clear text.
class PjrtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const absl::StatusOr<std::shared_ptr<Plugin>>* plugin = [] {
      const char* path = std::getenv("HELMWAY_PJRT_PLUGIN");
      return new absl::StatusOr<std::shared_ptr<Plugin>>(
          path == nullptr
              ? absl::FailedPreconditionError("HELMWAY_PJRT_PLUGIN is not set: configure with "
                                              "-DHELMWAY_PJRT_PLUGIN=/path/of/pjrt_c_api_cpu_plugin.so")
              : Plugin::Load(path));
    }();
    ASSERT_TRUE(plugin->ok()) << plugin->status();
    plugin_ = **plugin;
  }

  // A client with `devices` CPU devices.
  std::shared_ptr<Client> MakeClient(int devices = 1) {
    auto client = Client::Create(plugin_, {{"cpu_device_count", int64_t{devices}}});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *client : nullptr;
  }

  template <typename T>
  static Buffer MakeBuffer(const Client& client, ElementType type, const std::vector<T>& values,
                           const std::vector<int64_t>& dims, const Device* device = nullptr) {
    auto result = client.BufferFromHost({.data = values.data(),
                                         .type = type,
                                         .dims = dims,
                                         .device = device == nullptr ? client.devices()[0] : device});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? std::move(result->buffer) : Buffer();
  }

  template <typename T>
  static std::vector<T> Read(const Buffer& buffer, const HostLayout& layout = {}) {
    auto size = buffer.HostSizeBytes();
    EXPECT_TRUE(size.ok()) << size.status();
    std::vector<T> values(size.value_or(0) / sizeof(T));
    auto event = buffer.ToHost(values.data(), values.size() * sizeof(T), layout);
    EXPECT_TRUE(event.ok()) << event.status();
    if (event.ok()) {
      absl::Status status = event->Await();
      EXPECT_TRUE(status.ok()) << status;
    }
    return values;
  }

  static std::unique_ptr<LoadedExecutable> Compile(const Client& client, std::string_view code,
                                                   const std::string& options = TestCompileOptions(1)) {
    auto executable = client.Compile({.code = code, .serialized_options = options});
    EXPECT_TRUE(executable.ok()) << executable.status();
    return executable.ok() ? *std::move(executable) : nullptr;
  }

  std::shared_ptr<Plugin> plugin_;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_PJRT_TESTING_H_
