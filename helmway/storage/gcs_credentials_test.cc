#include "helmway/storage/gcs_credentials.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "helmway/storage/http_testing.h"

namespace helmway::storage {
namespace {

using Json = nlohmann::json;

struct Key {
  EVP_PKEY* key = EVP_RSA_gen(2048);
  ~Key() { EVP_PKEY_free(key); }

  std::string Pem() const {
    BIO* bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    std::string pem(data, static_cast<size_t>(size));
    BIO_free(bio);
    return pem;
  }
  bool Verifies(const std::string& text, const std::string& signature) const {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    EVP_DigestVerifyInit(context, nullptr, EVP_sha256(), nullptr, key);
    const int result =
        EVP_DigestVerify(context, reinterpret_cast<const unsigned char*>(signature.data()), signature.size(),
                         reinterpret_cast<const unsigned char*>(text.data()), text.size());
    EVP_MD_CTX_free(context);
    return result == 1;
  }
};

std::string Decode(absl::string_view text) {
  std::string bytes;
  EXPECT_TRUE(absl::WebSafeBase64Unescape(text, &bytes));
  return bytes;
}

class CredentialsFile {
 public:
  explicit CredentialsFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "helmway-credentials-XXXXXX").string();
    const int fd = mkstemp(pattern.data());
    close(fd);
    path_ = pattern;
    std::ofstream(path_) << text;
  }
  ~CredentialsFile() { std::filesystem::remove(path_); }
  std::map<std::string, std::string> environment() const {
    return {{"GOOGLE_APPLICATION_CREDENTIALS", path_}};
  }

 private:
  std::string path_;
};

constexpr char kToken[] = R"({"access_token":"secret","expires_in":3600,"token_type":"Bearer"})";

TEST(GcsCredentialsTest, SignsAnAssertion) {
  Key key;
  const absl::StatusOr<std::string> assertion = ServiceAccountAssertion(
      "me@example.com", "k1", key.Pem(), "https://issuer/token", absl::FromUnixSeconds(5000));
  ASSERT_TRUE(assertion.ok()) << assertion.status();
  const std::vector<std::string> parts = absl::StrSplit(*assertion, '.');
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(key.Verifies(absl::StrCat(parts[0], ".", parts[1]), Decode(parts[2])));
  const Json header = Json::parse(Decode(parts[0]));
  EXPECT_EQ(header["alg"], "RS256");
  EXPECT_EQ(header["kid"], "k1");
  const Json claims = Json::parse(Decode(parts[1]));
  EXPECT_EQ(claims["iss"], "me@example.com");
  EXPECT_EQ(claims["aud"], "https://issuer/token");
  EXPECT_EQ(claims["iat"], 5000);
  EXPECT_EQ(claims["exp"], 8600);
}

TEST(GcsCredentialsTest, RefusesKeysThatAreNone) {
  for (const char* pem : {"", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}) {
    EXPECT_EQ(ServiceAccountAssertion("a", "", pem, "b", absl::UnixEpoch()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(GcsCredentialsTest, AServiceAccountExchangesItsAssertion) {
  Key key;
  const CredentialsFile file(Json{
      {"type", "service_account"},
      {"client_email", "me@example.com"},
      {"private_key", key.Pem()},
      {"token_uri",
       "https://issuer/token"}}.dump());
  ScriptedTransport transport;
  transport.Answer(200, kToken);
  const auto source = ApplicationDefaultToken(file.environment(), &transport);
  EXPECT_EQ(source->Token().value_or("?"), "secret");
  EXPECT_EQ(source->Token().value_or("?"), "secret");
  ASSERT_EQ(transport.seen.size(), 1U) << "the token is kept";
  EXPECT_EQ(transport.seen[0].url, "https://issuer/token");
  EXPECT_TRUE(
      absl::StartsWith(transport.seen[0].body,
                       "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=ey"));
  transport.Answer(200, R"({"access_token":"another"})");
  source->Forget();
  EXPECT_EQ(source->Token().value_or("?"), "another");
}

TEST(GcsCredentialsTest, AnAuthorisedUserHasARefreshToken) {
  const CredentialsFile file(
      R"({"type":"authorized_user","client_id":"i d","client_secret":"s&","refresh_token":"r"})");
  ScriptedTransport transport;
  transport.Answer(200, kToken);
  EXPECT_EQ(ApplicationDefaultToken(file.environment(), &transport)->Token().value_or("?"), "secret");
  EXPECT_EQ(transport.seen[0].body,
            "grant_type=refresh_token&client_id=i%20d&client_secret=s%26&refresh_token=r");
}

TEST(GcsCredentialsTest, OtherwiseTheMetadataServer) {
  ScriptedTransport transport;
  transport.Answer(200, kToken);
  EXPECT_EQ(ApplicationDefaultToken({{"GCE_METADATA_HOST", "host:1"}}, &transport)->Token().value_or("?"),
            "secret");
  EXPECT_EQ(transport.seen[0].url,
            "http://host:1/computeMetadata/v1/instance/service-accounts/default/token");
  EXPECT_EQ(transport.seen[0].Header("Metadata-Flavor"), "Google");
}

TEST(GcsCredentialsTest, ATokenThatSoonEndsIsNotKept) {
  ScriptedTransport transport;
  transport.Answer(200, R"({"access_token":"one","expires_in":10})");
  transport.Answer(200, R"({"access_token":"two","expires_in":10})");
  const auto source = ApplicationDefaultToken({}, &transport);
  EXPECT_EQ(source->Token().value_or("?"), "one");
  EXPECT_EQ(source->Token().value_or("?"), "two");
}

TEST(GcsCredentialsTest, SaysWhatIsWrong) {
  ScriptedTransport transport;
  const auto code = [&transport](const std::string& text) {
    const CredentialsFile file(text);
    return ApplicationDefaultToken(file.environment(), &transport)->Token().status().code();
  };
  EXPECT_EQ(code("not json"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(R"({"type":"external_account"})"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(R"({"type":"service_account","private_key":7})"), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(transport.seen.empty());
  const auto answered = [&](int http_code, const char* body) {
    transport.Answer(http_code, body);
    return ApplicationDefaultToken({}, &transport)->Token().status().code();
  };
  EXPECT_EQ(answered(404, ""), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(answered(503, ""), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answered(200, "{}"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(answered(200, R"({"access_token":"a\r\nX-Evil: 1"})"), absl::StatusCode::kUnauthenticated);
  const auto missing =
      ApplicationDefaultToken({{"GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent"}}, &transport)->Token();
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(absl::StrContains(missing.status().message(), "/nonexistent"));
}

}  // namespace
}  // namespace helmway::storage
