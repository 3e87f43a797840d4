#include "helmway/worker/worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/worker/session.h"

namespace helmway::worker {
namespace {

// XLA's passes recurse deeply over large programs.
constexpr size_t kCompilerStackBytes = 256 << 20;
constexpr int kCompilerThreads = 2;
constexpr size_t kMaxQueuedCompiles = 4096;
constexpr int kTransferThreads = 2;
constexpr size_t kMaxQueuedTransfers = 1 << 16;

cluster::AttributeValue ToClusterAttribute(const pjrt::AttributeValue& value) {
  return std::visit([](const auto& v) { return cluster::AttributeValue{v}; }, value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const WorkerOptions& options) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<pjrt::Plugin> plugin, pjrt::Plugin::Load(options.plugin_path));
  auto worker = std::unique_ptr<Worker>(new Worker());
  HELMWAY_ASSIGN_OR_RETURN(
      worker->client_,
      pjrt::Client::Create(std::move(plugin),
                           {{"cpu_device_count", static_cast<int64_t>(options.virtual_devices)}}));
  worker->tokens_ = std::make_unique<TokenMaker>(worker->client_.get());
  worker->host_memory_ = options.host_memory;
  worker->available_memory_ = options.available_memory;
  worker->Describe(options);
  for (const pjrt::Device* device : worker->client_->addressable_devices()) {
    worker->queues_[device->id()] = std::make_unique<DeviceQueue>(device);
  }
  worker->transfers_ = std::make_unique<async::ThreadPool>(async::ThreadPool::Options{
      .name = "transfer", .threads = kTransferThreads, .max_queued = kMaxQueuedTransfers});
  worker->compilers_ =
      std::make_unique<async::ThreadPool>(async::ThreadPool::Options{.name = "compile",
                                                                     .threads = kCompilerThreads,
                                                                     .max_queued = kMaxQueuedCompiles,
                                                                     .stack_bytes = kCompilerStackBytes});
  return worker;
}

Worker::~Worker() = default;

void Worker::Describe(const WorkerOptions& options) {
  info_.platform_name = client_->platform_name();
  info_.platform_version = client_->platform_version();
  for (const pjrt::Device* device : client_->addressable_devices()) {
    cluster::DeviceInfo info;
    info.id = device->id();
    info.local_hardware_id = device->local_hardware_id();
    info.kind = device->kind();
    info.debug_string = device->debug_string();
    info.to_string = device->to_string();
    info.platform_name = client_->platform_name();
    if (device->default_memory() != nullptr) info.default_memory = device->default_memory()->id();
    for (const pjrt::Memory* memory : device->memories()) info.memories.push_back(memory->id());
    for (const auto& [name, value] : device->attributes()) info.attributes[name] = ToClusterAttribute(value);
    // What JAX, pathwaysutils, Orbax and MaxText group devices by.
    info.attributes["slice_index"] = {int64_t{options.slice_index}};
    info.attributes["virtual_task_index"] = {int64_t{options.task_index}};
    info.attributes["colocation_id"] = {int64_t{device->id()}};
    info_.devices.push_back(std::move(info));
  }
  for (const pjrt::Memory* memory : client_->memories()) {
    cluster::MemoryInfo info;
    info.id = memory->id();
    info.kind = memory->kind();
    info.kind_id = memory->kind_id();
    info.debug_string = memory->debug_string();
    info.to_string = memory->to_string();
    for (const pjrt::Device* device : memory->devices()) info.devices.push_back(device->id());
    info_.memories.push_back(std::move(info));
  }
}

std::shared_ptr<cluster::SessionLink> Worker::OpenSession(cluster::SessionId /*session*/) {
  return std::make_shared<Session>(this);
}

absl::Status Worker::CheckRoom(int64_t bytes) const {
  if (bytes < base::kLargeAllocationBytes || info_.platform_name != "cpu") return absl::OkStatus();
  const int64_t available = available_memory_();
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Out of memory: ", bytes, " bytes are needed, ", available, " are left"));
}

DeviceQueue* Worker::queue(cluster::DeviceId device) const {
  const auto it = queues_.find(device);
  return it == queues_.end() ? nullptr : it->second.get();
}

absl::StatusOr<std::string> Worker::DefaultLayout(cluster::ElementType type,
                                                  const std::vector<int64_t>& dims) {
  return client_->DefaultLayout(static_cast<pjrt::ElementType>(type), dims);
}

absl::StatusOr<std::vector<cluster::DeviceId>> Worker::DefaultDeviceAssignment(int replicas, int partitions) {
  return client_->DefaultDeviceAssignment(replicas, partitions);
}

}  // namespace helmway::worker
