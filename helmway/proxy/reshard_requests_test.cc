// Requests that make arrays of the shards of others.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "helmway/proxy/session_testing.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::xla::ifrt::ArraySpecProto;
using ::xla::ifrt::RemapPlanProto;
using ::xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY;
using ::xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT;
using ::xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT;
using ::xla::ifrt::proto::ArrayCopySemantics;
using ::xla::ifrt::proxy::BitcastArraysRequest;
using ::xla::ifrt::proxy::RemapArraysRequest;
using ::xla::ifrt::proxy::ReshardArraysRequest;

constexpr char kGone[] = "Array has been deleted or donated.";
const std::vector<int32_t> kFour = {10, 11, 12, 13};

class ReshardRequestsTest : public VersionedSessionTest {
 protected:
  // Whether a client is told that the array is gone.
  bool IsGone(uint64_t handle) {
    return client().Ask(IsDeleted(handle)).response.is_array_deleted_response().deleted();
  }
};

// ---- RemapArrays -----------------------------------------------------------------------------------------

class RemapTest : public ReshardRequestsTest {
 protected:
  // Array 1 is split over four devices: the shards on the first and the third become array 2, the others 3.
  // Told by intervals or by lists of devices.
  static RemapArraysRequest EveryOther(bool by_devices, ArrayCopySemantics semantics) {
    RemapArraysRequest request;
    RemapPlanProto& plan = *request.mutable_plan();
    *plan.add_input_specs() = Spec({8}, Split(kFour));
    const std::vector<std::vector<int32_t>> devices = {{10, 12}, {11, 13}};
    for (int i = 0; i < 2; ++i) {
      const std::vector<int32_t>& own = devices[static_cast<size_t>(i)];
      *plan.add_output_specs() = Spec({4}, Split(own));
      if (by_devices) {
        auto& input = *plan.add_input_devices_for_output();
        input.set_out_array(i);
        auto& from = *input.add_input_devices();
        from.set_in_array(0);
        from.mutable_device_list()->mutable_device_ids()->Assign(own.begin(), own.end());
      } else {
        auto& mapping = *plan.add_mappings();
        mapping.set_in_array(0);
        mapping.set_out_array(i);
        mapping.add_from_start(i);
        mapping.add_from_end(4);
        mapping.add_from_step(2);
        mapping.add_to_start(0);
        mapping.add_to_end(2);
        mapping.add_to_step(1);
      }
      request.add_result_handles(static_cast<uint64_t>(2 + i));
    }
    if (by_devices) plan.set_version_number(6);
    request.add_array_handles(1);
    request.set_copy_semantics(semantics);
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, RemapTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(RemapTest, ShardsAreTakenOver) {
  for (const bool by_devices : {false, true}) {
    const std::unique_ptr<TestClient> c = NewClient();
    const cluster::BufferId first = c->MakeSplitArray(1, 2, kFour);
    const Answer answer = c->Ask(EveryOther(by_devices, ARRAY_COPY_SEMANTICS_REUSE_INPUT));
    ASSERT_THAT(answer.status, IsOk()) << by_devices;
    EXPECT_THAT(answer.response.remap_arrays_response().array_handles(), ElementsAre(2, 3));
    EXPECT_THAT(c->Commands(), IsEmpty());
    // The same buffers, which go when nobody has them any more.
    ASSERT_THAT(c->Status(Destruct({1, 3})), IsOk());
    EXPECT_THAT(c->Commands(), ElementsAre(absl::StrCat("delete ", first + 1, ",", first + 3)));
    EXPECT_THAT(c->Use(2), IsOk());
    c->Commands();
    ASSERT_THAT(c->Status(Destruct({2})), IsOk());
    EXPECT_THAT(c->Commands(), ElementsAre(absl::StrCat("delete ", first, ",", first + 2)));
  }
}

TEST_P(RemapTest, WhatIsGivenUpIsGone) {
  client().MakeSplitArray(1, 2, kFour);
  ASSERT_THAT(client().Status(EveryOther(false, ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  EXPECT_TRUE(IsGone(1));
  EXPECT_THAT(client().Use(1), FailsWith(absl::StatusCode::kInvalidArgument, kGone));
  EXPECT_THAT(client().Use(2), IsOk());
  EXPECT_THAT(client().Use(3), IsOk());
}

TEST_P(RemapTest, CopiesIfItIsTo) {
  const cluster::BufferId first = client().MakeSplitArray(1, 2, kFour);
  ASSERT_EQ(first, 1u);
  ASSERT_THAT(client().Status(EveryOther(true, ARRAY_COPY_SEMANTICS_ALWAYS_COPY)), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1,3 -> 5,6 @10,12", "copy 2,4 -> 7,8 @11,13"));
  EXPECT_FALSE(IsGone(1));
}

TEST_P(RemapTest, PlansThatDoNotFit) {
  client().MakeSplitArray(1, 2, kFour);
  RemapArraysRequest request = EveryOther(false, ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  request.add_result_handles(9);
  ExpectFails(request, {2, 3, 9}, kInvalid, "3 result handles");
  request = EveryOther(false, ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  *request.mutable_plan()->mutable_input_specs(0) = Spec({16}, Split(kFour));
  request.mutable_result_handles()->Set(0, 12);
  request.mutable_result_handles()->Set(1, 13);
  ExpectFails(request, {12, 13}, kInvalid, "the plan expects");
  request = EveryOther(false, ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  request.mutable_array_handles()->Set(0, 7);
  request.mutable_result_handles()->Set(0, 22);
  request.mutable_result_handles()->Set(1, 23);
  ExpectFails(request, {22, 23}, kNotFound, "7");
  EXPECT_FALSE(IsGone(1));
}

// ---- ReshardArrays ---------------------------------------------------------------------------------------

class ReshardTest : public ReshardRequestsTest {
 protected:
  // Array 1 becomes array 2.
  static ReshardArraysRequest To(const ArraySpecProto& spec, ArrayCopySemantics semantics) {
    ReshardArraysRequest request;
    request.add_array_handles(1);
    *request.add_array_specs() = spec;
    request.set_copy_semantics(semantics);
    request.add_result_handles(2);
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ReshardTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ReshardTest, WholeShardsAreCopiedToTheirDevices) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {10, 11}), 1u);
  const Answer answer = client().Ask(To(Spec({4}, Split({13, 12})), ARRAY_COPY_SEMANTICS_ALWAYS_COPY));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_THAT(answer.response.reshard_arrays_response().array_handles(), ElementsAre(2));
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1,2 -> 3,4 @13,12"));
  EXPECT_FALSE(IsGone(1));
}

TEST_P(ReshardTest, ShardsThatStayAreSharedIfTheArrayIsGivenUp) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {10, 11}), 1u);
  ASSERT_THAT(client().Status(To(Spec({4}, Split({10, 12})), ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 2 -> 3 @12", "delete 2"));
  EXPECT_TRUE(IsGone(1));
  ASSERT_THAT(client().Status(Destruct({2})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,3"));
}

TEST_P(ReshardTest, OtherCutsAreAssembled) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {10, 11}), 1u);
  ASSERT_THAT(client().Status(To(Spec({4}, Replicated({10, 12})), ARRAY_COPY_SEMANTICS_ALWAYS_COPY)), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("assemble 1,2 -> 3@10 4@12 [4] of 2"));
}

TEST_P(ReshardTest, WhatIsNoReshard) {
  client().MakeSplitArray(1, 2, {10, 11});
  const ArrayCopySemantics copy = ARRAY_COPY_SEMANTICS_ALWAYS_COPY;
  ExpectFails(To(Spec({4}, Split({12, 13}), kS32), copy), {2}, kInvalid, "cannot be resharded");
  ReshardArraysRequest request = To(Spec({8}, Split({12, 13})), copy);
  request.mutable_result_handles()->Set(0, 3);
  ExpectFails(request, {3}, kInvalid, "cannot be resharded");
  request = To(Spec({4}, Split({12, 13})), copy);
  request.mutable_result_handles()->Set(0, 4);
  request.mutable_array_handles()->Set(0, 7);
  ExpectFails(request, {4}, kNotFound, "7");
  request = To(Spec({4}, Split({12, 99})), copy);
  request.mutable_result_handles()->Set(0, 5);
  ExpectFails(request, {5}, kInvalid, "no device 99");
  EXPECT_FALSE(IsGone(1));
}

// ---- BitcastArrays ---------------------------------------------------------------------------------------

class BitcastTest : public ReshardRequestsTest {
 protected:
  // Array 1 becomes array `result`.
  static BitcastArraysRequest To(const ArraySpecProto& spec, ArrayCopySemantics semantics,
                                 uint64_t result = 2) {
    BitcastArraysRequest request;
    request.add_array_handles(1);
    *request.add_array_specs() = spec;
    request.set_copy_semantics(semantics);
    request.add_result_handles(result);
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, BitcastTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(BitcastTest, BytesAreTakenForOthers) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {10, 11}), 1u);
  const Answer answer = client().Ask(To(Spec({4}, Split({10, 11}), kS32), ARRAY_COPY_SEMANTICS_REUSE_INPUT));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_THAT(answer.response.bitcast_arrays_response().array_handles(), ElementsAre(2));
  EXPECT_THAT(client().Commands(), ElementsAre(absl::StrCat("bitcast 1,2 -> 3,4 ", kS32)));
  EXPECT_FALSE(IsGone(1));
}

TEST_P(BitcastTest, WhatIsTheSameAlreadyIsShared) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {10, 11}), 1u);
  ASSERT_THAT(client().Status(To(Spec({4}, Split({10, 11})), ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  EXPECT_TRUE(IsGone(1));
  EXPECT_THAT(client().Use(2), IsOk());
}

TEST_P(BitcastTest, WhatIsNoBitcast) {
  client().MakeSplitArray(1, 2, {10, 11});
  const ArrayCopySemantics reuse = ARRAY_COPY_SEMANTICS_REUSE_INPUT;
  ExpectFails(To(Spec({4}, Split({10, 11})), ARRAY_COPY_SEMANTICS_ALWAYS_COPY), {2}, kInvalid,
              "does not copy");
  ExpectFails(To(Spec({4}, Split({10, 12})), reuse, 3), {3}, kInvalid, "cannot move");
  ExpectFails(To(Spec({8}, Split({10, 11})), reuse, 4), {4}, kInvalid, "cannot be taken for");
  EXPECT_FALSE(IsGone(1));
}

}  // namespace
}  // namespace helmway::proxy
