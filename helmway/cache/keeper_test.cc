#include "helmway/cache/keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "helmway/storage/http_testing.h"
#include "helmway/storage/memory_store.h"

namespace helmway::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KeeperTest : public testing::Test {
 protected:
  KeeperTest() {
    storage::GcsOptions options;
    options.endpoint = "http://gcs";
    options.timing = time_.timing();
    store_ = std::make_unique<storage::GcsStore>("b", "job/helmway-cache", transport_, storage::NoToken(),
                                                 options);
  }
  void AnswerBucket(int metageneration, const std::string& lifecycle) {
    transport_->Answer(
        200, absl::StrCat(R"({"metageneration":")", metageneration, R"(","lifecycle":)", lifecycle, "}"));
  }

  storage::FakeTime time_;
  std::shared_ptr<storage::ScriptedTransport> transport_ = std::make_shared<storage::ScriptedTransport>();
  std::unique_ptr<storage::GcsStore> store_;
};

constexpr char kOurs[] =
    R"({"rule":[{"action":{"type":"Delete"},"condition":{"age":30,"matchesPrefix":["job/helmway-cache/"]}}]})";

TEST_F(KeeperTest, NamesWhatIsMissingAndWhatWillNotWork) {
  transport_->Answer(
      200, R"({"permissions":["storage.objects.get","storage.objects.list","storage.buckets.get"]})");
  EXPECT_THAT(
      MissingPermissions(*store_),
      ElementsAre(
          HasSubstr("storage.objects.create is missing on the bucket b: compiled programs are not kept"),
          HasSubstr("storage.buckets.update is missing on the bucket b: no life cycle rule")));
  transport_->Answer(404);
  EXPECT_THAT(MissingPermissions(*store_), IsEmpty()) << "the service does not tell";
}

TEST_F(KeeperTest, SetsARuleOnce) {
  AnswerBucket(3, "{}");
  transport_->Answer(200, "{}");
  EXPECT_EQ(EnsureLifecycle(*store_, 30).value(), LifecycleOutcome::kSet);
  EXPECT_THAT(transport_->seen[1].url, HasSubstr("ifMetagenerationMatch=3"));
  EXPECT_EQ(transport_->seen[1].body, absl::StrCat(R"({"lifecycle":)", kOurs, "}"));
  AnswerBucket(4, kOurs);
  EXPECT_EQ(EnsureLifecycle(*store_, 30).value(), LifecycleOutcome::kInPlace);
  EXPECT_EQ(transport_->left(), 0U);
}

TEST_F(KeeperTest, LooksAgainIfSomebodyChangedTheBucket) {
  AnswerBucket(3, "{}");
  transport_->Answer(412);
  AnswerBucket(4, R"({"rule":[{"action":{"type":"Delete"},"condition":{"age":400}}]})");
  transport_->Answer(200, "{}");
  EXPECT_EQ(EnsureLifecycle(*store_, 30).value(), LifecycleOutcome::kSet);
  EXPECT_THAT(transport_->seen[3].body, HasSubstr(R"({"age":400})")) << "the other's rule stays";
  EXPECT_THAT(transport_->seen[3].url, HasSubstr("ifMetagenerationMatch=4"));
}

TEST_F(KeeperTest, OurOwnChangeWhoseAnswerWasLost) {
  AnswerBucket(3, "{}");
  transport_->Fail(absl::UnavailableError("reset"));
  transport_->Answer(412);
  AnswerBucket(4, kOurs);
  EXPECT_EQ(EnsureLifecycle(*store_, 30).value(), LifecycleOutcome::kSet);
  EXPECT_EQ(transport_->left(), 0U);
}

TEST_F(KeeperTest, GivesUpWhenTheBucketIsChangedAllTheTime) {
  for (int i = 0; i < 5; ++i) {
    AnswerBucket(i, "{}");
    transport_->Answer(412);
  }
  EXPECT_EQ(EnsureLifecycle(*store_, 30).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(transport_->left(), 0U);
}

TEST_F(KeeperTest, ChangesNothingInAFullBucketNorWithoutPermission) {
  std::string prefixes;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&prefixes, i == 0 ? "" : ",", "\"p", i, "/\"");
  AnswerBucket(3, absl::StrCat(R"({"rule":[{"action":{"type":"Delete"},"condition":{"matchesPrefix":[)",
                               prefixes, "]}}]}"));
  EXPECT_EQ(EnsureLifecycle(*store_, 30).value(), LifecycleOutcome::kFull);
  EXPECT_EQ(transport_->seen.size(), 1U);
  transport_->Answer(403);
  EXPECT_EQ(EnsureLifecycle(*store_, 30).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(SweepTest, DeletesWhatIsOld) {
  storage::MemoryStore store;
  ASSERT_TRUE(store.Put("v1/aa/a", "1", storage::PutMode::kCreate).ok());
  const absl::Time written = store.List("", 1)->at(0).updated;
  EXPECT_EQ(Sweep(store, absl::Hours(24), written + absl::Hours(23)).value(), 0);
  EXPECT_EQ(store.List("", 10)->size(), 1U);
  EXPECT_EQ(Sweep(store, absl::Hours(24), written + absl::Hours(24)).value(), 1);
  EXPECT_THAT(*store.List("", 10), IsEmpty());
}

}  // namespace
}  // namespace helmway::cache
