#ifndef HELMWAY_STORAGE_GCS_STORE_H_
#define HELMWAY_STORAGE_GCS_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/storage/gcs_credentials.h"
#include "helmway/storage/http.h"
#include "helmway/storage/retry.h"
#include "helmway/storage/store.h"

namespace helmway::storage {

// What a bucket says of itself.
struct BucketInfo {
  std::string location;  // "US-CENTRAL1"; empty if unknown
  int64_t metageneration = 0;
  std::string lifecycle;  // JSON; empty: none
  int64_t soft_delete_seconds = 0;
};

struct GcsOptions {
  std::string endpoint = "https://storage.googleapis.com";
  RetryPolicy retry;
  Timing timing = Timing::Real();
  // Objects above this go in pieces of this size that can be sent again one by one; a multiple of 256 KiB.
  int64_t resumable_above_bytes = int64_t{8} << 20;
  int64_t max_object_bytes = int64_t{2} << 30;
};

// Objects below a prefix of a Google Cloud Storage bucket, through its JSON API. Whole objects are checked
// against the MD5 that the service gives, and uploads carry theirs. Needs the permissions
// storage.objects.get, .list and .create; .delete for Delete and kReplace. Any thread; the transport bounds
// how many requests run at once. Source: cloud.google.com/storage/docs/json_api, .../resumable-uploads.
class GcsStore final : public Store {
 public:
  GcsStore(std::string bucket, std::string prefix, std::shared_ptr<HttpTransport> transport,
           std::shared_ptr<TokenSource> tokens, GcsOptions options);

  const std::string& location() const override { return location_; }
  const std::string& bucket() const { return bucket_; }
  // With a slash at its end; empty for a whole bucket.
  const std::string& prefix() const { return prefix_; }

  absl::StatusOr<std::string> Get(absl::string_view name) override;
  absl::StatusOr<std::string> GetRange(absl::string_view name, int64_t offset, int64_t length) override;
  absl::Status Put(absl::string_view name, absl::string_view bytes, PutMode mode) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(absl::string_view prefix, size_t limit) override;
  absl::Status Delete(absl::string_view name) override;
  absl::Status RemoveUnfinished(absl::Time /*before*/) override { return absl::OkStatus(); }

  // ---- The bucket ----
  absl::StatusOr<BucketInfo> GetBucket();
  // Those of `permissions` that the caller has. UNIMPLEMENTED where the service (an emulator) does not tell.
  absl::StatusOr<std::vector<std::string>> TestPermissions(absl::Span<const absl::string_view> permissions);
  // FAILED_PRECONDITION: the bucket's metadata has changed since `metageneration`.
  absl::Status SetLifecycle(absl::string_view lifecycle, int64_t metageneration);

 private:
  struct Upload;

  std::string ObjectUrl(absl::string_view name) const;
  std::string BucketUrl() const;
  std::string UploadUrl(absl::string_view name, absl::string_view type, PutMode mode) const;
  // One request with a token, once more with a new one if the service refuses it. The response is of a code
  // below 300 or in `accepted`; anything else is an error.
  absl::StatusOr<HttpResponse> CallOnce(absl::string_view what, HttpRequest request, absl::Duration timeout,
                                        std::optional<absl::Duration>* server_wish,
                                        absl::Span<const int> accepted = {});
  // CallOnce as often as the policy says. `make(attempt)` gives the request of each attempt.
  absl::StatusOr<HttpResponse> Call(absl::string_view what, absl::FunctionRef<HttpRequest(int)> make,
                                    absl::FunctionRef<absl::Status(const HttpResponse&)> check);
  absl::StatusOr<HttpResponse> Call(absl::string_view what, const HttpRequest& request);
  absl::Status PutWhole(absl::string_view name, absl::string_view bytes, PutMode mode);
  absl::Status PutInPieces(absl::string_view name, absl::string_view bytes, PutMode mode);
  // For a kCreate that was refused after an attempt whose answer was lost: OK if the object has these bytes.
  absl::Status WasItUs(absl::string_view name, absl::string_view bytes);

  const std::string bucket_;
  const std::string prefix_;
  const std::string location_;
  const std::shared_ptr<HttpTransport> transport_;
  const std::shared_ptr<TokenSource> tokens_;
  const GcsOptions options_;
};

// What the environment says: STORAGE_EMULATOR_HOST ("host:port" or a URL) is the service and needs no
// credentials; else Google's, with the credentials of ApplicationDefaultToken.
struct GcsConnection {
  std::string endpoint;
  std::shared_ptr<HttpTransport> transport;
  std::shared_ptr<TokenSource> tokens;
};
GcsConnection ConnectToGcs(const std::map<std::string, std::string>& environment, int max_connections = 16);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_GCS_STORE_H_
