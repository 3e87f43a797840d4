#include "helmway/manager/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace helmway::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Leases::Request All() { return {.name = "the proxy", .all = true}; }

Leases::Request Types(std::vector<std::string> types, std::vector<int32_t> held = {}, uint64_t number = 1) {
  return {.name = "the proxy",
          .instance_types = std::move(types),
          .held = std::move(held),
          .held_number = number};
}

class LeasesTest : public ::testing::Test {
 protected:
  // Slices 0, 1, 2 are of type a, slice 3 is of type b.
  Leases leases_{{"a", "a", "a", "b"}, 10};

  void Ready(std::vector<int32_t> slices) {
    for (const int32_t slice : slices) leases_.SetReady(slice, true);
  }
};

TEST_F(LeasesTest, AllWaitsForAFirstReadySliceAndTakesThoseToo) {
  ASSERT_TRUE(leases_.Ask(1, All()).ok());
  EXPECT_THAT(leases_.Assign(), ElementsAre(1));
  EXPECT_FALSE(leases_.state(1)->granted);
  EXPECT_THAT(leases_.state(1)->waits_for, HasSubstr("a first slice to be ready"));
  EXPECT_THAT(leases_.Assign(), IsEmpty());
  Ready({2});
  EXPECT_THAT(leases_.Assign(), ElementsAre(1));
  EXPECT_TRUE(leases_.state(1)->granted);
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(leases_.holder(3), 1u);
  // It is kept whatever becomes of the slices.
  leases_.SetReady(2, false);
  EXPECT_THAT(leases_.Assign(), IsEmpty());
  EXPECT_TRUE(leases_.state(1)->granted);
}

TEST_F(LeasesTest, SlicesComeInTheOrderOfTheRequest) {
  Ready({1, 2, 3});
  ASSERT_TRUE(leases_.Ask(1, Types({"b", "a"})).ok());
  leases_.Assign();
  EXPECT_TRUE(leases_.state(1)->granted);
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(3, 1));
}

TEST_F(LeasesTest, AWholeRequestOrNothing) {
  Ready({0, 1});
  ASSERT_TRUE(leases_.Ask(1, Types({"a", "a", "a"})).ok());
  leases_.Assign();
  EXPECT_FALSE(leases_.state(1)->granted);
  EXPECT_EQ(leases_.state(1)->waits_for, "1 more ready slice(s) of a");
  EXPECT_EQ(leases_.holder(0), 0u);
  Ready({2});
  EXPECT_THAT(leases_.Assign(), ElementsAre(1));
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0, 1, 2));
}

TEST_F(LeasesTest, NobodyHasASliceThatAnotherHas) {
  Ready({0, 1, 2, 3});
  ASSERT_TRUE(leases_.Ask(1, Types({"a", "a"})).ok());
  ASSERT_TRUE(leases_.Ask(2, Types({"a", "a"})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0, 1));
  EXPECT_FALSE(leases_.state(2)->granted);
  leases_.End(1);
  EXPECT_THAT(leases_.Assign(), ElementsAre(2));
  EXPECT_TRUE(leases_.state(2)->granted);
  EXPECT_EQ(leases_.state(1), nullptr);
}

TEST_F(LeasesTest, WaitingOnesComeToTheirTurnAndOthersMayHaveTheRest) {
  Ready({0, 1, 2, 3});
  ASSERT_TRUE(leases_.Ask(1, Types({"a"})).ok());
  leases_.Assign();
  ASSERT_TRUE(leases_.Ask(2, Types({"a", "a", "a"})).ok());  // must wait for slice 0, keeps 1 and 2
  ASSERT_TRUE(leases_.Ask(3, Types({"a"})).ok());            // may not overtake it
  ASSERT_TRUE(leases_.Ask(4, Types({"b"})).ok());            // is not in its way
  leases_.Assign();
  EXPECT_FALSE(leases_.state(2)->granted);
  EXPECT_FALSE(leases_.state(3)->granted);
  EXPECT_TRUE(leases_.state(4)->granted);
  leases_.End(1);
  leases_.Assign();
  EXPECT_TRUE(leases_.state(2)->granted);
  EXPECT_FALSE(leases_.state(3)->granted);
  leases_.End(2);
  leases_.Assign();
  EXPECT_TRUE(leases_.state(3)->granted);
}

TEST_F(LeasesTest, AReadySliceIsPreferredToOneThatIsNot) {
  Ready({2});
  ASSERT_TRUE(leases_.Ask(1, Types({"a"})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(2));
}

TEST_F(LeasesTest, WhatIsHeldGoesBackToItsHolderReadyOrNot) {
  leases_.SetOnHold(true);
  ASSERT_TRUE(leases_.Ask(1, Types({"a", "a"})).ok());
  ASSERT_TRUE(leases_.Ask(2, Types({"a", "b"}, {1, 3})).ok());
  leases_.Assign();
  EXPECT_TRUE(leases_.state(2)->granted);
  EXPECT_THAT(leases_.state(2)->slices, ElementsAre(1, 3));
  EXPECT_FALSE(leases_.state(1)->granted);
  EXPECT_THAT(leases_.state(1)->waits_for, HasSubstr("come first"));
  leases_.SetOnHold(false);
  Ready({0, 2});
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0, 2));
}

TEST_F(LeasesTest, AClaimThatIsNotRightIsAnOrdinaryRequest) {
  Ready({0, 1, 2, 3});
  for (const std::vector<int32_t>& held : {std::vector<int32_t>{3}, {-1}, {4}, {0, 1}}) {
    ASSERT_TRUE(leases_.Ask(1, Types({"a"}, held)).ok());
    leases_.Assign();
    EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0));
    leases_.End(1);
  }
  ASSERT_TRUE(leases_.Ask(1, Types({"a", "a"}, {1, 1})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0, 1));
  // Held by somebody else now.
  ASSERT_TRUE(leases_.Ask(2, Types({"a"}, {1})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(2)->slices, ElementsAre(2));
}

TEST_F(LeasesTest, OfTwoWhoClaimASliceTheLaterLeaseIsRight) {
  ASSERT_TRUE(leases_.Ask(1, Types({"a", "b"}, {0, 3}, 20)).ok());
  EXPECT_EQ(leases_.state(1)->number, 20u);
  // An earlier lease does not count any more.
  ASSERT_TRUE(leases_.Ask(2, Types({"a"}, {0}, 19)).ok());
  leases_.Assign();
  EXPECT_EQ(leases_.holder(0), 1u);
  EXPECT_FALSE(leases_.state(2)->granted);
  // A later one shows that the first was lost.
  ASSERT_TRUE(leases_.Ask(3, Types({"b"}, {3}, 30)).ok());
  EXPECT_THAT(leases_.Assign(), ElementsAre(1, 3));
  EXPECT_EQ(leases_.holder(3), 3u);
  EXPECT_EQ(leases_.holder(0), 0u);
  EXPECT_FALSE(leases_.state(1)->granted);
  // Not even when the later one has ended.
  leases_.End(3);
  ASSERT_TRUE(leases_.Ask(4, Types({"b"}, {3}, 29)).ok());
  leases_.Assign();
  EXPECT_FALSE(leases_.state(4)->granted);
  // New ones are higher than all.
  leases_.End(1);
  Ready({1});
  leases_.Assign();
  EXPECT_TRUE(leases_.state(2)->granted);
  EXPECT_GT(leases_.state(2)->number, 30u);
}

TEST_F(LeasesTest, ImpossibleRequestsAreRefused) {
  const absl::Status status = leases_.Ask(1, Types({"a", "b", "b"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("asks for 2 slice(s) of b"));
  EXPECT_EQ(leases_.Ask(1, Types({"c"})).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(leases_.Ask(1, Types({})).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(leases_.state(1), nullptr);
}

TEST_F(LeasesTest, AskingAgainChangesNothingUnlessItIsSomethingElse) {
  Ready({0, 1, 2, 3});
  ASSERT_TRUE(leases_.Ask(1, Types({"a"})).ok());
  leases_.Assign();
  ASSERT_TRUE(leases_.Ask(1, Types({"a"}, {2})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(0));
  ASSERT_TRUE(leases_.Ask(1, Types({"b"})).ok());
  leases_.Assign();
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(3));
  EXPECT_EQ(leases_.holder(0), 0u);
}

TEST_F(LeasesTest, SlicesThatMayBeMissingAreLeasedToo) {
  Leases::Request elastic = Types({"a", "a", "b"});
  elastic.may_be_missing = 1;
  ASSERT_TRUE(leases_.Ask(1, elastic).ok());
  Ready({1});
  EXPECT_THAT(leases_.Assign(), ElementsAre(1));
  EXPECT_FALSE(leases_.state(1)->granted);
  Ready({3});
  EXPECT_THAT(leases_.Assign(), ElementsAre(1));
  EXPECT_TRUE(leases_.state(1)->granted);
  EXPECT_THAT(leases_.state(1)->slices, ElementsAre(1, 0, 3));
  // One must be there, and what others have is not free.
  Leases::Request single = Types({"a"});
  single.may_be_missing = 1;
  ASSERT_TRUE(leases_.Ask(2, single).ok());
  EXPECT_THAT(leases_.Assign(), ElementsAre(2));
  EXPECT_FALSE(leases_.state(2)->granted);
  Ready({2});
  EXPECT_THAT(leases_.Assign(), ElementsAre(2));
  EXPECT_THAT(leases_.state(2)->slices, ElementsAre(2));
}

}  // namespace
}  // namespace helmway::manager
