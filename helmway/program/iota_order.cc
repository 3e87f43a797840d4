#include "helmway/program/iota_order.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace helmway::program {

absl::StatusOr<std::vector<int32_t>> IotaOrder(absl::Span<const int64_t> reshape_dims,
                                               absl::Span<const int32_t> transpose_perm, int64_t count) {
  const size_t rank = reshape_dims.size();
  if (transpose_perm.size() != rank) {
    return absl::InvalidArgumentError(absl::StrCat("Device order: a permutation of ", transpose_perm.size(),
                                                   " elements for ", rank, " dimensions"));
  }
  int64_t product = 1;
  for (int64_t dim : reshape_dims) {
    if (dim < 1 || dim > count / product) {
      return absl::InvalidArgumentError(
          absl::StrCat("Device order: dimensions do not have the product ", count, " (one is ", dim, ")"));
    }
    product *= dim;
  }
  if (product != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("Device order: dimensions have the product ", product, " instead of ", count));
  }

  std::vector<int64_t> strides(rank);
  int64_t stride = 1;
  for (size_t i = rank; i-- > 0;) {
    strides[i] = stride;
    stride *= reshape_dims[i];
  }
  std::vector<int64_t> sizes(rank), steps(rank);
  std::vector<bool> seen(rank, false);
  for (size_t i = 0; i < rank; ++i) {
    const int32_t from = transpose_perm[i];
    if (from < 0 || static_cast<size_t>(from) >= rank || seen[from]) {
      return absl::InvalidArgumentError(absl::StrCat("Device order: not a permutation (element ", from, ")"));
    }
    seen[from] = true;
    sizes[i] = reshape_dims[from];
    steps[i] = strides[from];
  }

  std::vector<int32_t> order;
  order.reserve(count);
  std::vector<int64_t> at(rank, 0);
  int64_t value = 0;
  while (true) {
    order.push_back(static_cast<int32_t>(value));
    if (static_cast<int64_t>(order.size()) == count) return order;
    for (size_t i = rank; i-- > 0;) {
      value += steps[i];
      if (++at[i] < sizes[i]) break;
      value -= steps[i] * sizes[i];
      at[i] = 0;
    }
  }
}

}  // namespace helmway::program
