#ifndef HELMWAY_PROGRAM_STRIDES_H_
#define HELMWAY_PROGRAM_STRIDES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace helmway::program {

// Sizes of arrays in host memory. `dims` in elements; `element_bytes` is the size of one element in host
// memory (1 for 1-, 2- and 4-bit types, 0 for tokens); byte strides are one per dimension, as numpy's. Pure
// functions: any thread. INVALID_ARGUMENT for more than kMaxRank dims, negative dims or element sizes, a
// stride count that is not the rank, and sizes over 2^63 - 1.

// What numpy allows, so no client array has more dimensions. Bounds the work per shard.
inline constexpr int kMaxRank = 64;

// The product of `dims`; 1 for a scalar.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> dims);

// Bytes of the minimal memory region: from the first element to the end of the last, gaps included. Without
// strides the array is dense and row-major. 0 when any dim or the element size is 0. Strides of dims of size
// 1 do not count and may be anything. UNIMPLEMENTED for other strides that are zero or negative.
absl::StatusOr<int64_t> RegionSizeBytes(absl::Span<const int64_t> dims, int64_t element_bytes,
                                        std::optional<absl::Span<const int64_t>> byte_strides);

// Strides of the dense row-major array. A dim of size 0 counts as 1.
absl::StatusOr<std::vector<int64_t>> DenseByteStrides(absl::Span<const int64_t> dims, int64_t element_bytes);

// Whether the elements lie row-major without gaps. Strides of dims of size 1 do not count; an array without
// elements is dense. False where the arguments are not valid.
bool IsDense(absl::Span<const int64_t> dims, int64_t element_bytes, absl::Span<const int64_t> byte_strides);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_STRIDES_H_
