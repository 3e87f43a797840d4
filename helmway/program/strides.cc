#include "helmway/program/strides.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"

namespace helmway::program {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

absl::Status TooLarge() {
  return absl::InvalidArgumentError("Array in host memory: larger than 2^63 - 1 bytes");
}

absl::Status Check(absl::Span<const int64_t> dims, int64_t element_bytes) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Array in host memory: ", dims.size(), " dimensions (at most ", kMaxRank, ")"));
  }
  if (element_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Array in host memory: element of ", element_bytes, " bytes"));
  }
  for (int64_t dim : dims) {
    if (dim < 0)
      return absl::InvalidArgumentError(absl::StrCat("Array in host memory: dimension of size ", dim));
  }
  return absl::OkStatus();
}

// a * b for a, b >= 0.
bool MultiplyOverflows(int64_t a, int64_t b, int64_t& product) {
  if (b != 0 && a > kMax / b) return true;
  product = a * b;
  return false;
}

}  // namespace

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> dims) {
  HELMWAY_RETURN_IF_ERROR(Check(dims, 0));
  // First, so that no order of dims overflows where the product is 0.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t count = 1;
  for (int64_t dim : dims) {
    if (MultiplyOverflows(count, dim, count)) return TooLarge();
  }
  return count;
}

absl::StatusOr<int64_t> RegionSizeBytes(absl::Span<const int64_t> dims, int64_t element_bytes,
                                        std::optional<absl::Span<const int64_t>> byte_strides) {
  HELMWAY_RETURN_IF_ERROR(Check(dims, element_bytes));
  if (byte_strides.has_value() && byte_strides->size() != dims.size()) {
    return absl::InvalidArgumentError(absl::StrCat("Array in host memory: ", byte_strides->size(),
                                                   " strides for ", dims.size(), " dimensions"));
  }
  if (element_bytes == 0 || std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  if (!byte_strides.has_value()) {
    HELMWAY_ASSIGN_OR_RETURN(int64_t count, ElementCount(dims));
    if (MultiplyOverflows(count, element_bytes, count)) return TooLarge();
    return count;
  }
  int64_t size = element_bytes;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    const int64_t stride = (*byte_strides)[i];
    if (stride <= 0) {
      return absl::UnimplementedError(absl::StrCat("Array in host memory: stride of ", stride,
                                                   " bytes in dimension ", i,
                                                   " (only positive strides are supported)"));
    }
    int64_t reach = 0;
    if (MultiplyOverflows(dims[i] - 1, stride, reach) || size > kMax - reach) return TooLarge();
    size += reach;
  }
  return size;
}

absl::StatusOr<std::vector<int64_t>> DenseByteStrides(absl::Span<const int64_t> dims, int64_t element_bytes) {
  HELMWAY_RETURN_IF_ERROR(Check(dims, element_bytes));
  std::vector<int64_t> strides(dims.size());
  int64_t stride = element_bytes;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    if (MultiplyOverflows(stride, std::max<int64_t>(dims[i], 1), stride)) return TooLarge();
  }
  return strides;
}

bool IsDense(absl::Span<const int64_t> dims, int64_t element_bytes, absl::Span<const int64_t> byte_strides) {
  if (byte_strides.size() != dims.size() || !Check(dims, element_bytes).ok()) return false;
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return true;
  int64_t expected = element_bytes;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] == 1) continue;
    if (byte_strides[i] != expected || MultiplyOverflows(expected, dims[i], expected)) return false;
  }
  return true;
}

}  // namespace helmway::program
