#ifndef HELMWAY_PROGRAM_COMPILE_OPTIONS_H_
#define HELMWAY_PROGRAM_COMPILE_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/wire/xla_compile_options.pb.h"

namespace helmway::program {

// XLA options by name, as CompileOptionsProto.env_option_overrides has them.
using XlaOptions = std::map<std::string, xla::OptionOverrideProto>;

// Bytes of a xla.CompileOptionsProto for one replica and one partition on a device of the plugin's choice.
std::string SerializeDefaultCompileOptions(const XlaOptions& xla_options);

// What in a serialized xla.CompileOptionsProto for a plugin decides what a compiler makes of a program, for
// keys of caches: without where the program runs (devices, process), unless `devices_matter` (then their ids,
// less the lowest), and without options that only make XLA write files (xla_dump_*). INVALID_ARGUMENT for
// bytes that do not parse.
absl::StatusOr<std::string> CompileOptionsForKey(absl::string_view serialized, bool devices_matter);

// The ids of the device assignment in a serialized xla.CompileOptionsProto for a plugin, replica by replica.
// INVALID_ARGUMENT for bytes that do not parse, and if the assignment is missing or not complete.
absl::StatusOr<std::vector<int32_t>> AssignedDevices(absl::string_view serialized);

// What a client asks of the compiler. Immutable after parsing: any thread.
// Source: xla.ifrt.XlaCompileOptionsProto in wire/ifrt_types.proto.
class CompileOptions {
 public:
  int num_replicas() const { return num_replicas_; }
  int num_partitions() const { return num_partitions_; }

  // Session device ids of the device assignment, num_replicas x num_partitions, replica by replica: the order
  // in which a client wants its executable's devices. Empty when the client sent no assignment (a portable
  // executable may have none).
  absl::Span<const int32_t> device_ids() const { return device_ids_; }

  // The program is compiled once and runs on the one device that each run names.
  bool compile_portable_executable() const { return proto_.compile_portable_executable(); }
  bool parameter_is_tupled_arguments() const { return proto_.parameter_is_tupled_arguments(); }

  // Everything that was sent, session device ids and the client's debug options included.
  // jax.jit(compiler_options=...) is in env_option_overrides.
  const xla::CompileOptionsProto& proto() const { return proto_; }

  // Bytes of a xla.CompileOptionsProto for a PJRT plugin. The client's debug options are left out: they
  // describe the client's XLA and its flags, not the plugin's. Device ids of the assignment are replaced
  // through `plugin_ids` (session id -> the plugin's global id; two session ids may not meet in one). XLA
  // options that the client does not set are taken from `defaults`. All else is kept, unknown fields too. The
  // same options give the same bytes. INVALID_ARGUMENT for a device that the map does not hold.
  absl::StatusOr<std::string> SerializeForPlugin(const absl::flat_hash_map<int32_t, int32_t>& plugin_ids,
                                                 const XlaOptions& defaults = {}) const;

 private:
  friend absl::StatusOr<CompileOptions> ParseXlaCompileOptions(absl::string_view bytes);

  xla::CompileOptionsProto proto_;
  int num_replicas_ = 1;
  int num_partitions_ = 1;
  std::vector<int32_t> device_ids_;
};

// `bytes`: the data of a Serialized of type "xla::ifrt::XlaCompileOptions". INVALID_ARGUMENT for bytes that
// do not parse, counts below 1, and a device assignment that does not have the size of the counts or names a
// device twice; UNIMPLEMENTED for a newer format version and bundled outputs.
absl::StatusOr<CompileOptions> ParseXlaCompileOptions(absl::string_view bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_COMPILE_OPTIONS_H_
