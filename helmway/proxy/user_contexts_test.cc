#include "helmway/proxy/user_contexts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::xla::ifrt::proxy::ResponseMetadata;

struct Response {
  int64_t number;
  std::vector<uint64_t> forgotten;
};

Response Answer(UserContexts& contexts, uint64_t op_id, bool ok = true, bool counted = true) {
  ResponseMetadata metadata;
  metadata.set_op_id(op_id);
  contexts.Settle(metadata, ok, counted);
  const auto& ids = metadata.destroyed_user_context_ids();
  return {metadata.seq_num(), {ids.begin(), ids.end()}};
}

TEST(UserContexts, SuccessesThatTheClientCountsAreNumberedWithoutGaps) {
  UserContexts contexts;
  EXPECT_EQ(Answer(contexts, 1, true, /*counted=*/false).number, 0);
  EXPECT_EQ(Answer(contexts, 2).number, 0);
  EXPECT_EQ(Answer(contexts, 3).number, 1);
  EXPECT_EQ(Answer(contexts, 4, true, /*counted=*/false).number, 0);
  EXPECT_EQ(Answer(contexts, 5, /*ok=*/false).number, 0);
  EXPECT_EQ(Answer(contexts, 6).number, 2);
}

TEST(UserContexts, AnAnswerForgetsItsRequest) {
  UserContexts contexts;
  Answer(contexts, 1);
  contexts.Begin(2, 77);
  EXPECT_THAT(Answer(contexts, 2).forgotten, ElementsAre(77));
  EXPECT_THAT(Answer(contexts, 2).forgotten, IsEmpty()) << "once for each request";
  // One call site of several requests counts as often as it was named.
  contexts.Begin(3, 78);
  contexts.Begin(4, 78);
  EXPECT_THAT(Answer(contexts, 4).forgotten, ElementsAre(78));
  EXPECT_THAT(Answer(contexts, 3).forgotten, ElementsAre(78));
  contexts.Begin(5, 0);
  EXPECT_THAT(Answer(contexts, 5).forgotten, IsEmpty());
}

TEST(UserContexts, NumberZeroListsNothingAndLosesNothing) {
  UserContexts contexts;
  contexts.Begin(1, 77);
  EXPECT_THAT(Answer(contexts, 1).forgotten, IsEmpty());
  EXPECT_THAT(Answer(contexts, 2).forgotten, ElementsAre(77));
}

TEST(UserContexts, UncountedAnswersListNothingAndLoseNothing) {
  UserContexts contexts;
  Answer(contexts, 1);
  contexts.Begin(2, 77);
  EXPECT_THAT(Answer(contexts, 2, true, /*counted=*/false).forgotten, IsEmpty());
  contexts.Release(78);
  EXPECT_THAT(Answer(contexts, 3, /*ok=*/false).forgotten, IsEmpty());
  EXPECT_THAT(Answer(contexts, 4).forgotten, ElementsAre(77, 78));
}

TEST(UserContexts, WhatHasFailedIsKept) {
  UserContexts contexts;
  Answer(contexts, 1);
  contexts.Begin(2, 77);
  EXPECT_THAT(Answer(contexts, 2, /*ok=*/false).forgotten, IsEmpty());
  EXPECT_THAT(Answer(contexts, 3).forgotten, IsEmpty());
}

TEST(UserContexts, WhatIsTakenIsTheTakersToRelease) {
  UserContexts contexts;
  Answer(contexts, 1);
  contexts.Begin(2, 77);
  EXPECT_EQ(contexts.Take(2), 77u);
  EXPECT_EQ(contexts.Take(2), 0u);
  EXPECT_THAT(Answer(contexts, 2).forgotten, IsEmpty());
  contexts.Release(77);
  contexts.Release(0);
  EXPECT_THAT(Answer(contexts, 3).forgotten, ElementsAre(77));
}

}  // namespace
}  // namespace helmway::proxy
