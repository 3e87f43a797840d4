#include "helmway/program/compile_options.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::program {
namespace {

// The highest version of the payload; its later fields are refused by name.
constexpr int32_t kMaxVersion = 4;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Compile options: ", text));
}

// Maps in a fixed order: the bytes are part of cache keys.
absl::StatusOr<std::string> SerializeInOrder(const xla::CompileOptionsProto& proto) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!proto.SerializeToCodedStream(&coded)) return Bad("they do not serialize (2 GiB is the limit)");
  }
  return bytes;
}

}  // namespace

absl::StatusOr<CompileOptions> ParseXlaCompileOptions(absl::string_view bytes) {
  xla::ifrt::XlaCompileOptionsProto payload;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !payload.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("their bytes do not parse as xla.ifrt.XlaCompileOptionsProto");
  }
  if (payload.version_number() < 0 || payload.version_number() > kMaxVersion) {
    return absl::UnimplementedError(absl::StrCat("Compile options: format version ", payload.version_number(),
                                                 " (up to ", kMaxVersion, " is supported)"));
  }
  if (payload.outputs_bundle_slice_sizes_size() != 0) {
    return absl::UnimplementedError("Compile options: outputs_bundle_slice_sizes (bundled outputs)");
  }

  CompileOptions options;
  options.proto_ = std::move(*payload.mutable_compile_options());
  const xla::ExecutableBuildOptionsProto& build = options.proto_.executable_build_options();
  constexpr int64_t kMaxDevices = std::numeric_limits<int32_t>::max();
  if (build.num_replicas() < 1 || build.num_partitions() < 1 ||
      build.num_replicas() > kMaxDevices / build.num_partitions()) {
    return Bad(absl::StrCat(build.num_replicas(), " replicas x ", build.num_partitions(), " partitions"));
  }
  options.num_replicas_ = static_cast<int>(build.num_replicas());
  options.num_partitions_ = static_cast<int>(build.num_partitions());
  if (!build.has_device_assignment()) return options;

  const xla::DeviceAssignmentProto& assignment = build.device_assignment();
  if (assignment.replica_count() != build.num_replicas() ||
      assignment.computation_count() != build.num_partitions() ||
      assignment.computation_devices_size() != build.num_partitions()) {
    return Bad(absl::StrCat("a device assignment of ", assignment.replica_count(), " replicas x ",
                            assignment.computation_count(), " partitions (",
                            assignment.computation_devices_size(), " listed) for a program of ",
                            build.num_replicas(), " x ", build.num_partitions()));
  }
  // Before anything is sized by the counts: each id of the assignment must really be in the message.
  for (const auto& partition : assignment.computation_devices()) {
    if (partition.replica_device_ids_size() != options.num_replicas_) {
      return Bad(absl::StrCat("a partition with devices for ", partition.replica_device_ids_size(),
                              " replicas instead of ", options.num_replicas_));
    }
  }
  absl::flat_hash_set<int64_t> seen;
  for (int replica = 0; replica < options.num_replicas_; ++replica) {
    for (const auto& partition : assignment.computation_devices()) {
      const int64_t id = partition.replica_device_ids(replica);
      if (id < 0 || id > kMaxDevices) return Bad(absl::StrCat("device id ", id));
      if (!seen.insert(id).second) return Bad(absl::StrCat("device ", id, " is assigned twice"));
      options.device_ids_.push_back(static_cast<int32_t>(id));
    }
  }
  return options;
}

absl::StatusOr<std::vector<int32_t>> AssignedDevices(absl::string_view serialized) {
  xla::CompileOptionsProto options;
  if (!options.ParseFromArray(serialized.data(), static_cast<int>(serialized.size()))) {
    return Bad("their bytes do not parse as xla.CompileOptionsProto");
  }
  const xla::DeviceAssignmentProto& assignment = options.executable_build_options().device_assignment();
  std::vector<int32_t> devices;
  for (int replica = 0; replica < assignment.replica_count(); ++replica) {
    for (const auto& partition : assignment.computation_devices()) {
      if (replica >= partition.replica_device_ids_size()) return Bad("the device assignment is not complete");
      devices.push_back(static_cast<int32_t>(partition.replica_device_ids(replica)));
    }
  }
  if (devices.empty()) return Bad("there is no device assignment");
  return devices;
}

std::string SerializeDefaultCompileOptions(const XlaOptions& xla_options) {
  xla::CompileOptionsProto proto;
  xla::ExecutableBuildOptionsProto& build = *proto.mutable_executable_build_options();
  build.set_device_ordinal(-1);
  build.set_num_replicas(1);
  build.set_num_partitions(1);
  proto.mutable_env_option_overrides()->insert(xla_options.begin(), xla_options.end());
  return proto.SerializeAsString();
}

absl::StatusOr<std::string> CompileOptionsForKey(absl::string_view serialized, bool devices_matter) {
  xla::CompileOptionsProto proto;
  if (!proto.ParseFromArray(serialized.data(), static_cast<int>(serialized.size())))
    return Bad("they do not parse");
  auto& overrides = *proto.mutable_env_option_overrides();
  for (auto it = overrides.begin(); it != overrides.end();) {
    it = absl::StartsWith(it->first, "xla_dump_") ? overrides.erase(it) : std::next(it);
  }
  if (proto.has_executable_build_options()) {
    xla::ExecutableBuildOptionsProto& build = *proto.mutable_executable_build_options();
    build.set_device_ordinal(-1);
    build.clear_process_index();
    if (!devices_matter) {
      build.clear_device_assignment();
    } else if (build.has_device_assignment()) {
      int64_t lowest = std::numeric_limits<int64_t>::max();
      auto& partitions = *build.mutable_device_assignment()->mutable_computation_devices();
      for (const auto& partition : partitions) {
        for (const int64_t id : partition.replica_device_ids()) lowest = std::min(lowest, id);
      }
      for (auto& partition : partitions) {
        for (int64_t& id : *partition.mutable_replica_device_ids()) id -= lowest;
      }
    }
  }
  return SerializeInOrder(proto);
}

absl::StatusOr<std::string> CompileOptions::SerializeForPlugin(
    const absl::flat_hash_map<int32_t, int32_t>& plugin_ids, const XlaOptions& defaults) const {
  xla::CompileOptionsProto proto = proto_;
  // Does not touch what is there.
  proto.mutable_env_option_overrides()->insert(defaults.begin(), defaults.end());
  if (proto.has_executable_build_options()) {
    xla::ExecutableBuildOptionsProto& build = *proto.mutable_executable_build_options();
    build.clear_debug_options();
    absl::flat_hash_set<int32_t> used;
    // Not mutable_device_assignment() without a look: that would create an empty one.
    if (build.has_device_assignment()) {
      for (auto& partition : *build.mutable_device_assignment()->mutable_computation_devices()) {
        for (int64_t& id : *partition.mutable_replica_device_ids()) {
          const auto found = plugin_ids.find(static_cast<int32_t>(id));
          if (found == plugin_ids.end()) {
            return Bad(absl::StrCat("device ", id, " is not among the devices of this compiler"));
          }
          if (!used.insert(found->second).second) {
            return Bad(absl::StrCat("two devices map to the plugin's device ", found->second));
          }
          id = found->second;
        }
      }
    }
  }
  return SerializeInOrder(proto);
}

}  // namespace helmway::program
