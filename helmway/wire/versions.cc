#include "helmway/wire/versions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace helmway::wire {
namespace {

using xla::ifrt::proxy::GrpcGetVersionRequest;
using xla::ifrt::proxy::IfrtProxyVersion;

absl::Status Refuse(absl::string_view what, absl::string_view theirs, int our_min, int our_max) {
  return absl::InvalidArgumentError(absl::StrCat("the client speaks ", what, " ", theirs,
                                                 ", this server speaks ", our_min, " to ", our_max,
                                                 "; use jaxlib ", kSupportedJaxlibs));
}

absl::StatusOr<int> Choose(absl::string_view what, int min, int max, int our_min, int our_max) {
  const int chosen = std::min(max, our_max);
  if (chosen < min || chosen < our_min) {
    return Refuse(what, absl::StrCat(min, " to ", max), our_min, our_max);
  }
  return chosen;
}

constexpr absl::string_view kProtocol = "IFRT proxy protocol version";
constexpr absl::string_view kSerdes = "IFRT serdes version";

}  // namespace

absl::StatusOr<IfrtProxyVersion> ChooseVersion(const GrpcGetVersionRequest& request) {
  const IfrtProxyVersion& min = request.min_version();
  const IfrtProxyVersion& max = request.max_version();
  absl::StatusOr<int> protocol = Choose(kProtocol, min.protocol_version(), max.protocol_version(),
                                        kMinProtocolVersion, kMaxProtocolVersion);
  if (!protocol.ok()) return protocol.status();
  absl::StatusOr<int> serdes = Choose(kSerdes, min.ifrt_serdes_version_number(),
                                      max.ifrt_serdes_version_number(), kMinSerdesVersion, kMaxSerdesVersion);
  if (!serdes.ok()) return serdes.status();
  IfrtProxyVersion chosen;
  chosen.set_protocol_version(*protocol);
  chosen.set_ifrt_serdes_version_number(*serdes);
  return chosen;
}

absl::Status CheckVersion(const IfrtProxyVersion& version) {
  const int protocol = version.protocol_version();
  if (protocol < kMinProtocolVersion || protocol > kMaxProtocolVersion) {
    return Refuse(kProtocol, absl::StrCat(protocol), kMinProtocolVersion, kMaxProtocolVersion);
  }
  const int serdes = version.ifrt_serdes_version_number();
  if (serdes < kMinSerdesVersion || serdes > kMaxSerdesVersion) {
    return Refuse(kSerdes, absl::StrCat(serdes), kMinSerdesVersion, kMaxSerdesVersion);
  }
  return absl::OkStatus();
}

}  // namespace helmway::wire
