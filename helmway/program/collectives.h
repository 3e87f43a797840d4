#ifndef HELMWAY_PROGRAM_COLLECTIVES_H_
#define HELMWAY_PROGRAM_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {

// The custom call that a collective becomes.
inline constexpr absl::string_view kCollectiveTarget = "helmway_collective";

// Custom calls of the runtime have names that begin so. Their handlers trust what calls them, so no client's
// program may: INVALID_ARGUMENT if `target` is one.
inline constexpr absl::string_view kOwnTargets = "helmway_";
absl::Status CheckTargetOfClient(absl::string_view target);

// The numbers are in compiled programs.
enum class CollectiveKind : int64_t {
  kAllReduce = 0,
  kAllGather = 1,
  kReduceScatter = 2,
  kAllToAll = 3,       // one operand, cut in as many parts as the group has members
  kAllToAllTuple = 4,  // an operand and a result for each member of the group
  kCollectivePermute = 5,
  kCollectiveBroadcast = 6,
};

enum class Reduction : int64_t {
  kNone = 0,
  kSum = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kAnd = 5,
  kOr = 6,
  kXor = 7,
};

absl::string_view CollectiveName(CollectiveKind kind);

// What one collective does. Devices are numbered replica by replica: replica * partitions + partition.
struct Collective {
  int64_t id = 0;  // of the instruction; one in the program
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  // Who exchanges with whom, in this order; no device is in two. Of a permutation: source and target of each
  // transfer.
  std::vector<std::vector<int64_t>> groups;
  // For each operand, how many blocks of its memory, as it is laid out, lie one after the other before the
  // dimension that is joined or cut: of an all-gather of f32[a,b,c]{2,1,0} along b, a. 1 where none is.
  std::vector<int64_t> blocks;
};

// How many devices a program has.
struct ProgramSize {
  int64_t replicas = 1;
  int64_t partitions = 1;
};

// Replaces every collective of a partitioned module, with layouts and before scheduling, by the custom call
// kCollectiveTarget (typed, version 4) with the same operands and results. Its attributes are a Collective:
// `id` (u64), `kind`, `reduction` (i64 lists of one), `blocks`, `members` and `sizes` (i64 lists; the groups
// one after the other, and how many members each has). False: there were none.
//
// UNIMPLEMENTED, with the name of the instruction: asynchronous, ragged and in-place forms, sends and
// receives, reductions of other functions and types than XLA's CPU client has, parts of bytes, and results
// laid out in another way than the operands. INVALID_ARGUMENT: a module that contradicts itself, or that has
// a custom call of the runtime already.
absl::StatusOr<bool> ReplaceCollectives(const ProgramSize& size, xla::HloModuleProto* module);

// What an instruction of the module does, which must be a collective.
absl::StatusOr<Collective> ReadCollective(const ProgramSize& size, const xla::HloModuleProto& module,
                                          const xla::HloInstructionProto& instruction);

// Bits of an element, as it lies in the memory of a device; 0 for what has none, and for types of six bits,
// of which no block begins at a byte of its own.
int ElementBits(xla::PrimitiveType type);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_COLLECTIVES_H_
