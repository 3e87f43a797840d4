#ifndef HELMWAY_PROGRAM_BLOCK_COPY_H_
#define HELMWAY_PROGRAM_BLOCK_COPY_H_

#include <cstdint>

#include "absl/types/span.h"

namespace helmway::program {

// Whether a block of `shape` elements at `origin` lies inside an array of `dims`. False if the ranks differ
// or any number is negative. Pure; any thread.
bool BlockFits(absl::Span<const int64_t> dims, absl::Span<const int64_t> origin,
               absl::Span<const int64_t> shape);

// A place in a dense row-major array in host memory. All spans have the rank of the array; elements.
struct BlockPlace {
  absl::Span<const int64_t> dims;
  absl::Span<const int64_t> origin;
};

// Copies a block of `shape` elements of `element_bytes` (> 0) bytes between two arrays that do not overlap.
// The block must fit in both, and their sizes in bytes in an int64. A block without elements touches nothing.
// Takes as few and as long runs as the shapes allow. Pure but for the target's bytes; any thread.
void CopyBlock(const uint8_t* source, const BlockPlace& from, uint8_t* target, const BlockPlace& to,
               absl::Span<const int64_t> shape, int64_t element_bytes);

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_BLOCK_COPY_H_
