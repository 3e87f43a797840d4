#include "helmway/storage/gcs_credentials.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/base/status.h"

namespace helmway::storage {
namespace {

using Json = nlohmann::json;

constexpr char kScope[] = "https://www.googleapis.com/auth/cloud-platform";
constexpr char kTokenUri[] = "https://oauth2.googleapis.com/token";
// A token is renewed this long before it ends.
constexpr absl::Duration kMargin = absl::Minutes(4);
constexpr absl::Duration kRequestTimeout = absl::Seconds(10);
constexpr int64_t kMaxAnswerBytes = 1 << 20;

std::string Text(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

struct Token {
  std::string text;
  absl::Time end;
};

absl::StatusOr<Token> ReadToken(const HttpResponse& response, absl::Time asked) {
  const Json answer = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || Text(answer, "access_token").empty()) {
    return absl::UnauthenticatedError("the answer has no access token");
  }
  Token token{Text(answer, "access_token"), asked + absl::Minutes(5)};
  if (const auto it = answer.find("expires_in"); it != answer.end() && it->is_number()) {
    token.end = asked + absl::Seconds(it->get<double>());
  }
  for (const char c : token.text) {
    if (c <= ' ' || c > '~')
      return absl::UnauthenticatedError("the access token has characters that it can't have");
  }
  return token;
}

class NoTokenSource final : public TokenSource {
 public:
  absl::StatusOr<std::string> Token() override { return std::string(); }
  void Forget() override {}
};

// Keeps a token until it is about to end.
class CachedTokenSource : public TokenSource {
 public:
  explicit CachedTokenSource(HttpTransport* transport) : transport_(transport) {}

  absl::StatusOr<std::string> Token() override {
    // Held over the request: whoever else needs a token needs this one.
    base::MutexLock lock(&mu_);
    const absl::Time now = absl::Now();
    if (token_.text.empty() || now + kMargin > token_.end) {
      HELMWAY_ASSIGN_OR_RETURN(token_, Ask(now));
    }
    return token_.text;
  }

  void Forget() override {
    base::MutexLock lock(&mu_);
    token_ = {};
  }

 protected:
  virtual absl::StatusOr<storage::Token> Ask(absl::Time now) = 0;

  absl::StatusOr<storage::Token> Exchange(const std::string& uri, const std::string& form, absl::Time now) {
    HttpRequest request;
    request.method = "POST";
    request.url = uri;
    request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
    request.body = form;
    request.timeout = kRequestTimeout;
    request.max_response_bytes = kMaxAnswerBytes;
    HELMWAY_ASSIGN_OR_RETURN(const HttpResponse response, transport_->Call(request));
    if (const absl::Status status = StatusOfResponse(uri, response); !status.ok()) {
      return absl::IsUnavailable(status) ? status : absl::UnauthenticatedError(status.message());
    }
    return ReadToken(response, now);
  }

  HttpTransport* const transport_;

 private:
  base::Mutex mu_;
  storage::Token token_ ABSL_GUARDED_BY(mu_);
};

class MetadataTokenSource final : public CachedTokenSource {
 public:
  MetadataTokenSource(std::string host, HttpTransport* transport)
      : CachedTokenSource(transport), host_(std::move(host)) {}

 protected:
  absl::StatusOr<storage::Token> Ask(absl::Time now) override {
    HttpRequest request;
    request.url =
        absl::StrCat("http://", host_, "/computeMetadata/v1/instance/service-accounts/default/token");
    request.headers = {{"Metadata-Flavor", "Google"}};
    request.timeout = kRequestTimeout;
    request.max_response_bytes = kMaxAnswerBytes;
    request.never_through_proxy = true;
    absl::StatusOr<HttpResponse> response = transport_->Call(request);
    if (!response.ok()) {
      return absl::Status(
          response.status().code(),
          absl::StrCat("no credentials: GOOGLE_APPLICATION_CREDENTIALS is not set, and the metadata "
                       "server of Google Cloud does not answer (",
                       response.status().message(), ")"));
    }
    const absl::Status status = StatusOfResponse("the metadata server's token", *response);
    if (!status.ok())
      return absl::IsUnavailable(status) ? status : absl::UnauthenticatedError(status.message());
    return ReadToken(*response, now);
  }

 private:
  const std::string host_;
};

class FileTokenSource final : public CachedTokenSource {
 public:
  FileTokenSource(std::string path, HttpTransport* transport)
      : CachedTokenSource(transport), path_(std::move(path)) {}

 protected:
  absl::StatusOr<storage::Token> Ask(absl::Time now) override {
    const auto bad = [this](absl::string_view why) {
      return absl::UnauthenticatedError(absl::StrCat("GOOGLE_APPLICATION_CREDENTIALS=", path_, ": ", why));
    };
    std::ifstream file(path_, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open()) return bad("can't be read");
    const Json key = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!key.is_object()) return bad("is no JSON object");
    std::string uri = Text(key, "token_uri");
    if (uri.empty()) uri = kTokenUri;
    const std::string type = Text(key, "type");
    if (type == "service_account") {
      absl::StatusOr<std::string> assertion = ServiceAccountAssertion(
          Text(key, "client_email"), Text(key, "private_key_id"), Text(key, "private_key"), uri, now);
      if (!assertion.ok()) return bad(assertion.status().message());
      return Exchange(
          uri,
          absl::StrCat("grant_type=", PercentEncode("urn:ietf:params:oauth:grant-type:jwt-bearer"),
                       "&assertion=", *assertion),
          now);
    }
    if (type == "authorized_user") {
      return Exchange(
          uri,
          absl::StrCat("grant_type=refresh_token&client_id=", PercentEncode(Text(key, "client_id")),
                       "&client_secret=", PercentEncode(Text(key, "client_secret")),
                       "&refresh_token=", PercentEncode(Text(key, "refresh_token"))),
          now);
    }
    return bad(
        absl::StrCat("credentials of type '", type, "'; supported are service_account and authorized_user"));
  }

 private:
  const std::string path_;
};

std::string Base64(absl::string_view bytes) {
  std::string text;
  absl::WebSafeBase64Escape(bytes, &text);  // without padding
  return text;
}

}  // namespace

std::unique_ptr<TokenSource> NoToken() { return std::make_unique<NoTokenSource>(); }

std::unique_ptr<TokenSource> ApplicationDefaultToken(const std::map<std::string, std::string>& environment,
                                                     HttpTransport* transport) {
  const auto get = [&environment](const char* name) {
    const auto it = environment.find(name);
    return it == environment.end() ? std::string() : it->second;
  };
  if (std::string path = get("GOOGLE_APPLICATION_CREDENTIALS"); !path.empty()) {
    return std::make_unique<FileTokenSource>(std::move(path), transport);
  }
  std::string host = get("GCE_METADATA_HOST");
  if (host.empty()) host = "metadata.google.internal";
  return std::make_unique<MetadataTokenSource>(std::move(host), transport);
}

absl::StatusOr<std::string> ServiceAccountAssertion(absl::string_view email, absl::string_view key_id,
                                                    absl::string_view private_key, absl::string_view audience,
                                                    absl::Time now) {
  Json header = {{"alg", "RS256"}, {"typ", "JWT"}};
  if (!key_id.empty()) header["kid"] = std::string(key_id);
  const int64_t seconds = absl::ToUnixSeconds(now);
  const Json claims = {{"iss", std::string(email)},
                       {"scope", kScope},
                       {"aud", std::string(audience)},
                       {"iat", seconds},
                       {"exp", seconds + 3600}};
  constexpr auto kReplace = Json::error_handler_t::replace;
  std::string assertion = absl::StrCat(Base64(header.dump(-1, ' ', false, kReplace)), ".",
                                       Base64(claims.dump(-1, ' ', false, kReplace)));

  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(private_key.data(), static_cast<int>(private_key.size())), &BIO_free);
  // No prompt for a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      bio == nullptr ? nullptr : PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr),
      &EVP_PKEY_free);
  if (key == nullptr || EVP_PKEY_base_id(key.get()) != EVP_PKEY_RSA) {
    return absl::InvalidArgumentError("its private_key is no RSA key in PEM form");
  }
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  size_t size = 0;
  std::string signature;
  const auto* data = reinterpret_cast<const unsigned char*>(assertion.data());
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size, data, assertion.size()) != 1) {
    return absl::InvalidArgumentError("its private_key can't sign");
  }
  signature.resize(size);
  if (EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, data,
                     assertion.size()) != 1) {
    return absl::InvalidArgumentError("its private_key can't sign");
  }
  signature.resize(size);
  absl::StrAppend(&assertion, ".", Base64(signature));
  return assertion;
}

}  // namespace helmway::storage
