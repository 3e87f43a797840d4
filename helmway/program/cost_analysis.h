#ifndef HELMWAY_PROGRAM_COST_ANALYSIS_H_
#define HELMWAY_PROGRAM_COST_ANALYSIS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace helmway::program {

// What one run of a program costs on one of its devices, as far as its instructions tell.
struct Costs {
  double flops = 0;
  double transcendentals = 0;  // operations such as exp, which cost an unknown number of flops
  double bytes_accessed = 0;   // of the device's memory, read or written
};

// The costs of an optimized program (formats and errors of ParseOptimizedModule), counted as XLA counts them
// for plugins that do (HloCostAnalysis, whose numbers jaxlib gives for its own CPU client): a loop as one
// turn, of branches the most expensive, for a custom call -1, since nobody knows. INVALID_ARGUMENT for a
// module that contradicts itself, e.g. whose computations call each other in a circle.
//
// A pure function: any thread.
absl::StatusOr<Costs> CostsOf(absl::string_view format, absl::string_view bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_COST_ANALYSIS_H_
