#ifndef HELMWAY_PJRT_LAYOUT_H_
#define HELMWAY_PJRT_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/pjrt/element_type.h"

namespace helmway::pjrt {

// How a buffer lies in its memory. Immutable value.
struct MemoryLayout {
  // Logical dimension numbers, fastest varying first. Row-major of rank 3: {2, 1, 0}.
  std::vector<int64_t> minor_to_major;
  // Tile shapes, outermost tiling first; empty when untiled.
  std::vector<std::vector<int64_t>> tiles;

  // Untiled, with the last logical dimension varying fastest. Sub-byte types may still be packed on the
  // device.
  bool IsDenseRowMajor() const;
};

// How a host array is laid out. The spans must live during the call that takes the layout.
struct HostLayout {
  // At most one is set; none means dense row-major. `minor_to_major` means dense in that order of dimensions.
  // `byte_strides` has one entry per dimension.
  std::optional<absl::Span<const int64_t>> minor_to_major;
  std::optional<absl::Span<const int64_t>> byte_strides;
};

// INVALID_ARGUMENT unless `minor_to_major` is a permutation of 0..rank-1.
absl::Status CheckMinorToMajor(absl::Span<const int64_t> minor_to_major, size_t rank);

// {rank-1, ..., 0}.
std::vector<int64_t> RowMajorMinorToMajor(size_t rank);

// The order of dimensions for which `byte_strides` describes a dense array of `dims` with elements of
// `element_bytes` bytes, or nullopt if it describes no dense array (gaps, negative or repeated strides).
// Dimensions of size one take any stride. The sizes of `dims` and `byte_strides` must be equal.
std::optional<std::vector<int64_t>> DenseMinorToMajor(absl::Span<const int64_t> dims,
                                                      absl::Span<const int64_t> byte_strides,
                                                      int64_t element_bytes);

// Bytes of a dense host array; sub-byte types take one byte per element. INVALID_ARGUMENT for negative sizes,
// for types without a host form, and on overflow.
absl::StatusOr<size_t> DenseHostBytes(ElementType type, absl::Span<const int64_t> dims);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_LAYOUT_H_
