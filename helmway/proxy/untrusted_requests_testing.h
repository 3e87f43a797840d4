#ifndef HELMWAY_PROXY_UNTRUSTED_REQUESTS_TESTING_H_
#define HELMWAY_PROXY_UNTRUSTED_REQUESTS_TESTING_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace helmway::proxy {

// What came of a run, so that a test can tell whether its input reaches anything.
struct UntrustedRun {
  size_t requests = 0;
  size_t succeeded = 0;
  size_t launches = 0;
};

// For tests and fuzz targets: plays two clients of a proxy on a fake worker. Every choice is made by the next
// of `bytes`: which requests come, well-formed ones and ones of which parts were replaced or that are random;
// which bytes are uploaded, whole or not; what the worker answers, and when. Then the sessions end. Aborts
// with a message if that breaks a contract that the fakes watch: the answers, the commands to the worker, and
// that nothing of a session is left.
UntrustedRun TryRequests(absl::string_view bytes);

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_UNTRUSTED_REQUESTS_TESTING_H_
