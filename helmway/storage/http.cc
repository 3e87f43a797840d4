#include "helmway/storage/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/base/mutex.h"

namespace helmway::storage {
namespace {

constexpr long kConnectTimeoutMs = 10'000;
// A connection that gives less than this for that long is as good as broken.
constexpr long kLowSpeedBytesPerSecond = 512;
constexpr long kLowSpeedSeconds = 15;

struct Receiver {
  HttpResponse response;
  int64_t max_bytes = 0;
  bool too_large = false;
};

size_t OnBody(char* data, size_t size, size_t count, void* self) {
  auto* receiver = static_cast<Receiver*>(self);
  const size_t bytes = size * count;
  if (static_cast<int64_t>(receiver->response.body.size() + bytes) > receiver->max_bytes) {
    receiver->too_large = true;
    return 0;
  }
  receiver->response.body.append(data, bytes);
  return bytes;
}

size_t OnHeader(char* data, size_t size, size_t count, void* self) {
  auto* receiver = static_cast<Receiver*>(self);
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(data, size * count));
  if (absl::StartsWith(line, "HTTP/")) {
    receiver->response.headers.clear();  // those before were of an interim answer
  } else if (const size_t colon = line.find(':'); colon != absl::string_view::npos) {
    receiver->response.headers.emplace_back(absl::AsciiStrToLower(line.substr(0, colon)),
                                            absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return size * count;
}

class CurlTransport final : public HttpTransport {
 public:
  explicit CurlTransport(int max_connections) : free_(max_connections) {
    static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
    (void)initialized;
  }

  ~CurlTransport() override {
    base::MutexLock lock(&mu_);
    for (CURL* handle : idle_) curl_easy_cleanup(handle);
  }

  absl::StatusOr<HttpResponse> Call(const HttpRequest& request) override {
    const absl::Time deadline = absl::Now() + request.timeout;
    CURL* handle = nullptr;
    {
      base::MutexLock lock(&mu_);
      const auto has_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return free_ > 0; };
      if (!mu_.AwaitWithTimeout(absl::Condition(&has_free), request.timeout)) {
        return absl::DeadlineExceededError("too many requests at once");
      }
      --free_;
      if (!idle_.empty()) {
        handle = idle_.back();
        idle_.pop_back();
      }
    }
    if (handle == nullptr) handle = curl_easy_init();
    absl::Cleanup give_back = [this, handle] {
      base::MutexLock lock(&mu_);
      ++free_;
      if (handle != nullptr) idle_.push_back(handle);
    };
    if (handle == nullptr) return absl::ResourceExhaustedError("curl_easy_init failed");
    return Perform(handle, request, deadline - absl::Now());
  }

 private:
  static absl::StatusOr<HttpResponse> Perform(CURL* handle, const HttpRequest& request,
                                              absl::Duration timeout) {
    Receiver receiver;
    receiver.max_bytes = request.max_response_bytes;
    std::array<char, CURL_ERROR_SIZE> error{};
    curl_slist* headers = nullptr;
    absl::Cleanup free_headers = [&headers] { curl_slist_free_all(headers); };
    for (const auto& [name, value] : request.headers) {
      headers = curl_slist_append(headers, absl::StrCat(name, ": ", value).c_str());
    }
    // Without this curl waits for a go-ahead before larger bodies.
    headers = curl_slist_append(headers, "Expect:");
    curl_easy_reset(handle);  // keeps the connections
    curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, error.data());
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, OnBody);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &receiver);
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, OnHeader);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, &receiver);
    const auto timeout_ms = static_cast<long>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout)));
    curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, std::min(timeout_ms, kConnectTimeoutMs));
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, kLowSpeedBytesPerSecond);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kLowSpeedSeconds);
    if (request.never_through_proxy) curl_easy_setopt(handle, CURLOPT_NOPROXY, "*");
    if (request.method != "GET") {
      curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    const CURLcode result = curl_easy_perform(handle);
    if (result != CURLE_OK) {
      const absl::string_view detail =
          error[0] != '\0' ? absl::string_view(error.data()) : absl::string_view(curl_easy_strerror(result));
      const std::string text =
          absl::StrCat(request.method, " ", request.url.substr(0, request.url.find('?')), ": ", detail);
      if (receiver.too_large)
        return absl::ResourceExhaustedError(absl::StrCat(text, " (larger than allowed)"));
      if (result == CURLE_OPERATION_TIMEDOUT) return absl::DeadlineExceededError(text);
      if (result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL)
        return absl::InvalidArgumentError(text);
      return absl::UnavailableError(text);
    }
    long code = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    receiver.response.code = static_cast<int>(code);
    return std::move(receiver.response);
  }

  base::Mutex mu_;
  int free_ ABSL_GUARDED_BY(mu_);
  std::vector<CURL*> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::optional<std::string> HttpResponse::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::unique_ptr<HttpTransport> MakeCurlTransport(int max_connections) {
  return std::make_unique<CurlTransport>(max_connections);
}

absl::Status StatusOfResponse(absl::string_view what, const HttpResponse& response) {
  if (response.code >= 200 && response.code < 300) return absl::OkStatus();
  constexpr size_t kMaxText = 300;
  std::string text = absl::StrCat(what, ": HTTP ", response.code);
  std::string body = response.body.substr(0, kMaxText);
  for (char& c : body) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  absl::RemoveExtraAsciiWhitespace(&body);
  if (!body.empty()) absl::StrAppend(&text, ": ", body);
  switch (response.code) {
    case 401:
      return absl::UnauthenticatedError(text);
    case 403:
      return absl::PermissionDeniedError(text);
    case 404:
    case 410:
      return absl::NotFoundError(text);
    case 408:
    case 429:
      return absl::UnavailableError(text);
    case 409:
      return absl::AbortedError(text);
    case 412:
      return absl::FailedPreconditionError(text);
    case 416:
      return absl::OutOfRangeError(text);
    case 501:
      return absl::UnimplementedError(text);
    default:
      return response.code >= 500 ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
  }
}

std::optional<absl::Duration> RetryAfter(const HttpResponse& response) {
  const std::optional<std::string> value = response.Header("retry-after");
  int64_t seconds = 0;
  if (!value || !absl::SimpleAtoi(*value, &seconds) || seconds < 0 || seconds > 86400) return std::nullopt;
  return absl::Seconds(seconds);
}

std::string PercentEncode(absl::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~') {
      encoded.push_back(c);
    } else {
      encoded += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return encoded;
}

}  // namespace helmway::storage
