#include "helmway/pjrt/layout.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace helmway::pjrt {

bool MemoryLayout::IsDenseRowMajor() const {
  return tiles.empty() && minor_to_major == RowMajorMinorToMajor(minor_to_major.size());
}

absl::Status CheckMinorToMajor(absl::Span<const int64_t> minor_to_major, size_t rank) {
  std::vector<int64_t> sorted(minor_to_major.begin(), minor_to_major.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(rank);
  std::iota(all.begin(), all.end(), 0);
  if (sorted == all) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("minor-to-major {", absl::StrJoin(minor_to_major, ","),
                                                 "} is no order of the dimensions of an array of rank ",
                                                 rank));
}

std::vector<int64_t> RowMajorMinorToMajor(size_t rank) {
  std::vector<int64_t> result(rank);
  std::iota(result.rbegin(), result.rend(), 0);
  return result;
}

std::optional<std::vector<int64_t>> DenseMinorToMajor(absl::Span<const int64_t> dims,
                                                      absl::Span<const int64_t> byte_strides,
                                                      int64_t element_bytes) {
  std::vector<int64_t> order = RowMajorMinorToMajor(dims.size());
  // An array without elements is dense in any order.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return order;
  // Dimensions of size one keep their place among the others: their strides mean nothing.
  std::vector<int64_t> wide;
  for (int64_t d : order) {
    if (dims[d] != 1) wide.push_back(d);
  }
  std::stable_sort(wide.begin(), wide.end(),
                   [&](int64_t a, int64_t b) { return byte_strides[a] < byte_strides[b]; });
  int64_t expected = element_bytes;
  auto next = wide.begin();
  for (int64_t& d : order) {
    if (dims[d] == 1) continue;
    d = *next++;
  }
  for (int64_t d : wide) {
    if (byte_strides[d] != expected) return std::nullopt;
    expected *= dims[d];
  }
  return order;
}

absl::StatusOr<size_t> DenseHostBytes(ElementType type, absl::Span<const int64_t> dims) {
  int64_t bytes = HostElementBytes(type);
  if (bytes == 0) {
    std::string_view name = ElementTypeName(type);
    return absl::InvalidArgumentError(
        absl::StrCat("element type ", absl::string_view(name.data(), name.size()), " has no host form"));
  }
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("negative size in shape [", absl::StrJoin(dims, ","), "]"));
    }
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(dims, ","), "] is too large"));
    }
  }
  return empty ? 0 : static_cast<size_t>(bytes);
}

}  // namespace helmway::pjrt
