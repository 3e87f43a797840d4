#include "helmway/cluster/versions.h"

#include "absl/strings/str_cat.h"

namespace helmway::cluster {

absl::string_view SoftwareVersion() { return HELMWAY_VERSION; }

absl::Status CheckPeerVersion(absl::string_view us, absl::string_view peer, int32_t peer_protocol,
                              absl::string_view peer_software) {
  if (peer_protocol == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "version skew: ", us, " is helmway ", SoftwareVersion(), " (cluster protocol ", kProtocolVersion, "), ",
      peer, " is helmway ", peer_software.empty() ? "of an unknown version" : peer_software,
      " (cluster protocol ", peer_protocol, "); run the same version in all roles"));
}

}  // namespace helmway::cluster
