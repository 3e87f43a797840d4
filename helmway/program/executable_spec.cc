#include "helmway/program/executable_spec.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/repeated_field.h"
#include "helmway/base/status.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/program/backend_config.h"
#include "helmway/program/optimized_module.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using ::xla::OpSharding;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Optimized program: ", text));
}

constexpr int kMaxShortInstructions = 256;

// Operations that may take any time whatever their shapes say, or that wait for somebody.
bool HasUnknownLength(absl::string_view opcode) {
  static const auto* const kOpcodes = new absl::flat_hash_set<absl::string_view>(
      {"while",       "conditional",      "call",      "custom-call",        "sort",          "fft",
       "cholesky",    "triangular-solve", "scatter",   "select-and-scatter", "reduce-window", "convolution",
       "infeed",      "outfeed",          "send",      "send-done",          "recv",          "recv-done",
       "async-start", "async-update",     "async-done"});
  return kOpcodes->contains(opcode);
}

bool IsCrossDevice(const xla::HloInstructionProto& instruction) {
  static const auto* const kCollectives = new absl::flat_hash_set<absl::string_view>{
      "all-gather",         "all-reduce",        "all-to-all",     "collective-broadcast",
      "collective-permute", "ragged-all-to-all", "reduce-scatter",
  };
  absl::string_view opcode = instruction.opcode();
  // The asynchronous forms.
  if (!absl::ConsumeSuffix(&opcode, "-start")) absl::ConsumeSuffix(&opcode, "-done");
  if (kCollectives->contains(opcode)) return true;
  return (opcode == "send" || opcode == "recv") && !instruction.is_host_transfer();
}

// The attribute `callback` of a custom call, from its attributes as text:
// "{callback = 7 : ui64, client = 12 : ui64}".
absl::StatusOr<uint64_t> CallbackOf(absl::string_view attributes) {
  constexpr absl::string_view kName = "callback = ";
  const size_t at = attributes.find(kName);
  uint64_t callback = 0;
  if (at == absl::string_view::npos) return Bad("a Python callback without its attribute callback");
  absl::string_view text = attributes.substr(at + kName.size());
  text = text.substr(0, text.find_first_not_of("0123456789"));
  if (!absl::SimpleAtoi(text, &callback))
    return Bad("a Python callback whose attribute callback is no number");
  return callback;
}

bool IsTuple(const xla::ShapeProto& shape) { return shape.element_type() == xla::TUPLE; }

// The shapes of the values in `shape`: its elements or itself.
absl::StatusOr<std::vector<const xla::ShapeProto*>> Flatten(const xla::ShapeProto& shape,
                                                            absl::string_view what) {
  if (!IsTuple(shape)) return std::vector<const xla::ShapeProto*>{&shape};
  std::vector<const xla::ShapeProto*> result;
  for (const xla::ShapeProto& element : shape.tuple_shapes()) {
    if (IsTuple(element)) {
      return absl::UnimplementedError(
          absl::StrCat("Optimized program: ", what, " with a tuple inside a tuple"));
    }
    result.push_back(&element);
  }
  return result;
}

// The shardings of `count` values that `sharding` describes: a TUPLE's elements, or one sharding for all.
absl::StatusOr<std::vector<const OpSharding*>> Flatten(const OpSharding& sharding, size_t count,
                                                       absl::string_view what) {
  if (sharding.has_named_sharding() || sharding.type() != OpSharding::TUPLE) {
    return std::vector<const OpSharding*>(count, &sharding);
  }
  std::vector<const OpSharding*> result;
  if (count == 0) return result;  // XLA gives the empty tuple one element.
  if (static_cast<size_t>(sharding.tuple_shardings_size()) != count) {
    return Bad(absl::StrCat(sharding.tuple_shardings_size(), " shardings for ", count, " values of ", what));
  }
  for (const OpSharding& element : sharding.tuple_shardings()) result.push_back(&element);
  return result;
}

struct Devices {
  absl::Span<const int32_t> ids;
  int replicas;
  int partitions;
};

absl::StatusOr<ValueSpec> MakeValue(const xla::ShapeProto& shape, const OpSharding* sharding,
                                    const Devices& devices) {
  ValueSpec value;
  value.element_type = shape.element_type();
  if (!xla::PrimitiveType_IsValid(value.element_type) || value.element_type == xla::PRIMITIVE_TYPE_INVALID ||
      value.element_type == xla::TUPLE || value.element_type == xla::BUFFER) {
    return absl::UnimplementedError(absl::StrCat("element type ", static_cast<int>(value.element_type)));
  }
  value.is_token = value.element_type == xla::TOKEN;
  if (std::find(shape.is_dynamic_dimension().begin(), shape.is_dynamic_dimension().end(), true) !=
      shape.is_dynamic_dimension().end()) {
    return absl::UnimplementedError("dynamic dimensions");
  }
  value.shard_dims.assign(shape.dimensions().begin(), shape.dimensions().end());
  if (value.is_token && !value.shard_dims.empty())
    return absl::InvalidArgumentError("a token with dimensions");
  if (shape.has_layout()) {
    HELMWAY_ASSIGN_OR_RETURN(value.layout, Layout::FromXlaProto(shape.layout()));
    if (static_cast<size_t>(value.layout.rank()) != value.shard_dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat("layout ", value.layout.ToText(), " for an array of ",
                                                     value.shard_dims.size(), " dimensions"));
    }
  } else {
    value.layout = Layout::Default(static_cast<int>(value.shard_dims.size()));
  }

  // XLA's device numbers count partitions; every replica is split alike, so the first replica's devices stand
  // for all.
  HELMWAY_ASSIGN_OR_RETURN(
      value.sharding, Sharding::FromOpSharding(devices.ids.first(devices.partitions),
                                               sharding != nullptr ? *sharding : OpSharding(), std::nullopt));
  // A token has no shape that tiles could fit.
  if (value.is_token && !value.sharding->IsFullyReplicated()) {
    HELMWAY_ASSIGN_OR_RETURN(value.sharding,
                             Sharding::Replicated(devices.ids.first(devices.partitions), std::nullopt));
  }
  HELMWAY_ASSIGN_OR_RETURN(value.global_dims, value.sharding->GlobalShape(value.shard_dims));
  if (sharding != nullptr) value.op_sharding = value.sharding->op_sharding();
  if (devices.replicas > 1) {
    HELMWAY_ASSIGN_OR_RETURN(value.sharding,
                             Sharding::ConcreteEven(devices.ids, value.global_dims, value.shard_dims,
                                                    /*is_fully_replicated=*/false, std::nullopt));
  }
  return value;
}

}  // namespace

absl::StatusOr<std::string> OutlineOf(absl::string_view format, absl::string_view bytes) {
  HELMWAY_ASSIGN_OR_RETURN(const xla::HloModuleProtoWithConfig parsed, ParseOptimizedModule(format, bytes));
  const xla::HloModuleProto& hlo = parsed.hlo_module();
  xla::HloModuleProto outline;
  outline.set_name(hlo.name());
  if (hlo.has_host_program_shape()) *outline.mutable_host_program_shape() = hlo.host_program_shape();
  if (hlo.has_spmd_output_sharding()) *outline.mutable_spmd_output_sharding() = hlo.spmd_output_sharding();
  *outline.mutable_spmd_parameters_shardings() = hlo.spmd_parameters_shardings();
  *outline.mutable_input_output_alias() = hlo.input_output_alias();
  *outline.mutable_buffer_donor() = hlo.buffer_donor();
  xla::HloComputationProto& computation = *outline.add_computations();
  std::set<std::string> targets;
  bool has_cross_device = false;
  bool has_unknown_length = false;
  for (const xla::HloComputationProto& full : hlo.computations()) {
    for (const xla::HloInstructionProto& instruction : full.instructions()) {
      const bool calls_python = instruction.custom_call_target() == cluster::kPythonCallbackTarget;
      bool keep = calls_python;
      if (instruction.opcode() == "custom-call")
        keep |= targets.insert(instruction.custom_call_target()).second;
      if (IsCrossDevice(instruction)) keep |= !std::exchange(has_cross_device, true);
      if (HasUnknownLength(instruction.opcode())) keep |= !std::exchange(has_unknown_length, true);
      // Of the others so many that their number is seen to be large.
      if (!keep && computation.instructions_size() > kMaxShortInstructions) continue;
      xla::HloInstructionProto& kept = *computation.add_instructions();
      kept.set_opcode(instruction.opcode());
      kept.set_custom_call_target(instruction.custom_call_target());
      kept.set_is_host_transfer(instruction.is_host_transfer());
      if (!calls_python) continue;
      HELMWAY_ASSIGN_OR_RETURN(const std::string config, BackendConfig(hlo, instruction));
      kept.set_backend_config(config);
    }
  }
  return outline.SerializeAsString();
}

absl::StatusOr<ExecutableSpec> FromOptimizedHlo(absl::string_view format, absl::string_view bytes,
                                                absl::Span<const int32_t> devices, int replicas,
                                                int partitions) {
  if (replicas < 1 || partitions < 1 ||
      static_cast<int64_t>(devices.size()) != static_cast<int64_t>(replicas) * partitions) {
    return Bad(
        absl::StrCat(devices.size(), " devices for ", replicas, " replicas x ", partitions, " partitions"));
  }
  const Devices layout_of_devices{devices, replicas, partitions};

  HELMWAY_ASSIGN_OR_RETURN(const xla::HloModuleProtoWithConfig parsed, ParseOptimizedModule(format, bytes));
  const xla::HloModuleProto& hlo = parsed.hlo_module();
  if (!hlo.has_host_program_shape() || !hlo.host_program_shape().has_result()) {
    return Bad("the module has no program shape");
  }
  const xla::ProgramShapeProto& program_shape = hlo.host_program_shape();

  ExecutableSpec spec;
  spec.name = hlo.name();

  // Parameters. Tupled arguments are one parameter of the module.
  const bool tupled = program_shape.parameters_size() == 1 && IsTuple(program_shape.parameters(0));
  std::vector<const xla::ShapeProto*> parameters;
  if (tupled) {
    HELMWAY_ASSIGN_OR_RETURN(parameters, Flatten(program_shape.parameters(0), "a parameter"));
  } else {
    for (const xla::ShapeProto& shape : program_shape.parameters()) {
      if (IsTuple(shape)) {
        return absl::UnimplementedError("Optimized program: a tuple among several parameters");
      }
      parameters.push_back(&shape);
    }
  }
  std::vector<const OpSharding*> shardings(parameters.size(), nullptr);
  if (hlo.spmd_parameters_shardings_size() != 0) {
    const auto& given = hlo.spmd_parameters_shardings();
    if (tupled && given.size() == 1) {
      HELMWAY_ASSIGN_OR_RETURN(shardings, Flatten(given[0], parameters.size(), "the tupled parameter"));
    } else if (static_cast<size_t>(given.size()) == parameters.size()) {
      for (size_t i = 0; i < parameters.size(); ++i) shardings[i] = &given[static_cast<int>(i)];
    } else {
      return Bad(absl::StrCat(given.size(), " shardings for ", parameters.size(), " parameters"));
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    absl::StatusOr<ValueSpec> value = MakeValue(*parameters[i], shardings[i], layout_of_devices);
    if (!value.ok()) return base::Annotate(value.status(), absl::StrCat("Optimized program: parameter ", i));
    spec.parameters.push_back(*std::move(value));
  }

  HELMWAY_ASSIGN_OR_RETURN(std::vector<const xla::ShapeProto*> outputs,
                           Flatten(program_shape.result(), "a result"));
  std::vector<const OpSharding*> output_shardings(outputs.size(), nullptr);
  if (hlo.has_spmd_output_sharding()) {
    HELMWAY_ASSIGN_OR_RETURN(output_shardings,
                             Flatten(hlo.spmd_output_sharding(), outputs.size(), "the result"));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::StatusOr<ValueSpec> value = MakeValue(*outputs[i], output_shardings[i], layout_of_devices);
    if (!value.ok()) return base::Annotate(value.status(), absl::StrCat("Optimized program: output ", i));
    spec.outputs.push_back(*std::move(value));
  }

  // Donations.
  const auto donated = [&](int64_t number,
                           const google::protobuf::RepeatedField<int64_t>& index) -> absl::Status {
    if (tupled) {
      if (number != 0 || index.size() != 1)
        return Bad("a donation that is not of an element of its tupled parameter");
      number = index[0];
    } else if (!index.empty()) {
      return Bad("a donation of a part of a parameter that is not a tuple");
    }
    if (number < 0 || number >= static_cast<int64_t>(parameters.size())) {
      return Bad(absl::StrCat("a donation of parameter ", number, " of ", parameters.size()));
    }
    spec.donated_parameters.push_back(static_cast<int32_t>(number));
    return absl::OkStatus();
  };
  for (const auto& entry : hlo.input_output_alias().entries()) {
    if (entry.kind() == xla::UNDEFINED_ALIAS) continue;
    HELMWAY_RETURN_IF_ERROR(donated(entry.parameter_number(), entry.parameter_shape_index()));
  }
  // A donor that the compiler has given no output to is left alone by the run.
  std::sort(spec.donated_parameters.begin(), spec.donated_parameters.end());
  spec.donated_parameters.erase(std::unique(spec.donated_parameters.begin(), spec.donated_parameters.end()),
                                spec.donated_parameters.end());

  std::set<std::string> targets;
  int instructions = 0;
  spec.is_short = true;
  for (const xla::HloComputationProto& computation : hlo.computations()) {
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      if (IsCrossDevice(instruction)) spec.has_cross_device_ops = true;
      ++instructions;
      if (HasUnknownLength(instruction.opcode())) spec.is_short = false;
      if (instruction.opcode() != "custom-call") continue;
      targets.insert(instruction.custom_call_target());
      if (instruction.custom_call_target() == cluster::kPythonCallbackTarget) {
        HELMWAY_ASSIGN_OR_RETURN(const std::string config, BackendConfig(hlo, instruction));
        HELMWAY_ASSIGN_OR_RETURN(const uint64_t callback, CallbackOf(config));
        spec.python_callbacks.push_back(callback);
      }
    }
  }
  if (instructions > kMaxShortInstructions) spec.is_short = false;
  spec.custom_call_targets.assign(targets.begin(), targets.end());
  std::sort(spec.python_callbacks.begin(), spec.python_callbacks.end());
  spec.python_callbacks.erase(std::unique(spec.python_callbacks.begin(), spec.python_callbacks.end()),
                              spec.python_callbacks.end());
  return spec;
}

}  // namespace helmway::program
