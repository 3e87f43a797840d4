// Random requests to the proxy. The seed is printed; run again with --gtest_random_seed=<seed> for other
// input (0, the default, is a seed like any other).
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>

#include "helmway/proxy/untrusted_requests_testing.h"

namespace helmway::proxy {
namespace {

constexpr int kRuns = 300;
constexpr size_t kBytesOfARun = 4000;

TEST(UntrustedRequests, AreAnsweredAndLeaveNothing) {
  const int seed = GTEST_FLAG_GET(random_seed);
  std::cout << "seed " << seed << std::endl;
  FLAGS_minloglevel = google::WARNING;
  std::mt19937_64 engine(static_cast<uint64_t>(seed));
  UntrustedRun total;
  for (int i = 0; i < kRuns; ++i) {
    std::string bytes(kBytesOfARun, '\0');
    for (char& byte : bytes) byte = static_cast<char>(engine());
    const UntrustedRun run = TryRequests(bytes);
    total.requests += run.requests;
    total.succeeded += run.succeeded;
    total.launches += run.launches;
  }
  std::cout << total.requests << " requests, " << total.succeeded << " succeeded, " << total.launches
            << " launches" << std::endl;
  // The input must be good enough to reach something.
  EXPECT_GT(total.succeeded, total.requests / 8);
  EXPECT_GT(total.launches, 200u);
}

}  // namespace
}  // namespace helmway::proxy
