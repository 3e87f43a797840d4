#ifndef HELMWAY_WIRE_DTYPE_H_
#define HELMWAY_WIRE_DTYPE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/xla_data.pb.h"

// Facts about the element types that IFRT arrays have. Immutable tables; any thread.
namespace helmway::wire {

using DTypeKind = xla::ifrt::DTypeProto::Kind;

struct DTypeFacts {
  DTypeKind kind;
  absl::string_view name;             // as in HLO text: "pred", "f32", "f8e4m3fn", ...
  int bits;                           // of one element's value; 0 for token, -1 if the size is not fixed
  int host_bytes;                     // of one element in a host buffer; 0 for token, -1 if not fixed
  xla::PrimitiveType primitive_type;  // PRIMITIVE_TYPE_INVALID for string
};

// In host buffers every element starts at a byte of its own: types of 1, 2, 4 and 6 bits take one byte, with
// the value in the low bits. Devices may pack them.

// The facts of a kind. INVALID_ARGUMENT for KIND_UNSPECIFIED and for numbers that no release defines.
absl::StatusOr<DTypeFacts> GetDTypeFacts(DTypeKind kind);

// Bytes of one element in a host buffer. INVALID_ARGUMENT for string and opaque, which have no fixed size,
// and for unknown kinds.
absl::StatusOr<int64_t> HostBytesPerElement(DTypeKind kind);

// Bytes of a dense host buffer of that shape. Besides the errors of HostBytesPerElement, INVALID_ARGUMENT for
// a negative dimension and for a product above the range of int64.
absl::StatusOr<int64_t> HostByteCount(DTypeKind kind, absl::Span<const int64_t> dims);

// The same type in XLA's numbering. The numbers agree up to 29 and differ from there on. INVALID_ARGUMENT for
// string and unknown kinds, and backwards for tuples, buffers and unknown types.
absl::StatusOr<xla::PrimitiveType> ToPrimitiveType(DTypeKind kind);
absl::StatusOr<DTypeKind> FromPrimitiveType(xla::PrimitiveType type);

// Short name for messages; never fails ("kind 77" for an unknown one).
std::string DTypeName(DTypeKind kind);

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_DTYPE_H_
