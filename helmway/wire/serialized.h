#ifndef HELMWAY_WIRE_SERIALIZED_H_
#define HELMWAY_WIRE_SERIALIZED_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/ifrt_types.pb.h"

// The registered names of the values that travel as xla.ifrt.Serialized, and what their bytes are.
namespace helmway::wire {

// Programs and their options (CompileRequest).
inline constexpr absl::string_view kXlaProgram = "xla::ifrt::XlaProgram";  // StableHLO portable artifact
inline constexpr absl::string_view kXlaCompileOptions =
    "xla::ifrt::XlaCompileOptions";                                              // XlaCompileOptionsProto
inline constexpr absl::string_view kPluginProgram = "xla::ifrt::PluginProgram";  // prefix below, then text
inline constexpr absl::string_view kPluginCompileOptions = "xla::ifrt::PluginCompileOptions";  // empty
inline constexpr absl::string_view kCustomCallProgram =
    "xla::ifrt::CustomCallProgram";  // CustomCallProgramProto
// Empty below serdes 4, else CustomCallCompileOptionsProto.
inline constexpr absl::string_view kCustomCallCompileOptions = "xla::ifrt::CustomCallCompileOptions";
inline constexpr absl::string_view kIfrtIrProgram = "xla::ifrt::IfrtIRProgram";
inline constexpr absl::string_view kIfrtIrCompileOptions = "xla::ifrt::IfrtIRCompileOptions";

// The bytes of a PluginProgram begin with this, trailing space included; the program text follows.
inline constexpr absl::string_view kPluginProgramPrefix = "__serialized_plugin_program ";

// Shardings (ShardingProto); each carries the message named like it plus "Proto".
inline constexpr absl::string_view kHloSharding = "xla::ifrt::HloSharding";
inline constexpr absl::string_view kSingleDeviceSharding = "xla::ifrt::SingleDeviceSharding";
inline constexpr absl::string_view kOpaqueSharding = "xla::ifrt::OpaqueSharding";
inline constexpr absl::string_view kConcreteSharding = "xla::ifrt::ConcreteSharding";
inline constexpr absl::string_view kConcreteEvenSharding = "xla::ifrt::ConcreteEvenSharding";
inline constexpr absl::string_view kShardingParamSharding = "xla::ifrt::ShardingParamSharding";

// Layouts (LayoutProto); each carries the message named like it plus "Proto".
inline constexpr absl::string_view kPjRtLayout = "xla::ifrt::PjRtLayout";
inline constexpr absl::string_view kCompactLayout = "xla::ifrt::CompactLayout";

// Call metadata keys of the service; values are serialized messages.
inline constexpr absl::string_view kSessionMetadataKey = "ifrt-proxy-grpc-ifrt-session-metadata-bin";
inline constexpr absl::string_view kHostBufferStoreMetadataKey =
    "ifrt-proxy-grpc-host-buffer-store-metadata-bin";

// The message inside `serialized`, whose type must be `type_name`. INVALID_ARGUMENT if it has another type or
// its bytes do not parse.
template <typename Message>
absl::StatusOr<Message> ParseSerialized(const xla::ifrt::Serialized& serialized,
                                        absl::string_view type_name) {
  if (serialized.type_name() != type_name) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a serialized ", type_name, ", got \"", serialized.type_name(), "\""));
  }
  Message message;
  if (!message.ParseFromString(serialized.data())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bytes of a serialized ", type_name, " do not parse as ", message.GetTypeName()));
  }
  return message;
}

// The reverse. `message` is written as it is; what a server sends leaves version_number 0.
template <typename Message>
xla::ifrt::Serialized MakeSerialized(const Message& message, absl::string_view type_name) {
  xla::ifrt::Serialized serialized;
  serialized.set_type_name(type_name.data(), type_name.size());
  message.SerializeToString(serialized.mutable_data());
  return serialized;
}

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_SERIALIZED_H_
