#include "helmway/program/optimized_module.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::program {
namespace {

template <typename Message>
absl::Status ParseInto(absl::string_view bytes, Message* message) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("Optimized program: its bytes do not parse as ", message->GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<xla::HloModuleProtoWithConfig> ParseOptimizedModule(absl::string_view format,
                                                                   absl::string_view bytes) {
  xla::HloModuleProtoWithConfig program;
  if (format == "hlo") {
    HELMWAY_RETURN_IF_ERROR(ParseInto(bytes, program.mutable_hlo_module()));
  } else if (format == "hlo_with_config") {
    HELMWAY_RETURN_IF_ERROR(ParseInto(bytes, &program));
  } else {
    return absl::UnimplementedError(
        absl::StrCat("Optimized program: format '", format, "' (hlo and hlo_with_config are supported)"));
  }
  return program;
}

}  // namespace helmway::program
