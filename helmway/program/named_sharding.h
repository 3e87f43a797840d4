#ifndef HELMWAY_PROGRAM_NAMED_SHARDING_H_
#define HELMWAY_PROGRAM_NAMED_SHARDING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::program {

// XLA writes shardings of compiled programs in terms of a mesh with named axes; IFRT clients refuse that form
// inside their own messages. This gives the equivalent tile form: REPLICATED, MAXIMAL or OTHER, with the
// device order as an iota where the mesh's devices are in order, and as a list where they are not. Axes that
// split no dimension become trailing tile dimensions of their kind (replicated, unreduced, manual).
//
// `num_devices` is the number of devices that the sharding is over; a mesh without axes replicates over any
// number. INVALID_ARGUMENT for axis references, sub-axes or device lists that do not fit the mesh, an axis
// used twice, and a mesh of another size.
// How unreduced shards are still to be combined is kept (ReductionOf).
absl::StatusOr<xla::OpSharding> NamedToTiled(const xla::NamedShardingProto& named, int64_t num_devices);

// How the shards of an unreduced value are still to be combined. The tile form has no field for it: XLA, and
// JAX from 0.11 on, write it down as metadata with the op_type "sdy::reduction_op" and the op's name, as HLO
// dumps of such programs show. Here it is "MAX", "MIN" or what else XLA may have there, and empty for a sum.
// Refers to the sharding.
absl::string_view ReductionOf(const xla::OpSharding& tiled);
// Leaves no other metadata.
void SetReduction(absl::string_view reduction, xla::OpSharding& tiled);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_NAMED_SHARDING_H_
