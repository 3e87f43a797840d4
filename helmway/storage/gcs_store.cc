#include "helmway/storage/gcs_store.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"

namespace helmway::storage {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxMetadataBytes = int64_t{64} << 20;
// Of an upload that goes on.
constexpr int kResumeIncomplete = 308;

std::string Md5Base64(absl::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_md5(), nullptr);
  return absl::Base64Escape(absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

std::string Text(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// Numbers of 64 bits are strings in the API; emulators also send numbers.
int64_t Number(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return 0;
  if (it->is_number_integer()) return it->get<int64_t>();
  int64_t value = 0;
  return it->is_string() && absl::SimpleAtoi(it->get<std::string>(), &value) ? value : 0;
}

absl::StatusOr<Json> ParseObject(absl::string_view what, const std::string& body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::UnavailableError(absl::StrCat(what, ": the answer is no JSON object"));
  return json;
}

// The MD5 in "x-goog-hash: crc32c=...,md5=...", which may come in one header or two; empty if there is none.
std::string StatedMd5(const HttpResponse& response) {
  for (const auto& [name, value] : response.headers) {
    if (name != "x-goog-hash") continue;
    for (absl::string_view part : absl::StrSplit(value, ',')) {
      part = absl::StripAsciiWhitespace(part);
      if (absl::ConsumePrefix(&part, "md5=")) return std::string(part);
    }
  }
  return "";
}

}  // namespace

GcsStore::GcsStore(std::string bucket, std::string prefix, std::shared_ptr<HttpTransport> transport,
                   std::shared_ptr<TokenSource> tokens, GcsOptions options)
    : bucket_(std::move(bucket)),
      prefix_(prefix.empty() ? "" : absl::StrCat(prefix, "/")),
      location_(absl::StrCat("gs://", bucket_, prefix.empty() ? "" : "/", prefix)),
      transport_(std::move(transport)),
      tokens_(std::move(tokens)),
      options_(std::move(options)) {}

std::string GcsStore::BucketUrl() const {
  return absl::StrCat(options_.endpoint, "/storage/v1/b/", PercentEncode(bucket_));
}

std::string GcsStore::ObjectUrl(absl::string_view name) const {
  return absl::StrCat(BucketUrl(), "/o/", PercentEncode(absl::StrCat(prefix_, name)));
}

std::string GcsStore::UploadUrl(absl::string_view name, absl::string_view type, PutMode mode) const {
  return absl::StrCat(options_.endpoint, "/upload/storage/v1/b/", PercentEncode(bucket_),
                      "/o?uploadType=", type, "&name=", PercentEncode(absl::StrCat(prefix_, name)),
                      mode == PutMode::kCreate ? "&ifGenerationMatch=0" : "");
}

absl::StatusOr<HttpResponse> GcsStore::CallOnce(absl::string_view what, HttpRequest request,
                                                absl::Duration timeout,
                                                std::optional<absl::Duration>* server_wish,
                                                absl::Span<const int> accepted) {
  if (timeout <= absl::ZeroDuration())
    return absl::DeadlineExceededError(absl::StrCat(what, ": no time is left"));
  request.timeout = timeout;
  const size_t headers = request.headers.size();
  for (const bool last : {false, true}) {
    HELMWAY_ASSIGN_OR_RETURN(const std::string token, tokens_->Token());
    request.headers.resize(headers);
    if (!token.empty()) request.headers.emplace_back("Authorization", absl::StrCat("Bearer ", token));
    absl::StatusOr<HttpResponse> response = transport_->Call(request);
    if (!response.ok()) return base::Annotate(response.status(), what);
    if (std::find(accepted.begin(), accepted.end(), response->code) != accepted.end()) return response;
    const absl::Status status = StatusOfResponse(what, *response);
    if (status.ok()) return response;
    if (absl::IsUnauthenticated(status) && !last && !token.empty()) {
      tokens_->Forget();
      continue;
    }
    *server_wish = RetryAfter(*response);
    return status;
  }
  return absl::InternalError("unreachable");
}

absl::StatusOr<HttpResponse> GcsStore::Call(absl::string_view what, absl::FunctionRef<HttpRequest(int)> make,
                                            absl::FunctionRef<absl::Status(const HttpResponse&)> check) {
  HttpResponse result;
  const absl::Status status =
      WithRetries(options_.retry, options_.timing, [&](int attempt, absl::Duration timeout) -> AttemptResult {
        AttemptResult outcome;
        absl::StatusOr<HttpResponse> response = CallOnce(what, make(attempt), timeout, &outcome.server_wish);
        if (!response.ok()) {
          outcome.status = response.status();
          return outcome;
        }
        outcome.status = check(*response);
        if (outcome.status.ok()) result = *std::move(response);
        return outcome;
      });
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<HttpResponse> GcsStore::Call(absl::string_view what, const HttpRequest& request) {
  return Call(
      what, [&request](int) { return request; }, [](const HttpResponse&) { return absl::OkStatus(); });
}

absl::StatusOr<std::string> GcsStore::Get(absl::string_view name) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  HttpRequest request;
  request.url = absl::StrCat(ObjectUrl(name), "?alt=media");
  request.max_response_bytes = options_.max_object_bytes;
  const std::string what = absl::StrCat("reading ", location_, "/", name);
  HELMWAY_ASSIGN_OR_RETURN(HttpResponse response,
                           Call(
                               what, [&request](int) { return request; },
                               [&what](const HttpResponse& answer) -> absl::Status {
                                 const std::string stated = StatedMd5(answer);
                                 if (stated.empty() || stated == Md5Base64(answer.body))
                                   return absl::OkStatus();
                                 return absl::DataLossError(absl::StrCat(
                                     what, ": the bytes that came do not have the MD5 of the object"));
                               }));
  return std::move(response.body);
}

absl::StatusOr<std::string> GcsStore::GetRange(absl::string_view name, int64_t offset, int64_t length) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  if (offset < 0 || length < 0) return absl::InvalidArgumentError("negative offset or length");
  if (length == 0) return std::string();
  length = std::min(length, options_.max_object_bytes);
  HttpRequest request;
  request.url = absl::StrCat(ObjectUrl(name), "?alt=media");
  request.headers = {{"Range", absl::StrCat("bytes=", offset, "-", offset + length - 1)}};
  request.max_response_bytes = options_.max_object_bytes;
  HELMWAY_ASSIGN_OR_RETURN(HttpResponse response,
                           Call(absl::StrCat("reading ", location_, "/", name), request));
  // A service may ignore the range and send everything.
  if (response.code == 206) return std::move(response.body);
  if (offset >= static_cast<int64_t>(response.body.size()) && offset > 0) {
    return absl::OutOfRangeError(absl::StrCat(location_, "/", name, " has ", response.body.size(), " bytes"));
  }
  return response.body.substr(static_cast<size_t>(offset), static_cast<size_t>(length));
}

absl::Status GcsStore::WasItUs(absl::string_view name, absl::string_view bytes) {
  HttpRequest request;
  request.url = absl::StrCat(ObjectUrl(name), "?fields=md5Hash,size");
  request.max_response_bytes = kMaxMetadataBytes;
  const std::string what = absl::StrCat("looking at ", location_, "/", name);
  HELMWAY_ASSIGN_OR_RETURN(const HttpResponse response, Call(what, request));
  HELMWAY_ASSIGN_OR_RETURN(const Json json, ParseObject(what, response.body));
  if (Text(json, "md5Hash") == Md5Base64(bytes)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(location_, "/", name));
}

absl::Status GcsStore::Put(absl::string_view name, absl::string_view bytes, PutMode mode) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  if (static_cast<int64_t>(bytes.size()) > options_.max_object_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(name, " has ", bytes.size(), " bytes"));
  }
  if (static_cast<int64_t>(bytes.size()) > options_.resumable_above_bytes)
    return PutInPieces(name, bytes, mode);
  return PutWhole(name, bytes, mode);
}

absl::Status GcsStore::PutWhole(absl::string_view name, absl::string_view bytes, PutMode mode) {
  // Metadata and contents in one request: multipart/related.
  const std::string boundary = absl::StrCat("helmway-", absl::Hex(base::UnguessableId(), absl::kZeroPad16));
  const Json metadata = {{"name", absl::StrCat(prefix_, name)},
                         {"contentType", "application/octet-stream"},
                         {"md5Hash", Md5Base64(bytes)}};
  const std::string body =
      absl::StrCat("--", boundary, "\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n",
                   metadata.dump(-1, ' ', false, Json::error_handler_t::replace), "\r\n--", boundary,
                   "\r\nContent-Type: application/octet-stream\r\n\r\n", bytes, "\r\n--", boundary, "--\r\n");
  HttpRequest request;
  request.method = "POST";
  request.url = UploadUrl(name, "multipart", mode);
  request.headers = {{"Content-Type", absl::StrCat("multipart/related; boundary=", boundary)}};
  request.body = body;
  request.max_response_bytes = kMaxMetadataBytes;
  int attempts = 0;
  const absl::Status status = Call(
                                  absl::StrCat("writing ", location_, "/", name),
                                  [&](int attempt) {
                                    attempts = attempt;
                                    return request;
                                  },
                                  [](const HttpResponse&) { return absl::OkStatus(); })
                                  .status();
  if (mode == PutMode::kCreate && absl::IsFailedPrecondition(status)) {
    if (attempts > 1) return WasItUs(name, bytes);
    return absl::AlreadyExistsError(absl::StrCat(location_, "/", name));
  }
  return status;
}

absl::Status GcsStore::PutInPieces(absl::string_view name, absl::string_view bytes, PutMode mode) {
  const std::string what = absl::StrCat("writing ", location_, "/", name);
  const Json metadata = {{"contentType", "application/octet-stream"}, {"md5Hash", Md5Base64(bytes)}};
  const std::string metadata_text = metadata.dump(-1, ' ', false, Json::error_handler_t::replace);
  HttpRequest start;
  start.method = "POST";
  start.url = UploadUrl(name, "resumable", mode);
  start.headers = {{"Content-Type", "application/json; charset=UTF-8"},
                   {"X-Upload-Content-Type", "application/octet-stream"},
                   {"X-Upload-Content-Length", absl::StrCat(bytes.size())}};
  start.body = metadata_text;
  start.max_response_bytes = kMaxMetadataBytes;

  const auto total = static_cast<int64_t>(bytes.size());
  bool sent_something = false;
  absl::Status status;
  // A session may get lost; then all starts again, once.
  for (int sessions = 0; sessions < 2; ++sessions) {
    absl::StatusOr<HttpResponse> started = Call(what, start);
    if (!started.ok()) {
      status = started.status();
      break;
    }
    const std::optional<std::string> session = started->Header("location");
    if (!session) return absl::UnavailableError(absl::StrCat(what, ": the service gave no upload session"));

    int64_t offset = 0;
    bool finished = false;
    bool ask_first = false;  // the service must say how far it is
    // Each piece has the whole policy for itself: large objects take long.
    while (!finished && status.ok()) {
      const int64_t before = offset;
      status =
          WithRetries(options_.retry, options_.timing, [&](int, absl::Duration timeout) -> AttemptResult {
            AttemptResult outcome;
            // Sends one request of the session and learns from the answer how much has arrived.
            const auto send = [&](absl::string_view range, absl::string_view body) {
              HttpRequest piece;
              piece.method = "PUT";
              piece.url = *session;
              piece.headers = {{"Content-Range", std::string(range)}};
              piece.body = body;
              piece.max_response_bytes = kMaxMetadataBytes;
              constexpr int kAccepted[] = {kResumeIncomplete};
              absl::StatusOr<HttpResponse> response =
                  CallOnce(what, piece, timeout, &outcome.server_wish, kAccepted);
              sent_something = true;
              if (!response.ok()) return response.status();
              if (response->code != kResumeIncomplete) {
                finished = true;
                return absl::OkStatus();
              }
              // "bytes=0-1234", or no header: nothing has arrived.
              int64_t last = -1;
              if (const std::optional<std::string> arrived = response->Header("range")) {
                const size_t dash = arrived->rfind('-');
                if (dash == std::string::npos || !absl::SimpleAtoi(arrived->substr(dash + 1), &last) ||
                    last < 0 || last >= total - 1) {
                  return absl::UnavailableError(
                      absl::StrCat(what, ": odd range '", *arrived, "' in an answer"));
                }
              }
              offset = last + 1;
              return absl::OkStatus();
            };
            if (ask_first) {
              outcome.status = send(absl::StrCat("bytes */", total), "");
              if (finished || !outcome.status.ok()) return outcome;
            }
            ask_first = true;  // unless the answer to this is understood
            const int64_t end = std::min(total, offset + options_.resumable_above_bytes);
            outcome.status =
                send(absl::StrCat("bytes ", offset, "-", end - 1, "/", total),
                     bytes.substr(static_cast<size_t>(offset), static_cast<size_t>(end - offset)));
            if (finished || !outcome.status.ok()) return outcome;
            if (offset <= before) {
              outcome.status = absl::UnavailableError(absl::StrCat(what, ": the service makes no progress"));
              return outcome;
            }
            ask_first = false;
            return outcome;
          });
    }
    if (finished) return absl::OkStatus();
    if (!absl::IsNotFound(status)) break;
    if (sessions == 0) status = absl::OkStatus();
  }
  if (mode == PutMode::kCreate && absl::IsFailedPrecondition(status)) {
    if (sent_something) return WasItUs(name, bytes);
    return absl::AlreadyExistsError(absl::StrCat(location_, "/", name));
  }
  return status;
}

absl::StatusOr<std::vector<ObjectInfo>> GcsStore::List(absl::string_view prefix, size_t limit) {
  const std::string what = absl::StrCat("listing ", location_);
  std::vector<ObjectInfo> found;
  std::string page;
  while (found.size() < limit) {
    HttpRequest request;
    request.url = absl::StrCat(
        BucketUrl(), "/o?prefix=", PercentEncode(absl::StrCat(prefix_, prefix)),
        "&fields=nextPageToken,items(name,size,updated)&maxResults=", std::min<size_t>(limit, 1000),
        page.empty() ? "" : "&pageToken=", PercentEncode(page));
    request.max_response_bytes = kMaxMetadataBytes;
    HELMWAY_ASSIGN_OR_RETURN(const HttpResponse response, Call(what, request));
    HELMWAY_ASSIGN_OR_RETURN(const Json json, ParseObject(what, response.body));
    if (const auto items = json.find("items"); items != json.end() && items->is_array()) {
      for (const Json& item : *items) {
        absl::string_view name;
        const std::string full = item.is_object() ? Text(item, "name") : "";
        name = full;
        if (!absl::ConsumePrefix(&name, prefix_) || name.empty() || !CheckObjectName(name).ok()) continue;
        ObjectInfo info{std::string(name), Number(item, "size"), absl::UnixEpoch()};
        if (!absl::ParseTime(absl::RFC3339_full, Text(item, "updated"), &info.updated, nullptr)) {
          info.updated = absl::InfiniteFuture();  // never looks old
        }
        found.push_back(std::move(info));
      }
    }
    std::string next = Text(json, "nextPageToken");
    if (next.empty() || next == page) break;
    page = std::move(next);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (found.size() > limit) found.resize(limit);
  return found;
}

absl::Status GcsStore::Delete(absl::string_view name) {
  HELMWAY_RETURN_IF_ERROR(CheckObjectName(name));
  HttpRequest request;
  request.method = "DELETE";
  request.url = ObjectUrl(name);
  int attempts = 0;
  const absl::Status status = Call(
                                  absl::StrCat("deleting ", location_, "/", name),
                                  [&](int attempt) {
                                    attempts = attempt;
                                    return request;
                                  },
                                  [](const HttpResponse&) { return absl::OkStatus(); })
                                  .status();
  // The answer of the attempt that did it may be the one that was lost.
  if (attempts > 1 && absl::IsNotFound(status)) return absl::OkStatus();
  return status;
}

absl::StatusOr<BucketInfo> GcsStore::GetBucket() {
  HttpRequest request;
  request.url = absl::StrCat(BucketUrl(), "?fields=location,metageneration,lifecycle,softDeletePolicy");
  request.max_response_bytes = kMaxMetadataBytes;
  const std::string what = absl::StrCat("looking at the bucket ", bucket_);
  HELMWAY_ASSIGN_OR_RETURN(const HttpResponse response, Call(what, request));
  // In order, since the rules of others are to come out as they went in.
  const auto json = nlohmann::ordered_json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::UnavailableError(absl::StrCat(what, ": the answer is no JSON object"));
  HELMWAY_ASSIGN_OR_RETURN(const Json plain, ParseObject(what, response.body));
  BucketInfo info;
  info.location = Text(plain, "location");
  info.metageneration = Number(plain, "metageneration");
  if (const auto it = json.find("lifecycle"); it != json.end() && !it->is_null()) {
    info.lifecycle = it->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  if (const auto it = plain.find("softDeletePolicy"); it != plain.end() && it->is_object()) {
    info.soft_delete_seconds = Number(*it, "retentionDurationSeconds");
  }
  return info;
}

absl::StatusOr<std::vector<std::string>> GcsStore::TestPermissions(
    absl::Span<const absl::string_view> permissions) {
  HttpRequest request;
  request.url = absl::StrCat(BucketUrl(), "/iam/testPermissions");
  for (size_t i = 0; i < permissions.size(); ++i) {
    absl::StrAppend(&request.url, i == 0 ? "?" : "&", "permissions=", PercentEncode(permissions[i]));
  }
  request.max_response_bytes = kMaxMetadataBytes;
  const std::string what = absl::StrCat("asking for the permissions of ", bucket_);
  absl::StatusOr<HttpResponse> response = Call(what, request);
  if (absl::IsNotFound(response.status()) || absl::IsInvalidArgument(response.status())) {
    return absl::UnimplementedError(response.status().message());
  }
  HELMWAY_RETURN_IF_ERROR(response.status());
  HELMWAY_ASSIGN_OR_RETURN(const Json json, ParseObject(what, response->body));
  std::vector<std::string> granted;
  if (const auto it = json.find("permissions"); it != json.end() && it->is_array()) {
    for (const Json& permission : *it) {
      if (permission.is_string()) granted.push_back(permission.get<std::string>());
    }
  }
  return granted;
}

absl::Status GcsStore::SetLifecycle(absl::string_view lifecycle, int64_t metageneration) {
  const std::string body = absl::StrCat("{\"lifecycle\":", lifecycle, "}");
  HttpRequest request;
  request.method = "PATCH";
  request.url =
      absl::StrCat(BucketUrl(), "?ifMetagenerationMatch=", metageneration, "&fields=metageneration");
  request.headers = {{"Content-Type", "application/json; charset=UTF-8"}};
  request.body = body;
  request.max_response_bytes = kMaxMetadataBytes;
  return Call(absl::StrCat("setting the lifecycle of the bucket ", bucket_), request).status();
}

GcsConnection ConnectToGcs(const std::map<std::string, std::string>& environment, int max_connections) {
  GcsConnection connection;
  connection.transport = MakeCurlTransport(max_connections);
  const auto emulator = environment.find("STORAGE_EMULATOR_HOST");
  if (emulator != environment.end() && !emulator->second.empty()) {
    absl::string_view host = absl::StripSuffix(emulator->second, "/");
    connection.endpoint = absl::StrContains(host, "://") ? std::string(host) : absl::StrCat("http://", host);
    connection.tokens = NoToken();
    return connection;
  }
  connection.endpoint = GcsOptions{}.endpoint;
  connection.tokens = ApplicationDefaultToken(environment, connection.transport.get());
  return connection;
}

}  // namespace helmway::storage
