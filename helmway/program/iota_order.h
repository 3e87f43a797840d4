#ifndef HELMWAY_PROGRAM_IOTA_ORDER_H_
#define HELMWAY_PROGRAM_IOTA_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace helmway::program {

// The numbers 0..count-1 reshaped to `reshape_dims`, transposed by `transpose_perm` and flattened: XLA's
// compact form of a device order. INVALID_ARGUMENT unless the dims are positive with the product `count`, and
// the permutation is one of as many elements.
absl::StatusOr<std::vector<int32_t>> IotaOrder(absl::Span<const int64_t> reshape_dims,
                                               absl::Span<const int32_t> transpose_perm, int64_t count);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_IOTA_ORDER_H_
