// Requests and recovery against a scripted service. How the emulator takes them is in store_test.cc.
#include "helmway/storage/gcs_store.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/storage/http_testing.h"

namespace helmway::storage {
namespace {

// MD5 of "bytes" in base64, by `printf bytes | openssl md5 -binary | base64`.
constexpr char kMd5OfBytes[] = "SzpiGLs+OnMD6KFxpg/Pkg==";

// Gives "token1", "token2", ...
class CountingTokens final : public TokenSource {
 public:
  absl::StatusOr<std::string> Token() override { return absl::StrCat("token", number_); }
  void Forget() override { ++number_; }

 private:
  int number_ = 1;
};

class GcsStoreTest : public testing::Test {
 protected:
  GcsStoreTest() {
    GcsOptions options;
    options.endpoint = "http://gcs";
    options.timing = time_.timing();
    options.resumable_above_bytes = 10;
    store_ = std::make_unique<GcsStore>("b", "p/q", transport_, std::make_shared<CountingTokens>(), options);
  }
  const ScriptedTransport::Seen& seen(size_t i) { return transport_->seen.at(i); }

  FakeTime time_;
  std::shared_ptr<ScriptedTransport> transport_ = std::make_shared<ScriptedTransport>();
  std::unique_ptr<GcsStore> store_;
};

TEST_F(GcsStoreTest, Reads) {
  transport_->Answer(200, "bytes", {{"x-goog-hash", absl::StrCat("crc32c=AAAA,md5=", kMd5OfBytes)}});
  EXPECT_EQ(store_->Get("a/b").value_or("?"), "bytes");
  EXPECT_EQ(seen(0).method, "GET");
  EXPECT_EQ(seen(0).url, "http://gcs/storage/v1/b/b/o/p%2Fq%2Fa%2Fb?alt=media");
  EXPECT_EQ(seen(0).Header("Authorization"), "Bearer token1");
}

TEST_F(GcsStoreTest, RepeatsAfterServerErrorsBrokenConnectionsAndTimeouts) {
  transport_->Answer(503);
  transport_->Fail(absl::UnavailableError("reset"));
  transport_->Fail(absl::DeadlineExceededError("slow"));
  transport_->Answer(429, "", {{"retry-after", "9"}});
  transport_->Answer(200, "bytes");
  EXPECT_EQ(store_->Get("x").value_or("?"), "bytes");
  ASSERT_EQ(time_.sleeps.size(), 4U);
  EXPECT_EQ(time_.sleeps[3], absl::Seconds(9));
}

TEST_F(GcsStoreTest, DoesNotRepeatWhatCannotHelp) {
  transport_->Answer(403, "no access");
  const absl::Status status = store_->Get("x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(status.message(), "gs://b/p/q/x")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no access")) << status;
  EXPECT_EQ(transport_->seen.size(), 1U);
}

TEST_F(GcsStoreTest, ReadsAgainIfTheBytesAreNotThoseOfTheObject) {
  const std::string hash = absl::StrCat("md5=", kMd5OfBytes);
  transport_->Answer(200, "bites", {{"x-goog-hash", "crc32c=AAAA"}, {"x-goog-hash", hash}});
  transport_->Answer(200, "bytes", {{"x-goog-hash", "crc32c=AAAA"}, {"x-goog-hash", hash}});
  EXPECT_EQ(store_->Get("x").value_or("?"), "bytes");
  for (int i = 0; i < 6; ++i) transport_->Answer(200, "bites", {{"x-goog-hash", hash}});
  EXPECT_EQ(store_->Get("x").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(GcsStoreTest, ARefusedTokenIsReplacedOnce) {
  transport_->Answer(401);
  transport_->Answer(200, "bytes");
  EXPECT_EQ(store_->Get("x").value_or("?"), "bytes");
  EXPECT_EQ(seen(1).Header("Authorization"), "Bearer token2");
  transport_->Answer(401);
  transport_->Answer(401);
  EXPECT_EQ(store_->Get("x").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(transport_->left(), 0U);
}

TEST_F(GcsStoreTest, WritesWithAPreconditionAndAChecksum) {
  transport_->Answer(200, "{}");
  EXPECT_EQ(store_->Put("x", "bytes", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(seen(0).method, "POST");
  EXPECT_EQ(seen(0).url,
            "http://gcs/upload/storage/v1/b/b/o?uploadType=multipart&name=p%2Fq%2Fx&ifGenerationMatch=0");
  EXPECT_TRUE(absl::StrContains(seen(0).body, kMd5OfBytes)) << seen(0).body;
  EXPECT_TRUE(absl::StrContains(seen(0).body, "\r\n\r\nbytes\r\n--")) << seen(0).body;
  transport_->Answer(200, "{}");
  EXPECT_EQ(store_->Put("x", "bytes", PutMode::kReplace), absl::OkStatus());
  EXPECT_FALSE(absl::StrContains(seen(1).url, "ifGenerationMatch"));
}

TEST_F(GcsStoreTest, SomebodyWasFaster) {
  transport_->Answer(412);
  EXPECT_EQ(store_->Put("x", "bytes", PutMode::kCreate).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(transport_->seen.size(), 1U);
}

TEST_F(GcsStoreTest, TheLostAnswerWasOurOwnSuccess) {
  transport_->Fail(absl::UnavailableError("reset"));
  transport_->Answer(412);
  transport_->Answer(200, absl::StrCat(R"({"md5Hash":")", kMd5OfBytes, R"("})"));
  EXPECT_EQ(store_->Put("x", "bytes", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(seen(2).url, "http://gcs/storage/v1/b/b/o/p%2Fq%2Fx?fields=md5Hash,size");
  transport_->Fail(absl::UnavailableError("reset"));
  transport_->Answer(412);
  transport_->Answer(200, R"({"md5Hash":"other"})");
  EXPECT_EQ(store_->Put("x", "bytes", PutMode::kCreate).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(GcsStoreTest, WritesLargeObjectsInPieces) {
  transport_->Answer(200, "", {{"location", "http://gcs/session"}});
  transport_->Answer(308, "", {{"range", "bytes=0-9"}});
  transport_->Answer(308, "", {{"range", "bytes=0-19"}});
  transport_->Answer(200, "{}");
  EXPECT_EQ(store_->Put("x", "0123456789abcdefghijKLMNO", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(seen(0).url,
            "http://gcs/upload/storage/v1/b/b/o?uploadType=resumable&name=p%2Fq%2Fx&ifGenerationMatch=0");
  EXPECT_EQ(seen(1).method, "PUT");
  EXPECT_EQ(seen(1).url, "http://gcs/session");
  EXPECT_EQ(seen(1).Header("Content-Range"), "bytes 0-9/25");
  EXPECT_EQ(seen(1).body, "0123456789");
  EXPECT_EQ(seen(3).Header("Content-Range"), "bytes 20-24/25");
  EXPECT_EQ(seen(3).body, "KLMNO");
}

TEST_F(GcsStoreTest, AsksHowFarAnUploadIsAfterAFault) {
  transport_->Answer(200, "", {{"location", "http://gcs/session"}});
  transport_->Fail(absl::UnavailableError("reset"));
  transport_->Answer(308, "", {{"range", "bytes=0-3"}});  // to the question
  transport_->Answer(308, "", {{"range", "bytes=0-13"}});
  transport_->Answer(200, "{}");
  EXPECT_EQ(store_->Put("x", "0123456789abcdefghij", PutMode::kCreate), absl::OkStatus());
  EXPECT_EQ(seen(2).Header("Content-Range"), "bytes */20");
  EXPECT_EQ(seen(3).Header("Content-Range"), "bytes 4-13/20");
  EXPECT_EQ(seen(4).Header("Content-Range"), "bytes 14-19/20");
}

TEST_F(GcsStoreTest, AnUploadWhoseSessionIsLostStartsAgainOnce) {
  transport_->Answer(200, "", {{"location", "http://gcs/one"}});
  transport_->Answer(410);
  transport_->Answer(200, "", {{"location", "http://gcs/two"}});
  transport_->Answer(308, "", {{"range", "bytes=0-9"}});
  transport_->Answer(200, "{}");
  EXPECT_EQ(store_->Put("x", "0123456789a", PutMode::kReplace), absl::OkStatus());
  EXPECT_EQ(seen(3).url, "http://gcs/two");
  transport_->Answer(200, "", {{"location", "http://gcs/one"}});
  transport_->Answer(404);
  transport_->Answer(200, "", {{"location", "http://gcs/two"}});
  transport_->Answer(404);
  EXPECT_EQ(store_->Put("x", "0123456789a", PutMode::kReplace).code(), absl::StatusCode::kNotFound);
}

TEST_F(GcsStoreTest, GivesUpOnAServiceThatTakesNothing) {
  transport_->Answer(200, "", {{"location", "http://gcs/one"}});
  // A piece, then question and piece for each further attempt.
  for (int i = 0; i < 11; ++i) transport_->Answer(308);
  EXPECT_EQ(store_->Put("x", "0123456789a", PutMode::kReplace).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(transport_->left(), 0U);
}

TEST_F(GcsStoreTest, RefusesRangesThatCannotBe) {
  for (const char* range : {"bytes=0-99", "bytes=0-x", "nonsense", "bytes=0-10"}) {
    transport_->seen.clear();
    transport_->Answer(200, "", {{"location", "http://gcs/one"}});
    for (int i = 0; i < 6; ++i) transport_->Answer(308, "", {{"range", range}});
    EXPECT_EQ(store_->Put("x", "0123456789a", PutMode::kReplace).code(), absl::StatusCode::kUnavailable)
        << range;
    EXPECT_EQ(transport_->left(), 0U);
  }
}

TEST_F(GcsStoreTest, ListsAllPages) {
  transport_->Answer(200, R"({"nextPageToken":"t&1","items":[
      {"name":"p/q/b","size":"7","updated":"2026-01-02T03:04:05.678Z"},{"name":"p/other"},{"name":"p/q/"},{"name":3}]})");
  transport_->Answer(200, R"({"items":[{"name":"p/q/a","size":5}]})");
  const absl::StatusOr<std::vector<ObjectInfo>> found = store_->List("", 100);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0].name, "a");
  EXPECT_EQ((*found)[0].size_bytes, 5);
  EXPECT_EQ((*found)[0].updated, absl::InfiniteFuture()) << "unknown: never old";
  EXPECT_EQ((*found)[1].size_bytes, 7);
  EXPECT_EQ(
      (*found)[1].updated,
      absl::FromCivil(absl::CivilSecond(2026, 1, 2, 3, 4, 5), absl::UTCTimeZone()) + absl::Milliseconds(678));
  EXPECT_TRUE(absl::StrContains(seen(0).url, "prefix=p%2Fq%2F&")) << seen(0).url;
  EXPECT_TRUE(absl::StrContains(seen(1).url, "pageToken=t%261")) << seen(1).url;
}

TEST_F(GcsStoreTest, TheBucket) {
  transport_->Answer(200, R"({"location":"US","metageneration":"12","lifecycle":{"rule":[]},
      "softDeletePolicy":{"retentionDurationSeconds":"604800"}})");
  const absl::StatusOr<BucketInfo> info = store_->GetBucket();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->location, "US");
  EXPECT_EQ(info->metageneration, 12);
  EXPECT_EQ(info->lifecycle, R"({"rule":[]})");
  EXPECT_EQ(info->soft_delete_seconds, 604800);

  transport_->Answer(200, R"({"permissions":["storage.objects.get"]})");
  const auto granted = store_->TestPermissions({"storage.objects.get", "storage.objects.list"});
  ASSERT_TRUE(granted.ok());
  EXPECT_EQ(*granted, std::vector<std::string>{"storage.objects.get"});
  EXPECT_EQ(seen(1).url,
            "http://gcs/storage/v1/b/b/iam/testPermissions?permissions=storage.objects.get&permissions="
            "storage.objects.list");
  transport_->Answer(404);
  EXPECT_EQ(store_->TestPermissions({}).status().code(), absl::StatusCode::kUnimplemented);

  transport_->Answer(412);
  EXPECT_EQ(store_->SetLifecycle(R"({"rule":[]})", 12).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(seen(3).method, "PATCH");
  EXPECT_EQ(seen(3).body, R"({"lifecycle":{"rule":[]}})");
  EXPECT_TRUE(absl::StrContains(seen(3).url, "ifMetagenerationMatch=12")) << seen(3).url;
}

TEST(GcsConnectionTest, TheEmulatorNeedsNoCredentials) {
  for (const char* host : {"localhost:4443", "http://localhost:4443", "http://localhost:4443/"}) {
    GcsConnection connection = ConnectToGcs({{"STORAGE_EMULATOR_HOST", host}});
    EXPECT_EQ(connection.endpoint, "http://localhost:4443");
    EXPECT_EQ(connection.tokens->Token().value_or("?"), "");
  }
  EXPECT_EQ(ConnectToGcs({}).endpoint, "https://storage.googleapis.com");
}

}  // namespace
}  // namespace helmway::storage
