// A transport for tests: it records each request and answers with the next response of a script.
#ifndef HELMWAY_STORAGE_HTTP_TESTING_H_
#define HELMWAY_STORAGE_HTTP_TESTING_H_

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "helmway/storage/http.h"
#include "helmway/storage/retry.h"

namespace helmway::storage {

class ScriptedTransport final : public HttpTransport {
 public:
  struct Seen {
    std::string method;
    std::string url;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;

    std::string Header(absl::string_view name) const {
      for (const auto& [key, value] : headers) {
        if (key == name) return value;
      }
      return "";
    }
  };

  void Answer(int code, std::string body = "",
              std::vector<std::pair<std::string, std::string>> headers = {}) {
    HttpResponse response;
    response.code = code;
    response.body = std::move(body);
    response.headers = std::move(headers);
    script_.emplace_back(std::move(response));
  }
  void Fail(absl::Status status) { script_.emplace_back(std::move(status)); }

  absl::StatusOr<HttpResponse> Call(const HttpRequest& request) override {
    seen.push_back({request.method, request.url, request.headers, std::string(request.body)});
    if (script_.empty()) return absl::InternalError("the script of the test has no more answers");
    absl::StatusOr<HttpResponse> next = std::move(script_.front());
    script_.pop_front();
    return next;
  }

  std::vector<Seen> seen;
  size_t left() const { return script_.size(); }

 private:
  std::deque<absl::StatusOr<HttpResponse>> script_;
};

// A clock that only sleeping moves.
struct FakeTime {
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  std::vector<absl::Duration> sleeps;

  Timing timing() {
    return {.now = [this] { return now; },
            .sleep =
                [this](absl::Duration duration) {
                  sleeps.push_back(duration);
                  now += duration;
                },
            .uniform = [] { return 0.5; }};
  }
};

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_HTTP_TESTING_H_
