#ifndef HELMWAY_PJRT_EXECUTABLE_H_
#define HELMWAY_PJRT_EXECUTABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/pjrt/attribute.h"
#include "helmway/pjrt/buffer.h"
#include "helmway/pjrt/element_type.h"
#include "helmway/pjrt/event.h"

struct PJRT_Executable;
struct PJRT_LoadedExecutable;

namespace helmway::pjrt {

class Client;
class Device;
class RunContext;

struct ExecuteOptions {
  // Not 0: the id of this run, the same on every device of it. Programs see it as their run id.
  int32_t launch_id = 0;
  // Arguments to keep although the program donates them. Must live during the call.
  absl::Span<const int64_t> non_donatable_input_indices;
  // What the custom calls of the run can reach; null: nothing.
  const RunContext* context = nullptr;
};

// A program in a plugin's portable form.
struct ProgramBytes {
  std::string format;  // "hlo_with_config" (xla.HloModuleProtoWithConfig) or "hlo" (xla.HloModuleProto)
  std::string bytes;
};

// Sizes in bytes for one device. The host_ fields are for host memory that the program uses.
struct CompiledMemoryStats {
  int64_t generated_code_bytes = 0;
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  int64_t alias_bytes = 0;
  int64_t temp_bytes = 0;
  int64_t host_generated_code_bytes = 0;
  int64_t host_argument_bytes = 0;
  int64_t host_output_bytes = 0;
  int64_t host_alias_bytes = 0;
  int64_t host_temp_bytes = 0;
  int64_t peak_memory_bytes = 0;
  int64_t total_bytes = 0;  // 0 if the plugin's interface is older than 0.90
};

// A compiled program on devices of a client. Immutable but for Delete; any thread. Dropping it while it runs
// is safe. Holds the client alive.
class LoadedExecutable {
 public:
  ~LoadedExecutable();
  LoadedExecutable(const LoadedExecutable&) = delete;
  LoadedExecutable& operator=(const LoadedExecutable&) = delete;

  const std::string& name() const { return name_; }
  int num_replicas() const { return num_replicas_; }
  int num_partitions() const { return num_partitions_; }
  // The devices of this client that take part, in the order that ExecuteAll uses. Empty for a portable
  // executable, which runs on any device through ExecuteOn.
  absl::Span<Device* const> addressable_devices() const { return addressable_devices_; }

  // Outputs of one device: element types and per-device shapes. Both have num_outputs() entries.
  size_t num_outputs() const { return num_outputs_; }
  absl::Span<const ElementType> output_element_types() const { return output_element_types_; }
  absl::Span<const std::vector<int64_t>> output_dimensions() const { return output_dimensions_; }
  // num_outputs() entries.
  absl::StatusOr<std::vector<std::string>> OutputMemoryKinds() const;

  // Layouts as text ("{1,0}"), one per parameter or output. UNIMPLEMENTED without the Layouts extension or
  // with one that lacks the function.
  absl::StatusOr<std::vector<std::string>> ParameterLayouts() const;
  absl::StatusOr<std::vector<std::string>> OutputLayouts() const;
  // Serialized xla.OpSharding, one per parameter or output; nullopt if the program carries none.
  // UNIMPLEMENTED without the Shardings extension.
  absl::StatusOr<std::optional<std::vector<std::string>>> ParameterShardings() const;
  absl::StatusOr<std::optional<std::vector<std::string>>> OutputShardings() const;

  absl::StatusOr<std::string> Fingerprint() const;
  absl::StatusOr<ProgramBytes> OptimizedHlo() const;
  absl::StatusOr<CompiledMemoryStats> GetCompiledMemoryStats() const;
  // The plugin's numbers ("flops", ...). UNIMPLEMENTED where it has none.
  absl::StatusOr<AttributeMap> CostAnalysis() const;
  absl::StatusOr<int64_t> GeneratedCodeSizeBytes() const;
  // For Client::DeserializeAndLoad.
  absl::StatusOr<std::string> Serialize() const;

  // Frees the program once its runs are done. Only IsDeleted and destruction are allowed afterwards; other
  // calls fail. Must not race with them.
  absl::Status Delete();
  bool IsDeleted() const;

  // Runs the program's part for `device`, one of its devices (any, for a portable executable). Every other
  // addressable device of the program needs its own call with equal options, from other threads where the
  // program has collectives: on CPU a small program runs within the call.
  //
  // `args` are the per-device arguments in order; donated ones are deleted by the call. `outputs` must have
  // num_outputs() entries, whose former contents are dropped. `complete`, if not null, becomes ready when
  // this device is done. On error outputs and `complete` are unchanged, and donated arguments may be gone.
  // Errors of arguments and of the computation itself appear in the outputs and `complete`, not here; the CPU
  // plugin keeps their text but makes the code INTERNAL.
  //
  // Allocates nothing of its own for up to 32 arguments and outputs.
  absl::Status ExecuteOn(const Device* device, absl::Span<Buffer* const> args, absl::Span<Buffer> outputs,
                         Event* complete = nullptr, const ExecuteOptions& options = {}) const;

  // Runs all addressable devices. `args` and `outputs` have one entry per device in the order of
  // addressable_devices(), each as in ExecuteOn; `complete` is empty or has one entry per device.
  absl::Status ExecuteAll(absl::Span<const absl::Span<Buffer* const>> args,
                          absl::Span<const absl::Span<Buffer>> outputs, absl::Span<Event> complete = {},
                          const ExecuteOptions& options = {}) const;

  const std::shared_ptr<const Client>& client() const { return client_; }

 private:
  friend class Client;
  LoadedExecutable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* executable);
  static absl::StatusOr<std::unique_ptr<LoadedExecutable>> Wrap(std::shared_ptr<const Client> client,
                                                                PJRT_LoadedExecutable* executable);
  absl::Status Describe();

  std::shared_ptr<const Client> client_;
  PJRT_LoadedExecutable* loaded_;
  PJRT_Executable* executable_ = nullptr;
  std::string name_;
  int num_replicas_ = 0;
  int num_partitions_ = 0;
  size_t num_outputs_ = 0;
  std::vector<Device*> addressable_devices_;
  std::vector<ElementType> output_element_types_;
  std::vector<std::vector<int64_t>> output_dimensions_;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_EXECUTABLE_H_
