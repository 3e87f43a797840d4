// Two real workers behind the network, as one: cluster::WorkerGroup over net and worker.

#include "helmway/cluster/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "helmway/worker/worker_group_testing.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;

using cluster::BufferId;
using cluster::BufferNames;
using cluster::DeviceId;

// Ids of the devices: 2048 times the number of the worker, plus the number on it.
const std::vector<DeviceId> kDevices = {0, 1, 2048, 2049};

// Four devices of which none needs another.
constexpr char kTwice[] = R"(
module @twice attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %1 = stablehlo.add %a, %a : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
})";

constexpr char kSum[] = R"(
module @sum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
})";

TEST_F(WorkerGroupTest, ItsDevicesAreThoseOfAll) {
  std::vector<DeviceId> devices;
  for (const auto& device : group_->info().devices) devices.push_back(device.id);
  EXPECT_EQ(devices, kDevices);
  std::vector<int32_t> memories;
  for (const auto& memory : group_->info().memories) {
    memories.push_back(memory.id);
    for (const DeviceId device : memory.devices) EXPECT_THAT(kDevices, ::testing::Contains(device));
  }
  std::vector<int32_t> numbers(memories.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(memories, numbers);
  EXPECT_THAT(*group_->DefaultDeviceAssignment(1, 3), ElementsAre(0, 1, 2048));
  EXPECT_FALSE(group_->DefaultDeviceAssignment(1, 5).ok());
}

TEST_F(WorkerGroupTest, BuffersLieOnTheirWorkers) {
  for (size_t i = 0; i < 4; ++i) Put(1 + i, {static_cast<float>(i)}, kDevices[i]);
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(*Read(1 + i), ElementsAre(static_cast<float>(i)));
  EXPECT_TRUE(Await({{1, 4, {}}}).ok());
  session_->Delete({{2, 2, {}}});
  EXPECT_EQ(Read(2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(*Read(4), ElementsAre(3));
}

TEST_F(WorkerGroupTest, CopiesGoFromWorkerToWorker) {
  std::vector<float> large(1 << 20);
  std::iota(large.begin(), large.end(), 0.0F);
  Put(1, {1, 2}, 0);
  Put(2, large, 2049);
  // One stays, one goes each way.
  session_->Copy({.sources = {0, 0, {1, 1, 2}}, .results = {10, 3, {}}, .devices = {1, 2048, 0}});
  EXPECT_THAT(*Read(10), ElementsAre(1, 2));
  EXPECT_THAT(*Read(11), ElementsAre(1, 2));
  EXPECT_EQ(*Read(12), large);
  // The copies are on their own.
  session_->Delete({{1, 2, {}}});
  EXPECT_EQ(*Read(12), large);
}

TEST_F(WorkerGroupTest, AnErrorTravelsWithItsFirstCause) {
  session_->Declare({.targets = {{1, 0}}});
  session_->Copy({.sources = {1, 1, {}}, .results = {2, 1, {}}, .devices = {2048}});
  session_->Copy({.sources = {2, 1, {}}, .results = {3, 1, {}}, .devices = {1}});
  session_->Flush();
  session_->Fail({{1, 0}}, absl::AbortedError("the first cause"));
  const absl::Status status = Await({{3, 1, {}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "the first cause");
}

TEST_F(WorkerGroupTest, AProgramIsCompiledOnceAndRunsOnAll) {
  auto compiled = Compile(1, kTwice);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->devices, kDevices);
  RunOnFourDevices();
  EXPECT_THAT(*Read(11), ElementsAre(0, 2));
  EXPECT_THAT(*Read(14), ElementsAre(12, 14));
  session_->Unload(1, std::nullopt);
}

TEST_F(WorkerGroupTest, WhatWasCompiledBeforeIsLoadedByAllWorkers) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  EXPECT_EQ(processes_[0]->cache->stats().misses, 1);
  ASSERT_TRUE(Compile(2, kSum).ok());
  EXPECT_EQ(processes_[0]->cache->stats().memory_hits, 1);
  const std::string description = Compile(3, kTwice)->optimized_hlo;
  Restart();
  auto compiled = Compile(1, kSum);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_TRUE(compiled->has_collectives);
  EXPECT_EQ(compiled->devices, kDevices);
  EXPECT_EQ(Compile(2, kTwice)->optimized_hlo, description);
  EXPECT_EQ(processes_[0]->cache->stats().store_hits, 2);
  EXPECT_EQ(processes_[0]->cache->stats().misses, 0);
  RunOnFourDevices();
  for (BufferId id = 11; id < 15; ++id) EXPECT_THAT(*Read(id), ElementsAre(28)) << id;
}

TEST_F(WorkerGroupTest, ASumOverAllWorkers) {
  auto compiled = Compile(1, kSum);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  RunOnFourDevices();
  for (BufferId id = 11; id < 15; ++id) EXPECT_THAT(*Read(id), ElementsAre(28)) << id;
}

// One device, and so short that it waits for Flush.
constexpr char kDouble[] = R"(
module @double {
  func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
    %1 = stablehlo.add %a, %a : tensor<2xf32>
    return %1 : tensor<2xf32>
  }
})";

TEST_F(WorkerGroupTest, LaunchesThatWaitForAFlushAreNotForgottenForWhatGoesOutAtOnce) {
  Answer<absl::StatusOr<cluster::CompiledProgram>> compiled;
  session_->Compile(
      {.executable = 1, .code = kDouble, .options = pjrt::TestCompileOptions(1, {2048}), .devices = {2048}},
      compiled);
  ASSERT_TRUE(compiled.Wait().ok()) << compiled.Wait().status();
  Put(1, {1, 2}, 2048);
  Put(2, {3}, 2048);
  StatusAnswer done;
  cluster::Launch launch;
  launch.id = 5;
  launch.executable = 1;
  launch.arguments = {{1, 1, {}}};
  launch.results = {{11, 1, {}}};
  launch.donated = {0};
  launch.on_done = done;
  session_->Execute(std::move(launch));
  // Takes the launch along.
  session_->Delete({{2, 1, {}}});
  session_->Flush();
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  EXPECT_THAT(*Read(11), ElementsAre(2, 4));
}

// Sums over all workers, in a session of its own.
class Summing {
 public:
  Summing(cluster::WorkerGroup* group, cluster::SessionId id) : session(group->OpenSession(id, nullptr)) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> compiled;
    session->Compile({.executable = 1,
                      .code = kSum,
                      .options = pjrt::TestCompileOptions(static_cast<int>(kDevices.size()), kDevices),
                      .devices = kDevices},
                     compiled);
    EXPECT_TRUE(compiled.Wait().ok()) << compiled.Wait().status();
    cluster::HostContents contents;
    for (size_t i = 0; i < 4; ++i) contents.targets.push_back({1 + i, kDevices[i]});
    session->Declare({contents.targets});
    contents.element_type = 11 /* f32 */;
    contents.dims = {2};
    auto block = pool.Allocate(8);
    const float ones[] = {1, 1};
    std::memcpy(block->data, ones, sizeof(ones));
    contents.bytes = (*std::move(block)).Finish();
    session->Fill(std::move(contents));
  }
  StatusAnswer Execute(cluster::LaunchId id) const {
    StatusAnswer done;
    cluster::Launch launch;
    launch.id = id;
    launch.executable = 1;
    launch.arguments = {{1, 4, {}}};
    launch.results = {{static_cast<BufferId>(100 * id), 4, {}}};
    launch.on_done = done;
    session->Execute(std::move(launch));
    return done;
  }

  base::HostMemoryPool pool{1 << 20};
  const std::shared_ptr<cluster::SessionLink> session;
};

TEST_F(WorkerGroupTest, SessionsDoNotWaitForEachOther) {
  std::vector<std::thread> threads;
  for (cluster::SessionId id = 1; id <= 3; ++id) {
    threads.emplace_back([this, id] {
      const Summing mine(group_.get(), id);
      std::vector<StatusAnswer> answers;
      for (cluster::LaunchId launch = 1; launch <= 100; ++launch) {
        answers.push_back(mine.Execute(launch));
        mine.session->Flush();
      }
      for (const StatusAnswer& answer : answers) EXPECT_TRUE(answer.Wait().ok()) << answer.Wait();
      mine.session->Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Programs that call Python functions of their client --------------------------------------------------

TEST_F(WorkerGroupTest, EveryWorkerCallsTheClient) {
  ASSERT_TRUE(Compile(1, kAllCallBack).ok());
  PutFour(1);
  const StatusAnswer done = Begin(1, 1, 11);
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  for (cluster::CallbackCall& call : calls) AnswerTimesTen(std::move(call));
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  for (BufferId id = 11; id < 15; ++id) EXPECT_THAT(*Read(id), ElementsAre(120, 160)) << id;
}

TEST_F(WorkerGroupTest, AFunctionThatFailsFailsTheRunOnAllWorkers) {
  ASSERT_TRUE(Compile(1, kAllCallBack).ok());
  ASSERT_TRUE(Compile(2, kSum).ok());
  PutFour(1);
  const StatusAnswer done = Begin(1, 1, 11);
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  calls[0].done(absl::InternalError("ValueError: no"));
  for (size_t i = 1; i < 4; ++i) AnswerTimesTen(std::move(calls[i]));
  EXPECT_THAT(std::string(done.Wait().message()), ::testing::HasSubstr("ValueError: no"));
  for (BufferId id = 11; id < 15; ++id) {
    EXPECT_THAT(std::string(Read(id).status().message()), ::testing::HasSubstr("ValueError: no")) << id;
  }
  EXPECT_TRUE(Run(2, 1, 21).ok());
}

// Neither other sessions nor what needs nothing of it. Its result reaches a program by a copy and another
// program.
TEST_F(WorkerGroupTest, AFunctionThatDoesNotAnswerHoldsUpOnlyWhatNeedsIt) {
  ASSERT_TRUE(Compile(1, kAllCallBack).ok());
  ASSERT_TRUE(Compile(2, kSum).ok());
  ASSERT_TRUE(Compile(3, kTwice).ok());
  PutFour(1);
  const StatusAnswer calls_back = Begin(1, 1, 11);
  const StatusAnswer twice = Begin(3, 11, 21);
  session_->Copy({.sources = {21, 4, {}}, .results = {31, 4, {}}, .devices = {2048, 2049, 0, 1}});
  session_->Copy({.sources = {31, 4, {}}, .results = {41, 4, {}}, .devices = kDevices});
  const StatusAnswer sum = Begin(2, 41, 51);
  EXPECT_TRUE(Run(2, 1, 61).ok());
  EXPECT_THAT(*Read(61), ElementsAre(28));
  const Summing other(group_.get(), 77);
  const StatusAnswer others = other.Execute(1);
  other.session->Flush();
  EXPECT_TRUE(others.Wait().ok()) << others.Wait();
  other.session->Close();
  EXPECT_FALSE(calls_back.done());
  EXPECT_FALSE(twice.done());
  EXPECT_FALSE(sum.done());

  for (int i = 0; i < 4; ++i) AnswerTimesTen(sink_->Next());
  EXPECT_TRUE(sum.Wait().ok()) << sum.Wait();
  // 2 * (120 + 160) for each of four shards.
  EXPECT_THAT(*Read(51), ElementsAre(2240));
}

TEST_F(WorkerGroupTest, TheEndOfASessionDropsWhatWaitsForAFunction) {
  ASSERT_TRUE(Compile(1, kAllCallBack).ok());
  ASSERT_TRUE(Compile(2, kTwice).ok());
  PutFour(1);
  const StatusAnswer calls_back = Begin(1, 1, 11);
  const StatusAnswer twice = Begin(2, 11, 21);
  std::vector<cluster::CallbackCall> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(sink_->Next());
  session_->Close();
  for (cluster::CallbackCall& call : calls) call.done(absl::CancelledError("the session has ended"));
  EXPECT_FALSE(calls_back.Wait().ok());
  EXPECT_FALSE(twice.Wait().ok());
  session_ = group_->OpenSession(77, nullptr);
  ASSERT_TRUE(Compile(1, kSum).ok());
  PutFour(1);
  EXPECT_TRUE(Run(1, 1, 11).ok());
}

TEST_F(WorkerGroupTest, ASessionThatEndsLeavesNoGapInTheOrderOfLaunches) {
  const Summing ends(group_.get(), 1), stays(group_.get(), 2);
  // Has its place, and has not gone out.
  const StatusAnswer unsent = ends.Execute(1);
  const StatusAnswer behind = stays.Execute(1);
  stays.session->Flush();
  ends.session->Close();
  EXPECT_EQ(unsent.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(behind.Wait().ok()) << behind.Wait();
  const StatusAnswer later = ends.Execute(2);
  const StatusAnswer last = stays.Execute(2);
  stays.session->Flush();
  EXPECT_EQ(later.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(last.Wait().ok()) << last.Wait();
  stays.session->Close();
}

TEST_F(WorkerGroupTest, ALaunchTakesItsPlaceWhenItIsReleased) {
  const Summing holds(group_.get(), 1), other(group_.get(), 2);
  StatusAnswer held;
  cluster::Launch launch;
  launch.id = 1;
  launch.executable = 1;
  launch.arguments = {{1, 4, {}}};
  launch.results = {{100, 4, {}}};
  launch.held = true;
  launch.on_done = held;
  holds.session->Execute(std::move(launch));
  const StatusAnswer passes = other.Execute(1);
  other.session->Flush();
  EXPECT_TRUE(passes.Wait().ok()) << passes.Wait();
  EXPECT_FALSE(held.done());
  holds.session->ReleaseLaunch(1, 0);
  holds.session->Flush();
  EXPECT_TRUE(held.Wait().ok()) << held.Wait();
  holds.session->Close();
  other.session->Close();
}

class ImpatientGroup : public WorkerGroupTest {
 protected:
  ImpatientGroup() : WorkerGroupTest(2, 2, absl::Milliseconds(200)) {}
};

TEST_F(ImpatientGroup, ACollectiveThatNobodyComesToFailsItsLaunchOnAllWorkers) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  for (size_t i = 0; i < 3; ++i) Put(1 + i, {1, 2}, kDevices[i]);
  session_->Declare({.targets = {{4, 2049}}});  // never filled
  StatusAnswer done;
  cluster::Launch launch;
  launch.id = 5;
  launch.executable = 1;
  launch.arguments = {{1, 4, {}}};
  launch.results = {{11, 4, {}}};
  launch.on_done = done;
  session_->Execute(std::move(launch));
  session_->Flush();
  const absl::Status status = Await({{11, 1, {}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("of launch 5 has waited for "));
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the devices 2048, 2049 of the worker at "));
  session_->Fail({{4, 2049}}, absl::AbortedError("it never came"));
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WorkerGroupTest, WhatALostWorkerWasToSendFails) {
  session_->Declare({.targets = {{1, 2048}}});
  session_->Copy({.sources = {1, 1, {}}, .results = {2, 1, {}}, .devices = {0}});
  Put(3, {7}, 1);
  EXPECT_THAT(*Read(3), ElementsAre(7));
  processes_[1]->server->Shutdown();
  EXPECT_EQ(Await({{2, 1, {}}}).code(), absl::StatusCode::kDataLoss);
  // And what comes after the loss, too; the other worker goes on.
  session_->Copy({.sources = {1, 1, {}}, .results = {4, 1, {}}, .devices = {0}});
  EXPECT_EQ(Await({{4, 1, {}}}).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(*Read(3), ElementsAre(7));
}

// ---- Workers that are lost and come back
// -------------------------------------------------------------------

// One device of the second worker.
constexpr char kTriple[] = R"(
module @triple {
  func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
    %three = stablehlo.constant dense<3.0> : tensor<2xf32>
    %0 = stablehlo.multiply %a, %three : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
})";

class ElasticGroup : public WorkerGroupTest {
 protected:
  absl::Status CompileTriple(cluster::ExecutableId id) {
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session_->Compile({.executable = id,
                       .code = kTriple,
                       .options = pjrt::TestCompileOptions(1, {2048}),
                       .devices = {2048}},
                      answer);
    return answer.Steal().status();
  }
  absl::Status Triple(cluster::ExecutableId id, BufferId argument, BufferId result) {
    StatusAnswer done;
    cluster::Launch launch;
    launch.id = next_launch_++;
    launch.executable = id;
    launch.arguments = {{argument, 1, {}}};
    launch.results = {{result, 1, {}}};
    launch.on_done = done;
    session_->Execute(std::move(launch));
    session_->Flush();
    return done.Wait();
  }
};

MATCHER(IsLost, "") {
  const absl::Status status = arg;
  *result_listener << status;
  return status.code() == absl::StatusCode::kDataLoss &&
         ::testing::Value(std::string(status.message()), ::testing::ContainsRegex("worker.* at 127.0.0.1"));
}

TEST_F(ElasticGroup, WhatNeedsALostWorkerFailsOnAll) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  ASSERT_TRUE(Compile(2, kTwice).ok());
  PutFour(1);
  ASSERT_TRUE(Run(1, 1, 11).ok());
  Lose(1);
  EXPECT_THAT(Run(1, 1, 21), IsLost());
  // Also where the devices do not need each other: a launch is never half done.
  EXPECT_THAT(Run(2, 1, 31), IsLost());
  for (const BufferId result : {21, 22, 23, 24, 31, 32, 33, 34}) {
    EXPECT_THAT(Await({{result, 1, {}}}), IsLost());
    EXPECT_THAT(Read(result).status(), IsLost());
  }
  EXPECT_THAT(*Read(12), ElementsAre(28));
  EXPECT_THAT(Read(13).status(), IsLost());
  EXPECT_THAT(*Read(2), ElementsAre(2, 3));
}

TEST_F(ElasticGroup, AnyWorkerThatIsThereKnowsTheDefaultLayout) {
  Lose(0);
  EXPECT_EQ(DefaultLayout(*group_, 11 /* f32 */, {2, 3}).value_or("?"), "{1,0}");
  Lose(1);
  EXPECT_THAT(DefaultLayout(*group_, 11 /* f32 */, {2, 4}).status(), IsLost());
}

TEST_F(ElasticGroup, ProgramsForALostWorkerAreCompiledByAnother) {
  Lose(1);
  auto compiled = Compile(1, kSum);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(compiled->devices, kDevices);
  EXPECT_TRUE(CompileTriple(2).ok());
  PutFour(1);
  EXPECT_THAT(Run(1, 1, 11), IsLost());
  EXPECT_THAT(Triple(2, 3, 20), IsLost());
  EXPECT_THAT(Read(20).status(), IsLost());
  Return(1);
  AwaitUsable(2048);
  PutFour(101);
  EXPECT_TRUE(Run(1, 101, 111).ok());
  for (BufferId id = 111; id < 115; ++id) EXPECT_THAT(*Read(id), ElementsAre(28)) << id;
  EXPECT_TRUE(Triple(2, 103, 120).ok());
  EXPECT_THAT(*Read(120), ElementsAre(12, 15));
}

TEST_F(ElasticGroup, AWorkerThatReturnsHasItsProgramsAndNotItsBuffers) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  ASSERT_TRUE(Compile(2, kTwice).ok());
  ASSERT_TRUE(CompileTriple(3).ok());
  for (int round = 0; round < 3; ++round) {
    const BufferId at = 1000 * static_cast<BufferId>(round + 1);
    PutFour(at);
    ASSERT_TRUE(Run(1, at, at + 10).ok());
    ASSERT_TRUE(Run(2, at, at + 20).ok());
    ASSERT_TRUE(Triple(3, at + 2, at + 30).ok());
    EXPECT_THAT(*Read(at + 13), ElementsAre(28));
    EXPECT_THAT(*Read(at + 30), ElementsAre(12, 15));
    Lose(1);
    Return(1);
    AwaitUsable(2049);
    // Sticky and contagious, and what is elsewhere stays good.
    EXPECT_THAT(Read(at + 2).status(), IsLost());
    EXPECT_THAT(Triple(3, at + 2, at + 31), IsLost());
    EXPECT_THAT(Read(at + 31).status(), IsLost());
    EXPECT_THAT(Run(1, at, at + 40), IsLost());
    EXPECT_THAT(Read(at + 40).status(), IsLost());
    session_->Copy({.sources = {at + 3, 1, {}}, .results = {at + 50, 1, {}}, .devices = {0}});
    EXPECT_THAT(Read(at + 50).status(), IsLost());
    EXPECT_THAT(*Read(at + 1), ElementsAre(2, 3));
    // A copy of what is good may go there.
    session_->Copy({.sources = {at + 1, 1, {}}, .results = {at + 51, 1, {}}, .devices = {2048}});
    EXPECT_THAT(*Read(at + 51), ElementsAre(2, 3));
    session_->Delete({{at, 60, {}}});
  }
  session_->Unload(1, std::nullopt);
  session_->Unload(3, std::nullopt);
  Lose(1);
  Return(1);
  AwaitUsable(2049);
  PutFour(1);
  EXPECT_TRUE(Run(2, 1, 11).ok());
}

TEST_F(ElasticGroup, LaunchesOfOldAndNewSessionsHaveOneOrderOnAWorkerThatReturned) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  Lose(1);
  PutFour(1);
  EXPECT_THAT(Run(1, 1, 11), IsLost());
  Return(1);
  AwaitUsable(2048);
  const std::shared_ptr<cluster::SessionLink> old = session_;
  const std::shared_ptr<cluster::SessionLink> other = group_->OpenSession(77, nullptr);
  session_ = other;
  ASSERT_TRUE(Compile(1, kSum).ok());
  PutFour(1);
  session_ = old;
  PutFour(201);
  for (int i = 0; i < 20; ++i) {
    const auto at = static_cast<BufferId>(300 + 10 * i);
    session_ = other;
    ASSERT_TRUE(Run(1, 1, at).ok());
    session_ = old;
    ASSERT_TRUE(Run(1, 201, at).ok());
    EXPECT_THAT(*Read(at), ElementsAre(28));
  }
  other->Close();
}

TEST_F(ElasticGroup, AWorkerWithOtherDevicesIsNotTaken) {
  Lose(1);
  auto process = StartProcess(0);
  auto link = ConnectTo(0, *process);
  EXPECT_EQ(group_->Return(1, std::move(link)).code(), absl::StatusCode::kFailedPrecondition);
  gone_.push_back(std::move(process));
}

// Workers come and go while a session works on.
TEST_F(ElasticGroup, Torment) {
  ASSERT_TRUE(Compile(1, kSum).ok());
  ASSERT_TRUE(Compile(2, kTwice).ok());
  BufferId at = 10'000;
  for (int round = 0; round < 6; ++round) {
    std::thread disturbs([&] {
      Lose(round % 2);
      Return(round % 2);
    });
    // A loss in the middle fails the step or leaves it whole.
    for (int step = 0; step < 20; ++step, at += 100) {
      PutFour(at);
      const absl::Status status = Run(step % 2 + 1, at, at + 10);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
      session_->Delete({{at, 20, {}}});
    }
    disturbs.join();
    AwaitUsable(0);
    AwaitUsable(2048);
    PutFour(at);
    ASSERT_TRUE(Run(1, at, at + 10).ok());
    for (BufferId id = at + 10; id < at + 14; ++id) EXPECT_THAT(*Read(id), ElementsAre(28)) << id;
  }
}

}  // namespace
}  // namespace helmway::worker
