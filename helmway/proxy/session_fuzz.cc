#include <glog/logging.h>

#include <cstddef>
#include <cstdint>

#include "helmway/proxy/untrusted_requests_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FLAGS_minloglevel = google::WARNING;
  helmway::proxy::TryRequests(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
