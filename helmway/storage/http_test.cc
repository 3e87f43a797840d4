#include "helmway/storage/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace helmway::storage {
namespace {

// A socket on a free port of this machine that answers one connection with fixed bytes and closes it.
// `request()` waits for what came.
class OneAnswer {
 public:
  // With `hang`, nothing is answered before `Release`.
  explicit OneAnswer(std::string answer, bool hang = false) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), hang] {
      const int peer = accept(listener_, nullptr, nullptr);
      char buffer[4096];
      do {
        const ssize_t got = recv(peer, buffer, sizeof(buffer), 0);
        if (got <= 0) break;
        request_.append(buffer, static_cast<size_t>(got));
      } while (!absl::StrContains(request_, "\r\n\r\n") ||
               absl::StrContains(request_, "Content-Length: 5") != absl::EndsWith(request_, "12345"));
      // A client that gave up closes its end.
      if (hang) {
        while (recv(peer, buffer, sizeof(buffer), 0) > 0) {
        }
      }
      send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      close(peer);
    });
  }
  ~OneAnswer() {
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/path?query=1"); }
  const std::string& request() {
    thread_.join();
    return request_;
  }

 private:
  int listener_;
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

HttpRequest To(const std::string& url) {
  HttpRequest request;
  request.url = url;
  request.never_through_proxy = true;
  return request;
}

TEST(HttpTest, SendsWhatItIsGivenAndReadsTheAnswer) {
  OneAnswer server("HTTP/1.1 201 Created\r\nX-Goog-Hash: md5=abc\r\nContent-Length: 2\r\n\r\nok");
  HttpRequest request = To(server.url());
  request.method = "PUT";
  request.headers = {{"Range", "bytes=1-2"}};
  request.body = "12345";
  absl::StatusOr<HttpResponse> response = MakeCurlTransport(1)->Call(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->code, 201);
  EXPECT_EQ(response->body, "ok");
  EXPECT_EQ(response->Header("x-goog-hash"), "md5=abc");
  EXPECT_EQ(response->Header("missing"), std::nullopt);
  const std::string& sent = server.request();
  EXPECT_TRUE(absl::StartsWith(sent, "PUT /path?query=1 HTTP/1.1\r\n")) << sent;
  EXPECT_TRUE(absl::StrContains(sent, "\r\nRange: bytes=1-2\r\n")) << sent;
  EXPECT_TRUE(absl::EndsWith(sent, "\r\n\r\n12345")) << sent;
  EXPECT_FALSE(absl::StrContains(sent, "Expect")) << sent;
}

TEST(HttpTest, AnAnswerThatStopsShortIsNoAnswer) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nonly this");
  EXPECT_EQ(MakeCurlTransport(1)->Call(To(server.url())).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpTest, NoAnswerAtAll) {
  OneAnswer server("");
  EXPECT_EQ(MakeCurlTransport(1)->Call(To(server.url())).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpTest, NobodyListens) {
  std::string url;
  {
    OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    url = server.url();
    ASSERT_TRUE(MakeCurlTransport(1)->Call(To(url)).ok());
  }
  EXPECT_EQ(MakeCurlTransport(1)->Call(To(url)).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpTest, GivesUpInTime) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", /*hang=*/true);
  HttpRequest request = To(server.url());
  request.timeout = absl::Milliseconds(50);
  EXPECT_EQ(MakeCurlTransport(1)->Call(request).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(HttpTest, RefusesAnswersThatAreTooLarge) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789");
  HttpRequest request = To(server.url());
  request.max_response_bytes = 8;
  EXPECT_EQ(MakeCurlTransport(1)->Call(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HttpTest, DoesNotFollowToAnotherPlaceOrScheme) {
  OneAnswer server("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
  absl::StatusOr<HttpResponse> response = MakeCurlTransport(1)->Call(To(server.url()));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->code, 302);
  EXPECT_EQ(MakeCurlTransport(1)->Call(To("file:///etc/hostname")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HttpTest, CodesSayWhatTheCallerShouldDo) {
  const std::pair<int, absl::StatusCode> cases[] = {{200, absl::StatusCode::kOk},
                                                    {204, absl::StatusCode::kOk},
                                                    {304, absl::StatusCode::kInvalidArgument},
                                                    {400, absl::StatusCode::kInvalidArgument},
                                                    {401, absl::StatusCode::kUnauthenticated},
                                                    {403, absl::StatusCode::kPermissionDenied},
                                                    {404, absl::StatusCode::kNotFound},
                                                    {409, absl::StatusCode::kAborted},
                                                    {412, absl::StatusCode::kFailedPrecondition},
                                                    {416, absl::StatusCode::kOutOfRange},
                                                    {429, absl::StatusCode::kUnavailable},
                                                    {500, absl::StatusCode::kUnavailable},
                                                    {503, absl::StatusCode::kUnavailable}};
  for (const auto& [code, expected] : cases) {
    HttpResponse response;
    response.code = code;
    EXPECT_EQ(StatusOfResponse("x", response).code(), expected) << code;
  }
}

TEST(HttpTest, Escapes) { EXPECT_EQ(PercentEncode("a/b c~d-e_f.g\xc3\xa4%"), "a%2Fb%20c~d-e_f.g%C3%A4%25"); }

TEST(HttpTest, ReadsRetryAfter) {
  HttpResponse response;
  EXPECT_EQ(RetryAfter(response), std::nullopt);
  response.headers = {{"retry-after", "7"}};
  EXPECT_EQ(RetryAfter(response), absl::Seconds(7));
  response.headers = {{"retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"}};
  EXPECT_EQ(RetryAfter(response), std::nullopt);
}

}  // namespace
}  // namespace helmway::storage
