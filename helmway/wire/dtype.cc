#include "helmway/wire/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace helmway::wire {
namespace {

using P = xla::ifrt::DTypeProto;

constexpr DTypeFacts kFacts[] = {
    {P::KIND_PRED, "pred", 8, 1, xla::PRED},
    {P::KIND_S8, "s8", 8, 1, xla::S8},
    {P::KIND_S16, "s16", 16, 2, xla::S16},
    {P::KIND_S32, "s32", 32, 4, xla::S32},
    {P::KIND_S64, "s64", 64, 8, xla::S64},
    {P::KIND_U8, "u8", 8, 1, xla::U8},
    {P::KIND_U16, "u16", 16, 2, xla::U16},
    {P::KIND_U32, "u32", 32, 4, xla::U32},
    {P::KIND_U64, "u64", 64, 8, xla::U64},
    {P::KIND_F16, "f16", 16, 2, xla::F16},
    {P::KIND_F32, "f32", 32, 4, xla::F32},
    {P::KIND_F64, "f64", 64, 8, xla::F64},
    {P::KIND_OPAQUE, "opaque", -1, -1, xla::OPAQUE_TYPE},
    {P::KIND_C64, "c64", 64, 8, xla::C64},
    {P::KIND_BF16, "bf16", 16, 2, xla::BF16},
    {P::KIND_TOKEN, "token", 0, 0, xla::TOKEN},
    {P::KIND_C128, "c128", 128, 16, xla::C128},
    {P::KIND_F8E5M2, "f8e5m2", 8, 1, xla::F8E5M2},
    {P::KIND_F8E4M3FN, "f8e4m3fn", 8, 1, xla::F8E4M3FN},
    {P::KIND_S4, "s4", 4, 1, xla::S4},
    {P::KIND_U4, "u4", 4, 1, xla::U4},
    {P::KIND_F8E4M3B11FNUZ, "f8e4m3b11fnuz", 8, 1, xla::F8E4M3B11FNUZ},
    {P::KIND_F8E5M2FNUZ, "f8e5m2fnuz", 8, 1, xla::F8E5M2FNUZ},
    {P::KIND_F8E4M3FNUZ, "f8e4m3fnuz", 8, 1, xla::F8E4M3FNUZ},
    {P::KIND_S2, "s2", 2, 1, xla::S2},
    {P::KIND_U2, "u2", 2, 1, xla::U2},
    {P::KIND_F8E4M3, "f8e4m3", 8, 1, xla::F8E4M3},
    {P::KIND_F8E3M4, "f8e3m4", 8, 1, xla::F8E3M4},
    {P::KIND_F4E2M1FN, "f4e2m1fn", 4, 1, xla::F4E2M1FN},
    {P::KIND_F8E8M0FNU, "f8e8m0fnu", 8, 1, xla::F8E8M0FNU},
    {P::KIND_S1, "s1", 1, 1, xla::S1},
    {P::KIND_U1, "u1", 1, 1, xla::U1},
    {P::KIND_F6E2M3FN, "f6e2m3fn", 6, 1, xla::F6E2M3FN},
    {P::KIND_F6E3M2FN, "f6e3m2fn", 6, 1, xla::F6E3M2FN},
    {P::KIND_STRING, "string", -1, -1, xla::PRIMITIVE_TYPE_INVALID},
};

const DTypeFacts* Find(DTypeKind kind) {
  for (const DTypeFacts& facts : kFacts) {
    if (facts.kind == kind) return &facts;
  }
  return nullptr;
}

absl::Status Unknown(DTypeKind kind) {
  return absl::InvalidArgumentError(
      absl::StrCat("element type number ", static_cast<int>(kind), " is not known"));
}

}  // namespace

absl::StatusOr<DTypeFacts> GetDTypeFacts(DTypeKind kind) {
  const DTypeFacts* facts = Find(kind);
  if (facts == nullptr) return Unknown(kind);
  return *facts;
}

absl::StatusOr<int64_t> HostBytesPerElement(DTypeKind kind) {
  const DTypeFacts* facts = Find(kind);
  if (facts == nullptr) return Unknown(kind);
  if (facts->host_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of type ", facts->name, " have no fixed size in bytes"));
  }
  return facts->host_bytes;
}

absl::StatusOr<int64_t> HostByteCount(DTypeKind kind, absl::Span<const int64_t> dims) {
  absl::StatusOr<int64_t> bytes = HostBytesPerElement(kind);
  if (!bytes.ok()) return bytes.status();
  // Zero dimensions are looked for first: beside one, the others cannot overflow.
  int64_t count = *bytes;
  for (const int64_t dim : dims) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("a shape has the negative dimension ", dim));
    if (dim == 0) count = 0;
  }
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(count, dim, &count)) {
      return absl::InvalidArgumentError("a shape has more bytes than a 64-bit number can count");
    }
  }
  return count;
}

absl::StatusOr<xla::PrimitiveType> ToPrimitiveType(DTypeKind kind) {
  const DTypeFacts* facts = Find(kind);
  if (facts == nullptr) return Unknown(kind);
  if (facts->primitive_type == xla::PRIMITIVE_TYPE_INVALID) {
    return absl::InvalidArgumentError(absl::StrCat("XLA has no element type ", facts->name));
  }
  return facts->primitive_type;
}

absl::StatusOr<DTypeKind> FromPrimitiveType(xla::PrimitiveType type) {
  if (type != xla::PRIMITIVE_TYPE_INVALID) {
    for (const DTypeFacts& facts : kFacts) {
      if (facts.primitive_type == type) return facts.kind;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("XLA's type number ", static_cast<int>(type), " is not the element type of an array"));
}

std::string DTypeName(DTypeKind kind) {
  const DTypeFacts* facts = Find(kind);
  return facts != nullptr ? std::string(facts->name) : absl::StrCat("kind ", static_cast<int>(kind));
}

}  // namespace helmway::wire
