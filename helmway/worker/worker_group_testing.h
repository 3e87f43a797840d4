#ifndef HELMWAY_WORKER_WORKER_GROUP_TESTING_H_
#define HELMWAY_WORKER_WORKER_GROUP_TESTING_H_

// For tests of several real workers as one: cluster::WorkerGroup over net and worker, in one process.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/peers.h"
#include "helmway/net/remote_worker.h"
#include "helmway/net/worker_service.h"
#include "helmway/pjrt/pjrt_testing.h"
#include "helmway/storage/memory_store.h"
#include "helmway/worker/link_testing.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {

// One worker with all that a process of its own would have around it.
struct Process {
  std::shared_ptr<base::HostMemoryPool> memory = std::make_shared<base::HostMemoryPool>(64 << 20);
  uint64_t incarnation = 0;
  std::string address;
  net::CompletionThread calls;
  net::MessageStreamClient streams{&calls};
  std::shared_ptr<cache::CompileCache> cache;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<net::MessageStreamService> service;
  std::unique_ptr<net::GrpcServer> server;
};

// Ids of devices are 2048 times the number of the worker, plus the number on it.
class WorkerGroupTest : public ::testing::Test {
 protected:
  explicit WorkerGroupTest(int workers = 2, int devices_per_worker = 2,
                           absl::Duration collective_wait_limit = absl::InfiniteDuration())
      : num_workers_(workers),
        devices_per_worker_(devices_per_worker),
        collective_wait_limit_(collective_wait_limit) {
    for (int w = 0; w < workers; ++w) {
      for (int d = 0; d < devices_per_worker; ++d) devices_.push_back(2048 * w + d);
    }
  }

  void SetUp() override { Start(); }

  // Workers without any state but what lies in store_.
  void Restart() {
    Stop();
    processes_.clear();
    Start();
  }

  // A worker that listens, in a new life.
  std::unique_ptr<Process> StartProcess(int p) {
    const char* plugin = std::getenv("HELMWAY_PJRT_PLUGIN");
    EXPECT_NE(plugin, nullptr);
    auto process = std::make_unique<Process>();
    process->incarnation = next_incarnation_++;
    process->cache = std::make_shared<cache::CompileCache>(cache::CompileCacheOptions{.store = store_});
    process->address = absl::StrCat("127.0.0.1:", PickPort());
    auto worker =
        Worker::Create({.plugin_path = plugin,
                        .virtual_devices = devices_per_worker_,
                        .slice_index = p,
                        .process_id = p,
                        .peers = net::MakePeerSender({.software = "test",
                                                      .self = {process->address, process->incarnation},
                                                      .streams = &process->streams,
                                                      .host_memory = process->memory}),
                        .collective_wait_limit = collective_wait_limit_,
                        .host_memory = process->memory,
                        .compile_cache = process->cache});
    EXPECT_TRUE(worker.ok()) << worker.status();
    process->worker = *std::move(worker);
    process->service = net::MakeWorkerService(
        process->worker.get(), {.incarnation = process->incarnation,
                                .host_memory = process->memory,
                                .peer_address = process->address,
                                .receive_from_peer =
                                    [w = process->worker.get()](auto session, auto buffer, auto contents) {
                                      w->TakeFromPeer(session, buffer, std::move(contents));
                                    },
                                .collectives = process->worker->collective_receiver()});
    auto server = net::GrpcServer::Start(process->address, {}, {process->service.get()}, &process->calls);
    EXPECT_TRUE(server.ok()) << server.status();
    process->server = *std::move(server);
    return process;
  }

  std::unique_ptr<cluster::WorkerLink> ConnectTo(int p, const Process& process) {
    auto link = net::ConnectToWorker({.address = process.address,
                                      .name = absl::StrCat("worker ", p),
                                      .incarnation = process.incarnation,
                                      .software = "test",
                                      .streams = &streams_,
                                      .host_memory = pool_});
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  void Start() {
    std::vector<std::unique_ptr<cluster::WorkerLink>> links;
    for (int p = 0; p < num_workers_; ++p) {
      processes_.push_back(StartProcess(p));
      links.push_back(ConnectTo(p, *processes_.back()));
    }
    auto group = cluster::WorkerGroup::Create(std::move(links));
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    session_ = group_->OpenSession(1234, sink_);
  }

  // The worker is gone.
  void Lose(int p) {
    processes_[static_cast<size_t>(p)]->server->Shutdown();
    while (!group_->IsLost(static_cast<cluster::WorkerIndex>(p))) absl::SleepFor(absl::Milliseconds(1));
  }
  // Another one is in its place.
  void Return(int p) {
    auto process = StartProcess(p);
    auto link = ConnectTo(p, *process);
    gone_.push_back(std::exchange(processes_[static_cast<size_t>(p)], std::move(process)));
    const absl::Status status = group_->Return(static_cast<cluster::WorkerIndex>(p), std::move(link));
    EXPECT_TRUE(status.ok()) << status;
  }

  void TearDown() override { Stop(); }

  void Stop() {
    if (session_ != nullptr) session_->Close();
    session_.reset();
    group_.reset();
    for (const auto& process : processes_) process->server.reset();
  }

  // A port that is free now.
  static int PickPort() {
    auto server = net::GrpcServer::Start("127.0.0.1:0", {});
    EXPECT_TRUE(server.ok()) << server.status();
    return (*server)->port();
  }

  void Put(cluster::BufferId id, const std::vector<float>& values, cluster::DeviceId device) {
    session_->Declare({.targets = {{id, device}}});
    cluster::HostContents contents;
    contents.targets = {{id, device}};
    contents.element_type = 11 /* f32 */;
    contents.dims = {static_cast<int64_t>(values.size())};
    auto block = pool_->Allocate(static_cast<int64_t>(values.size() * sizeof(float)));
    ASSERT_TRUE(block.ok());
    if (!values.empty()) std::memcpy(block->data, values.data(), values.size() * sizeof(float));
    contents.bytes = (*std::move(block)).Finish();
    session_->Fill(std::move(contents));
  }
  absl::StatusOr<std::vector<float>> Read(cluster::BufferId id) {
    ReadAnswer answer;
    session_->Read(id, {}, answer);
    session_->Flush();
    if (!answer.Wait().ok()) return answer.Wait().status();
    return Values(*answer.Wait());
  }
  // As soon as the group takes what is new on a worker that came back.
  void AwaitUsable(cluster::DeviceId device) {
    for (cluster::BufferId id = next_probe_;; ++id) {
      Put(id, {1}, device);
      const absl::Status status = Await({{id, 1, {}}});
      session_->Delete({{id, 1, {}}});
      next_probe_ = id + 1;
      if (status.ok()) return;
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  absl::Status Await(const std::vector<cluster::BufferNames>& buffers) {
    StatusAnswer answer;
    session_->Await(buffers, answer);
    return answer.Wait();
  }
  // Gives the numbers 0 to 7, two to each of four devices, to the program 1 as the buffers 1 to 4, and waits
  // for the end of the run. Its results are the buffers 11 to 14.
  void RunOnFourDevices() {
    ASSERT_EQ(devices_.size(), 4);
    PutFour(1);
    const absl::Status status = Run(1, 1, 11);
    EXPECT_TRUE(status.ok()) << status;
  }
  void PutFour(cluster::BufferId first) {
    for (size_t i = 0; i < 4; ++i) {
      Put(first + i, {static_cast<float>(2 * i), static_cast<float>(2 * i + 1)}, devices_[i]);
    }
  }
  // Runs a program of four devices with one argument and one result, and waits for its end.
  absl::Status Run(cluster::ExecutableId program, cluster::BufferId argument, cluster::BufferId result) {
    return Begin(program, argument, result).Wait();
  }
  StatusAnswer Begin(cluster::ExecutableId program, cluster::BufferId argument, cluster::BufferId result) {
    StatusAnswer done;
    cluster::Launch launch;
    launch.id = next_launch_++;
    launch.executable = program;
    launch.arguments = {{argument, 4, {}}};
    launch.results = {{result, 4, {}}};
    launch.on_done = done;
    session_->Execute(std::move(launch));
    session_->Flush();
    return done;
  }
  // A program of one partition for each device.
  absl::StatusOr<cluster::CompiledProgram> Compile(cluster::ExecutableId id, const std::string& code) {
    return CompileWith(id, code, pjrt::TestCompileOptions(static_cast<int>(devices_.size()), devices_));
  }
  absl::StatusOr<cluster::CompiledProgram> CompileWith(cluster::ExecutableId id, const std::string& code,
                                                       const std::string& options) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session_->Compile({.executable = id, .code = code, .options = options, .devices = devices_}, answer);
    return answer.Steal();
  }

  const int num_workers_;
  const int devices_per_worker_;
  const absl::Duration collective_wait_limit_;
  std::vector<cluster::DeviceId> devices_;
  const std::shared_ptr<base::HostMemoryPool> pool_ = std::make_shared<base::HostMemoryPool>(64 << 20);
  // Where the compile caches of all workers persist.
  const std::shared_ptr<storage::MemoryStore> store_ = std::make_shared<storage::MemoryStore>();
  const std::shared_ptr<TestSink> sink_ = std::make_shared<TestSink>();
  net::CompletionThread calls_;  // of the proxy
  net::MessageStreamClient streams_{&calls_};
  uint64_t next_incarnation_ = 10;
  cluster::BufferId next_probe_ = 1'000'000;
  cluster::LaunchId next_launch_ = 5;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Process>> gone_;
  std::unique_ptr<cluster::WorkerGroup> group_;
  std::shared_ptr<cluster::SessionLink> session_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_WORKER_GROUP_TESTING_H_
