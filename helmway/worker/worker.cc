#include "helmway/worker/worker.h"

#include <glog/logging.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/program/compile_options.h"
#include "helmway/worker/python_callback.h"
#include "helmway/worker/session.h"

namespace helmway::worker {
namespace {

// XLA's passes recurse deeply over large programs.
constexpr size_t kCompilerStackBytes = 256 << 20;
constexpr int kCompilerThreads = 2;
constexpr size_t kMaxQueuedCompiles = 4096;
constexpr int kTransferThreads = 2;
constexpr size_t kMaxCallbackThreads = 4096;
constexpr size_t kMaxQueuedTransfers = 1 << 16;
// A few threads take all of a machine's memory bandwidth; the rest of its cores are for programs.
constexpr int kMaxAssemblyThreads = 8;

// Sessions that ended lately; what peers still send for them is dropped.
constexpr size_t kMaxEndedSessions = 1024;

cluster::AttributeValue ToClusterAttribute(const pjrt::AttributeValue& value) {
  return std::visit([](const auto& v) { return cluster::AttributeValue{v}; }, value);
}

pjrt::ClientPlace PlaceOf(const WorkerOptions& options) {
  pjrt::ClientPlace place{.number = options.process_id, .node = options.task_index};
  if (options.plugin_kind == pjrt::PluginKind::kCpu) {
    place.devices = options.virtual_devices;
  } else if (options.host_devices.has_value()) {
    place.first_device = options.host_devices->first;
    place.devices = options.host_devices->count;
  }
  if (options.key_values != nullptr) place.nodes = options.slice_workers;
  return place;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const WorkerOptions& options) {
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<pjrt::Plugin> plugin, pjrt::Plugin::Load(options.plugin_path));
  auto worker = std::unique_ptr<Worker>(new Worker());
  worker->plugin_kind_ = options.plugin_kind;
  HELMWAY_ASSIGN_OR_RETURN(
      worker->client_,
      pjrt::Client::Create(plugin,
                           pjrt::OptionsFor(options.plugin_kind, PlaceOf(options), options.plugin_options),
                           options.key_values));
  absl::StatusOr<DeviceIds> ids =
      DeviceIds::Create(*worker->client_, {.worker = options.process_id, .task = options.task_index});
  HELMWAY_RETURN_IF_ERROR(ids.status());
  worker->device_ids_ = *std::move(ids);
  if (worker->client_->addressable_devices().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the PJRT plugin '", options.plugin_path, "' has found no devices"));
  }
  worker->python_ = options.python;
  worker->process_id_ = options.process_id;
  worker->peers_ = options.peers;
  worker->custom_calls_ =
      std::make_unique<CustomCalls>(std::move(plugin), worker->client_->platform_name(), options.python);
  worker->tokens_ = std::make_unique<TokenMaker>(worker->client_.get());
  if (worker->client_->platform_name() == "cpu") {
    // Without it programs that call back are refused when they are compiled.
    const absl::Status status = RegisterPythonCallback(*worker->client_->plugin());
    LOG_IF(WARNING, !status.ok()) << "programs cannot call Python: " << status;
  }
  // Of a launch every device holds one, and may need another to go on.
  worker->callback_threads_ = std::make_unique<async::GrowingPool>(async::GrowingPool::Options{
      .name = "callback",
      .max_threads = kMaxCallbackThreads + 4 * worker->client_->addressable_devices().size()});
  worker->callback_clients_ =
      std::make_unique<CallbackClients>(worker->client_, options.process_id, worker->callback_threads_.get());
  worker->dumps_ = std::make_unique<Dumps>(options.python, options.environment);
  worker->compile_cache_ = options.compile_cache;
  // XLA's GPU compiler shares its work among the processes of a program, and waits for all of them, unless it
  // is told not to: here only one compiles.
  program::XlaOptions for_slice;
  if (options.plugin_kind == pjrt::PluginKind::kGpu) {
    for_slice["xla_gpu_shard_autotuning"].set_bool_field(false);
  }
  worker->compiler_ =
      std::make_unique<Compiler>(worker->client_, *worker->device_ids_, worker->custom_calls_.get(),
                                 worker->dumps_.get(), options.compile_cache, std::move(for_slice));
  worker->host_memory_ = options.host_memory;
  // One for each device that goes on after a collective, and one that computes for another meanwhile.
  worker->collectives_ = std::make_shared<Collectives>(
      CollectivesOptions{.peers = options.peers.get(),
                         .host_memory = options.host_memory,
                         .threads = static_cast<int>(worker->client_->addressable_devices().size()) + 1,
                         .wait_limit = options.collective_wait_limit});
  if (options.peers != nullptr) options.peers->SetReceiver(worker->collectives_);
  worker->available_memory_ = options.available_memory;
  worker->Describe(options);
  for (const pjrt::Device* device : worker->client_->addressable_devices()) {
    worker->queues_[worker->device_ids_->Of(*device)] = std::make_unique<DeviceQueue>(device);
  }
  worker->transfers_ = std::make_unique<async::ThreadPool>(async::ThreadPool::Options{
      .name = "transfer", .threads = kTransferThreads, .max_queued = kMaxQueuedTransfers});
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  worker->assemblers_ = std::make_unique<async::ThreadPool>(
      async::ThreadPool::Options{.name = "assemble",
                                 .threads = std::clamp(cores / 2, 2, kMaxAssemblyThreads),
                                 .max_queued = kMaxQueuedTransfers});
  worker->compilers_ =
      std::make_unique<async::ThreadPool>(async::ThreadPool::Options{.name = "compile",
                                                                     .threads = kCompilerThreads,
                                                                     .max_queued = kMaxQueuedCompiles,
                                                                     .stack_bytes = kCompilerStackBytes});
  return worker;
}

Worker::~Worker() {
  // In this order nothing that goes is still in use. Launches may be in collectives that end on threads of
  // their own; when they end they may begin others and offer tasks to the pools. Tasks command the plugin,
  // and its callbacks offer tasks too, which pools that are stopped refuse.
  launches_.WaitForNone();
  callback_threads_.reset();
  for (const auto* pool : {&compilers_, &transfers_, &assemblers_}) {
    if (*pool != nullptr) (*pool)->Stop();
  }
  queues_.clear();
  if (collectives_ != nullptr) collectives_->Stop();
  if (client_ != nullptr) client_->WaitForCallbacks();
}

void Worker::Describe(const WorkerOptions& options) {
  info_.platform_name = client_->platform_name();
  info_.platform_version = client_->platform_version();
  for (const pjrt::Device* device : client_->addressable_devices()) {
    cluster::DeviceInfo info;
    info.id = device_ids_->Of(*device);
    info.local_hardware_id = device->local_hardware_id();
    info.kind = device->kind();
    info.debug_string = device->debug_string();
    info.to_string = device->to_string();
    info.platform_name = client_->platform_name();
    if (device->default_memory() != nullptr) info.default_memory = device->default_memory()->id();
    for (const pjrt::Memory* memory : device->memories()) info.memories.push_back(memory->id());
    for (const auto& [name, value] : device->attributes()) info.attributes[name] = ToClusterAttribute(value);
    if (info_.devices.size() < options.device_attributes.size()) {
      const DeviceAttributes& added = options.device_attributes[info_.devices.size()];
      info.attributes.insert(added.begin(), added.end());
    }
    cluster::SetPlace(options.slice_index, options.task_index, &info);
    info_.devices.push_back(std::move(info));
  }
  for (const pjrt::Memory* memory : client_->memories()) {
    cluster::MemoryInfo info;
    info.id = memory->id();
    info.kind = memory->kind();
    info.kind_id = memory->kind_id();
    info.debug_string = memory->debug_string();
    info.to_string = memory->to_string();
    for (const pjrt::Device* device : memory->devices()) info.devices.push_back(device_ids_->Of(*device));
    info_.memories.push_back(std::move(info));
  }
}

std::shared_ptr<cluster::SessionLink> Worker::OpenSession(cluster::SessionId session,
                                                          std::shared_ptr<cluster::CallbackSink> callbacks) {
  auto opened = std::make_shared<Session>(this, session, std::move(callbacks));
  EarlyArrivals early;
  {
    base::MutexLock lock(&mu_);
    sessions_[session] = opened;
    if (const auto it = early_.find(session); it != early_.end()) {
      early = std::move(it->second);
      early_.erase(it);
    }
  }
  for (auto& [buffer, contents] : early) opened->TakeFromPeer(buffer, std::move(contents));
  return opened;
}

void Worker::TakeFromPeer(cluster::SessionId session, cluster::BufferId buffer,
                          absl::StatusOr<cluster::HostContents> contents) {
  std::shared_ptr<Session> open;
  {
    base::MutexLock lock(&mu_);
    const auto it = sessions_.find(session);
    if (it != sessions_.end()) {
      open = it->second.lock();
      if (open == nullptr) return;
    } else {
      if (std::find(ended_.begin(), ended_.end(), session) == ended_.end()) {
        early_[session].emplace_back(buffer, std::move(contents));
      }
      return;
    }
  }
  open->TakeFromPeer(buffer, std::move(contents));
}

void Worker::Forget(cluster::SessionId session) {
  collectives_->ForgetSession(session);
  base::MutexLock lock(&mu_);
  sessions_.erase(session);
  ended_.push_back(session);
  if (ended_.size() > kMaxEndedSessions) ended_.pop_front();
}

absl::StatusOr<std::shared_ptr<pjrt::Client>> Worker::CompilerFor(int devices) {
  if (!replaces_collectives()) {
    return absl::UnimplementedError(
        absl::StrCat("virtual devices to compile for, on the platform ", info_.platform_name));
  }
  base::MutexLock lock(&mu_);
  std::shared_ptr<pjrt::Client>& client = compiler_clients_[devices];
  if (client == nullptr) {
    absl::StatusOr<std::shared_ptr<pjrt::Client>> made =
        pjrt::Client::Create(client_->plugin(), {{"cpu_device_count", int64_t{devices}}});
    if (!made.ok()) return made.status();
    client = *std::move(made);
  }
  return client;
}

absl::Status Worker::CheckRoom(int64_t bytes) const {
  if (bytes < base::kLargeAllocationBytes || info_.platform_name != "cpu") return absl::OkStatus();
  const int64_t available = available_memory_();
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Out of memory: ", bytes, " bytes are needed, ", available, " are left"));
}

void Worker::FinishWriting(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  if (compile_cache_ != nullptr) compile_cache_->Flush(deadline);
  dumps_->Flush(deadline);
}

DeviceQueue* Worker::queue(cluster::DeviceId device) const {
  const auto it = queues_.find(device);
  return it == queues_.end() ? nullptr : it->second.get();
}

void Worker::DefaultLayout(cluster::ElementType type, const std::vector<int64_t>& dims,
                           absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) {
  done(client_->DefaultLayout(static_cast<pjrt::ElementType>(type), dims));
}

absl::StatusOr<std::vector<cluster::DeviceId>> Worker::DefaultDeviceAssignment(int replicas, int partitions) {
  HELMWAY_ASSIGN_OR_RETURN(std::vector<int> devices, client_->DefaultDeviceAssignment(replicas, partitions));
  // For more than there are the plugin may have made ids up, which mean nothing to us either.
  for (int& device : devices) device = device_ids_->OfPluginId(device).value_or(device);
  return devices;
}

}  // namespace helmway::worker
