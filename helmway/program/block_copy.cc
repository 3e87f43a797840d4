#include "helmway/program/block_copy.h"

#include <cstddef>
#include <cstring>

#include "absl/container/inlined_vector.h"

namespace helmway::program {
namespace {

// One level of the loop around the runs. Bytes.
struct Level {
  int64_t count;
  int64_t source_stride;
  int64_t target_stride;
};

// The innermost level. A size that the compiler knows becomes a load and a store.
template <size_t kBytes>
void CopyFixedRuns(const uint8_t* source, uint8_t* target, const Level& level) {
  for (int64_t i = 0; i < level.count; ++i) {
    std::memcpy(target, source, kBytes);
    source += level.source_stride;
    target += level.target_stride;
  }
}

void CopyRuns(const uint8_t* source, uint8_t* target, const Level& level, size_t bytes) {
  switch (bytes) {
    case 1:
      return CopyFixedRuns<1>(source, target, level);
    case 2:
      return CopyFixedRuns<2>(source, target, level);
    case 4:
      return CopyFixedRuns<4>(source, target, level);
    case 8:
      return CopyFixedRuns<8>(source, target, level);
    case 16:
      return CopyFixedRuns<16>(source, target, level);
    default:
      for (int64_t i = 0; i < level.count; ++i) {
        std::memcpy(target, source, bytes);
        source += level.source_stride;
        target += level.target_stride;
      }
  }
}

void CopyLevels(const uint8_t* source, uint8_t* target, absl::Span<const Level> levels, size_t run_bytes) {
  if (levels.size() == 1) return CopyRuns(source, target, levels[0], run_bytes);
  for (int64_t i = 0; i < levels[0].count; ++i) {
    CopyLevels(source, target, levels.subspan(1), run_bytes);
    source += levels[0].source_stride;
    target += levels[0].target_stride;
  }
}

}  // namespace

bool BlockFits(absl::Span<const int64_t> dims, absl::Span<const int64_t> origin,
               absl::Span<const int64_t> shape) {
  if (origin.size() != dims.size() || shape.size() != dims.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (origin[d] < 0 || shape[d] < 0 || origin[d] > dims[d] || shape[d] > dims[d] - origin[d]) return false;
  }
  return true;
}

void CopyBlock(const uint8_t* source, const BlockPlace& from, uint8_t* target, const BlockPlace& to,
               absl::Span<const int64_t> shape, int64_t element_bytes) {
  // From the inside out: bytes from one element to the next in either array, the first bytes of the block,
  // and the levels that a single run does not cover.
  int64_t source_stride = element_bytes;
  int64_t target_stride = element_bytes;
  int64_t run = element_bytes;
  absl::InlinedVector<Level, 6> levels;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return;
    source += from.origin[d] * source_stride;
    target += to.origin[d] * target_stride;
    if (shape[d] != 1) {
      if (levels.empty() && source_stride == run && target_stride == run) {
        run *= shape[d];
      } else if (!levels.empty() && source_stride == levels.back().count * levels.back().source_stride &&
                 target_stride == levels.back().count * levels.back().target_stride) {
        levels.back().count *= shape[d];
      } else {
        levels.push_back({shape[d], source_stride, target_stride});
      }
    }
    source_stride *= from.dims[d];
    target_stride *= to.dims[d];
  }
  if (levels.empty()) levels.push_back({1, 0, 0});
  const absl::InlinedVector<Level, 6> outside_in(levels.rbegin(), levels.rend());
  CopyLevels(source, target, outside_in, static_cast<size_t>(run));
}

}  // namespace helmway::program
