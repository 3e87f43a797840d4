// The proxy of a cluster of stubs: workers that take every command and do nothing.
//
// Reads lines from stdin, "launch WORKERS COUNT" or "copy WORKERS COUNT", and answers each with COUNT
// numbers: nanoseconds of CPU time that the proxy took for one such request of a client, from the parsed
// message to the last command for a worker. Each worker has four devices, and each request is about all of
// them: a launch of a program with one array split over them, or a copy of that array to the devices of other
// workers. What a network between proxy and workers would cost is not in it.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session_testing.h"
#include "helmway/wire/ifrt_session.pb.h"

namespace helmway {
namespace {

constexpr int kDevicesPerWorker = 4;

// What waits for an answer, which the workers' contracts forbid to give inside the call. Any thread.
class Later {
 public:
  void Add(std::function<void()> answer) {
    base::MutexLock lock(&mu_);
    answers_.push_back(std::move(answer));
  }
  // Gives all answers, and those that come from them.
  void Pump() {
    while (true) {
      std::deque<std::function<void()>> answers;
      {
        base::MutexLock lock(&mu_);
        if (answers_.empty()) return;
        answers.swap(answers_);
      }
      for (const auto& answer : answers) answer();
    }
  }

 private:
  base::Mutex mu_;
  std::deque<std::function<void()>> answers_ ABSL_GUARDED_BY(mu_);
};

class StubSession final : public cluster::SessionLink {
 public:
  explicit StubSession(Later* later) : later_(later) {}

  void Declare(cluster::DeclareBuffers /*command*/) override {}
  void Fill(cluster::HostContents /*contents*/) override {}
  void Fail(const cluster::BufferTargets& /*targets*/, const absl::Status& /*status*/) override {}
  void Execute(cluster::Launch launch) override { Answer(std::move(launch.on_done), absl::OkStatus()); }
  void Flush() override {}
  void ReleaseLaunch(cluster::LaunchId /*id*/, uint64_t /*place*/) override {}
  void Settle(cluster::LaunchId /*id*/, const absl::Status& /*status*/) override {}
  void Copy(cluster::CopyBuffers /*command*/) override {}
  void Send(cluster::SendBuffers /*command*/) override {}
  void Receive(cluster::ReceiveBuffers /*command*/) override {}
  void Assemble(cluster::AssembleBuffers /*command*/) override {}
  void Bitcast(cluster::BitcastBuffers /*command*/) override {}
  void Delete(const std::vector<cluster::BufferNames>& /*buffers*/) override {}
  void Read(cluster::BufferId /*buffer*/, cluster::ReadFormat /*format*/,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override {
    Answer(std::move(done), absl::UnimplementedError("a stub has no bytes"));
  }
  void Await(const std::vector<cluster::BufferNames>& /*buffers*/,
             absl::AnyInvocable<void(const absl::Status&)> done) override {
    Answer(std::move(done), absl::OkStatus());
  }
  void Compile(cluster::CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) override {
    // One array in, one out, both split over all devices.
    cluster::CompiledProgram program =
        proxy::Compiled({.parameters = {{{2}, true}}, .outputs = {{{2}, true}}, .devices = command.devices});
    program.serialized = "stub";
    program.has_collectives = true;
    Answer(std::move(done), std::move(program));
  }
  void Load(cluster::LoadProgram /*command*/, absl::AnyInvocable<void(const absl::Status&)> done) override {
    Answer(std::move(done), absl::OkStatus());
  }
  void Unload(cluster::ExecutableId /*executable*/, std::optional<int64_t> /*stream*/) override {}
  void CostAnalysis(cluster::ExecutableId /*executable*/,
                    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) override {
    Answer(std::move(done), absl::UnimplementedError("a stub knows no costs"));
  }
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) override {}
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost /*lost*/) override {}
  void WhenPythonSays(PythonSays /*says*/) override {}
  void TellPython(const std::string& /*text*/) override {}
  void Close() override {}

 private:
  template <typename Done, typename Value>
  void Answer(Done done, Value value) {
    auto shared = std::make_shared<std::pair<Done, Value>>(std::move(done), std::move(value));
    later_->Add([shared] { shared->first(std::move(shared->second)); });
  }

  Later* const later_;
};

class StubWorker final : public cluster::WorkerLink {
 public:
  StubWorker(int number, Later* later) : number_(number), later_(later) {
    info_.platform_name = "cpu";
    info_.platform_version = "a stub";
    for (int i = 0; i < kDevicesPerWorker; ++i) {
      cluster::MemoryInfo memory;
      memory.id = i;
      memory.kind = "device";
      cluster::DeviceInfo device;
      device.id = 2048 * number + i;
      device.local_hardware_id = i;
      device.kind = device.platform_name = "cpu";
      device.default_memory = i;
      device.memories = {i};
      memory.devices = {device.id};
      info_.memories.push_back(std::move(memory));
      info_.devices.push_back(std::move(device));
    }
  }

  const cluster::WorkerInfo& info() const override { return info_; }
  cluster::PeerAddress peer_address() const override {
    return {absl::StrCat("stub-", number_, ":1"), static_cast<uint64_t>(number_) + 1};
  }
  std::shared_ptr<cluster::SessionLink> OpenSession(
      cluster::SessionId /*session*/, std::shared_ptr<cluster::CallbackSink> /*callbacks*/) override {
    return std::make_shared<StubSession>(later_);
  }
  void DefaultLayout(cluster::ElementType /*type*/, const std::vector<int64_t>& /*dims*/,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override {
    done("{0}");
  }
  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int /*replicas*/,
                                                                         int /*partitions*/) override {
    return absl::UnimplementedError("a stub assigns no devices");
  }
  absl::Status Loss() override { return absl::OkStatus(); }

 private:
  const int number_;
  Later* const later_;
  cluster::WorkerInfo info_;
};

// Keeps the last answer. Any thread.
class Stream final : public net::SessionStream {
 public:
  void Send(const xla::ifrt::proxy::IfrtResponse& response, bool /*patient*/) override {
    base::MutexLock lock(&mu_);
    last_ = response;
  }
  void SetPaused(bool /*paused*/) override {}
  void Close(const absl::Status& /*status*/) override {}
  xla::ifrt::proxy::IfrtResponse last() const {
    base::MutexLock lock(&mu_);
    return last_;
  }

 private:
  mutable base::Mutex mu_;
  xla::ifrt::proxy::IfrtResponse last_ ABSL_GUARDED_BY(mu_);
};

int64_t ThreadCpuNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

[[noreturn]] void Die(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

// A proxy of so many workers, with one client.
class Cluster {
 public:
  explicit Cluster(int workers) {
    std::vector<std::unique_ptr<cluster::WorkerLink>> links;
    for (int w = 0; w < workers; ++w) links.push_back(std::make_unique<StubWorker>(w, &later_));
    for (const auto& link : links) {
      for (const auto& device : link->info().devices) devices_.push_back(device.id);
    }
    auto group = cluster::WorkerGroup::Create(std::move(links));
    if (!group.ok()) Die(group.status().ToString());
    group_ = *std::move(group);
    proxy::ProxyOptions options;
    options.host_memory = std::make_shared<base::HostMemoryPool>(0);
    proxy_ = std::make_unique<proxy::Proxy>(group_.get(), options);
    xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(wire::kMaxProtocolVersion);
    metadata.mutable_version()->set_ifrt_serdes_version_number(wire::kMaxSerdesVersion);
    auto session = proxy_->OpenSession(metadata, "ipv4:127.0.0.1:4711", stream_);
    if (!session.ok()) Die(session.status().ToString());
    session_ = *std::move(session);

    // The first array: its one host buffer is the same for all.
    const auto sharding = proxy::Split(devices_);
    const std::string bytes(8, 'x');
    xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest request;
    std::vector<proxy::ShardBuffer> shards;
    for (size_t d = 0; d < devices_.size(); ++d) {
      const uint64_t handle = next_handle_++;
      Upload(handle, bytes);
      shards.push_back({handle, {2}, {static_cast<int64_t>(d)}});
    }
    array_ = next_handle_++;
    proxy::AddArray(request, array_, proxy::Spec({2 * static_cast<int64_t>(devices_.size())}, sharding),
                    shards);
    Ask(request);
    Ask(proxy::CompileFor(devices_));
    executable_ = stream_->last().compile_response().loaded_executable_handle();
    // The first run describes the results.
    Ask(proxy::Execute({.executable = executable_, .arguments = {array_}}));
    others_.assign(devices_.begin() + kDevicesPerWorker, devices_.end());
    others_.insert(others_.end(), devices_.begin(), devices_.begin() + kDevicesPerWorker);
  }
  ~Cluster() {
    session_->OnClosed();
    session_.reset();
    later_.Pump();
  }

  int64_t Launch() {
    const uint64_t result = next_handle_++;
    const int64_t took =
        Ask(proxy::Execute({.executable = executable_, .arguments = {array_}, .results = {result}}));
    Ask(proxy::Destruct({result}));
    return took;
  }

  int64_t Copy() {
    const uint64_t result = next_handle_++;
    const int64_t took = Ask(proxy::Copy({array_}, {result}, others_));
    Ask(proxy::Destruct({result}));
    return took;
  }

 private:
  void Upload(uint64_t handle, const std::string& bytes) {
    auto writer = session_->StoreHostBuffer(handle, static_cast<int64_t>(bytes.size()));
    if (!writer.ok()) Die(writer.status().ToString());
    std::copy(bytes.begin(), bytes.end(), (*writer)->Reserve(static_cast<int64_t>(bytes.size())));
    if (const absl::Status status = (*writer)->Finish(); !status.ok()) Die(status.ToString());
  }

  // Returns the CPU time until the proxy had done with it.
  int64_t Ask(const google::protobuf::Message& request) {
    xla::ifrt::proxy::IfrtRequest whole;
    const google::protobuf::FieldDescriptor* member = proxy::RequestMember(request.GetDescriptor());
    whole.GetReflection()->MutableMessage(&whole, member)->CopyFrom(request);
    whole.mutable_request_metadata()->set_op_id(next_op_++);
    const int64_t begin = ThreadCpuNanoseconds();
    session_->OnRequest(whole);
    const int64_t took = ThreadCpuNanoseconds() - begin;
    later_.Pump();
    // Some answers come by way of other threads.
    while (stream_->last().response_metadata().op_id() != next_op_ - 1) {
      std::this_thread::yield();
      later_.Pump();
    }
    const auto metadata = stream_->last().response_metadata();
    if (metadata.status().code() != 0) Die(absl::StrCat(member->name(), ": ", metadata.status().message()));
    return took;
  }

  Later later_;
  std::vector<int32_t> devices_, others_;
  std::unique_ptr<cluster::WorkerGroup> group_;
  std::unique_ptr<proxy::Proxy> proxy_;
  const std::shared_ptr<Stream> stream_ = std::make_shared<Stream>();
  std::shared_ptr<net::SessionHandler> session_;
  uint64_t next_handle_ = 1, next_op_ = 1, array_ = 0, executable_ = 0;
};

}  // namespace
}  // namespace helmway

int main() {
  std::map<int, std::unique_ptr<helmway::Cluster>> clusters;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string what;
    int workers = 0, count = 0;
    if (!(words >> what >> workers >> count) || workers < 2 || (what != "launch" && what != "copy")) {
      helmway::Die("launch or copy, a number of workers, and how often");
    }
    auto& cluster = clusters[workers];
    if (cluster == nullptr) cluster = std::make_unique<helmway::Cluster>(workers);
    for (int i = 0; i < count; ++i)
      std::cout << (what == "launch" ? cluster->Launch() : cluster->Copy()) << ' ';
    std::cout << std::endl;
  }
}
