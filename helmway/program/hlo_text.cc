#include "helmway/program/hlo_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "helmway/base/status.h"
#include "helmway/program/backend_config.h"
#include "helmway/program/optimized_module.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/xla_data.pb.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::program {
namespace {

using ::xla::HloComputationProto;
using ::xla::HloInstructionProto;
using ::xla::HloModuleConfigProto;
using ::xla::HloModuleProto;
using ::xla::LayoutProto;
using ::xla::LiteralProto;
using ::xla::OpSharding;
using ::xla::ShapeProto;

// Lists longer than this carry the position of every so many entries.
constexpr int kIndexInterval = 5;
// Constants with more elements are elided.
constexpr int64_t kMaxLiteralElements = 10;
// Bound on the rows of a printed literal that has no elements, such as s32[1000000000,0].
constexpr int64_t kMaxEmptyRows = 4096;
// Bounds on the rank of printed literals and the dimension numbers of convolutions.
constexpr int kMaxRank = 64;
// Bounds on the text of a list of mesh axes and on all the text, which can be much longer than the program:
// each mention of a name is a number there.
constexpr size_t kMaxAxesText = size_t{1} << 20;
constexpr size_t kMaxText = size_t{1} << 30;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the optimized program does not make sense: ", what));
}

absl::Status TooLong() {
  return absl::ResourceExhaustedError(
      absl::StrCat("the text of the optimized program has more than ", kMaxText, " bytes"));
}

template <typename List>
std::string Braced(const List& list) {
  return absl::StrCat("{", absl::StrJoin(list, ","), "}");
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", absl::CEscape(text), "\""); }

// "/*index=5*/" before entry 5, 10, ...; empty elsewhere.
std::string IndexNote(int index) {
  return index > 0 && index % kIndexInterval == 0 ? absl::StrCat("/*index=", index, "*/") : "";
}

// ---- Types and shapes.

std::string TypeName(xla::PrimitiveType type) {
  if (type == xla::OPAQUE_TYPE) return "opaque";
  std::string name = xla::PrimitiveType_IsValid(type) ? xla::PrimitiveType_Name(type) : "invalid";
  return type == xla::PRIMITIVE_TYPE_INVALID ? "invalid" : absl::AsciiStrToLower(name);
}

bool IsArrayType(xla::PrimitiveType type) {
  return type != xla::PRIMITIVE_TYPE_INVALID && type != xla::TUPLE && type != xla::OPAQUE_TYPE &&
         type != xla::TOKEN && type != xla::BUFFER && xla::PrimitiveType_IsValid(type);
}

bool IsFloat(xla::PrimitiveType type) {
  switch (type) {
    case xla::F16:
    case xla::F32:
    case xla::F64:
    case xla::BF16:
    case xla::F8E5M2:
    case xla::F8E4M3FN:
    case xla::F8E4M3B11FNUZ:
    case xla::F8E5M2FNUZ:
    case xla::F8E4M3FNUZ:
    case xla::F8E4M3:
    case xla::F8E3M4:
    case xla::F4E2M1FN:
    case xla::F8E8M0FNU:
    case xla::F6E3M2FN:
    case xla::F6E2M3FN:
      return true;
    default:
      return false;
  }
}

void AppendShape(const ShapeProto& shape, bool with_layout, std::string* out);

void AppendLayout(const LayoutProto& layout, std::string* out) {
  absl::StrAppend(out, "{", absl::StrJoin(layout.minor_to_major(), ","));
  std::string rest;
  bool sparse = std::any_of(layout.dim_level_types().begin(), layout.dim_level_types().end(),
                            [](int type) { return type != xla::DIM_DENSE; });
  if (sparse) {
    std::vector<std::string> levels;
    for (int i = 0; i < layout.dim_level_types_size(); ++i) {
      std::string level = "D";
      switch (layout.dim_level_types(i)) {
        case xla::DIM_COMPRESSED:
          level = "C";
          break;
        case xla::DIM_SINGLETON:
          level = "S";
          break;
        case xla::DIM_LOOSE_COMPRESSED:
          level = "H";
          break;
        default:
          break;
      }
      if (i < layout.dim_unique_size() && !layout.dim_unique(i)) level += "+";
      if (i < layout.dim_ordered_size() && !layout.dim_ordered(i)) level += "~";
      levels.push_back(std::move(level));
    }
    absl::StrAppend(&rest, "D(", absl::StrJoin(levels, ","), ")");
  }
  if (layout.tiles_size() > 0) {
    rest += "T";
    for (const xla::TileProto& tile : layout.tiles()) {
      absl::StrAppend(&rest, "(",
                      absl::StrJoin(tile.dimensions(), ",",
                                    [](std::string* o, int64_t dimension) {
                                      if (dimension == std::numeric_limits<int64_t>::min()) {
                                        absl::StrAppend(o, "*");
                                      } else {
                                        absl::StrAppend(o, dimension);
                                      }
                                    }),
                      ")");
    }
  }
  int64_t tail = layout.tail_padding_alignment_in_elements();
  if (tail != 1 && tail != 0) absl::StrAppend(&rest, "L(", tail, ")");
  if (layout.index_primitive_type() != xla::PRIMITIVE_TYPE_INVALID) {
    absl::StrAppend(&rest, "#(", TypeName(layout.index_primitive_type()), ")");
  }
  if (layout.pointer_primitive_type() != xla::PRIMITIVE_TYPE_INVALID) {
    absl::StrAppend(&rest, "*(", TypeName(layout.pointer_primitive_type()), ")");
  }
  if (layout.element_size_in_bits() != 0) absl::StrAppend(&rest, "E(", layout.element_size_in_bits(), ")");
  if (layout.memory_space() != 0) absl::StrAppend(&rest, "S(", layout.memory_space(), ")");
  if (layout.split_configs_size() > 0) {
    rest += "SC";
    for (const xla::SplitConfigProto& split : layout.split_configs()) {
      absl::StrAppend(&rest, "(", split.dimension(), ":", absl::StrJoin(split.split_indices(), ","), ")");
    }
  }
  if (layout.has_physical_shape()) {
    rest += "P(";
    AppendShape(layout.physical_shape(), true, &rest);
    rest += ")";
  }
  if (layout.dynamic_shape_metadata_prefix_bytes() > 0) {
    absl::StrAppend(&rest, "M(", layout.dynamic_shape_metadata_prefix_bytes(), ")");
  }
  if (!rest.empty()) absl::StrAppend(out, ":", rest);
  out->push_back('}');
}

void AppendShape(const ShapeProto& shape, bool with_layout, std::string* out) {
  if (shape.element_type() == xla::TUPLE) {
    out->push_back('(');
    for (int i = 0; i < shape.tuple_shapes_size(); ++i) {
      if (i > 0) absl::StrAppend(out, ", ", IndexNote(i));
      AppendShape(shape.tuple_shapes(i), with_layout, out);
    }
    out->push_back(')');
    return;
  }
  if (shape.element_type() == xla::BUFFER) {
    absl::StrAppend(out, "b(");
    if (shape.tuple_shapes_size() > 0) AppendShape(shape.tuple_shapes(0), with_layout, out);
    out->push_back(')');
    return;
  }
  absl::StrAppend(out, TypeName(shape.element_type()), "[");
  for (int i = 0; i < shape.dimensions_size(); ++i) {
    if (i > 0) out->push_back(',');
    bool dynamic = i < shape.is_dynamic_dimension_size() && shape.is_dynamic_dimension(i);
    if (dynamic && shape.dimensions(i) == std::numeric_limits<int64_t>::min()) {
      out->push_back('?');
    } else {
      absl::StrAppend(out, dynamic ? "<=" : "", shape.dimensions(i));
    }
  }
  out->push_back(']');
  if (!with_layout || !shape.has_layout() || !IsArrayType(shape.element_type())) return;
  std::string layout;
  AppendLayout(shape.layout(), &layout);
  if (shape.dimensions_size() > 0 || layout != "{}") absl::StrAppend(out, layout);
}

std::string ShapeText(const ShapeProto& shape, bool with_layout) {
  std::string out;
  AppendShape(shape, with_layout, &out);
  return out;
}

// ---- Literals.

// How a floating-point type of at most 16 bits is made.
struct SmallFloat {
  xla::PrimitiveType type;
  int bits;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  enum Specials { kIeee, kNanAllOnes, kNanMinusZero, kNone } specials;
};

constexpr SmallFloat kSmallFloats[] = {
    {xla::F16, 16, 5, 10, 15, SmallFloat::kIeee},
    {xla::BF16, 16, 8, 7, 127, SmallFloat::kIeee},
    {xla::F8E5M2, 8, 5, 2, 15, SmallFloat::kIeee},
    {xla::F8E4M3, 8, 4, 3, 7, SmallFloat::kIeee},
    {xla::F8E3M4, 8, 3, 4, 3, SmallFloat::kIeee},
    {xla::F8E4M3FN, 8, 4, 3, 7, SmallFloat::kNanAllOnes},
    {xla::F8E4M3B11FNUZ, 8, 4, 3, 11, SmallFloat::kNanMinusZero},
    {xla::F8E5M2FNUZ, 8, 5, 2, 16, SmallFloat::kNanMinusZero},
    {xla::F8E4M3FNUZ, 8, 4, 3, 8, SmallFloat::kNanMinusZero},
    {xla::F4E2M1FN, 4, 2, 1, 1, SmallFloat::kNone},
    {xla::F6E3M2FN, 6, 3, 2, 3, SmallFloat::kNone},
    {xla::F6E2M3FN, 6, 2, 3, 1, SmallFloat::kNone},
};

std::string Printf(const char* format, int digits, double value) {
  char buffer[64];
  snprintf(buffer, sizeof(buffer), format, digits, value);
  return buffer;
}

// The payload of a NaN is shown only where it is not that of the default NaN.
std::string NanText(bool negative, uint64_t payload, uint64_t quiet) {
  std::string out = negative ? "-nan" : "nan";
  if (payload != quiet) absl::StrAppend(&out, "(0x", absl::Hex(payload), ")");
  return out;
}

std::string FloatText(float value) {
  if (std::isnan(value)) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return NanText(std::signbit(value), bits & 0x7fffff, 0x400000);
  }
  std::string text = Printf("%.*g", 6, value);
  return std::strtof(text.c_str(), nullptr) == value ? text : Printf("%.*g", 9, value);
}

std::string DoubleText(double value) {
  if (std::isnan(value)) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return NanText(std::signbit(value), bits & 0xfffffffffffff, 0x8000000000000);
  }
  std::string text = Printf("%.*g", 15, value);
  return std::strtod(text.c_str(), nullptr) == value ? text : Printf("%.*g", 17, value);
}

std::string SmallFloatText(const SmallFloat& form, uint32_t bits) {
  uint32_t mantissa = bits & ((1u << form.mantissa_bits) - 1);
  uint32_t all_ones = (1u << form.exponent_bits) - 1;
  uint32_t exponent = (bits >> form.mantissa_bits) & all_ones;
  bool negative = (bits >> (form.exponent_bits + form.mantissa_bits)) & 1;
  uint32_t quiet = 1u << (form.mantissa_bits - 1);
  if (form.specials == SmallFloat::kIeee && exponent == all_ones) {
    if (mantissa == 0) return negative ? "-inf" : "inf";
    return NanText(negative, mantissa, quiet);
  }
  if (form.specials == SmallFloat::kNanAllOnes && exponent == all_ones &&
      mantissa == (1u << form.mantissa_bits) - 1) {
    return negative ? "-nan" : "nan";
  }
  if (form.specials == SmallFloat::kNanMinusZero && negative && exponent == 0 && mantissa == 0) return "-nan";
  double value = exponent == 0 ? std::ldexp(mantissa, 1 - form.bias - form.mantissa_bits)
                               : std::ldexp(mantissa + (1u << form.mantissa_bits),
                                            static_cast<int>(exponent) - form.bias - form.mantissa_bits);
  int max_digits = static_cast<int>(std::ceil(1 + (form.mantissa_bits + 1) * 0.30103));
  return Printf("%.*g", max_digits, negative ? -value : value);
}

const SmallFloat* FindSmallFloat(xla::PrimitiveType type) {
  for (const SmallFloat& form : kSmallFloats) {
    if (form.type == type) return &form;
  }
  return nullptr;
}

// The bytes of the literals whose type has a bytes field.
const std::string* LiteralBytes(const LiteralProto& literal, xla::PrimitiveType type) {
  switch (type) {
    case xla::S1:
      return &literal.s1s();
    case xla::S2:
      return &literal.s2s();
    case xla::S4:
      return &literal.s4s();
    case xla::S8:
      return &literal.s8s();
    case xla::S16:
      return &literal.s16s();
    case xla::U1:
      return &literal.u1s();
    case xla::U2:
      return &literal.u2s();
    case xla::U4:
      return &literal.u4s();
    case xla::U8:
      return &literal.u8s();
    case xla::U16:
      return &literal.u16s();
    case xla::F16:
      return &literal.f16s();
    case xla::BF16:
      return &literal.bf16s();
    case xla::F8E5M2:
      return &literal.f8e5m2s();
    case xla::F8E4M3FN:
      return &literal.f8e4m3fns();
    case xla::F8E4M3B11FNUZ:
      return &literal.f8e4m3b11fnuzs();
    case xla::F8E5M2FNUZ:
      return &literal.f8e5m2fnuzs();
    case xla::F8E4M3FNUZ:
      return &literal.f8e4m3fnuzs();
    case xla::F8E4M3:
      return &literal.f8e4m3s();
    case xla::F8E3M4:
      return &literal.f8e3m4s();
    case xla::F4E2M1FN:
      return &literal.f4e2m1fns();
    case xla::F8E8M0FNU:
      return &literal.f8e8m0fnus();
    case xla::F6E3M2FN:
      return &literal.f6e3m2fns();
    case xla::F6E2M3FN:
      return &literal.f6e2m3fns();
    default:
      return nullptr;
  }
}

bool IsSigned(xla::PrimitiveType type) {
  return type == xla::S1 || type == xla::S2 || type == xla::S4 || type == xla::S8 || type == xla::S16 ||
         type == xla::S32 || type == xla::S64;
}

// One array of a literal.
class LiteralElements {
 public:
  // `count`: elements of the shape. INVALID_ARGUMENT where the data are not of that length.
  static absl::StatusOr<LiteralElements> Make(const LiteralProto& literal, int64_t count) {
    LiteralElements elements(literal);
    xla::PrimitiveType type = elements.type_;
    int64_t held = 0;
    int64_t expected = count;
    switch (type) {
      case xla::PRED:
        held = literal.preds_size();
        break;
      case xla::S32:
        held = literal.s32s_size();
        break;
      case xla::S64:
        held = literal.s64s_size();
        break;
      case xla::U32:
        held = literal.u32s_size();
        break;
      case xla::U64:
        held = literal.u64s_size();
        break;
      case xla::F32:
        held = literal.f32s_size();
        break;
      case xla::F64:
        held = literal.f64s_size();
        break;
      case xla::C64:
        held = literal.c64s_size();
        expected = 2 * count;
        break;
      case xla::C128:
        held = literal.c128s_size();
        expected = 2 * count;
        break;
      default: {
        elements.bytes_ = LiteralBytes(literal, type);
        if (elements.bytes_ == nullptr) return Malformed(absl::StrCat("a literal of type ", TypeName(type)));
        HELMWAY_ASSIGN_OR_RETURN(const wire::DTypeKind kind, wire::FromPrimitiveType(type));
        elements.width_ = wire::GetDTypeFacts(kind)->bits;
        held = static_cast<int64_t>(elements.bytes_->size());
        expected = elements.width_ == 16 ? 2 * count : count;
        break;
      }
    }
    if (held != expected) {
      return Malformed(absl::StrCat("a literal of type ", TypeName(type), " with ", held,
                                    " units of data where ", expected, " are expected"));
    }
    return elements;
  }

  // `index`: place in the data. `scalar`: the literal is no array.
  std::string Text(int64_t index, bool scalar) const {
    int i = static_cast<int>(index);
    switch (type_) {
      case xla::PRED:
        if (scalar) return literal_->preds(i) ? "true" : "false";
        return literal_->preds(i) ? "1" : "0";
      case xla::S32:
        return absl::StrCat(literal_->s32s(i));
      case xla::S64:
        return absl::StrCat(literal_->s64s(i));
      case xla::U32:
        return absl::StrCat(literal_->u32s(i));
      case xla::U64:
        return absl::StrCat(literal_->u64s(i));
      case xla::F32:
        return FloatText(literal_->f32s(i));
      case xla::F64:
        return DoubleText(literal_->f64s(i));
      case xla::C64:
        return absl::StrCat("(", FloatText(literal_->c64s(2 * i)), ", ", FloatText(literal_->c64s(2 * i + 1)),
                            ")");
      case xla::C128:
        return absl::StrCat("(", DoubleText(literal_->c128s(2 * i)), ", ",
                            DoubleText(literal_->c128s(2 * i + 1)), ")");
      default:
        break;
    }
    uint32_t bits = 0;
    if (width_ == 16) {
      bits = static_cast<uint8_t>((*bytes_)[2 * i]) | static_cast<uint8_t>((*bytes_)[2 * i + 1]) << 8;
    } else {
      bits = static_cast<uint8_t>((*bytes_)[i]);
    }
    bits &= (1u << width_) - 1;
    if (type_ == xla::F8E8M0FNU)
      return bits == 0xff ? "nan" : Printf("%.*g", 2, std::ldexp(1.0, static_cast<int>(bits) - 127));
    if (const SmallFloat* form = FindSmallFloat(type_)) return SmallFloatText(*form, bits);
    if (IsSigned(type_) && (bits >> (width_ - 1)) != 0) {
      return absl::StrCat(static_cast<int64_t>(bits) - (int64_t{1} << width_));
    }
    return absl::StrCat(bits);
  }

 private:
  explicit LiteralElements(const LiteralProto& literal)
      : literal_(&literal), type_(literal.shape().element_type()) {}

  const LiteralProto* literal_;
  xla::PrimitiveType type_;
  const std::string* bytes_ = nullptr;
  int width_ = 0;  // Bits, of the types in bytes_.
};

class LiteralPrinter {
 public:
  LiteralPrinter(const ShapeProto& shape, const LiteralElements& elements, std::vector<int64_t> strides)
      : shape_(shape), elements_(elements), strides_(std::move(strides)) {}

  void Print(int dimension, int64_t offset, std::string* out) const {
    int rank = shape_.dimensions_size();
    if (dimension == rank) {
      absl::StrAppend(out, elements_.Text(offset, rank == 0));
      return;
    }
    int64_t size = shape_.dimensions(dimension);
    // Rows inside an array are padded with blanks, but for short innermost ones.
    bool padded = dimension + 1 < rank || (rank > 1 && size > 1);
    out->append(padded ? "{ " : "{");
    for (int64_t i = 0; i < size; ++i) {
      if (i > 0) out->append(", ");
      Print(dimension + 1, offset + i * strides_[dimension], out);
    }
    out->append(padded ? " }" : "}");
  }

 private:
  const ShapeProto& shape_;
  const LiteralElements& elements_;
  std::vector<int64_t> strides_;  // Per dimension, in elements.
};

// What stands between the parentheses of a constant.
absl::StatusOr<std::string> LiteralText(const HloInstructionProto& instruction) {
  const ShapeProto& shape = instruction.shape();
  if (!instruction.has_literal() || !IsArrayType(shape.element_type())) return "{...}";
  if (shape.dimensions_size() > kMaxRank) {
    return Malformed(absl::StrCat("a constant with ", shape.dimensions_size(), " dimensions"));
  }
  int64_t count = 1;
  int64_t rows = 1;  // Rows that are opened before an empty dimension is met.
  bool empty = false;
  for (int64_t dimension : shape.dimensions()) {
    if (dimension < 0) return Malformed(absl::StrCat("a constant with a dimension of ", dimension));
    if (dimension == 0) empty = true;
    if (!empty) rows = dimension > kMaxEmptyRows / rows ? kMaxEmptyRows + 1 : rows * dimension;
    count = dimension != 0 && count > kMaxEmptyRows / dimension ? kMaxEmptyRows + 1 : count * dimension;
  }
  if (empty ? rows > kMaxEmptyRows : count > kMaxLiteralElements) return "{...}";
  if (empty) count = 0;
  const LiteralProto& literal = instruction.literal();
  const ShapeProto& own = literal.shape();
  if (own.element_type() != shape.element_type() || own.dimensions_size() != shape.dimensions_size() ||
      !std::equal(own.dimensions().begin(), own.dimensions().end(), shape.dimensions().begin())) {
    return Malformed(absl::StrCat("a constant of shape ", ShapeText(shape, false),
                                  " with a literal of shape ", ShapeText(own, false)));
  }
  absl::StatusOr<LiteralElements> elements = LiteralElements::Make(literal, count);
  if (!elements.ok()) return elements.status();
  int rank = shape.dimensions_size();
  std::vector<int64_t> strides(rank, -1);
  int64_t stride = 1;
  for (int i = 0; i < rank; ++i) {
    int64_t dimension = rank - 1 - i;
    if (own.has_layout() && own.layout().minor_to_major_size() > 0) {
      if (own.layout().minor_to_major_size() != rank)
        return Malformed("a literal whose layout has another rank");
      dimension = own.layout().minor_to_major(i);
    }
    if (dimension < 0 || dimension >= rank || strides[dimension] != -1) {
      return Malformed("a literal whose layout is no permutation");
    }
    strides[dimension] = stride;
    stride *=
        std::max<int64_t>(1, std::min<int64_t>(shape.dimensions(static_cast<int>(dimension)), kMaxEmptyRows));
    if (empty) stride = 0;
  }
  std::string out;
  LiteralPrinter(shape, *elements, std::move(strides)).Print(0, 0, &out);
  return out;
}

// ---- Metadata and shardings.

// `payloads`: the module's, if the metadata are an instruction's.
std::string MetadataText(const xla::OpMetadata& metadata,
                         const google::protobuf::RepeatedPtrField<std::string>* payloads = nullptr) {
  std::vector<std::string> parts;
  auto text = [&](absl::string_view name, absl::string_view value) {
    if (!value.empty()) parts.push_back(absl::StrCat(name, "=", Quoted(value)));
  };
  auto number = [&](absl::string_view name, int64_t value) {
    if (value != 0) parts.push_back(absl::StrCat(name, "=", value));
  };
  text("op_type", metadata.op_type());
  text("op_name", metadata.op_name());
  text("source_file", metadata.source_file());
  number("source_line", metadata.source_line());
  number("source_end_line", metadata.source_end_line());
  number("source_column", metadata.source_column());
  number("source_end_column", metadata.source_end_column());
  if (metadata.profile_type_size() > 0) {
    parts.push_back(absl::StrCat("profile_type=", Braced(metadata.profile_type())));
  }
  text("deduplicated_name", metadata.deduplicated_name());
  if (!metadata.scheduling_name().empty()) {
    parts.push_back(absl::StrCat("scheduling_name=\"", metadata.scheduling_name(), "\""));
  }
  number("stack_frame_id", metadata.stack_frame_id());
  const xla::Payload& payload = metadata.metadata_payload();
  if (payload.payload_source_case() == xla::Payload::kValue) text("metadata_payload", payload.value());
  if (payload.payload_source_case() == xla::Payload::kId && payloads != nullptr && payload.id() >= 0 &&
      payload.id() < payloads->size()) {
    text("metadata_payload", payloads->Get(static_cast<int>(payload.id())));
  }
  return absl::StrJoin(parts, " ");
}

std::string MetadataList(const google::protobuf::RepeatedPtrField<xla::OpMetadata>& list,
                         bool always_nested) {
  if (list.size() == 1 && !always_nested) return absl::StrCat("metadata={", MetadataText(list[0]), "}");
  return absl::StrCat("metadata={",
                      absl::StrJoin(list, ", ",
                                    [](std::string* out, const xla::OpMetadata& metadata) {
                                      absl::StrAppend(out, "{", MetadataText(metadata), "}");
                                    }),
                      "}");
}

// "[8]" or "[2,4]T(1,0)".
template <typename Permutation>
std::string IotaText(const google::protobuf::RepeatedField<int64_t>& dims, const Permutation& permutation) {
  std::string out = absl::StrCat("[", absl::StrJoin(dims, ","), "]");
  bool identity = true;
  for (int i = 0; i < permutation.size(); ++i) identity = identity && permutation[i] == i;
  if (!identity) absl::StrAppend(&out, "T(", absl::StrJoin(permutation, ","), ")");
  return out;
}

// INVALID_ARGUMENT for axes that the mesh does not have.
absl::StatusOr<std::string> AxesText(const xla::MeshProto& mesh,
                                     const google::protobuf::RepeatedPtrField<xla::AxisRefProto>& axes,
                                     absl::string_view separator) {
  std::vector<std::string> names;
  size_t size = 0;
  for (const xla::AxisRefProto& axis : axes) {
    if (axis.mesh_axis_index() < 0 || axis.mesh_axis_index() >= mesh.axes_size()) {
      return Malformed(
          absl::StrCat("axis ", axis.mesh_axis_index(), " of a mesh with ", mesh.axes_size(), " axes"));
    }
    std::string name = absl::StrCat("'", mesh.axes(static_cast<int>(axis.mesh_axis_index())).name(), "'");
    if (axis.has_sub_axis_info()) {
      absl::StrAppend(&name, ":(", axis.sub_axis_info().pre_size(), ")", axis.sub_axis_info().size());
    }
    size += name.size();
    if (size > kMaxAxesText) return Malformed("a list of mesh axes is too long");
    names.push_back(std::move(name));
  }
  return absl::StrJoin(names, separator);
}

std::string MeshText(const xla::MeshProto& mesh) {
  if (mesh.axes_size() == 0) {
    return mesh.device_ids_size() == 1 ? absl::StrCat("maximal_mesh[device_id=", mesh.device_ids(0), "]")
                                       : "mesh[]";
  }
  std::string out = "mesh[";
  out += absl::StrJoin(mesh.axes(), ",", [](std::string* o, const xla::MeshProto::MeshAxis& axis) {
    absl::StrAppend(o, "'", axis.name(), "'=", axis.size());
  });
  out += "]";
  if (mesh.has_iota_transform()) {
    absl::StrAppend(&out, ", device_ids=(",
                    IotaText(mesh.iota_transform().reshape_dims(), mesh.iota_transform().transpose_perm()),
                    ")");
  } else if (mesh.device_ids_size() > 0) {
    absl::StrAppend(&out, ", device_ids=(", absl::StrJoin(mesh.device_ids(), ","), ")");
  }
  return out;
}

absl::StatusOr<std::string> NamedShardingText(const xla::NamedShardingProto& sharding) {
  const xla::MeshProto& mesh = sharding.mesh();
  std::string out = absl::StrCat("{", MeshText(mesh));
  bool split = std::any_of(sharding.dim_shardings().begin(), sharding.dim_shardings().end(),
                           [](const auto& d) { return d.axes_size() > 0 || !d.is_closed(); });
  bool maximal = mesh.axes_size() == 0 && mesh.device_ids_size() == 1;
  bool other =
      sharding.replicated_axes_size() + sharding.unreduced_axes_size() + sharding.manual_axes_size() > 0;
  if (sharding.dim_shardings_size() > 0) {
    std::vector<std::string> dims;
    for (const auto& dimension : sharding.dim_shardings()) {
      absl::StatusOr<std::string> axes = AxesText(mesh, dimension.axes(), ", ");
      if (!axes.ok()) return axes.status();
      if (!dimension.is_closed()) absl::StrAppend(&*axes, axes->empty() ? "?" : ", ?");
      dims.push_back(absl::StrCat("{", *axes, "}"));
    }
    absl::StrAppend(&out, ", [", absl::StrJoin(dims, ", "), "]");
  } else if (!maximal && !split && !other) {
    absl::StrAppend(&out, ", replicated");
  } else if (!maximal) {
    absl::StrAppend(&out, ", []");
  }
  auto list = [&](absl::string_view name, const auto& axes) -> absl::Status {
    if (axes.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> text = AxesText(mesh, axes, ", ");
    if (!text.ok()) return text.status();
    absl::StrAppend(&out, ", ", name, "={", *text, "}");
    return absl::OkStatus();
  };
  if (absl::Status status = list("replicated", sharding.replicated_axes()); !status.ok()) return status;
  if (absl::Status status = list("unreduced", sharding.unreduced_axes()); !status.ok()) return status;
  if (absl::Status status = list("manual", sharding.manual_axes()); !status.ok()) return status;
  if (sharding.unreduced_axes_size() > 0 && sharding.reduction_op() != xla::NamedShardingProto::SUM) {
    absl::StrAppend(
        &out, ", reduction_op=",
        absl::AsciiStrToLower(xla::NamedShardingProto::ReductionOpProto_Name(sharding.reduction_op())));
  }
  if (sharding.metadata_size() > 0) absl::StrAppend(&out, ", ", MetadataList(sharding.metadata(), true));
  return out + "}";
}

std::string SubgroupName(int type) {
  return OpSharding::Type_IsValid(type)
             ? absl::AsciiStrToLower(OpSharding::Type_Name(static_cast<OpSharding::Type>(type)))
             : absl::StrCat("type_", type);
}

absl::StatusOr<std::string> ShardingText(const OpSharding& sharding) {
  if (sharding.has_named_sharding()) return NamedShardingText(sharding.named_sharding());
  if (sharding.type() == OpSharding::TUPLE) {
    std::string out = "{";
    for (int i = 0; i < sharding.tuple_shardings_size(); ++i) {
      absl::StatusOr<std::string> element = ShardingText(sharding.tuple_shardings(i));
      if (!element.ok()) return element.status();
      absl::StrAppend(&out, i > 0 ? ", " : "", IndexNote(i), *element);
    }
    return out + "}";
  }
  std::string rest;
  if (sharding.is_shard_group()) {
    absl::StrAppend(&rest, sharding.shard_group_type() == OpSharding::AS ? " shard_as " : " shard_like ",
                    sharding.shard_group_id());
  }
  if (sharding.metadata_size() > 0) absl::StrAppend(&rest, " ", MetadataList(sharding.metadata(), false));
  switch (sharding.type()) {
    case OpSharding::REPLICATED:
    case OpSharding::MANUAL:
    case OpSharding::UNKNOWN:
    case OpSharding::UNREDUCED:
      return absl::StrCat("{", SubgroupName(sharding.type()), rest, "}");
    case OpSharding::MAXIMAL:
      return absl::StrCat(
          "{maximal device=",
          sharding.tile_assignment_devices_size() > 0 ? sharding.tile_assignment_devices(0) : 0, rest, "}");
    default:
      break;
  }
  std::string out =
      absl::StrCat("{devices=[", absl::StrJoin(sharding.tile_assignment_dimensions(), ","), "]");
  if (sharding.iota_reshape_dims_size() > 0) {
    absl::StrAppend(&out, "<=", IotaText(sharding.iota_reshape_dims(), sharding.iota_transpose_perm()));
  } else {
    out += absl::StrJoin(sharding.tile_assignment_devices(), ",");
  }
  if (sharding.replicate_on_last_tile_dim()) out += " last_tile_dim_replicate";
  if (sharding.last_tile_dims_size() > 0) {
    absl::StrAppend(&out, " last_tile_dims={",
                    absl::StrJoin(sharding.last_tile_dims(), ", ",
                                  [](std::string* o, int type) { absl::StrAppend(o, SubgroupName(type)); }),
                    "}");
  }
  return absl::StrCat(out, rest, "}");
}

// True for what looks like one object in JSON: braces that close at the very end, strings skipped.
bool LooksLikeJson(absl::string_view text) {
  absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  if (!absl::StartsWith(trimmed, "{") || !absl::EndsWith(trimmed, "}")) return false;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < trimmed.size(); ++i) {
    char c = trimmed[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0 && i + 1 != trimmed.size()) return false;
  }
  return depth == 0 && !in_string;
}

std::string JsonOrQuoted(absl::string_view text) {
  return LooksLikeJson(text) ? std::string(text) : Quoted(text);
}

std::string FrontendAttributesText(const xla::FrontendAttributes& attributes) {
  std::map<std::string, std::string> sorted(attributes.map().begin(), attributes.map().end());
  return absl::StrCat("{",
                      absl::StrJoin(sorted, ",",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, entry.first, "=", JsonOrQuoted(entry.second));
                                    }),
                      "}");
}

// ---- Attributes.

std::string WindowText(const xla::Window& window) {
  if (window.dimensions_size() == 0) return "";
  std::string out;
  auto part = [&](absl::string_view name, auto differs, auto print) {
    if (!name.empty() && !std::any_of(window.dimensions().begin(), window.dimensions().end(), differs))
      return;
    absl::StrAppend(&out, out.empty() ? "" : " ", name.empty() ? "size" : name, "=",
                    absl::StrJoin(window.dimensions(), "x", print));
  };
  using Dimension = xla::WindowDimension;
  part(
      "", [](const Dimension&) { return true; },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.size()); });
  part(
      "stride", [](const Dimension& d) { return d.stride() != 1; },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.stride()); });
  part(
      "pad", [](const Dimension& d) { return d.padding_low() != 0 || d.padding_high() != 0; },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.padding_low(), "_", d.padding_high()); });
  part(
      "lhs_dilate", [](const Dimension& d) { return d.base_dilation() != 1; },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.base_dilation()); });
  part(
      "rhs_dilate", [](const Dimension& d) { return d.window_dilation() != 1; },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.window_dilation()); });
  part(
      "rhs_reversal", [](const Dimension& d) { return d.window_reversal(); },
      [](std::string* o, const Dimension& d) { absl::StrAppend(o, d.window_reversal() ? 1 : 0); });
  return out;
}

// "b01f": what each dimension is. INVALID_ARGUMENT for numbers out of range.
absl::StatusOr<std::string> DimensionLabels(int64_t first, absl::string_view first_name, int64_t second,
                                            absl::string_view second_name,
                                            const google::protobuf::RepeatedField<int64_t>& spatial) {
  int64_t last = std::max(first, second);
  int64_t least = std::min(first, second);
  for (int64_t dimension : spatial) {
    last = std::max(last, dimension);
    least = std::min(least, dimension);
  }
  if (least < 0 || last >= kMaxRank) return Malformed("dimension numbers of a convolution out of range");
  std::vector<std::string> labels(last + 1, "?");
  labels[first] = std::string(first_name);
  labels[second] = std::string(second_name);
  for (int i = 0; i < spatial.size(); ++i) labels[spatial[i]] = absl::StrCat(i);
  return absl::StrJoin(labels, "");
}

absl::StatusOr<std::string> ConvolutionLabels(const xla::ConvolutionDimensionNumbers& numbers) {
  absl::StatusOr<std::string> input =
      DimensionLabels(numbers.input_batch_dimension(), "b", numbers.input_feature_dimension(), "f",
                      numbers.input_spatial_dimensions());
  if (!input.ok()) return input.status();
  absl::StatusOr<std::string> kernel =
      DimensionLabels(numbers.kernel_input_feature_dimension(), "i",
                      numbers.kernel_output_feature_dimension(), "o", numbers.kernel_spatial_dimensions());
  if (!kernel.ok()) return kernel.status();
  absl::StatusOr<std::string> output =
      DimensionLabels(numbers.output_batch_dimension(), "b", numbers.output_feature_dimension(), "f",
                      numbers.output_spatial_dimensions());
  if (!output.ok()) return output.status();
  return absl::StrCat(*input, "_", *kernel, "->", *output);
}

std::string AliasingText(const google::protobuf::RepeatedPtrField<xla::OutputOperandAliasing>& list) {
  return absl::StrCat("{",
                      absl::StrJoin(list, ", ",
                                    [](std::string* out, const xla::OutputOperandAliasing& alias) {
                                      absl::StrAppend(out, Braced(alias.output_shape_index()), ": (",
                                                      alias.operand_index(), ", ",
                                                      Braced(alias.operand_shape_index()), ")");
                                    }),
                      "}");
}

absl::StatusOr<std::string> ReplicaGroupsText(const HloInstructionProto& instruction) {
  auto explicit_groups = [](const google::protobuf::RepeatedPtrField<xla::ReplicaGroup>& groups) {
    return absl::StrCat("{",
                        absl::StrJoin(groups, ",",
                                      [](std::string* out, const xla::ReplicaGroup& group) {
                                        absl::StrAppend(out, Braced(group.replica_ids()));
                                      }),
                        "}");
  };
  switch (instruction.replica_group_list_case()) {
    case HloInstructionProto::kCollectiveDeviceList:
      return explicit_groups(instruction.collective_device_list().replica_groups());
    case HloInstructionProto::kIotaCollectiveDeviceList: {
      const xla::IotaReplicaGroupListProto& iota = instruction.iota_collective_device_list();
      return absl::StrCat("[", iota.num_replica_groups(), ",", iota.num_devices_per_group(),
                          "]<=", IotaText(iota.iota_reshape_dims(), iota.iota_transpose_perm()));
    }
    case HloInstructionProto::kMeshAxesReplicaGroupList: {
      const xla::MeshAxesReplicaGroupListProto& list = instruction.mesh_axes_replica_group_list();
      absl::StatusOr<std::string> axes = AxesText(list.mesh(), list.axes(), ",");
      if (!axes.ok()) return axes.status();
      return absl::StrCat(MeshText(list.mesh()), " {", *axes, "}");
    }
    default:
      return explicit_groups(instruction.replica_groups());
  }
}

std::string PrecisionText(const xla::PrecisionConfig& config) {
  bool any = std::any_of(config.operand_precision().begin(), config.operand_precision().end(),
                         [](int precision) { return precision != xla::PrecisionConfig::DEFAULT; });
  if (!any) return "";
  return absl::StrCat("operand_precision={",
                      absl::StrJoin(config.operand_precision(), ",",
                                    [](std::string* out, int precision) {
                                      absl::StrAppend(
                                          out, absl::AsciiStrToLower(xla::PrecisionConfig::Precision_Name(
                                                   static_cast<xla::PrecisionConfig::Precision>(precision))));
                                    }),
                      "}");
}

constexpr absl::string_view kToApply[] = {
    "all-reduce", "all-reduce-start", "call", "map",  "reduce", "reduce-scatter", "reduce-window",
    "scan",       "scatter",          "sort", "topk",
};

constexpr absl::string_view kCollectives[] = {
    "all-gather",           "all-gather-start",           "all-reduce",     "all-reduce-start",  "all-to-all",
    "collective-broadcast", "collective-broadcast-start", "reduce-scatter", "ragged-all-to-all",
};

constexpr absl::string_view kDimensions[] = {
    "broadcast",
    "concatenate",
    "map",
    "reduce",
    "reverse",
    "sort",
    "transpose",
    "get-dimension-size",
    "set-dimension-size",
    "all-gather",
    "all-gather-start",
    "reduce-scatter",
    "all-to-all",
    "scan",
};

template <typename List>
bool Contains(const List& list, absl::string_view value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

// ---- The module.

class ModulePrinter {
 public:
  ModulePrinter(const HloModuleProto& module, const HloModuleConfigProto* config)
      : module_(module), config_(config) {}

  absl::StatusOr<std::string> Print() {
    if (absl::Status status = Index(); !status.ok()) return status;
    PrintHeader();
    PrintStackFrames();
    absl::StatusOr<std::vector<const HloComputationProto*>> order = ComputationOrder();
    if (!order.ok()) return order.status();
    for (const HloComputationProto* computation : *order) {
      if (hidden_.contains(computation->id())) continue;
      if (absl::Status status = PrintComputation(*computation); !status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  using InstructionMap = absl::flat_hash_map<int64_t, const HloInstructionProto*>;

  absl::Status Index() {
    bool has_entry = false;
    size_t called_size = 0;  // Of the names of called computations.
    for (const HloComputationProto& computation : module_.computations()) {
      if (!computations_.emplace(computation.id(), &computation).second) {
        return Malformed(absl::StrCat("two computations have the id ", computation.id()));
      }
      has_entry = has_entry || computation.id() == module_.entry_computation_id();
    }
    if (!has_entry)
      return Malformed(absl::StrCat("no computation has the entry's id ", module_.entry_computation_id()));
    for (const HloComputationProto& computation : module_.computations()) {
      for (const HloInstructionProto& instruction : computation.instructions()) {
        for (int64_t id : instruction.called_computation_ids()) {
          if (!computations_.contains(id)) {
            return Malformed(absl::StrCat("instruction ", instruction.name(), " calls computation ", id,
                                          ", which does not exist"));
          }
          called_size += computations_.at(id)->name().size();
          if (called_size > kMaxText) return TooLong();
        }
        if (Wrapped(instruction) != nullptr) hidden_.insert(instruction.called_computation_ids(0));
      }
    }
    return absl::OkStatus();
  }

  // jaxlib's order: what nobody calls, in the order of the module, and before each of them, depth first, what
  // it calls; the instructions of a computation in the order of their ids. INVALID_ARGUMENT where
  // computations call each other in a circle.
  absl::StatusOr<std::vector<const HloComputationProto*>> ComputationOrder() const {
    absl::flat_hash_set<int64_t> called;
    for (const HloComputationProto& computation : module_.computations()) {
      for (const HloInstructionProto& instruction : computation.instructions()) {
        called.insert(instruction.called_computation_ids().begin(),
                      instruction.called_computation_ids().end());
      }
    }
    struct Visit {
      const HloComputationProto* computation;
      std::vector<const HloInstructionProto*> callers;
      size_t next = 0;
    };
    auto visit = [](const HloComputationProto& computation) {
      Visit result{&computation, {}};
      for (const HloInstructionProto& instruction : computation.instructions()) {
        if (instruction.called_computation_ids_size() > 0) result.callers.push_back(&instruction);
      }
      std::stable_sort(result.callers.begin(), result.callers.end(),
                       [](const auto* a, const auto* b) { return a->id() < b->id(); });
      return result;
    };
    absl::flat_hash_set<int64_t> seen;
    std::vector<const HloComputationProto*> order;
    std::vector<Visit> open;
    for (const HloComputationProto& root : module_.computations()) {
      if (called.contains(root.id())) continue;
      open.push_back(visit(root));
      while (!open.empty()) {
        if (open.back().next == open.back().callers.size()) {
          order.push_back(open.back().computation);
          open.pop_back();
          continue;
        }
        const auto& ids = open.back().callers[open.back().next++]->called_computation_ids();
        for (int i = ids.size() - 1; i >= 0; --i) {
          if (seen.insert(ids[i]).second) open.push_back(visit(*computations_.at(ids[i])));
        }
      }
    }
    if (order.size() != static_cast<size_t>(module_.computations_size())) {
      return Malformed("some computations call each other in a circle");
    }
    return order;
  }

  // The one operation of the computation that an async-start runs, if it is printed in its place.
  const HloInstructionProto* Wrapped(const HloInstructionProto& instruction) const {
    if (instruction.opcode() != "async-start" || instruction.called_computation_ids_size() != 1)
      return nullptr;
    const HloComputationProto& computation = *computations_.at(instruction.called_computation_ids(0));
    const HloInstructionProto* root = nullptr;
    for (const HloInstructionProto& inner : computation.instructions()) {
      if (inner.id() == computation.root_id()) {
        root = &inner;
      } else if (inner.opcode() != "parameter") {
        return nullptr;
      }
    }
    return root;
  }

  void PrintHeader() {
    absl::StrAppend(&out_, "HloModule ", module_.name());
    if (module_.has_schedule()) out_ += ", is_scheduled=true";
    if (module_.input_output_alias().entries_size() > 0) {
      absl::StrAppend(
          &out_, ", input_output_alias={ ",
          absl::StrJoin(module_.input_output_alias().entries(), ", ",
                        [](std::string* out, const xla::HloInputOutputAliasProto::AliasEntryProto& entry) {
                          absl::StrAppend(out, Braced(entry.output_shape_index()), ": (",
                                          entry.parameter_number(), ", ",
                                          Braced(entry.parameter_shape_index()), ", ",
                                          entry.kind() == xla::MUST_ALIAS ? "must-alias" : "may-alias", ")");
                        }),
          " }");
    }
    if (module_.buffer_donor().entries_size() > 0) {
      absl::StrAppend(
          &out_, ", buffer_donor={ ",
          absl::StrJoin(module_.buffer_donor().entries(), ", ",
                        [](std::string* out, const xla::HloBufferDonorProto::BufferDonorEntryProto& entry) {
                          absl::StrAppend(out, "(", entry.parameter_number(), ", ",
                                          Braced(entry.parameter_shape_index()), ")");
                        }),
          " }");
    }
    if (config_ != nullptr && config_->alias_passthrough_params()) out_ += ", alias_passthrough_params=true";
    const xla::ProgramShapeProto& layout = config_ != nullptr && config_->has_entry_computation_layout()
                                               ? config_->entry_computation_layout()
                                               : module_.host_program_shape();
    out_ += ", entry_computation_layout={(";
    for (int i = 0; i < layout.parameters_size(); ++i) {
      absl::StrAppend(&out_, i > 0 ? ", " : "", IndexNote(i), ShapeText(layout.parameters(i), true));
    }
    absl::StrAppend(&out_, ")->", ShapeText(layout.result(), true), "}");
    if (config_ != nullptr) {
      auto propagation = [&](absl::string_view name, const google::protobuf::RepeatedField<bool>& allowed) {
        if (allowed.empty() || (allowed.size() == 1 && !allowed[0])) return;
        absl::StrAppend(
            &out_, ", ", name, "={",
            absl::StrJoin(allowed, ",",
                          [](std::string* out, bool value) { out->append(value ? "true" : "false"); }),
            "}");
      };
      propagation("allow_spmd_sharding_propagation_to_parameters",
                  config_->allow_spmd_sharding_propagation_to_parameters());
      propagation("allow_spmd_sharding_propagation_to_output",
                  config_->allow_spmd_sharding_propagation_to_output());
    }
    int64_t replicas = 1;
    int64_t partitions = 1;
    if (config_ != nullptr) {
      replicas = config_->replica_count();
      partitions = config_->num_partitions();
    } else if (module_.has_device_assignment()) {
      replicas = module_.device_assignment().replica_count();
      partitions = module_.device_assignment().computation_count();
    }
    if (replicas > 1) absl::StrAppend(&out_, ", replica_count=", replicas);
    if (partitions > 1) absl::StrAppend(&out_, ", num_partitions=", partitions);
    if (module_.frontend_attributes().map_size() > 0) {
      absl::StrAppend(&out_, ", frontend_attributes=", FrontendAttributesText(module_.frontend_attributes()));
    }
    out_ += "\n\n";
  }

  void PrintStackFrames() {
    const xla::StackFrameIndexProto& index = module_.stack_frame_index();
    if (index.file_names_size() == 0 && index.stack_frames_size() == 0) return;
    auto section = [&](absl::string_view title, const auto& list, auto print) {
      absl::StrAppend(&out_, title, "\n");
      int number = 0;
      for (const auto& entry : list) {
        absl::StrAppend(&out_, ++number, " ");
        print(entry);
        out_ += "\n";
      }
      out_ += "\n";
    };
    auto name = [&](const std::string& text) { out_ += Quoted(text); };
    section("FileNames", index.file_names(), name);
    section("FunctionNames", index.function_names(), name);
    section("FileLocations", index.file_locations(),
            [&](const xla::StackFrameIndexProto::FileLocation& location) {
              absl::StrAppend(&out_, "{file_name_id=", location.file_name_id(),
                              " function_name_id=", location.function_name_id(), " line=", location.line());
              absl::StrAppend(&out_, " end_line=", location.end_line(), " column=", location.column(),
                              " end_column=", location.end_column(), "}");
            });
    // jaxlib prints the parent one higher than the program holds it.
    section("StackFrames", index.stack_frames(), [&](const xla::StackFrameIndexProto::StackFrame& frame) {
      absl::StrAppend(&out_, "{file_location_id=", frame.file_location_id(),
                      " parent_frame_id=", int64_t{frame.parent_frame_id()} + 1, "}");
    });
    out_ += "\n";
  }

  absl::Status PrintComputation(const HloComputationProto& computation) {
    async_starts_.clear();
    InstructionMap instructions;
    std::map<int64_t, const HloInstructionProto*> parameters;
    for (const HloInstructionProto& instruction : computation.instructions()) {
      if (!instructions.emplace(instruction.id(), &instruction).second) {
        return Malformed(
            absl::StrCat("two instructions of ", computation.name(), " have the id ", instruction.id()));
      }
      if (instruction.opcode() == "parameter") parameters[instruction.parameter_number()] = &instruction;
    }
    auto root = instructions.find(computation.root_id());
    if (root == instructions.end()) {
      return Malformed(absl::StrCat("computation ", computation.name(),
                                    " has no instruction with the root's id ", computation.root_id()));
    }
    std::vector<const HloInstructionProto*> order;
    auto sequence = module_.schedule().sequences().find(computation.id());
    if (sequence != module_.schedule().sequences().end()) {
      for (int64_t id : sequence->second.instruction_ids()) {
        auto found = instructions.find(id);
        if (found == instructions.end()) {
          return Malformed(absl::StrCat("the schedule of ", computation.name(), " names instruction ", id,
                                        ", which does not exist"));
        }
        order.push_back(found->second);
      }
    } else {
      for (const HloInstructionProto& instruction : computation.instructions()) order.push_back(&instruction);
    }

    if (computation.id() == module_.entry_computation_id()) out_ += "ENTRY ";
    absl::StrAppend(&out_, "%", computation.name(), " (");
    bool first = true;
    for (const auto& [number, parameter] : parameters) {
      absl::StrAppend(&out_, first ? "" : ", ", parameter->name(), ": ",
                      ShapeText(parameter->shape(), false));
      first = false;
    }
    absl::StrAppend(&out_, ") -> ", ShapeText(root->second->shape(), false), " {\n");
    for (const HloInstructionProto* instruction : order) {
      out_ += instruction == root->second ? "  ROOT " : "  ";
      if (absl::Status status = PrintInstruction(*instruction, instructions); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(status.message(), " (instruction ", instruction->name(),
                                         " of computation ", computation.name(), ")"));
      }
      out_ += "\n";
      if (out_.size() > kMaxText) return TooLong();
    }
    out_ += "}";
    if (!computation.execution_thread().empty() && computation.execution_thread() != "main") {
      absl::StrAppend(&out_, ", execution_thread=\"", computation.execution_thread(), "\"");
    }
    out_ += "\n\n";
    return absl::OkStatus();
  }

  static absl::StatusOr<std::vector<std::string>> Names(const google::protobuf::RepeatedField<int64_t>& ids,
                                                        const InstructionMap& instructions) {
    std::vector<std::string> names;
    size_t size = 0;
    for (int64_t id : ids) {
      auto found = instructions.find(id);
      if (found == instructions.end())
        return Malformed(absl::StrCat("it refers to id ", id, ", which does not exist"));
      size += found->second->name().size();
      if (size > kMaxText) return TooLong();
      names.push_back(absl::StrCat("%", found->second->name()));
    }
    return names;
  }

  // The async-start that an async instruction belongs to; null for others.
  const HloInstructionProto* AsyncStart(const HloInstructionProto& instruction,
                                        const InstructionMap& instructions) {
    std::vector<int64_t> chain;
    const HloInstructionProto* start = nullptr;
    const HloInstructionProto* current = &instruction;
    // An id that is met again stands for null, so a circle ends.
    while (absl::StartsWith(current->opcode(), "async-")) {
      if (current->opcode() == "async-start") {
        start = current;
        break;
      }
      auto [known, inserted] = async_starts_.emplace(current->id(), nullptr);
      if (!inserted) {
        start = known->second;
        break;
      }
      chain.push_back(current->id());
      if (current->operand_ids_size() == 0) break;
      auto operand = instructions.find(current->operand_ids(0));
      if (operand == instructions.end()) break;
      current = operand->second;
    }
    for (int64_t id : chain) async_starts_[id] = start;
    return start;
  }

  absl::Status PrintInstruction(const HloInstructionProto& instruction, const InstructionMap& instructions) {
    const HloInstructionProto* start = AsyncStart(instruction, instructions);
    const HloInstructionProto* wrapped = start == nullptr ? nullptr : Wrapped(*start);
    std::string opcode = instruction.opcode();
    if (wrapped != nullptr) opcode = absl::StrCat(wrapped->opcode(), opcode.substr(opcode.find('-')));
    absl::StrAppend(&out_, "%", instruction.name(), " = ", ShapeText(instruction.shape(), true), " ", opcode,
                    "(");
    if (opcode == "parameter") {
      absl::StrAppend(&out_, instruction.parameter_number());
    } else if (opcode == "constant") {
      absl::StatusOr<std::string> literal = LiteralText(instruction);
      if (!literal.ok()) return literal.status();
      out_ += *literal;
    } else {
      absl::StatusOr<std::vector<std::string>> operands = Names(instruction.operand_ids(), instructions);
      if (!operands.ok()) return operands.status();
      for (size_t i = 0; i < operands->size(); ++i) {
        absl::StrAppend(&out_, i > 0 ? ", " : "", IndexNote(static_cast<int>(i)), (*operands)[i]);
      }
    }
    out_ += ")";

    attributes_.clear();
    if (absl::Status status = OwnAttributes(instruction, instructions); !status.ok()) return status;
    if (wrapped != nullptr) {
      // An update or an end says only what its start does not.
      if (instruction.opcode() == "async-start") {
        if (absl::Status status = OwnAttributes(*wrapped, instructions); !status.ok()) return status;
        CalledComputations(*wrapped, instructions);
      }
    } else {
      CalledComputations(instruction, instructions);
    }
    if (instruction.has_sharding()) {
      absl::StatusOr<std::string> sharding = ShardingText(instruction.sharding());
      if (!sharding.ok()) return sharding.status();
      Add("sharding", *sharding);
    }
    if (instruction.frontend_attributes().map_size() > 0) {
      Add("frontend_attributes", FrontendAttributesText(instruction.frontend_attributes()));
    }
    if (instruction.control_predecessor_ids_size() > 0) {
      absl::StatusOr<std::vector<std::string>> names =
          Names(instruction.control_predecessor_ids(), instructions);
      if (!names.ok()) return names.status();
      Add("control-predecessors", absl::StrCat("{", absl::StrJoin(*names, ", "), "}"));
    }
    if (instruction.statistics_viz().statistics_size() > 0) {
      std::string text =
          absl::StrCat("{visualizing_index=", instruction.statistics_viz().stat_index_to_visualize());
      for (const xla::Statistic& statistic : instruction.statistics_viz().statistics()) {
        absl::StrAppend(&text, ",", statistic.stat_name(), "=", statistic.stat_val());
      }
      Add("statistics", text + "}");
    }
    if (instruction.has_original_value()) Add("origin", OriginText(instruction));
    std::string metadata = MetadataText(instruction.metadata(), &module_.payloads());
    if (!metadata.empty()) Add("metadata", absl::StrCat("{", metadata, "}"));
    HELMWAY_ASSIGN_OR_RETURN(const std::string backend_config, BackendConfig(module_, instruction));
    if (!backend_config.empty()) Add("backend_config", JsonOrQuoted(backend_config));
    for (const std::string& attribute : attributes_) absl::StrAppend(&out_, ", ", attribute);
    return absl::OkStatus();
  }

  void Add(absl::string_view name, absl::string_view value) {
    attributes_.push_back(absl::StrCat(name, "=", value));
  }
  void Add(absl::string_view name, int64_t value) { attributes_.push_back(absl::StrCat(name, "=", value)); }

  std::string ComputationName(int64_t id) const { return absl::StrCat("%", computations_.at(id)->name()); }

  void CalledComputations(const HloInstructionProto& instruction, const InstructionMap& instructions) {
    const std::string& opcode = instruction.opcode();
    const auto& called = instruction.called_computation_ids();
    if (called.empty()) return;
    std::vector<std::string> names;
    for (int64_t id : called) names.push_back(ComputationName(id));
    std::string list = absl::StrJoin(names, ", ");
    if (opcode == "while" && names.size() == 2) {
      Add("condition", names[1]);
      Add("body", names[0]);
    } else if (opcode == "select-and-scatter" && names.size() == 2) {
      Add("select", names[0]);
      Add("scatter", names[1]);
    } else if (opcode == "conditional") {
      bool on_pred = false;
      if (instruction.operand_ids_size() > 0) {
        auto selector = instructions.find(instruction.operand_ids(0));
        on_pred = selector != instructions.end() && selector->second->shape().element_type() == xla::PRED;
      }
      if (on_pred && names.size() == 2) {
        Add("true_computation", names[0]);
        Add("false_computation", names[1]);
      } else {
        Add("branch_computations", absl::StrCat("{", list, "}"));
      }
    } else if (Contains(kToApply, opcode)) {
      Add("to_apply", list);
      if (opcode == "call" && instruction.is_composite()) attributes_.push_back("is_composite=true");
    } else if (opcode == "custom-call") {
      Add("called_computations", absl::StrCat("{", list, "}"));
    } else {
      Add("calls", list);
    }
  }

  // The attributes of an opcode, in jaxlib's order, but for called computations and what every opcode may
  // have.
  absl::Status OwnAttributes(const HloInstructionProto& in, const InstructionMap& instructions) {
    const std::string& opcode = in.opcode();
    auto convolution = [&]() -> absl::Status {
      if (std::string window = WindowText(in.window()); !window.empty()) {
        Add("window", absl::StrCat("{", window, "}"));
      }
      if (in.has_convolution_dimension_numbers()) {
        absl::StatusOr<std::string> labels = ConvolutionLabels(in.convolution_dimension_numbers());
        if (!labels.ok()) return labels.status();
        Add("dim_labels", *labels);
      }
      if (in.feature_group_count() > 1) Add("feature_group_count", in.feature_group_count());
      if (in.batch_group_count() > 1) Add("batch_group_count", in.batch_group_count());
      return absl::OkStatus();
    };
    auto precision = [&] {
      if (std::string text = PrecisionText(in.precision_config()); !text.empty()) attributes_.push_back(text);
      if (in.precision_config().algorithm() != xla::PrecisionConfig::ALG_UNSET) {
        absl::string_view name = xla::PrecisionConfig::Algorithm_Name(in.precision_config().algorithm());
        absl::ConsumePrefix(&name, "ALG_");
        Add("algorithm", absl::AsciiStrToLower(name));
      }
    };
    auto dot = [&](const xla::DotDimensionNumbers& numbers) {
      if (numbers.lhs_batch_dimensions_size() > 0)
        Add("lhs_batch_dims", Braced(numbers.lhs_batch_dimensions()));
      Add("lhs_contracting_dims", Braced(numbers.lhs_contracting_dimensions()));
      if (numbers.rhs_batch_dimensions_size() > 0)
        Add("rhs_batch_dims", Braced(numbers.rhs_batch_dimensions()));
      Add("rhs_contracting_dims", Braced(numbers.rhs_contracting_dimensions()));
    };
    auto channel = [&] {
      if (in.channel_id() > 0) Add("channel_id", in.channel_id());
    };
    auto flag = [&](absl::string_view name, bool value) {
      if (value) attributes_.push_back(absl::StrCat(name, "=true"));
    };
    auto boolean = [&](absl::string_view name, bool value) { Add(name, value ? "true" : "false"); };

    if (absl::StartsWith(opcode, "async-")) {
      if (!in.async_execution_thread().empty() && in.async_execution_thread() != "main") {
        Add("async_execution_thread", absl::StrCat("\"", in.async_execution_thread(), "\""));
      }
    } else if (absl::StartsWith(opcode, "batch-norm")) {
      char epsilon[32];
      snprintf(epsilon, sizeof(epsilon), "%g", in.epsilon());
      Add("epsilon", epsilon);
      Add("feature_index", in.feature_index());
    } else if (opcode == "fft") {
      Add("fft_type", xla::FftType_Name(in.fft_type()));
      Add("fft_length", Braced(in.fft_length()));
    } else if (opcode == "compare") {
      Comparison(in, instructions);
    } else if (opcode == "copy-start") {
      if (in.optional_cross_program_prefetch_index_case() ==
          HloInstructionProto::kCrossProgramPrefetchIndex) {
        Add("cross_program_prefetch_index", in.cross_program_prefetch_index());
      }
    } else if (opcode == "cholesky") {
      flag("lower", in.cholesky_options().lower());
    } else if (opcode == "triangular-solve") {
      const xla::TriangularSolveOptions& options = in.triangular_solve_options();
      flag("left_side", options.left_side());
      flag("lower", options.lower());
      flag("unit_diagonal", options.unit_diagonal());
      if (options.transpose_a() != xla::TriangularSolveOptions::TRANSPOSE_INVALID) {
        Add("transpose_a", xla::TriangularSolveOptions::Transpose_Name(options.transpose_a()));
      }
    } else if (opcode == "send" || opcode == "recv" || opcode == "send-done" || opcode == "recv-done") {
      channel();
      flag("is_host_transfer", in.is_host_transfer());
    } else if (absl::StartsWith(opcode, "collective-permute") && !absl::EndsWith(opcode, "-done")) {
      channel();
      Add("source_target_pairs",
          absl::StrCat("{",
                       absl::StrJoin(in.source_target_pairs(), ",",
                                     [](std::string* out, const xla::SourceTarget& pair) {
                                       absl::StrAppend(out, "{", pair.source(), ",", pair.target(), "}");
                                     }),
                       "}"));
      if (in.dynamic_slice_sizes_size() > 0) {
        Add("slice_sizes", absl::StrCat("{",
                                        absl::StrJoin(in.dynamic_slice_sizes(), ",",
                                                      [](std::string* out, int64_t size) {
                                                        absl::StrAppend(out, "{", size, "}");
                                                      }),
                                        "}"));
      }
    } else if (Contains(kCollectives, opcode)) {
      channel();
      absl::StatusOr<std::string> groups = ReplicaGroupsText(in);
      if (!groups.ok()) return groups.status();
      Add("replica_groups", *groups);
      flag("constrain_layout", in.constrain_layout());
      bool gather = absl::StartsWith(opcode, "all-gather");
      if (!gather) flag("use_global_device_ids", in.use_global_device_ids());
      if (Contains(kDimensions, opcode) && (in.dimensions_size() > 0 || opcode != "all-to-all")) {
        Add("dimensions", Braced(in.dimensions()));
      }
      if (gather) flag("use_global_device_ids", in.use_global_device_ids());
      if (absl::StartsWith(opcode, "collective-broadcast"))
        boolean("has_dynamic_root", in.has_dynamic_root());
    } else if (opcode == "reshape") {
      if (in.dimensions_size() > 0) Add("inferred_dimension", in.dimensions(0));
    } else if (opcode == "fusion") {
      Add("kind", in.fusion_kind());
      if (in.output_operand_aliasing_size() > 0) {
        Add("output_to_operand_aliasing", AliasingText(in.output_operand_aliasing()));
      }
    } else if (opcode == "rng") {
      Add("distribution", absl::AsciiStrToLower(xla::RandomDistribution_Name(in.distribution())));
    } else if (opcode == "rng-bit-generator") {
      Add("algorithm", absl::AsciiStrToLower(xla::RandomAlgorithm_Name(in.rng_algorithm())));
    } else if (opcode == "rng-get-and-update-state") {
      Add("delta", in.delta());
    } else if (opcode == "parameter") {
      if (in.parameter_replication().replicated_at_leaf_buffers_size() > 0) {
        Add("parameter_replication",
            absl::StrCat(
                "{",
                absl::StrJoin(in.parameter_replication().replicated_at_leaf_buffers(), ",",
                              [](std::string* out, bool value) { out->append(value ? "true" : "false"); }),
                "}"));
      }
    } else if (opcode == "get-tuple-element") {
      Add("index", in.tuple_index());
    } else if (opcode == "reduce-precision") {
      Add("exponent_bits", in.exponent_bits());
      Add("mantissa_bits", in.mantissa_bits());
    } else if (opcode == "infeed") {
      if (!in.infeed_config().empty()) Add("infeed_config", Quoted(in.infeed_config()));
    } else if (opcode == "outfeed") {
      Add("outfeed_shape", ShapeText(in.outfeed_shape(), true));
      if (!in.outfeed_config().empty()) Add("outfeed_config", Quoted(in.outfeed_config()));
    } else if (opcode == "convolution") {
      if (absl::Status status = convolution(); !status.ok()) return status;
      precision();
    } else if (opcode == "reduce-window" || opcode == "select-and-scatter") {
      if (std::string window = WindowText(in.window()); !window.empty()) {
        Add("window", absl::StrCat("{", window, "}"));
      }
    } else if (opcode == "custom-call") {
      if (absl::Status status = convolution(); !status.ok()) return status;
      precision();
      if (in.padding_type() == xla::PADDING_VALID || in.padding_type() == xla::PADDING_SAME) {
        Add("padding_type", xla::PaddingType_Name(in.padding_type()));
      }
      Add("custom_call_target", Quoted(in.custom_call_target()));
      if (in.constrain_layout()) {
        std::vector<std::string> shapes;
        for (const ShapeProto& shape : in.operand_shapes_with_layout())
          shapes.push_back(ShapeText(shape, true));
        Add("operand_layout_constraints", absl::StrCat("{", absl::StrJoin(shapes, ", "), "}"));
      }
      flag("custom_call_has_side_effect", in.custom_call_has_side_effect());
      if (in.has_literal()) Add("literal", "{...}");
      if (in.output_operand_aliasing_size() > 0) {
        Add("output_to_operand_aliasing", AliasingText(in.output_operand_aliasing()));
      }
      if (in.custom_call_schedule() != xla::SCHEDULE_NONE) {
        Add("schedule", xla::CustomCallSchedule_Name(in.custom_call_schedule()));
      }
      if (in.custom_call_api_version() != xla::API_VERSION_UNSPECIFIED &&
          in.custom_call_api_version() != xla::API_VERSION_ORIGINAL) {
        Add("api_version", xla::CustomCallApiVersion_Name(in.custom_call_api_version()));
      }
    } else if (opcode == "pad") {
      bool interior =
          std::any_of(in.padding_config().dimensions().begin(), in.padding_config().dimensions().end(),
                      [](const auto& d) { return d.interior_padding() != 0; });
      Add("padding",
          absl::StrJoin(
              in.padding_config().dimensions(), "x",
              [interior](std::string* out, const xla::PaddingConfig::PaddingConfigDimension& dimension) {
                absl::StrAppend(out, dimension.edge_padding_low(), "_", dimension.edge_padding_high());
                if (interior) absl::StrAppend(out, "_", dimension.interior_padding());
              }));
    } else if (opcode == "slice") {
      bool strided = std::any_of(in.slice_dimensions().begin(), in.slice_dimensions().end(),
                                 [](const auto& d) { return d.stride() != 1; });
      Add("slice", absl::StrCat("{",
                                absl::StrJoin(in.slice_dimensions(), ", ",
                                              [strided](std::string* out, const auto& dimension) {
                                                absl::StrAppend(out, "[", dimension.start(), ":",
                                                                dimension.limit());
                                                if (strided) absl::StrAppend(out, ":", dimension.stride());
                                                absl::StrAppend(out, "]");
                                              }),
                                "}"));
    } else if (opcode == "dynamic-slice") {
      Add("dynamic_slice_sizes", Braced(in.dynamic_slice_sizes()));
    } else if (opcode == "gather") {
      const xla::GatherDimensionNumbers& numbers = in.gather_dimension_numbers();
      Add("offset_dims", Braced(numbers.offset_dims()));
      Add("collapsed_slice_dims", Braced(numbers.collapsed_slice_dims()));
      Add("start_index_map", Braced(numbers.start_index_map()));
      if (numbers.operand_batching_dims_size() > 0) {
        Add("operand_batching_dims", Braced(numbers.operand_batching_dims()));
      }
      if (numbers.start_indices_batching_dims_size() > 0) {
        Add("start_indices_batching_dims", Braced(numbers.start_indices_batching_dims()));
      }
      Add("index_vector_dim", numbers.index_vector_dim());
      Add("slice_sizes", Braced(in.gather_slice_sizes()));
      flag("indices_are_sorted", in.indices_are_sorted());
    } else if (opcode == "scatter") {
      const xla::ScatterDimensionNumbers& numbers = in.scatter_dimension_numbers();
      Add("update_window_dims", Braced(numbers.update_window_dims()));
      Add("inserted_window_dims", Braced(numbers.inserted_window_dims()));
      Add("scatter_dims_to_operand_dims", Braced(numbers.scatter_dims_to_operand_dims()));
      if (numbers.input_batching_dims_size() > 0)
        Add("input_batching_dims", Braced(numbers.input_batching_dims()));
      if (numbers.scatter_indices_batching_dims_size() > 0) {
        Add("scatter_indices_batching_dims", Braced(numbers.scatter_indices_batching_dims()));
      }
      Add("index_vector_dim", numbers.index_vector_dim());
      flag("indices_are_sorted", in.indices_are_sorted());
      flag("unique_indices", in.unique_indices());
    } else if (opcode == "iota") {
      Add("iota_dimension", in.dimensions_size() > 0 ? in.dimensions(0) : 0);
    } else if (opcode == "dot") {
      dot(in.dot_dimension_numbers());
      precision();
    } else if (opcode == "ragged-dot") {
      const xla::RaggedDotDimensionNumbers& numbers = in.ragged_dot_dimension_numbers();
      dot(numbers.dot_dimension_numbers());
      Add("lhs_ragged_dims", Braced(numbers.lhs_ragged_dimensions()));
      if (numbers.rhs_group_dimensions_size() > 0)
        Add("rhs_group_dims", Braced(numbers.rhs_group_dimensions()));
      precision();
    } else if (opcode == "domain") {
      // jaxlib writes the two the other way round than it prints them.
      absl::StatusOr<std::string> entry = ShardingText(in.domain_exit_sharding());
      if (!entry.ok()) return entry.status();
      absl::StatusOr<std::string> exit = ShardingText(in.domain_entry_sharding());
      if (!exit.ok()) return exit.status();
      Add("domain", absl::StrCat("{kind=\"sharding\", entry=", *entry, ", exit=", *exit, "}"));
    } else if (opcode == "topk") {
      Add("k", in.k());
      boolean("largest", in.largest());
      boolean("is_stable", in.is_stable());
    } else if (opcode == "scan") {
      Add("dimensions", Braced(in.dimensions()));
      Add("num_carries", in.num_carries());
      flag("is_reverse", in.is_reverse());
      boolean("is_associative", in.is_associative() == xla::TRI_STATE_TRUE);
    } else if (Contains(kDimensions, opcode)) {
      Add("dimensions", Braced(in.dimensions()));
      if (opcode == "sort") flag("is_stable", in.is_stable());
    } else {
      if (in.dimensions_size() > 0) Add("dimensions", Braced(in.dimensions()));
      ResultAccuracy(in);
    }
    return absl::OkStatus();
  }

  // The kind of comparison shows only where it is not that of the operands' type.
  void Comparison(const HloInstructionProto& in, const InstructionMap& instructions) {
    Add("direction", in.comparison_direction());
    bool on_float = false;
    if (in.operand_ids_size() > 0) {
      auto operand = instructions.find(in.operand_ids(0));
      if (operand != instructions.end()) on_float = IsFloat(operand->second->shape().element_type());
    }
    if (on_float && (in.comparison_order() == "TOTAL" || in.comparison_type() == "TOTALORDER"))
      Add("order", "TOTAL");
  }

  void ResultAccuracy(const HloInstructionProto& in) {
    const xla::ResultAccuracy& accuracy = in.result_accuracy();
    if (accuracy.has_tolerance()) {
      const xla::ResultAccuracy::Tolerance& tolerance = accuracy.tolerance();
      Add("result_accuracy", absl::StrCat("{tolerance={atol=", tolerance.atol(), ",rtol=", tolerance.rtol(),
                                          ",ulps=", tolerance.ulps(), "}}"));
    } else if (accuracy.specs_case() == xla::ResultAccuracy::kMode &&
               accuracy.mode() != xla::ResultAccuracy::DEFAULT) {
      Add("result_accuracy",
          absl::StrCat("{mode=", absl::AsciiStrToLower(xla::ResultAccuracy::Mode_Name(accuracy.mode())),
                       "}"));
    }
  }

  static std::string OriginElement(const xla::OriginalValueElementProto& element) {
    if (!element.has_original_array()) return "{}";
    const xla::OriginalArrayProto& array = element.original_array();
    return absl::StrCat("{\"", array.instruction_name(), "\"",
                        array.shape_index_size() > 0 ? absl::StrCat(" ", Braced(array.shape_index())) : "",
                        "}");
  }

  // The leaves in the nesting of the instruction's shape, each consumed from `elements` in order.
  static std::string OriginTree(
      const ShapeProto& shape,
      const google::protobuf::RepeatedPtrField<xla::OriginalValueElementProto>& elements, int* next) {
    if (shape.element_type() == xla::TUPLE) {
      std::vector<std::string> parts;
      for (const ShapeProto& part : shape.tuple_shapes()) parts.push_back(OriginTree(part, elements, next));
      return absl::StrCat("(", absl::StrJoin(parts, ", "), ")");
    }
    return *next < elements.size() ? OriginElement(elements[(*next)++]) : "{}";
  }

  static std::string OriginText(const HloInstructionProto& in) {
    const xla::OriginalValueProto& origin = in.original_value();
    int next = 0;
    std::string text = origin.elements().empty() ? "()" : OriginTree(in.shape(), origin.elements(), &next);
    if (origin.has_call_hierarchy()) absl::StrAppend(&text, ",[\"", origin.call_hierarchy(), "\"]");
    return absl::StrCat("{", text, "}");
  }

  const HloModuleProto& module_;
  const HloModuleConfigProto* config_;
  absl::flat_hash_map<int64_t, const HloComputationProto*> computations_;
  absl::flat_hash_set<int64_t> hidden_;  // Computations that are printed as one async instruction.
  absl::flat_hash_map<int64_t, const HloInstructionProto*>
      async_starts_;                     // By id, of the computation at hand.
  std::vector<std::string> attributes_;  // Of the instruction at hand.
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> HloText(absl::string_view format, absl::string_view bytes) {
  HELMWAY_ASSIGN_OR_RETURN(const xla::HloModuleProtoWithConfig program, ParseOptimizedModule(format, bytes));
  return ModulePrinter(program.hlo_module(), program.has_config() ? &program.config() : nullptr).Print();
}

}  // namespace helmway::program
