#include "helmway/manager/manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "helmway/manager/manager_testing.h"

namespace helmway::manager {
namespace {

using cluster::WorkerState;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Places -------------------------------------------------------------------------------------------

TEST(PlacesTest, NumbersFollowFromSliceAndHost) {
  ManagerSettings settings = TestSettings(2, 2);
  settings.slices.push_back(
      {.instance_type = "cpu:3x1", .platform = "cpu", .hosts = 3, .devices_per_host = 1});
  ManagerHarness harness(settings);
  const auto given = harness.Given(harness.WorkerHello({.slice = 2, .task = 1}));
  ASSERT_TRUE(given.has_value());
  EXPECT_EQ(given->worker(), 5);
  EXPECT_EQ(given->instance_type(), "cpu:3x1");
  const auto linear = harness.Given(harness.WorkerHello({.incarnation = 2, .linear = 3}));
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->slice(), 1);
  EXPECT_EQ(linear->task(), 1);
}

TEST(PlacesTest, AssignedTellsTheShape) {
  ManagerHarness harness(TestSettings(3, 2, 4));
  const ConnectionId connection = harness.WorkerHello({.slice = 1, .task = 0});
  const cluster::proto::Assigned& assigned = harness.to_workers[connection].front().assigned();
  EXPECT_EQ(assigned.manager_incarnation(), 77u);
  EXPECT_EQ(assigned.hosts(), 2);
  EXPECT_EQ(assigned.devices_per_host(), 4);
  EXPECT_EQ(assigned.slices(), 3);
  EXPECT_EQ(assigned.workers(), 6);
  EXPECT_EQ(assigned.address(), harness.place(assigned.place().worker()).address);
  EXPECT_EQ(assigned.version().protocol(), cluster::kProtocolVersion);
}

TEST(PlacesTest, WithoutNumbersTheFirstFreePlace) {
  ManagerHarness harness(TestSettings(2, 2));
  for (int i = 0; i < 4; ++i) {
    const uint64_t incarnation = static_cast<uint64_t>(i) + 1;
    const auto given = harness.Given(harness.WorkerHello({.port = i + 1, .incarnation = incarnation}));
    ASSERT_TRUE(given.has_value());
    EXPECT_EQ(given->worker(), i);
  }
  const ConnectionId fifth = harness.WorkerHello({.host = "late", .port = 9, .incarnation = 9});
  EXPECT_EQ(harness.closed[fifth].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(harness.closed[fifth].message()),
              AllOf(HasSubstr("the worker on late (10.0.0.1:9) is one too many"),
                    HasSubstr("2 slices of cpu:2x2"), HasSubstr("--instance_count")));
}

TEST(PlacesTest, WithASliceOnlyTheFirstFreeHostOfIt) {
  ManagerHarness harness(TestSettings(2, 2));
  EXPECT_EQ(harness.Given(harness.WorkerHello({.port = 1, .incarnation = 1, .slice = 1}))->worker(), 2);
  EXPECT_EQ(harness.Given(harness.WorkerHello({.port = 2, .incarnation = 2, .slice = 1}))->worker(), 3);
  EXPECT_EQ(harness.closed[harness.WorkerHello({.port = 3, .incarnation = 3, .slice = 1})].code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(harness.Given(harness.WorkerHello({.port = 4, .incarnation = 4, .task = 1}))->worker(), 1);
}

TEST(PlacesTest, NumbersThatThereAreNotAreRefused) {
  ManagerHarness harness(TestSettings(2, 2));
  for (const FakeWorker& worker :
       {FakeWorker{.slice = 2, .task = 0}, FakeWorker{.slice = 0, .task = 2}, FakeWorker{.slice = -1},
        FakeWorker{.task = 7}, FakeWorker{.linear = 4}, FakeWorker{.linear = -1}}) {
    const ConnectionId connection = harness.WorkerHello(worker);
    EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(harness.closed[connection].message()),
                AllOf(HasSubstr("The newly added instance does not match with the expected instances"),
                      HasSubstr("2 slices of cpu:2x2"), HasSubstr("--instance_count")));
  }
}

TEST(PlacesTest, AWorkerIsUpWhenItsDevicesAreKnownAndItAnswers) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId connection = harness.WorkerHello({.host = "a", .port = 5});
  EXPECT_EQ(harness.place(0).state, WorkerState::kStarting);
  harness.Tick();
  EXPECT_THAT(harness.probes, IsEmpty());
  harness.Ready(connection, TestDevices(0, 2));
  EXPECT_TRUE(harness.Registered(connection));
  EXPECT_EQ(harness.place(0).state, WorkerState::kStarting);
  harness.Tick();
  ASSERT_EQ(harness.probes.count(0), 1u);
  EXPECT_EQ(harness.probes[0].address, "10.0.0.1:5");
  EXPECT_EQ(harness.probes[0].timeout, absl::Seconds(5));
  harness.Answer(0, absl::OkStatus());
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), ElementsAre("*** 1/1 Pathways Slices Now Ready ***"));
}

TEST(PlacesTest, TheReadyLineComesWithEachChange) {
  ManagerHarness harness(TestSettings(2, 2));
  std::vector<ConnectionId> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(harness.Join({.port = i + 1, .incarnation = static_cast<uint64_t>(i) + 1}));
  }
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools),
              ElementsAre("*** 1/2 Pathways Slices Now Ready ***", "*** 2/2 Pathways Slices Now Ready ***"));
  harness.KillWorker(streams[3]);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), ElementsAre("*** 1/2 Pathways Slices Now Ready ***"));
  harness.KillWorker(streams[2]);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), IsEmpty());
  harness.KillWorker(streams[0]);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), ElementsAre("*** 0/2 Pathways Slices Now Ready ***"));
}

TEST(PlacesTest, ALostStreamIsALostWorkerAtOnce) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId connection = harness.Join({});
  harness.CloseWorker(connection);
  // Not before it is known that nobody is there, which is known at once.
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  harness.Tick();
  ASSERT_TRUE(harness.Answer(0, absl::UnavailableError("Connection refused")));
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
  EXPECT_THAT(harness.place(0).reason, AllOf(HasSubstr("its connection to the resource manager is lost"),
                                             HasSubstr("Connection refused")));
  harness.Advance(absl::Minutes(1));
  EXPECT_THAT(harness.probes, IsEmpty());
}

TEST(PlacesTest, AWorkerThatLostItsStreamOnlyKeepsWhatItHas) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId before = harness.Join({.port = 1, .incarnation = 1, .slice = 0, .task = 0});
  const uint64_t info = harness.place(0).info_number;
  harness.TakeLogs(LogLine::kForTools);
  harness.CloseWorker(before);
  harness.Advance(absl::Seconds(9));
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  // Its place is not for others.
  const ConnectionId other = harness.WorkerHello({.port = 2, .incarnation = 2, .slice = 0, .task = 0});
  EXPECT_EQ(harness.closed[other].code(), absl::StatusCode::kAlreadyExists);
  const ConnectionId after = harness.WorkerHello({.port = 1, .incarnation = 1, .slice = 0, .task = 0});
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  harness.Ready(after, TestDevices(0, 2));
  EXPECT_TRUE(harness.Registered(after));
  harness.Advance(absl::Minutes(1));
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  EXPECT_EQ(harness.place(0).info_number, info);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), IsEmpty());
}

TEST(PlacesTest, AWorkerThatAnswersButDoesNotComeBackIsLost) {
  ManagerHarness harness(TestSettings(1, 1));
  harness.CloseWorker(harness.Join({}));
  harness.Advance(absl::Seconds(10));
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
  EXPECT_THAT(harness.place(0).reason, HasSubstr("did not come back"));
  harness.Join({});
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
}

TEST(PlacesTest, AProbeThatWasUnderWayDoesNotSaveADeadWorker) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId connection = harness.Join({});
  harness.now += absl::Seconds(3);
  harness.Tick();
  ASSERT_EQ(harness.probes.count(0), 1u);
  harness.CloseWorker(connection);
  harness.Answer(0, absl::OkStatus());
  harness.Tick();
  ASSERT_TRUE(harness.Answer(0, absl::UnavailableError("Connection refused")));
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
}

TEST(PlacesTest, ARestartedWorkerGetsItsPlaceWithANewIncarnation) {
  ManagerHarness harness(TestSettings(2, 1));
  harness.Join({.port = 1, .incarnation = 1});
  const ConnectionId second = harness.Join({.port = 2, .incarnation = 2});
  harness.KillWorker(second);
  // Without numbers, by its address.
  const ConnectionId again = harness.Join({.port = 2, .incarnation = 3});
  EXPECT_EQ(harness.Given(again)->worker(), 1);
  EXPECT_EQ(harness.place(1).state, WorkerState::kUp);
  EXPECT_EQ(harness.place(1).incarnation, 3u);
  EXPECT_EQ(harness.place(1).info->devices(0).id(), 2048);
}

TEST(PlacesTest, PlacesOfOthersAreTakenLast) {
  ManagerHarness harness(TestSettings(3, 1));
  harness.KillWorker(harness.Join({.port = 1, .incarnation = 1}));
  harness.KillWorker(harness.Join({.port = 2, .incarnation = 2}));
  EXPECT_EQ(harness.place(1).incarnation, 2u);
  // Workers 0 and 1 may come back; a new one takes the place that was never used.
  EXPECT_EQ(harness.Given(harness.Join({.port = 3, .incarnation = 3}))->worker(), 2);
  EXPECT_EQ(harness.Given(harness.Join({.port = 2, .incarnation = 4}))->worker(), 1);
  EXPECT_EQ(harness.Given(harness.Join({.port = 5, .incarnation = 5}))->worker(), 0);
}

TEST(PlacesTest, ASilentWorkerIsLostAfterTheThresholdAndComesBack) {
  ManagerHarness harness(TestSettings(1, 1));
  harness.Join({.host = "a", .port = 5});
  const auto no_answer = [&] { harness.AnswerAll(absl::DeadlineExceededError("Deadline Exceeded")); };
  harness.Advance(absl::Seconds(9), no_answer);
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  harness.Advance(absl::Seconds(3), no_answer);
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
  EXPECT_THAT(harness.place(0).reason, AllOf(HasSubstr("does not answer at 10.0.0.1:5"),
                                             HasSubstr("4 probes"), HasSubstr("Deadline")));
  EXPECT_THAT(harness.TakeLogs(LogLine::kWarning), ElementsAre(HasSubstr("the worker on a (10.0.0.1:5)")));
  harness.Advance(absl::Minutes(1), no_answer);
  EXPECT_THAT(harness.TakeLogs(LogLine::kWarning), IsEmpty());
  harness.Advance(absl::Seconds(3));
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  EXPECT_EQ(harness.place(0).incarnation, 1u);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools), ElementsAre("*** 1/1 Pathways Slices Now Ready ***"));
}

TEST(PlacesTest, AnswersForAWorkerThatWasReplacedDoNotCount) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId first = harness.WorkerHello({.incarnation = 1});
  harness.Ready(first, TestDevices(0, 2));
  harness.Tick();
  const StartProbe old = harness.probes[0];
  harness.CloseWorker(first);
  const ConnectionId second = harness.WorkerHello({.incarnation = 2});
  harness.Ready(second, TestDevices(0, 2));
  harness.Tick();
  harness.Apply(harness.manager->OnProbeAnswer(harness.now, 0, old.probe, absl::OkStatus()));
  EXPECT_EQ(harness.place(0).state, WorkerState::kStarting);
  harness.Apply(
      harness.manager->OnProbeAnswer(harness.now, 5, 1, absl::OkStatus()));  // there is no such place
  harness.Answer(0, absl::OkStatus());
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
}

TEST(PlacesTest, TheLaterOfTwoIsRefusedWhileTheFirstIsAlive) {
  ManagerHarness harness(TestSettings(2, 2));
  harness.Join({.host = "a", .port = 1, .incarnation = 0xaa, .slice = 1, .task = 0});
  harness.TakeLogs(LogLine::kError);
  const FakeWorker second = {.host = "b", .port = 2, .incarnation = 0xbb, .slice = 1, .task = 0};
  ConnectionId connection = harness.WorkerHello(second);
  EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(harness.closed[connection].message()),
              AllOf(HasSubstr("slice 1, host 0"), HasSubstr("a (10.0.0.1:1), incarnation aa"),
                    HasSubstr("b (10.0.0.1:2), incarnation bb")));
  EXPECT_EQ(harness.place(2).incarnation, 0xaau);
  EXPECT_EQ(harness.place(2).state, WorkerState::kUp);
  // Once is enough in the log.
  EXPECT_EQ(harness.TakeLogs(LogLine::kError).size(), 1u);
  harness.WorkerHello(second);
  EXPECT_EQ(harness.TakeLogs(LogLine::kError).size(), 0u);
  // The doubt is cleared up at once, without waiting for the period.
  harness.Tick();
  EXPECT_EQ(harness.probes.count(2), 1u);
}

TEST(PlacesTest, TheLaterOfTwoWinsOnceTheFirstDoesNotAnswer) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId first = harness.Join({.host = "a", .port = 1, .incarnation = 1, .slice = 0, .task = 0});
  harness.Advance(absl::Seconds(30), [&] { harness.AnswerAll(absl::DeadlineExceededError("late")); });
  const ConnectionId second = harness.Join({.host = "b", .port = 2, .incarnation = 2, .slice = 0, .task = 0});
  EXPECT_EQ(harness.closed[first].code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(harness.closed[first].message()), HasSubstr("b (10.0.0.1:2)"));
  EXPECT_TRUE(harness.Registered(second));
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  EXPECT_EQ(harness.place(0).incarnation, 2u);
  // The end of the first one's stream comes late and means nothing.
  harness.CloseWorker(first);
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
  // When it wakes up it does not get the place back.
  cluster::proto::Place held = *harness.Given(first);
  const ConnectionId back = harness.WorkerHello({.host = "a", .port = 1, .incarnation = 1, .held = held});
  EXPECT_EQ(harness.closed[back].code(), absl::StatusCode::kAlreadyExists);
}

TEST(PlacesTest, AWorkerAtTheSameAddressHasReplacedTheOneThatWasThere) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId first = harness.Join({.port = 1, .incarnation = 1});
  const ConnectionId second = harness.Join({.port = 1, .incarnation = 2});
  EXPECT_EQ(harness.closed[first].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(harness.Registered(second));
  EXPECT_EQ(harness.place(0).incarnation, 2u);
}

TEST(PlacesTest, AWorkerThatRegistersAgainKeepsItsPlace) {
  ManagerHarness harness(TestSettings(2, 1));
  harness.Join({.port = 1, .incarnation = 1});
  const ConnectionId before = harness.Join({.port = 2, .incarnation = 2});
  // The manager has not noticed the end of the first stream.
  const ConnectionId after = harness.Join({.port = 2, .incarnation = 2});
  EXPECT_EQ(harness.closed[before].code(), absl::StatusCode::kAborted);
  EXPECT_EQ(harness.Given(after)->worker(), 1);
  harness.CloseWorker(before);
  EXPECT_EQ(harness.place(1).state, WorkerState::kUp);
  EXPECT_EQ(harness.place(1).incarnation, 2u);
}

TEST(PlacesTest, AnotherShapeIsRefusedWithBothShapes) {
  ManagerHarness harness(TestSettings(1, 1, 4));
  const FakeWorker worker = {.host = "a", .port = 1};
  ConnectionId connection = harness.WorkerHello(worker);
  harness.Ready(connection, TestDevices(0, 8));
  EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(harness.closed[connection].message()),
              AllOf(HasSubstr("The newly added instance does not match with the expected instances"),
                    HasSubstr("8 cpu device(s)"), HasSubstr("cpu:1x4 with 4 cpu device(s)"),
                    HasSubstr("--instance_type")));
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
  EXPECT_THAT(harness.TakeLogs(LogLine::kError).size(), 1u);
  connection = harness.WorkerHello(worker);
  harness.Ready(connection, TestDevices(0, 8));
  EXPECT_THAT(harness.logs, IsEmpty());
  // The place is free for one that fits.
  EXPECT_TRUE(harness.Registered(harness.Join({.host = "b", .port = 2, .incarnation = 2})));
}

TEST(PlacesTest, CpuDevicesStandInForOthersOnlyIfToldTo) {
  ManagerSettings settings = TestSettings(1, 1, 4);
  settings.slices[0].instance_type = "tpuv5e:2x2";
  settings.slices[0].platform = "tpu";
  ManagerHarness harness(settings);
  ConnectionId connection = harness.WorkerHello({});
  harness.Ready(connection, TestDevices(0, 4));
  EXPECT_THAT(std::string(harness.closed[connection].message()),
              AllOf(HasSubstr("tpuv5e:2x2 with 4 tpu device(s)"), HasSubstr("HELMWAY_CPU_STANDIN=1")));
  connection = harness.WorkerHello({});
  harness.Ready(connection, TestDevices(0, 4), /*standin=*/true);
  EXPECT_TRUE(harness.Registered(connection));
  connection = harness.WorkerHello({.incarnation = 2});
  harness.Ready(connection, TestDevices(0, 3), /*standin=*/true);
  EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kFailedPrecondition);
  connection = harness.WorkerHello({.incarnation = 3});
  harness.Ready(connection, TestDevices(0, 4, "tpu"));
  EXPECT_TRUE(harness.Registered(connection));
}

TEST(PlacesTest, CudaAndRocmAreGpus) {
  ManagerSettings settings = TestSettings(1, 1, 1);
  settings.slices[0].platform = "gpu";
  ManagerHarness harness(settings);
  uint64_t incarnation = 0;
  for (const char* platform : {"cuda", "rocm", "gpu"}) {
    const ConnectionId connection = harness.WorkerHello({.incarnation = ++incarnation});
    harness.Ready(connection, TestDevices(0, 1, platform));
    EXPECT_TRUE(harness.Registered(connection)) << platform;
  }
}

TEST(PlacesTest, DeviceIdsOfOthersAreRefused) {
  ManagerHarness harness(TestSettings(2, 1));
  const ConnectionId connection = harness.WorkerHello({.slice = 1});
  harness.Ready(connection, TestDevices(0, 2));
  EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(harness.closed[connection].message()), HasSubstr("start at 2048"));
}

TEST(PlacesTest, VersionSkewNamesBoth) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId connection = harness.WorkerHello({.host = "a", .protocol = 99});
  EXPECT_EQ(harness.closed[connection].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(harness.closed[connection].message()),
              AllOf(HasSubstr("version skew"), HasSubstr("cluster protocol 99"),
                    HasSubstr(absl::StrCat("cluster protocol ", cluster::kProtocolVersion)),
                    HasSubstr("the worker on a"), HasSubstr("0.0.1")));
  EXPECT_EQ(harness.place(0).state, WorkerState::kExpected);
}

TEST(PlacesTest, MessagesThatMakeNoSenseEndTheirStream) {
  ManagerHarness harness(TestSettings(1, 1));
  harness.Ready(50, TestDevices(0, 2));
  EXPECT_EQ(harness.closed[50].code(), absl::StatusCode::kInvalidArgument);
  harness.Drain(51);
  EXPECT_EQ(harness.closed[51].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness.closed[harness.WorkerHello({.incarnation = 0})].code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness.closed[harness.WorkerHello({.port = 0})].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness.closed[harness.WorkerHello({.port = 65536})].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(harness.closed[harness.WorkerHello({.address = "nonsense"})].message()),
              HasSubstr("HELMWAY_ADVERTISE_ADDRESS"));
  const ConnectionId twice = harness.Join({});
  harness.Ready(twice, TestDevices(0, 2));
  EXPECT_EQ(harness.closed[twice].code(), absl::StatusCode::kInvalidArgument);
  cluster::proto::WorkerInfo nonsense = TestDevices(0, 2);
  nonsense.mutable_devices(1)->set_id(0);
  const ConnectionId same_ids = harness.WorkerHello({.incarnation = 2});
  harness.Ready(same_ids, nonsense);
  EXPECT_EQ(harness.closed[same_ids].code(), absl::StatusCode::kInvalidArgument);
  const ConnectionId good = harness.Join({.incarnation = 3});
  cluster::proto::WorkerMessage hello;
  hello.mutable_hello()->set_incarnation(4);
  harness.Apply(harness.manager->OnWorkerMessage(harness.now, good, "", hello));
  EXPECT_EQ(harness.closed[good].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness.place(0).state, WorkerState::kDown);
  // One that a later version may know.
  const ConnectionId other = harness.Join({.incarnation = 5});
  harness.Apply(harness.manager->OnWorkerMessage(harness.now, other, "", cluster::proto::WorkerMessage()));
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
}

TEST(PlacesTest, TextsOfPeersStayOnOneLine) {
  ManagerHarness harness(TestSettings(1, 1));
  harness.Join({.host = "a\nF1129 forged line" + std::string(1000, 'x')});
  EXPECT_THAT(harness.place(0).host, HasSubstr("a?F1129"));
  EXPECT_EQ(harness.place(0).host.size(), 256u);
}

TEST(PlacesTest, AddressesAreWhatTheManagerSeesUnlessTheWorkerSaysOtherwise) {
  ManagerSettings settings = TestSettings(3, 1);
  settings.advertised_host = "head";
  ManagerHarness harness(settings);
  harness.Join({.port = 1, .incarnation = 1});
  EXPECT_EQ(harness.place(0).address, "10.0.0.1:1");
  // Other hosts can't use a loopback address.
  harness.Join({.port = 2, .address = "127.0.0.1", .incarnation = 2});
  EXPECT_EQ(harness.place(1).address, "head:2");
  EXPECT_EQ(harness.place(1).probe_address, "127.0.0.1:2");
  harness.Join({.port = 3, .incarnation = 3, .advertise = "worker.example:99"});
  EXPECT_EQ(harness.place(2).address, "worker.example:99");
  EXPECT_EQ(harness.place(2).probe_address, "worker.example:99");
}

TEST(PlacesTest, ADrainingWorkerIsUsableButItsSliceIsNotReady) {
  ManagerHarness harness(TestSettings(1, 1));
  const ConnectionId connection = harness.Join({});
  harness.Drain(connection);
  EXPECT_EQ(harness.place(0).state, WorkerState::kDraining);
  EXPECT_THAT(harness.TakeLogs(LogLine::kForTools),
              ElementsAre(HasSubstr("1/1"), "*** 0/1 Pathways Slices Now Ready ***"));
  harness.CloseWorker(connection);
  EXPECT_EQ(harness.place(0).reason, "it was told to end");
  harness.Join({.incarnation = 2});
  EXPECT_EQ(harness.place(0).state, WorkerState::kUp);
}

// ---- A manager that starts again ----------------------------------------------------------------------

TEST(RestartTest, WorkersGetBackWhatTheyHeld) {
  ManagerHarness harness(TestSettings(2, 1));
  harness.Join({.port = 1, .incarnation = 1});
  const auto held = harness.Given(harness.Join({.port = 2, .incarnation = 2}));
  harness.Restart(78);
  // A new worker without numbers comes first, and has the first place; the old one has its own all the same.
  EXPECT_EQ(harness.Given(harness.WorkerHello({.port = 9, .incarnation = 9}))->worker(), 0);
  const ConnectionId back = harness.Join({.port = 2, .incarnation = 2, .held = held});
  EXPECT_EQ(harness.Given(back)->worker(), 1);
  EXPECT_TRUE(harness.Registered(back));
}

TEST(RestartTest, WhoHeldAPlaceGoesBeforeOneThatHasJustBegun) {
  ManagerHarness harness(TestSettings(1, 1));
  const auto held = harness.Given(harness.Join({.port = 1, .incarnation = 1}));
  harness.Restart(78);
  const ConnectionId newcomer = harness.WorkerHello({.port = 9, .incarnation = 9});
  const ConnectionId back = harness.Join({.port = 1, .incarnation = 1, .held = held});
  EXPECT_EQ(harness.closed[newcomer].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(harness.Registered(back));
}

TEST(RestartTest, AnotherClusterRefusesWorkersOfTheOldOne) {
  ManagerHarness small(TestSettings(1, 2, 2));
  const auto held = small.Given(small.Join({}));
  ManagerHarness other(TestSettings(1, 2, 4));
  const ConnectionId connection = other.WorkerHello({.held = held});
  EXPECT_EQ(other.closed[connection].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.closed[connection].message()),
              AllOf(HasSubstr("cpu:2x2"), HasSubstr("cpu:2x4"), HasSubstr("restart it")));
  for (const int32_t worker : {-1, 2}) {
    cluster::proto::Place nonsense = *held;
    nonsense.set_worker(worker);
    EXPECT_EQ(small.closed[small.WorkerHello({.incarnation = 9, .held = nonsense})].code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST(RestartTest, LeasesFromBeforeGoFirst) {
  ManagerHarness harness(TestSettings(2, 1));
  const auto held = harness.Given(harness.Join({.port = 1, .incarnation = 1}));
  harness.ProxyHello(100, SlicesOf({"cpu:1x2"}));
  ASSERT_EQ(harness.manager->leases().holder(0), 100u);
  harness.Restart(78);
  harness.Join({.port = 1, .incarnation = 1, .held = held});
  // Somebody else asks before the holder is back.
  const ConnectionId other = harness.ProxyHello(200, SlicesOf({"cpu:1x2"}));
  EXPECT_EQ(harness.manager->leases().holder(0), 0u);
  const ConnectionId holder = harness.ProxyHello(100, SlicesOf({"cpu:1x2"}), {0});
  EXPECT_EQ(harness.manager->leases().holder(0), 100u);
  harness.Join({.port = 2, .incarnation = 2});
  EXPECT_EQ(harness.manager->leases().holder(1), 0u);
  harness.AdvanceHearing(absl::Seconds(30), {other, holder});
  EXPECT_EQ(harness.manager->leases().holder(1), 200u);
}

TEST(RestartTest, AFreshClusterIsNotKeptWaiting) {
  ManagerHarness harness(TestSettings(1, 1));
  harness.ProxyHello(100, AllSlices());
  EXPECT_EQ(harness.manager->leases().holder(0), 0u);
  harness.Join({});
  EXPECT_EQ(harness.manager->leases().holder(0), 100u);
}

// ---- Proxies ------------------------------------------------------------------------------------------

class ProxyTest : public ::testing::Test {
 protected:
  // Messages for that stream since the last call, as if the transport had taken them.
  std::vector<cluster::proto::ManagerToProxy> Take(ConnectionId connection) {
    std::vector<cluster::proto::ManagerToProxy> all;
    while (!harness_.to_proxies[connection].empty()) {
      for (auto& message : std::exchange(harness_.to_proxies[connection], {})) all.push_back(message);
      harness_.Sent(connection);
    }
    return all;
  }

  ManagerHarness harness_{TestSettings(2, 1)};
};

TEST_F(ProxyTest, ASnapshotThenChanges) {
  harness_.Join({.host = "a", .port = 1, .incarnation = 11});
  const ConnectionId proxy = harness_.ProxyHello(100, std::nullopt);
  auto messages = Take(proxy);
  ASSERT_EQ(messages.size(), 1u);
  const cluster::proto::Snapshot& snapshot = messages[0].snapshot();
  EXPECT_EQ(snapshot.manager_incarnation(), 77u);
  EXPECT_EQ(snapshot.version().protocol(), cluster::kProtocolVersion);
  ASSERT_EQ(snapshot.slices_size(), 2);
  EXPECT_EQ(snapshot.slices(1).instance_type(), "cpu:1x2");
  EXPECT_FALSE(snapshot.settled());
  ASSERT_EQ(snapshot.workers_size(), 1);
  EXPECT_EQ(snapshot.workers(0).state(), cluster::proto::WorkerRecord::UP);
  EXPECT_EQ(snapshot.workers(0).incarnation(), 11u);
  EXPECT_EQ(snapshot.workers(0).address(), "10.0.0.1:1");
  EXPECT_EQ(snapshot.workers(0).info().devices_size(), 2);

  const ConnectionId worker = harness_.Join({.port = 2, .incarnation = 12});
  messages = Take(proxy);
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages.back().changes().workers(0).worker(), 1);
  EXPECT_EQ(messages.back().changes().workers(0).state(), cluster::proto::WorkerRecord::UP);
  harness_.KillWorker(worker);
  messages = Take(proxy);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].changes().workers(0).state(), cluster::proto::WorkerRecord::DOWN);
  EXPECT_FALSE(messages[0].changes().workers(0).has_info()) << "the devices were told already";
}

TEST_F(ProxyTest, ASlowProxyIsToldTheLastStateOnly) {
  const ConnectionId proxy = harness_.ProxyHello(100, std::nullopt);
  harness_.to_proxies.clear();
  // The snapshot is still on its way.
  ConnectionId worker = 0;
  for (uint64_t i = 1; i <= 10; ++i) {
    worker = harness_.Join({.port = 1, .incarnation = i});
    harness_.KillWorker(worker);
  }
  EXPECT_TRUE(harness_.to_proxies[proxy].empty());
  harness_.Sent(proxy);
  ASSERT_EQ(harness_.to_proxies[proxy].size(), 1u);
  const auto& changes = harness_.to_proxies[proxy][0].changes();
  ASSERT_EQ(changes.workers_size(), 1);
  EXPECT_EQ(changes.workers(0).incarnation(), 10u);
  EXPECT_EQ(changes.workers(0).state(), cluster::proto::WorkerRecord::DOWN);
  EXPECT_TRUE(changes.workers(0).has_info());
}

TEST_F(ProxyTest, SettlesAfterTheRecoveryTime) {
  const ConnectionId proxy = harness_.ProxyHello(100, std::nullopt);
  Take(proxy);
  harness_.AdvanceHearing(absl::Seconds(29), {proxy});
  EXPECT_THAT(Take(proxy), IsEmpty());
  harness_.Advance(absl::Seconds(1));
  const auto messages = Take(proxy);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].changes().settled());
  const auto later = Take(harness_.ProxyHello(101, std::nullopt));
  EXPECT_TRUE(later[0].snapshot().settled());
}

TEST_F(ProxyTest, TheLeaseIsToldAndEndsWithAGoodbye) {
  const ConnectionId first = harness_.ProxyHello(100, AllSlices());
  auto messages = Take(first);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1].lease().state(), cluster::proto::Lease::WAITING);
  EXPECT_EQ(messages[1].lease().waits_for(), "a first slice to be ready");
  harness_.Join({});
  messages = Take(first);
  EXPECT_EQ(messages.back().lease().state(), cluster::proto::Lease::GRANTED);
  EXPECT_THAT(messages.back().lease().slices(), ElementsAre(0, 1));

  const ConnectionId second = harness_.ProxyHello(200, AllSlices());
  EXPECT_EQ(Take(second).back().lease().waits_for(), "slices that the proxy p100 (10.0.0.9) has");
  harness_.Goodbye(first);
  EXPECT_TRUE(harness_.closed[first].ok());
  EXPECT_EQ(Take(second).back().lease().state(), cluster::proto::Lease::GRANTED);
  harness_.CloseProxy(first);
  EXPECT_EQ(harness_.manager->leases().holder(0), 200u);
}

TEST_F(ProxyTest, ABrokenStreamKeepsTheLeaseForAWhile) {
  harness_.Join({});
  ConnectionId proxy = harness_.ProxyHello(100, AllSlices());
  harness_.CloseProxy(proxy);
  harness_.Advance(absl::Seconds(4));
  EXPECT_EQ(harness_.manager->leases().holder(0), 100u);
  proxy = harness_.ProxyHello(100, AllSlices(), {0, 1});
  harness_.Advance(absl::Seconds(8));
  EXPECT_EQ(harness_.manager->leases().holder(0), 100u);
  EXPECT_EQ(Take(proxy).back().lease().state(), cluster::proto::Lease::GRANTED);
  harness_.CloseProxy(proxy);
  harness_.Advance(absl::Seconds(6));
  EXPECT_EQ(harness_.manager->leases().holder(0), 0u);
}

TEST_F(ProxyTest, ASilentProxyLosesItsLease) {
  harness_.Join({});
  const ConnectionId proxy = harness_.ProxyHello(100, AllSlices());
  harness_.Advance(absl::Seconds(9));
  harness_.Heartbeat(proxy);
  harness_.Advance(absl::Seconds(9));
  EXPECT_EQ(harness_.manager->leases().holder(0), 100u);
  harness_.Advance(absl::Seconds(1));
  EXPECT_EQ(harness_.manager->leases().holder(0), 0u);
  EXPECT_EQ(harness_.closed[proxy].code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(harness_.closed[proxy].message()), HasSubstr("for 10s"));
}

TEST_F(ProxyTest, TheSameProxyOnANewStreamReplacesTheOldOne) {
  harness_.Join({});
  const ConnectionId before = harness_.ProxyHello(100, AllSlices());
  const ConnectionId after = harness_.ProxyHello(100, AllSlices(), {0, 1});
  EXPECT_EQ(harness_.closed[before].code(), absl::StatusCode::kAborted);
  harness_.CloseProxy(before);
  harness_.Advance(absl::Seconds(9));
  EXPECT_EQ(harness_.manager->leases().holder(0), 100u);
  EXPECT_EQ(Take(after).back().lease().state(), cluster::proto::Lease::GRANTED);
}

TEST_F(ProxyTest, ALeaseThatIsNotAskedForAgainIsGivenBack) {
  harness_.Join({});
  harness_.ProxyHello(100, AllSlices());
  harness_.ProxyHello(100, std::nullopt);
  EXPECT_EQ(harness_.manager->leases().holder(0), 0u);
}

TEST_F(ProxyTest, NonsenseEndsTheStream) {
  harness_.Heartbeat(60);
  EXPECT_EQ(harness_.closed[60].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness_.closed[harness_.ProxyHello(0, std::nullopt)].code(), absl::StatusCode::kInvalidArgument);
  const ConnectionId impossible = harness_.ProxyHello(100, SlicesOf({"cpu:1x2", "cpu:1x2", "cpu:1x2"}));
  EXPECT_EQ(harness_.closed[impossible].code(), absl::StatusCode::kFailedPrecondition);
  const ConnectionId skew = harness_.ProxyHello(101, std::nullopt, {}, 0, /*protocol=*/99);
  EXPECT_EQ(harness_.closed[skew].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(harness_.closed[skew].message()),
              AllOf(HasSubstr("version skew"), HasSubstr("cluster protocol 99"), HasSubstr("p101")));
  harness_.Join({});
  const ConnectionId twice = harness_.ProxyHello(102, AllSlices());
  cluster::proto::ProxyMessage hello;
  hello.mutable_hello()->set_incarnation(103);
  harness_.Apply(harness_.manager->OnProxyMessage(harness_.now, twice, "", hello));
  EXPECT_EQ(harness_.closed[twice].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness_.manager->leases().holder(0), 0u);
}

TEST_F(ProxyTest, WarnsWhenNoSliceComes) {
  harness_.Advance(absl::Minutes(2));
  EXPECT_THAT(harness_.TakeLogs(LogLine::kWarning), ElementsAre(HasSubstr("kubectl describe jobset")));
  harness_.Advance(absl::Minutes(10));
  EXPECT_THAT(harness_.TakeLogs(LogLine::kWarning), IsEmpty());
  const ConnectionId worker = harness_.Join({});
  harness_.Advance(absl::Minutes(10));
  EXPECT_THAT(harness_.TakeLogs(LogLine::kWarning), IsEmpty());
  harness_.KillWorker(worker);
  harness_.TakeLogs(LogLine::kWarning);
  harness_.Advance(absl::Minutes(2));
  EXPECT_THAT(harness_.TakeLogs(LogLine::kWarning), ElementsAre(HasSubstr("no slice is ready")));
}

TEST(SettingsTest, ClustersWithoutRoomForDeviceIdsAreRefused) {
  EXPECT_TRUE(CheckSettings(TestSettings(2, 2, 2048)).ok());
  EXPECT_THAT(std::string(CheckSettings(TestSettings(1, 1, 2049)).message()), HasSubstr("at most 2048"));
  EXPECT_THAT(std::string(CheckSettings(TestSettings(2, 40000, 1)).message()), HasSubstr("80000 hosts"));
}

TEST(SettingsTest, DescribesSlices) {
  EXPECT_EQ(DescribeSlices(TestSettings(1, 2).slices), "1 slice of cpu:2x2");
  EXPECT_EQ(DescribeSlices(TestSettings(3, 2).slices), "3 slices of cpu:2x2");
  std::vector<SliceSettings> mixed = TestSettings(1, 2).slices;
  mixed.push_back({.instance_type = "gpu:8"});
  EXPECT_EQ(DescribeSlices(mixed), "2 slices (cpu:2x2, gpu:8)");
}

}  // namespace
}  // namespace helmway::manager
