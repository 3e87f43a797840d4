#ifndef HELMWAY_PROGRAM_LAYOUT_H_
#define HELMWAY_PROGRAM_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::program {

// The order of an array's dimensions in device memory, and the tiling where a platform has it. A value; the
// default one is the layout of a scalar or a token.
//
// The text form is XLA's: "{1,0}", "{}", "{1,0:T(8,128)(2,1)E(4)S(5)}". What may follow the colon, in this
// order: T tiles (each in brackets, "*" for a combined dimension), L tail padding, E element bits, S memory
// space, M metadata bytes of dynamic shapes.
class Layout {
 public:
  // The number that stands for "*" in a tile, as in XLA's protos.
  static constexpr int64_t kCombinedDimension = INT64_MIN;

  Layout() = default;

  // Row-major without tiles: minor_to_major = rank-1, ..., 0.
  static Layout Default(int rank);

  // All: INVALID_ARGUMENT for text or bytes that do not parse, a minor_to_major that is no permutation of
  // 0..n-1 and negative sizes; UNIMPLEMENTED for parts of a layout that this class does not hold (sparse
  // levels, index and pointer types, split configurations, physical shapes) and unknown type names.
  static absl::StatusOr<Layout> ParseText(absl::string_view text);
  static absl::StatusOr<Layout> FromXlaProto(const xla::LayoutProto& proto);
  static absl::StatusOr<Layout> FromIfrtProto(
      const xla::ifrt::LayoutProto& proto);  // PjRtLayout, CompactLayout.

  int rank() const { return static_cast<int>(minor_to_major_.size()); }
  // Dimension numbers, fastest varying first.
  absl::Span<const int64_t> minor_to_major() const { return minor_to_major_; }
  const std::vector<std::vector<int64_t>>& tiles() const { return tiles_; }
  int64_t element_size_in_bits() const { return element_size_in_bits_; }  // 0 = the natural size.
  int64_t memory_space() const { return memory_space_; }                  // 0 = the device's own.

  // Descending order and nothing after the colon.
  bool IsDefault() const;
  // Descending order, tiles or not.
  bool IsDescending() const;
  // Whether an array of these dims lies in memory the same way in both layouts: dimensions of size 1 may
  // stand anywhere, and an array without elements lies nowhere. False for layouts of another rank.
  bool PlacesLike(const Layout& other, absl::Span<const int64_t> dims) const;

  std::string ToText() const;
  xla::LayoutProto ToXlaProto() const;
  xla::ifrt::LayoutProto ToIfrtProto() const;  // As PjRtLayout.

  friend bool operator==(const Layout& a, const Layout& b);
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }

 private:
  std::vector<int64_t> minor_to_major_;
  std::vector<std::vector<int64_t>> tiles_;
  int64_t tail_padding_alignment_in_elements_ = 1;
  int64_t element_size_in_bits_ = 0;
  int64_t memory_space_ = 0;
  int64_t dynamic_shape_metadata_prefix_bytes_ = 0;
};

}  // namespace helmway::program

#endif  // HELMWAY_PROGRAM_LAYOUT_H_
