#include "helmway/program/cost_analysis.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/numeric/bits.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/program/collectives.h"
#include "helmway/program/optimized_module.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using xla::HloComputationProto;
using xla::HloInstructionProto;
using xla::ShapeProto;

constexpr double kFlopsOfMultiplyAdd = 2;
constexpr double kOpaqueBytes = 8;
constexpr double kTupleEntryBytes = 4;  // of the table that a tuple is

absl::Status Bad(const HloInstructionProto& instruction, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("Optimized program: ", instruction.opcode(), " ", instruction.name(), ": ", text));
}

double ElementsIn(const ShapeProto& shape) {
  double elements = 1;
  for (const int64_t dim : shape.dimensions()) elements *= static_cast<double>(std::max<int64_t>(dim, 0));
  return elements;
}

bool IsArray(const ShapeProto& shape) {
  return shape.element_type() != xla::TUPLE && shape.element_type() != xla::TOKEN &&
         shape.element_type() != xla::OPAQUE_TYPE;
}

// Of a tuple: of its elements.
double BytesOf(const ShapeProto& shape) {
  if (shape.element_type() == xla::OPAQUE_TYPE) return kOpaqueBytes;
  if (!IsArray(shape)) {
    double bytes = 0;
    for (const ShapeProto& element : shape.tuple_shapes()) bytes += BytesOf(element);
    return bytes;
  }
  const auto packed = static_cast<double>(shape.layout().element_size_in_bits());
  const double bits = packed > 0 ? packed : std::max(8, ElementBits(shape.element_type()));
  double bytes = ElementsIn(shape) * bits / 8;
  for (const bool dynamic : shape.is_dynamic_dimension()) {
    // The host keeps the sizes of all dimensions behind such an array.
    if (dynamic) return bytes + 4.0 * shape.dimensions_size();
  }
  return bytes;
}

// A tuple as an operand is the table of its elements.
double BytesOfOperand(const ShapeProto& shape) {
  return shape.element_type() == xla::TUPLE ? kTupleEntryBytes * shape.tuple_shapes_size() : BytesOf(shape);
}

template <typename Function>
void ForEachArray(const ShapeProto& shape, const Function& function) {
  if (IsArray(shape)) function(shape);
  for (const ShapeProto& element : shape.tuple_shapes()) ForEachArray(element, function);
}

// What an operation costs that does the same to each element, or nothing.
enum class SimpleCost {
  kNone,  // it is there only for the compiler, or forwards a pointer
  kFlop,  // for each element of the result
  kTranscendental,
};

const absl::flat_hash_map<absl::string_view, SimpleCost>& SimpleCosts() {
  static const auto* const kCosts = [] {
    auto* costs = new absl::flat_hash_map<absl::string_view, SimpleCost>();
    for (const char* opcode :
         {"parameter", "constant", "get-tuple-element", "bitcast", "after-all", "add-dependency", "domain"}) {
      costs->emplace(opcode, SimpleCost::kNone);
    }
    for (const char* opcode : {"abs",
                               "round-nearest-afz",
                               "round-nearest-even",
                               "ceil",
                               "count-leading-zeros",
                               "floor",
                               "imag",
                               "is-finite",
                               "not",
                               "negate",
                               "popcnt",
                               "real",
                               "reduce-precision",
                               "sign",
                               "convert",
                               "bitcast-convert",
                               "add",
                               "multiply",
                               "subtract",
                               "divide",
                               "remainder",
                               "maximum",
                               "minimum",
                               "and",
                               "or",
                               "xor",
                               "shift-left",
                               "shift-right-arithmetic",
                               "shift-right-logical",
                               "complex",
                               "compare",
                               "select",
                               "clamp",
                               "stochastic-convert"}) {
      costs->emplace(opcode, SimpleCost::kFlop);
    }
    for (const char* opcode :
         {"exponential", "log", "logistic", "power", "sqrt", "cbrt", "rsqrt", "tanh", "sine", "cosine", "tan",
          "erf", "exponential-minus-one", "log-plus-one", "atan2"}) {
      costs->emplace(opcode, SimpleCost::kTranscendental);
    }
    return costs;
  }();
  return *kCosts;
}

// The dimensions of more than one element, from the outermost in memory to the innermost.
std::vector<int64_t> OrderInMemory(const ShapeProto& shape) {
  std::vector<int64_t> order;
  for (int i = shape.layout().minor_to_major_size() - 1; i >= 0; --i) {
    const int64_t dim = shape.layout().minor_to_major(i);
    if (dim >= 0 && dim < shape.dimensions_size() && shape.dimensions(static_cast<int>(dim)) != 1) {
      order.push_back(dim);
    }
  }
  return order;
}

// How many pairs of a place in the window and an output of one dimension meet an element of the input.
double PairsThatMeet(const xla::WindowDimension& window, int64_t input, int64_t kernel, int64_t output) {
  const int64_t stride = std::max<int64_t>(window.stride(), 1);
  const int64_t base = std::max<int64_t>(window.base_dilation(), 1);
  const int64_t dilation = std::max<int64_t>(window.window_dilation(), 1);
  const int64_t period = base / std::gcd(stride, base);
  double pairs = 0;
  for (int64_t k = 0; k < kernel; ++k) {
    // Output o meets the place o * stride + offset of the input, of which each base-th has an element.
    const int64_t offset = k * dilation - window.padding_low();
    const int64_t last_place = (input - 1) * base - offset;
    if (input < 1 || last_place < 0) continue;
    int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    const int64_t last = std::min(output - 1, last_place / stride);
    const int64_t end_of_period = std::min(last, first + period - 1);
    while (first <= end_of_period && (first * stride + offset) % base != 0) ++first;
    if (first <= end_of_period) pairs += static_cast<double>((last - first) / period + 1);
  }
  return pairs;
}

class Analysis {
 public:
  explicit Analysis(const xla::HloModuleProto& module) : module_(module) {}

  absl::StatusOr<Costs> Run() {
    for (const HloComputationProto& computation : module_.computations()) {
      computations_[computation.id()] = &computation;
    }
    return OfComputation(module_.entry_computation_id());
  }

 private:
  // The instructions of one computation.
  struct Scope {
    const HloComputationProto* computation;
    absl::flat_hash_map<int64_t, const HloInstructionProto*> by_id;
    absl::flat_hash_map<int64_t, std::vector<const HloInstructionProto*>> users;  // each once

    const HloInstructionProto* Find(int64_t id) const {
      const auto it = by_id.find(id);
      return it == by_id.end() ? nullptr : it->second;
    }
  };

  absl::StatusOr<const Scope*> ScopeOf(int64_t id) {
    const auto known = scopes_.find(id);
    if (known != scopes_.end()) return known->second.get();
    const auto found = computations_.find(id);
    if (found == computations_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("Optimized program: no computation ", id));
    }
    auto scope = std::make_unique<Scope>();
    scope->computation = found->second;
    for (const HloInstructionProto& instruction : found->second->instructions()) {
      scope->by_id[instruction.id()] = &instruction;
      for (const int64_t operand : instruction.operand_ids()) {
        auto& users = scope->users[operand];
        if (users.empty() || users.back() != &instruction) users.push_back(&instruction);
      }
    }
    for (const HloInstructionProto& instruction : found->second->instructions()) {
      for (const int64_t operand : instruction.operand_ids()) {
        if (!scope->by_id.contains(operand)) return Bad(instruction, "an operand is not there");
      }
    }
    return (scopes_[id] = std::move(scope)).get();
  }

  absl::StatusOr<Costs> OfComputation(int64_t id) {
    if (const auto known = costs_.find(id); known != costs_.end()) return known->second;
    constexpr size_t kMaxDepth = 1000;
    if (under_way_.size() >= kMaxDepth || !under_way_.insert(id).second) {
      return absl::InvalidArgumentError(
          "Optimized program: computations call each other in a circle, or too deep");
    }
    HELMWAY_ASSIGN_OR_RETURN(const Scope* scope, ScopeOf(id));
    Costs sum;
    for (const HloInstructionProto& instruction : scope->computation->instructions()) {
      HELMWAY_ASSIGN_OR_RETURN(const Costs one, OfInstruction(*scope, instruction));
      sum.flops += one.flops;
      sum.transcendentals += one.transcendentals;
      sum.bytes_accessed += one.bytes_accessed;
    }
    under_way_.erase(id);
    costs_[id] = sum;
    return sum;
  }

  // Of the computation that an instruction calls as number `index`.
  absl::StatusOr<Costs> OfCalled(const HloInstructionProto& instruction, int index = 0) {
    if (index >= instruction.called_computation_ids_size()) return Bad(instruction, "it calls nothing");
    return OfComputation(instruction.called_computation_ids(index));
  }

  static const HloInstructionProto& Operand(const Scope& scope, const HloInstructionProto& instruction,
                                            int index) {
    return *scope.Find(instruction.operand_ids(index));
  }

  absl::StatusOr<Costs> OfInstruction(const Scope& scope, const HloInstructionProto& instruction) {
    const std::string& opcode = instruction.opcode();
    Costs costs;
    const auto simple = SimpleCosts().find(opcode);
    if (simple != SimpleCosts().end() && simple->second == SimpleCost::kNone) return costs;
    if (opcode == "fusion") return OfFusion(instruction);
    if (opcode == "call" || opcode == "async-start") return OfCalled(instruction);
    if (opcode == "while") {
      HELMWAY_ASSIGN_OR_RETURN(costs, OfCalled(instruction, 0));
      HELMWAY_ASSIGN_OR_RETURN(const Costs other, OfCalled(instruction, 1));
      return Costs{costs.flops + other.flops, costs.transcendentals + other.transcendentals,
                   costs.bytes_accessed + other.bytes_accessed};
    }
    if (opcode == "conditional") {
      for (int i = 0; i < std::max(1, instruction.called_computation_ids_size()); ++i) {
        HELMWAY_ASSIGN_OR_RETURN(const Costs branch, OfCalled(instruction, i));
        costs.flops = std::max(costs.flops, branch.flops);
        costs.transcendentals = std::max(costs.transcendentals, branch.transcendentals);
        costs.bytes_accessed = std::max(costs.bytes_accessed, branch.bytes_accessed);
      }
      return costs;
    }
    if (opcode == "custom-call") return Costs{.flops = -1, .bytes_accessed = -1};

    const ShapeProto& shape = instruction.shape();
    costs.bytes_accessed = BytesOf(shape);
    const int operands = instruction.operand_ids_size();
    for (int i = 0; i < operands; ++i) {
      costs.bytes_accessed += BytesOfOperand(Operand(scope, instruction, i).shape());
    }
    const auto operand_shape = [&](int i) -> const ShapeProto& {
      return i < operands ? Operand(scope, instruction, i).shape() : ShapeProto::default_instance();
    };
    const ShapeProto& first_result = shape.tuple_shapes_size() > 0 ? shape.tuple_shapes(0) : shape;

    if (simple != SimpleCosts().end()) {
      (simple->second == SimpleCost::kFlop ? costs.flops : costs.transcendentals) = ElementsIn(shape);
    } else if (opcode == "rng" || opcode == "rng-bit-generator") {
      ForEachArray(shape, [&](const ShapeProto& array) { costs.transcendentals += ElementsIn(array); });
    } else if (opcode == "tuple") {
      costs.bytes_accessed = BytesOfOperand(shape);
    } else if (opcode == "slice") {
      costs.bytes_accessed = 2 * BytesOf(shape);
    } else if (opcode == "dynamic-slice") {
      costs.bytes_accessed = 2 * BytesOf(shape) + BytesOf(operand_shape(1));
    } else if (opcode == "dynamic-update-slice") {
      costs.bytes_accessed = 2 * BytesOf(operand_shape(1)) + BytesOf(operand_shape(2));
    } else if (opcode == "gather") {
      costs.bytes_accessed = 2 * BytesOf(shape) + BytesOf(operand_shape(1));
    } else if (opcode == "transpose") {
      if (IsBitcast(operand_shape(0), instruction)) costs.bytes_accessed = 0;
    } else if (opcode == "dot") {
      costs.flops = kFlopsOfMultiplyAdd * ElementsIn(shape);
      for (const int64_t dim : instruction.dot_dimension_numbers().lhs_contracting_dimensions()) {
        if (dim < 0 || dim >= operand_shape(0).dimensions_size())
          return Bad(instruction, "no such dimension");
        costs.flops *= static_cast<double>(operand_shape(0).dimensions(static_cast<int>(dim)));
      }
    } else if (opcode == "convolution") {
      HELMWAY_ASSIGN_OR_RETURN(costs.flops,
                               FlopsOfConvolution(instruction, operand_shape(0), operand_shape(1)));
    } else if (opcode == "fft") {
      double log_factors = 1;
      for (const int64_t length : instruction.fft_length()) {
        log_factors *= absl::bit_width(static_cast<uint64_t>(std::max<int64_t>(length, 1))) - 1;
      }
      constexpr double kMultiplyAddsOfComplexProduct = 4;
      costs.flops =
          kFlopsOfMultiplyAdd * kMultiplyAddsOfComplexProduct * log_factors * ElementsIn(operand_shape(0));
    } else if (opcode == "triangular-solve") {
      // Half of the matrix is read, and counted as m n^2 / 2 multiply-adds for each of a batch.
      costs.bytes_accessed -= BytesOf(operand_shape(0)) / 2;
      const int rank = operand_shape(0).dimensions_size();
      if (rank == 0) return Bad(instruction, "no matrix");
      costs.flops = kFlopsOfMultiplyAdd * static_cast<double>(operand_shape(0).dimensions(rank - 1)) *
                    ElementsIn(operand_shape(1));
    } else if (opcode == "cholesky") {
      // Half is read, half is written.
      costs.bytes_accessed = BytesOf(operand_shape(0));
      const int rank = operand_shape(0).dimensions_size();
      if (rank == 0) return Bad(instruction, "no matrix");
      costs.flops =
          ElementsIn(operand_shape(0)) * static_cast<double>(operand_shape(0).dimensions(rank - 1)) / 3;
    } else if (opcode == "sort") {
      const auto elements = static_cast<uint64_t>(ElementsIn(operand_shape(0)));
      costs.flops = static_cast<double>(elements) * (elements > 1 ? absl::bit_width(elements - 1) : 0);
    } else if (opcode == "all-reduce" || opcode == "all-reduce-start") {
      // As between two devices.
      costs.bytes_accessed -= BytesOf(shape);
      ForEachArray(shape, [&](const ShapeProto& array) {
        costs.flops += ElementsIn(array);
        costs.bytes_accessed += BytesOf(array);
      });
    } else if (opcode == "map") {
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 0, ElementsIn(shape), &costs));
    } else if (opcode == "reduce") {
      const double runs = ElementsIn(operand_shape(0)) - ElementsIn(first_result);
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 0, runs, &costs));
    } else if (opcode == "reduce-window") {
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 0, RunsOfWindow(instruction, first_result), &costs));
    } else if (opcode == "select-and-scatter") {
      const double sources = ElementsIn(operand_shape(1));
      double window = 1;
      for (const auto& dim : instruction.window().dimensions()) window *= static_cast<double>(dim.size());
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 0, sources * (window - 1), &costs));
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 1, sources, &costs));
    } else if (opcode == "scatter") {
      // Operands, indices, updates: what is updated is read and written.
      const int count = operands / 2;
      costs.bytes_accessed = BytesOf(operand_shape(count));
      for (int i = 0; i < count; ++i) costs.bytes_accessed += 3 * BytesOf(operand_shape(count + 1 + i));
      HELMWAY_RETURN_IF_ERROR(AddRuns(instruction, 0, ElementsIn(operand_shape(count + 1)), &costs));
    }
    return costs;
  }

  // Adds what it costs to run the computation number `index` so often, which touches no memory.
  absl::Status AddRuns(const HloInstructionProto& instruction, int index, double runs, Costs* costs) {
    HELMWAY_ASSIGN_OR_RETURN(const Costs one, OfCalled(instruction, index));
    costs->flops += one.flops * runs;
    costs->transcendentals += one.transcendentals * runs;
    return absl::OkStatus();
  }

  static bool IsBitcast(const ShapeProto& operand, const HloInstructionProto& transpose) {
    std::vector<int64_t> result = OrderInMemory(transpose.shape());
    for (int64_t& dim : result) {
      if (dim >= transpose.dimensions_size()) return false;
      dim = transpose.dimensions(static_cast<int>(dim));
    }
    return result == OrderInMemory(operand);
  }

  // For each element that a window gives, one less than the window has.
  static double RunsOfWindow(const HloInstructionProto& instruction, const ShapeProto& result) {
    const double outputs = ElementsIn(result);
    double window = 1;
    int wide = 0;
    int padded = 0;
    int whole = -1;  // a dimension all of which every window has
    for (int i = 0; i < instruction.window().dimensions_size(); ++i) {
      const xla::WindowDimension& dim = instruction.window().dimensions(i);
      window *= static_cast<double>(dim.size());
      if (dim.size() != 1) ++wide;
      if (dim.padding_low() != 0 || dim.padding_high() != 0) ++padded;
      if (whole < 0 && dim.size() != 1 && dim.padding_low() != 0 && dim.padding_low() == dim.padding_high() &&
          dim.size() == 2 * dim.padding_low() + 1 && i < result.dimensions_size()) {
        whole = i;
      }
    }
    if (wide == 1 && padded == 1 && whole >= 0 && IsArray(instruction.shape()) &&
        instruction.window().dimensions(whole).padding_low() == result.dimensions(whole) - 1) {
      // A reduction whose result is repeated.
      const auto width = static_cast<double>(result.dimensions(whole));
      return outputs / width + width - 1;
    }
    return outputs * (window - 1);
  }

  static absl::StatusOr<double> FlopsOfConvolution(const HloInstructionProto& instruction,
                                                   const ShapeProto& input, const ShapeProto& kernel) {
    const xla::ConvolutionDimensionNumbers& numbers = instruction.convolution_dimension_numbers();
    bool complete = true;
    const auto dim_of = [&](const ShapeProto& shape, int64_t dim) -> int64_t {
      if (dim >= 0 && dim < shape.dimensions_size()) return shape.dimensions(static_cast<int>(dim));
      complete = false;
      return 0;
    };
    const auto groups = std::max<int64_t>(instruction.feature_group_count(), 1);
    const auto batch_groups = std::max<int64_t>(instruction.batch_group_count(), 1);
    double multiply_adds =
        static_cast<double>(dim_of(input, numbers.input_feature_dimension()) / groups) *
        static_cast<double>(dim_of(instruction.shape(), numbers.output_feature_dimension())) *
        static_cast<double>(dim_of(input, numbers.input_batch_dimension()) / batch_groups);
    const int spatial = instruction.window().dimensions_size();
    if (numbers.input_spatial_dimensions_size() < spatial ||
        numbers.kernel_spatial_dimensions_size() < spatial ||
        numbers.output_spatial_dimensions_size() < spatial) {
      return Bad(instruction, "a dimension is missing");
    }
    for (int i = 0; i < spatial; ++i) {
      multiply_adds *= PairsThatMeet(instruction.window().dimensions(i),
                                     dim_of(input, numbers.input_spatial_dimensions(i)),
                                     dim_of(kernel, numbers.kernel_spatial_dimensions(i)),
                                     dim_of(instruction.shape(), numbers.output_spatial_dimensions(i)));
    }
    if (!complete) return Bad(instruction, "a dimension is missing");
    return kFlopsOfMultiplyAdd * multiply_adds;
  }

  // The memory inside a fusion is not the device's: what counts are its results and what it reads of its
  // parameters.
  absl::StatusOr<Costs> OfFusion(const HloInstructionProto& fusion) {
    HELMWAY_ASSIGN_OR_RETURN(Costs costs, OfCalled(fusion));
    HELMWAY_ASSIGN_OR_RETURN(const Scope* scope, ScopeOf(fusion.called_computation_ids(0)));
    const HloInstructionProto* root = scope->Find(scope->computation->root_id());
    if (root == nullptr) return Bad(fusion, "it has no root");
    costs.bytes_accessed = 0;
    // Where a part of an operand is overwritten only that is written.
    const auto written = [&](const HloInstructionProto* result, const ShapeProto& shape) {
      if (result->opcode() == "dynamic-update-slice" && result->operand_ids_size() > 1) {
        return BytesOf(Operand(*scope, *result, 1).shape());
      }
      return BytesOf(shape);
    };
    if (IsArray(fusion.shape())) {
      costs.bytes_accessed += written(root, fusion.shape());
    } else {
      for (int i = 0; i < fusion.shape().tuple_shapes_size(); ++i) {
        const bool is_tuple = root->opcode() == "tuple" && i < root->operand_ids_size();
        const HloInstructionProto* result = is_tuple ? &Operand(*scope, *root, i) : root;
        const ShapeProto& shape = fusion.shape().tuple_shapes(i);
        if (IsArray(shape)) {
          costs.bytes_accessed += is_tuple ? written(result, shape) : BytesOf(shape);
        } else {
          ForEachArray(shape, [&](const ShapeProto& array) { costs.bytes_accessed += BytesOf(array); });
        }
      }
    }
    for (const HloInstructionProto& instruction : scope->computation->instructions()) {
      if (instruction.opcode() == "constant" && ElementsIn(instruction.shape()) > 1) {
        costs.bytes_accessed += BytesOf(instruction.shape());
      } else if (instruction.opcode() == "parameter") {
        HELMWAY_ASSIGN_OR_RETURN(const double read, BytesReadOf(*scope, instruction, /*depth=*/0));
        costs.bytes_accessed += read;
      }
    }
    return costs;
  }

  // Bytes that a fusion reads of one of its parameters, or of an element of one.
  absl::StatusOr<double> BytesReadOf(const Scope& scope, const HloInstructionProto& value, int depth) {
    constexpr int kMaxDepth = 100;
    if (depth > kMaxDepth) return Bad(value, "fusions in fusions without end");
    const auto users = scope.users.find(value.id());
    if (users == scope.users.end()) return 0;
    double bytes = 0;
    bool whole = false;  // somebody reads all of it, and all who do share that
    for (const HloInstructionProto* user : users->second) {
      const std::string& opcode = user->opcode();
      if (!IsArray(value.shape()) && opcode == "get-tuple-element") {
        HELMWAY_ASSIGN_OR_RETURN(const double read, BytesReadOf(scope, *user, depth + 1));
        bytes += read;
      } else if (opcode == "fusion" && user->called_computation_ids_size() > 0) {
        HELMWAY_ASSIGN_OR_RETURN(const Scope* inner, ScopeOf(user->called_computation_ids(0)));
        for (const HloInstructionProto& parameter : inner->computation->instructions()) {
          if (parameter.opcode() != "parameter" || parameter.parameter_number() < 0 ||
              parameter.parameter_number() >= user->operand_ids_size() ||
              user->operand_ids(static_cast<int>(parameter.parameter_number())) != value.id()) {
            continue;
          }
          HELMWAY_ASSIGN_OR_RETURN(const double read, BytesReadOf(*inner, parameter, depth + 1));
          bytes += read;
        }
      } else if (opcode == "slice" || (opcode == "dynamic-slice" && user->operand_ids(0) == value.id())) {
        bytes += BytesOf(user->shape());
      } else if (opcode == "dynamic-update-slice" && user->operand_ids(0) == value.id()) {
        // It is written into.
      } else if (opcode == "broadcast" || opcode == "reshape") {
        bytes += BytesOf(value.shape());
      } else if (!whole) {
        whole = true;
        bytes += BytesOf(value.shape());
      }
    }
    return bytes;
  }

  const xla::HloModuleProto& module_;
  absl::flat_hash_map<int64_t, const HloComputationProto*> computations_;
  absl::flat_hash_map<int64_t, std::unique_ptr<Scope>> scopes_;
  absl::flat_hash_map<int64_t, Costs> costs_;
  absl::flat_hash_set<int64_t> under_way_;
};

}  // namespace

absl::StatusOr<Costs> CostsOf(absl::string_view format, absl::string_view bytes) {
  HELMWAY_ASSIGN_OR_RETURN(const xla::HloModuleProtoWithConfig program, ParseOptimizedModule(format, bytes));
  return Analysis(program.hlo_module()).Run();
}

}  // namespace helmway::program
