#include "helmway/manager/settings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::manager {
namespace {

constexpr int64_t kMaxWorkers = 65536;

}  // namespace

absl::Status CheckSettings(const ManagerSettings& settings) {
  int64_t workers = 0;
  for (const SliceSettings& slice : settings.slices) {
    if (slice.devices_per_host > cluster::kDeviceIdsPerWorker) {
      return absl::InvalidArgumentError(absl::StrCat(slice.instance_type, " has ", slice.devices_per_host,
                                                     " devices on a host; at most ",
                                                     cluster::kDeviceIdsPerWorker, " can be told apart"));
    }
    workers += slice.hosts;
  }
  if (workers > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat(workers, " hosts in all slices together; at most ", kMaxWorkers, " are possible"));
  }
  return absl::OkStatus();
}

std::string DescribeSlices(const std::vector<SliceSettings>& slices) {
  const std::string& type = slices.front().instance_type;
  if (std::all_of(slices.begin(), slices.end(),
                  [&type](const SliceSettings& slice) { return slice.instance_type == type; })) {
    return absl::StrCat(slices.size(), slices.size() == 1 ? " slice of " : " slices of ", type);
  }
  return absl::StrCat(slices.size(), " slices (",
                      absl::StrJoin(slices, ", ",
                                    [](std::string* out, const SliceSettings& slice) {
                                      absl::StrAppend(out, slice.instance_type);
                                    }),
                      ")");
}

}  // namespace helmway::manager
