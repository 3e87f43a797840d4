#include "helmway/cluster/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace helmway::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

proto::WorkerInfo Devices() {
  proto::WorkerInfo info;
  info.set_platform_name("cpu");
  info.add_devices()->set_id(2048);
  return info;
}

// Two slices of two hosts.
proto::Snapshot Snapshot(uint64_t manager, bool settled) {
  proto::Snapshot snapshot;
  snapshot.set_manager_incarnation(manager);
  snapshot.set_settled(settled);
  for (int i = 0; i < 2; ++i) {
    proto::SliceShape* slice = snapshot.add_slices();
    slice->set_instance_type("cpu:2x1");
    slice->set_hosts(2);
    slice->set_devices_per_host(1);
  }
  return snapshot;
}

proto::WorkerRecord Record(int worker, proto::WorkerRecord::State state, uint64_t incarnation,
                           bool with_info = true) {
  proto::WorkerRecord record;
  record.set_worker(worker);
  record.set_slice(worker / 2);
  record.set_task(worker % 2);
  record.set_state(state);
  record.set_incarnation(incarnation);
  record.set_address("10.0.0.1:1");
  if (with_info) *record.mutable_info() = Devices();
  return record;
}

TEST(MembershipTest, PlacesOfTheShapeAreThereFromTheStart) {
  MembershipView view;
  const auto changed = view.Apply(Snapshot(1, false));
  ASSERT_TRUE(changed.ok());
  EXPECT_THAT(*changed, IsEmpty());
  ASSERT_EQ(view.membership().workers.size(), 4u);
  EXPECT_EQ(view.membership().workers[3].slice, 1);
  EXPECT_EQ(view.membership().workers[3].task, 1);
  EXPECT_EQ(view.membership().workers[3].state, WorkerState::kExpected);
  EXPECT_EQ(view.membership().slices[1].first_worker, 2);
  EXPECT_FALSE(view.membership().SliceIsReady(0));
}

TEST(MembershipTest, ChangesAreTakenAndTheDevicesKept) {
  MembershipView view;
  ASSERT_TRUE(view.Apply(Snapshot(1, true)).ok());
  proto::Changes changes;
  *changes.add_workers() = Record(0, proto::WorkerRecord::UP, 11);
  *changes.add_workers() = Record(1, proto::WorkerRecord::DRAINING, 12);
  *changes.add_workers() = Record(2, proto::WorkerRecord::STARTING, 13, /*with_info=*/false);
  changes.set_settled(true);
  EXPECT_THAT(*view.Apply(changes), ElementsAre(0, 1, 2));
  EXPECT_TRUE(view.membership().SliceIsReady(0));
  EXPECT_FALSE(view.membership().SliceIsReady(1));
  // Down and up again without being described anew; what is the same is no change.
  changes.clear_workers();
  *changes.add_workers() = Record(0, proto::WorkerRecord::DOWN, 11, /*with_info=*/false);
  *changes.add_workers() = Record(2, proto::WorkerRecord::STARTING, 13, /*with_info=*/false);
  EXPECT_THAT(*view.Apply(changes), ElementsAre(0));
  EXPECT_FALSE(view.membership().SliceIsReady(0));
  *changes.mutable_workers(0) = Record(0, proto::WorkerRecord::UP, 14, /*with_info=*/false);
  EXPECT_THAT(*view.Apply(changes), ElementsAre(0));
  EXPECT_EQ(view.membership().workers[0].incarnation, 14u);
  ASSERT_NE(view.membership().workers[0].info, nullptr);
  EXPECT_EQ(view.membership().workers[0].info->platform_name, "cpu");
}

TEST(MembershipTest, AManagerThatHasJustStartedTakesNothingAway) {
  MembershipView view;
  proto::Snapshot before = Snapshot(1, true);
  *before.add_workers() = Record(0, proto::WorkerRecord::UP, 11);
  *before.add_workers() = Record(1, proto::WorkerRecord::UP, 12);
  *before.add_workers() = Record(2, proto::WorkerRecord::DOWN, 13);
  ASSERT_THAT(*view.Apply(before), ElementsAre(0, 1, 2));

  // Of worker 0 it knows that it was restarted, of the others nothing.
  proto::Snapshot after = Snapshot(2, false);
  *after.add_workers() = Record(0, proto::WorkerRecord::STARTING, 21, /*with_info=*/false);
  EXPECT_THAT(*view.Apply(after), ElementsAre(0));
  EXPECT_EQ(view.membership().manager_incarnation, 2u);
  EXPECT_EQ(view.membership().workers[0].incarnation, 21u);
  EXPECT_EQ(view.membership().workers[1].state, WorkerState::kUp);

  proto::Changes changes;
  changes.set_settled(true);
  EXPECT_THAT(*view.Apply(changes), ElementsAre(1));
  EXPECT_EQ(view.membership().workers[0].state, WorkerState::kStarting);
  EXPECT_EQ(view.membership().workers[1].state, WorkerState::kDown);
  EXPECT_THAT(view.membership().workers[1].reason, HasSubstr("did not come back"));
  EXPECT_EQ(view.membership().workers[3].state, WorkerState::kExpected);
}

TEST(MembershipTest, WhoCameBackStays) {
  MembershipView view;
  proto::Snapshot before = Snapshot(1, true);
  *before.add_workers() = Record(0, proto::WorkerRecord::UP, 11);
  ASSERT_TRUE(view.Apply(before).ok());
  ASSERT_TRUE(view.Apply(Snapshot(2, false)).ok());
  proto::Changes changes;
  *changes.add_workers() = Record(0, proto::WorkerRecord::UP, 11);
  EXPECT_THAT(*view.Apply(changes), IsEmpty());
  changes.clear_workers();
  changes.set_settled(true);
  EXPECT_THAT(*view.Apply(changes), IsEmpty());
  EXPECT_EQ(view.membership().workers[0].state, WorkerState::kUp);
}

TEST(MembershipTest, RefusesContradictionsAndStaysAsItWas) {
  MembershipView view;
  EXPECT_EQ(view.Apply(proto::Changes()).status().code(), absl::StatusCode::kInvalidArgument);
  proto::Snapshot impossible = Snapshot(1, true);
  impossible.mutable_slices(0)->set_hosts(0);
  EXPECT_EQ(view.Apply(impossible).status().code(), absl::StatusCode::kInvalidArgument);
  impossible.mutable_slices(0)->set_hosts(INT32_MAX);
  EXPECT_EQ(view.Apply(impossible).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(view.membership().manager_incarnation, 0u);

  ASSERT_TRUE(view.Apply(Snapshot(1, true)).ok());
  const auto code = [&view](const proto::WorkerRecord& record) {
    proto::Changes changes;
    *changes.add_workers() = Record(1, proto::WorkerRecord::UP, 5);
    *changes.add_workers() = record;
    return view.Apply(changes).status().code();
  };
  proto::WorkerRecord record = Record(4, proto::WorkerRecord::UP, 5);
  EXPECT_EQ(code(record), absl::StatusCode::kInvalidArgument);
  record = Record(-1, proto::WorkerRecord::UP, 5);
  EXPECT_EQ(code(record), absl::StatusCode::kInvalidArgument);
  record = Record(0, proto::WorkerRecord::UP, 5);
  record.set_slice(1);
  EXPECT_EQ(code(record), absl::StatusCode::kInvalidArgument);
  record = Record(0, static_cast<proto::WorkerRecord::State>(99), 5);
  EXPECT_EQ(code(record), absl::StatusCode::kInvalidArgument);
  record = Record(0, proto::WorkerRecord::UP, 5, /*with_info=*/false);
  EXPECT_EQ(code(record), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(view.membership().workers[1].state, WorkerState::kExpected);

  proto::Snapshot other = Snapshot(2, true);
  other.mutable_slices(1)->set_devices_per_host(2);
  EXPECT_EQ(view.Apply(other).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(view.membership().manager_incarnation, 1u);
}

}  // namespace
}  // namespace helmway::cluster
