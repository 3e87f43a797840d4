#ifndef HELMWAY_STORAGE_GCS_CREDENTIALS_H_
#define HELMWAY_STORAGE_GCS_CREDENTIALS_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/base/mutex.h"
#include "helmway/storage/http.h"

namespace helmway::storage {

// Where access tokens for Google Cloud come from. Any thread.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // A token that is good for a few minutes at least, from memory or by a request; empty: calls need none.
  // UNAUTHENTICATED says what is wrong with the credentials; transient errors as HttpTransport.
  virtual absl::StatusOr<std::string> Token() = 0;
  // The service refused the token that was given last: the next call of Token asks for another.
  virtual void Forget() = 0;
};

std::unique_ptr<TokenSource> NoToken();

// What the environment says: the file that GOOGLE_APPLICATION_CREDENTIALS names (a service account's key, or
// the refresh token of an authorised user), else the metadata server of the machine (GCE_METADATA_HOST, else
// metadata.google.internal). The file is read at the first call of Token. `transport` must outlive the
// source.
std::unique_ptr<TokenSource> ApplicationDefaultToken(const std::map<std::string, std::string>& environment,
                                                     HttpTransport* transport);

// The signed assertion (a JSON web token, RS256) that a service account exchanges for an access token.
// `private_key`: PEM. INVALID_ARGUMENT if that is no usable key. Source: RFC 7523, RFC 7515.
absl::StatusOr<std::string> ServiceAccountAssertion(absl::string_view email, absl::string_view key_id,
                                                    absl::string_view private_key, absl::string_view audience,
                                                    absl::Time now);

}  // namespace helmway::storage

#endif  // HELMWAY_STORAGE_GCS_CREDENTIALS_H_
