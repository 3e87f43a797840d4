#ifndef HELMWAY_STORAGE_HTTP_H_
#define HELMWAY_STORAGE_HTTP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace helmway::storage {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  absl::string_view body;  // must live during the call
  absl::Duration timeout = absl::Seconds(30);
  int64_t max_response_bytes = int64_t{64} << 20;
  bool never_through_proxy = false;  // whatever the environment says of proxies
};

struct HttpResponse {
  int code = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // The first header of that name (in lower case), or nullopt.
  std::optional<std::string> Header(absl::string_view name) const;
};

// Makes one request; any answer of the server is a response. Redirects are not followed. UNAVAILABLE: no
// connection, or it broke before the whole answer was there; DEADLINE_EXCEEDED: not in time;
// RESOURCE_EXHAUSTED: the answer is larger than allowed. Any thread.
class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  virtual absl::StatusOr<HttpResponse> Call(const HttpRequest& request) = 0;
};

// libcurl, with at most `max_connections` requests at a time; more wait, within their timeout. Connections
// are kept.
std::unique_ptr<HttpTransport> MakeCurlTransport(int max_connections);

// The status for an answer to `what`: OK below 300, and the code that says what the caller should do:
// 404 NOT_FOUND, 401 UNAUTHENTICATED, 403 PERMISSION_DENIED, 409 ABORTED, 412 FAILED_PRECONDITION, 416
// OUT_OF_RANGE, 408, 429 and 5xx UNAVAILABLE, other INVALID_ARGUMENT. The text has the beginning of the
// answer.
absl::Status StatusOfResponse(absl::string_view what, const HttpResponse& response);

// Retry-After in seconds; nullopt if there is none, or it is a date.
std::optional<absl::Duration> RetryAfter(const HttpResponse& response);

// For one part of a URL's path, or a value of its query: all but letters, digits and -._~ is escaped.
std::string PercentEncode(absl::string_view text);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_HTTP_H_
