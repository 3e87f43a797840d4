// Versions of the protocol between our own roles (the .proto files of this folder).
//
// Roles of one cluster must speak the same version: they are deployed together, so there is no negotiation,
// only a clear refusal. A new version is due when an old peer would misunderstand; added fields that it may
// ignore are none.
//
//   version   date         change
//   1         2026-11-29   registration, membership and leases
#ifndef HELMWAY_CLUSTER_VERSIONS_H_
#define HELMWAY_CLUSTER_VERSIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace helmway::cluster {

inline constexpr int32_t kProtocolVersion = 1;

// Of this program, "0.1.0".
absl::string_view SoftwareVersion();

// OK if a peer that speaks this version can be served, else FAILED_PRECONDITION that names both sides: `us`
// and `peer` as in "the resource manager" and "the worker on host a".
absl::Status CheckPeerVersion(absl::string_view us, absl::string_view peer, int32_t peer_protocol,
                              absl::string_view peer_software);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_VERSIONS_H_
