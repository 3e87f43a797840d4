#include "helmway/program/backend_config.h"

#include "absl/strings/str_cat.h"

namespace helmway::program {

absl::StatusOr<std::string> BackendConfig(const xla::HloModuleProto& module,
                                          const xla::HloInstructionProto& instruction) {
  if (!instruction.backend_config().empty()) return instruction.backend_config();
  const xla::Payload& payload = instruction.backend_config_payload();
  switch (payload.payload_source_case()) {
    case xla::Payload::kValue:
      return payload.value();
    case xla::Payload::kId:
      if (payload.id() < 0 || payload.id() >= module.payloads_size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("instruction ", instruction.name(), ": payload ", payload.id(), " does not exist"));
      }
      return module.payloads(static_cast<int>(payload.id()));
    default:
      return std::string();
  }
}

}  // namespace helmway::program
