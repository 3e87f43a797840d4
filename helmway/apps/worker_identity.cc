#include "helmway/apps/worker_identity.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::apps {
namespace {

absl::StatusOr<std::optional<int32_t>> ReadNumber(const Environment& environment, absl::string_view name) {
  const std::optional<std::string> text = Lookup(environment, name);
  if (!text.has_value()) return std::nullopt;
  int32_t number;
  if (!absl::SimpleAtoi(StripMatchingQuotes(*text), &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, " in the environment: must be a whole number of at least 0"));
  }
  return number;
}

}  // namespace

absl::StatusOr<WorkerIdentity> ReadWorkerIdentity(const WorkerOptions& options,
                                                  const Environment& environment) {
  WorkerIdentity identity;
  if (options.slice.has_value() || options.host.has_value()) {
    identity.slice = options.slice;
    identity.host = options.host;
    identity.source = "--slice_id, --host_id";
    return identity;
  }
  HELMWAY_ASSIGN_OR_RETURN(identity.slice, ReadNumber(environment, "MEGASCALE_SLICE_ID"));
  HELMWAY_ASSIGN_OR_RETURN(identity.host, ReadNumber(environment, "JOB_COMPLETION_INDEX"));
  if (identity.slice.has_value() || identity.host.has_value()) {
    identity.source = "MEGASCALE_SLICE_ID, JOB_COMPLETION_INDEX";
    return identity;
  }
  HELMWAY_ASSIGN_OR_RETURN(const std::optional<int32_t> index, ReadNumber(environment, "LWS_WORKER_INDEX"));
  if (index.has_value() && *index > 0) {
    identity.linear = *index - 1;
    identity.source = "LWS_WORKER_INDEX";
    return identity;
  }
  HELMWAY_ASSIGN_OR_RETURN(identity.linear, ReadNumber(environment, "SLURM_PROCID"));
  if (identity.linear.has_value()) identity.source = "SLURM_PROCID";
  return identity;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string ProcessName(const Environment& environment) {
  return Lookup(environment, "POD_NAME").value_or(HostName());
}

std::string AdvertisedAddress(const Environment& environment, int port) {
  const std::string address =
      StripMatchingQuotes(Lookup(environment, "HELMWAY_ADVERTISE_ADDRESS").value_or(""));
  if (address.empty()) return address;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::StrCat(address, ":", port);
  // "[::1]" and "::1" have colons, but no port.
  if (absl::EndsWith(address, "]")) return absl::StrCat(address, ":", port);
  if (address.front() != '[' && address.find(':') != colon) return absl::StrCat("[", address, "]:", port);
  return address;
}

}  // namespace helmway::apps
