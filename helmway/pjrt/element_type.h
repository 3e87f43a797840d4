#ifndef HELMWAY_PJRT_ELEMENT_TYPE_H_
#define HELMWAY_PJRT_ELEMENT_TYPE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace helmway::pjrt {

// The type of one array element. The numbers are those of the IFRT protocol (xla.ifrt.DTypeProto.Kind), which
// are xla.PrimitiveType's up to 29; the plugin's own numbers (PJRT_Buffer_Type) differ and never leave this
// folder.
enum class ElementType : int32_t {
  kInvalid = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kToken = 17,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
  kS4 = 21,
  kU4 = 22,
  kF8E4M3B11FNUZ = 23,
  kF8E5M2FNUZ = 24,
  kF8E4M3FNUZ = 25,
  kS2 = 26,
  kU2 = 27,
  kF8E4M3 = 28,
  kF8E3M4 = 29,
  kF4E2M1FN = 30,
  kF8E8M0FNU = 31,
  kS1 = 32,
  kU1 = 33,
  kF6E2M3FN = 34,
  kF6E3M2FN = 35,
};

// Lower-case name as XLA prints it ("f32", "s4", "pred"); "invalid" for a number that is no type.
std::string_view ElementTypeName(ElementType type);

// Bits of one element's value: 32 for f32, 4 for s4, 8 for pred, 0 for token and invalid.
int ElementBits(ElementType type);

// Bytes of one element in host memory. Types under 8 bits take one byte each there, whatever the device
// packs. 0 for token and invalid.
int HostElementBytes(ElementType type);

// To and from the plugin's PJRT_Buffer_Type, passed as int so that the C header stays inside. UNIMPLEMENTED
// for a type which the other side does not have.
absl::StatusOr<int> ToPjrtBufferType(ElementType type);
absl::StatusOr<ElementType> FromPjrtBufferType(int pjrt_buffer_type);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_ELEMENT_TYPE_H_
