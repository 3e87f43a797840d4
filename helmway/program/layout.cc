#include "helmway/program/layout.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "helmway/base/status.h"
#include "helmway/wire/serialized.h"

namespace helmway::program {
namespace {

// Bounds what a text or message can make us hold; far above what any platform uses.
constexpr int kMaxRank = 64;

absl::Status Bad(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("Layout: ", text));
}

absl::Status CheckPermutation(absl::Span<const int64_t> order, absl::string_view name) {
  if (order.size() > static_cast<size_t>(kMaxRank)) {
    return Bad(absl::StrCat(order.size(), " dimensions (at most ", kMaxRank, ")"));
  }
  std::vector<bool> seen(order.size(), false);
  for (int64_t dim : order) {
    if (dim < 0 || dim >= static_cast<int64_t>(order.size()) || seen[dim]) {
      return Bad(absl::StrCat(name, " {", absl::StrJoin(order, ","), "} is not a permutation"));
    }
    seen[dim] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckNotNegative(int64_t value, absl::string_view name) {
  if (value < 0) return Bad(absl::StrCat(name, " of ", value));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ParseNumbers(absl::string_view text, bool allow_star) {
  std::vector<int64_t> numbers;
  if (text.empty()) return numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t number;
    if (allow_star && part == "*") {
      number = Layout::kCombinedDimension;
    } else if (!absl::SimpleAtoi(part, &number) || number < 0) {
      return Bad(absl::StrCat("'", part, "' is not a number"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// Takes "(...)" from the front of `text`; gives what is inside.
absl::StatusOr<absl::string_view> TakeBrackets(absl::string_view& text) {
  const size_t end = text.find(')');
  if (text.empty() || text[0] != '(' || end == absl::string_view::npos) return Bad("a bracket is missing");
  const absl::string_view inside = text.substr(1, end - 1);
  text.remove_prefix(end + 1);
  return inside;
}

absl::StatusOr<int64_t> TakeNumber(absl::string_view& text) {
  HELMWAY_ASSIGN_OR_RETURN(absl::string_view inside, TakeBrackets(text));
  int64_t number;
  if (!absl::SimpleAtoi(inside, &number) || number < 0)
    return Bad(absl::StrCat("'", inside, "' is not a number"));
  return number;
}

}  // namespace

Layout Layout::Default(int rank) {
  Layout layout;
  layout.minor_to_major_.reserve(rank);
  for (int i = rank; i-- > 0;) layout.minor_to_major_.push_back(i);
  return layout;
}

absl::StatusOr<Layout> Layout::ParseText(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "{") || !absl::ConsumeSuffix(&rest, "}")) {
    return Bad("its text is not in braces");
  }
  absl::string_view attributes;
  const size_t colon = rest.find(':');
  if (colon != absl::string_view::npos) {
    attributes = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (attributes.empty()) return Bad("nothing follows the colon");
  }
  Layout layout;
  HELMWAY_ASSIGN_OR_RETURN(layout.minor_to_major_, ParseNumbers(rest, /*allow_star=*/false));
  HELMWAY_RETURN_IF_ERROR(CheckPermutation(layout.minor_to_major_, "minor_to_major"));

  std::string seen;
  while (!attributes.empty()) {
    const char attribute = attributes[0];
    attributes.remove_prefix(1);
    if (seen.find(attribute) != std::string::npos) return Bad("an attribute is repeated");
    seen.push_back(attribute);
    switch (attribute) {
      case 'T':
        do {
          HELMWAY_ASSIGN_OR_RETURN(absl::string_view inside, TakeBrackets(attributes));
          HELMWAY_ASSIGN_OR_RETURN(std::vector<int64_t> tile, ParseNumbers(inside, /*allow_star=*/true));
          layout.tiles_.push_back(std::move(tile));
        } while (!attributes.empty() && attributes[0] == '(');
        break;
      case 'L': {
        HELMWAY_ASSIGN_OR_RETURN(layout.tail_padding_alignment_in_elements_, TakeNumber(attributes));
        // 0 and 1 both say "none".
        if (layout.tail_padding_alignment_in_elements_ == 0) layout.tail_padding_alignment_in_elements_ = 1;
        break;
      }
      case 'E': {
        HELMWAY_ASSIGN_OR_RETURN(layout.element_size_in_bits_, TakeNumber(attributes));
        break;
      }
      case 'S': {
        if (!attributes.empty() && attributes[0] == 'C') {
          return absl::UnimplementedError("Layout: split configurations (SC)");
        }
        HELMWAY_ASSIGN_OR_RETURN(layout.memory_space_, TakeNumber(attributes));
        break;
      }
      case 'M': {
        HELMWAY_ASSIGN_OR_RETURN(layout.dynamic_shape_metadata_prefix_bytes_, TakeNumber(attributes));
        break;
      }
      case 'D':
      case '#':
      case '*':
      case 'P':
        return absl::UnimplementedError(
            absl::StrCat("Layout: attribute '", absl::string_view(&attribute, 1),
                         "' (sparse levels, index and pointer types and physical shapes are not supported)"));
      default:
        return Bad("an attribute is not one of T, L, E, S, M");
    }
  }
  return layout;
}

absl::StatusOr<Layout> Layout::FromXlaProto(const xla::LayoutProto& proto) {
  // XLA writes levels for dense arrays too, where they say nothing.
  for (int level : proto.dim_level_types()) {
    if (level != xla::DIM_DENSE) return absl::UnimplementedError("Layout: sparse dimension levels");
  }
  if (proto.index_primitive_type() != xla::PRIMITIVE_TYPE_INVALID ||
      proto.pointer_primitive_type() != xla::PRIMITIVE_TYPE_INVALID) {
    return absl::UnimplementedError("Layout: index and pointer types");
  }
  if (proto.has_physical_shape()) return absl::UnimplementedError("Layout: physical shapes");
  if (proto.split_configs_size() != 0) return absl::UnimplementedError("Layout: split configurations");

  Layout layout;
  layout.minor_to_major_.assign(proto.minor_to_major().begin(), proto.minor_to_major().end());
  HELMWAY_RETURN_IF_ERROR(CheckPermutation(layout.minor_to_major_, "minor_to_major"));
  for (const xla::TileProto& tile : proto.tiles()) {
    for (int64_t dim : tile.dimensions()) {
      if (dim != kCombinedDimension) HELMWAY_RETURN_IF_ERROR(CheckNotNegative(dim, "tile dimension"));
    }
    layout.tiles_.emplace_back(tile.dimensions().begin(), tile.dimensions().end());
  }
  HELMWAY_RETURN_IF_ERROR(CheckNotNegative(proto.tail_padding_alignment_in_elements(), "tail padding"));
  if (proto.tail_padding_alignment_in_elements() != 0) {
    layout.tail_padding_alignment_in_elements_ = proto.tail_padding_alignment_in_elements();
  }
  HELMWAY_RETURN_IF_ERROR(CheckNotNegative(proto.element_size_in_bits(), "element size"));
  layout.element_size_in_bits_ = proto.element_size_in_bits();
  HELMWAY_RETURN_IF_ERROR(CheckNotNegative(proto.memory_space(), "memory space"));
  layout.memory_space_ = proto.memory_space();
  HELMWAY_RETURN_IF_ERROR(CheckNotNegative(proto.dynamic_shape_metadata_prefix_bytes(), "metadata prefix"));
  layout.dynamic_shape_metadata_prefix_bytes_ = proto.dynamic_shape_metadata_prefix_bytes();
  return layout;
}

absl::StatusOr<Layout> Layout::FromIfrtProto(const xla::ifrt::LayoutProto& proto) {
  const xla::ifrt::Serialized& serialized = proto.serialized_layout();
  const auto check_version = [&](int32_t version) -> absl::Status {
    if (version == 0) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat("Layout: format version ", version, " of ",
                                                 serialized.type_name(), " (version 0 is supported)"));
  };
  if (serialized.type_name() == wire::kPjRtLayout) {
    HELMWAY_ASSIGN_OR_RETURN(
        auto payload, wire::ParseSerialized<xla::ifrt::PjRtLayoutProto>(serialized, wire::kPjRtLayout));
    HELMWAY_RETURN_IF_ERROR(check_version(payload.version_number()));
    return FromXlaProto(payload.xla_layout());
  }
  if (serialized.type_name() == wire::kCompactLayout) {
    HELMWAY_ASSIGN_OR_RETURN(
        auto payload, wire::ParseSerialized<xla::ifrt::CompactLayoutProto>(serialized, wire::kCompactLayout));
    HELMWAY_RETURN_IF_ERROR(check_version(payload.version_number()));
    Layout layout;
    layout.minor_to_major_.assign(payload.major_to_minor().rbegin(), payload.major_to_minor().rend());
    HELMWAY_RETURN_IF_ERROR(CheckPermutation(layout.minor_to_major_, "reversed major_to_minor"));
    return layout;
  }
  if (serialized.type_name().empty()) return Bad("it has no type name");
  return absl::UnimplementedError(
      absl::StrCat("Layout: type '", serialized.type_name(), "' is not supported"));
}

bool Layout::IsDescending() const {
  for (size_t i = 0; i < minor_to_major_.size(); ++i) {
    if (minor_to_major_[i] != static_cast<int64_t>(minor_to_major_.size() - 1 - i)) return false;
  }
  return true;
}

bool Layout::PlacesLike(const Layout& other, absl::Span<const int64_t> dims) const {
  if (rank() != other.rank() || static_cast<size_t>(rank()) != dims.size() || tiles_ != other.tiles_)
    return false;
  if (minor_to_major_ == other.minor_to_major_ || std::find(dims.begin(), dims.end(), 0) != dims.end())
    return true;
  if (!tiles_.empty()) return false;
  auto mine = minor_to_major_.begin(), theirs = other.minor_to_major_.begin();
  while (true) {
    while (mine != minor_to_major_.end() && dims[static_cast<size_t>(*mine)] == 1) ++mine;
    while (theirs != other.minor_to_major_.end() && dims[static_cast<size_t>(*theirs)] == 1) ++theirs;
    // They run out together: both are permutations of the same numbers.
    if (mine == minor_to_major_.end()) return true;
    if (*mine++ != *theirs++) return false;
  }
}

bool Layout::IsDefault() const { return *this == Default(rank()); }

std::string Layout::ToText() const {
  std::string attributes;
  if (!tiles_.empty()) attributes.push_back('T');
  for (const std::vector<int64_t>& tile : tiles_) {
    absl::StrAppend(&attributes, "(",
                    absl::StrJoin(tile, ",",
                                  [](std::string* out, int64_t dim) {
                                    if (dim == kCombinedDimension) {
                                      out->push_back('*');
                                    } else {
                                      absl::StrAppend(out, dim);
                                    }
                                  }),
                    ")");
  }
  if (tail_padding_alignment_in_elements_ != 1) {
    absl::StrAppend(&attributes, "L(", tail_padding_alignment_in_elements_, ")");
  }
  if (element_size_in_bits_ != 0) absl::StrAppend(&attributes, "E(", element_size_in_bits_, ")");
  if (memory_space_ != 0) absl::StrAppend(&attributes, "S(", memory_space_, ")");
  if (dynamic_shape_metadata_prefix_bytes_ != 0) {
    absl::StrAppend(&attributes, "M(", dynamic_shape_metadata_prefix_bytes_, ")");
  }
  return absl::StrCat("{", absl::StrJoin(minor_to_major_, ","), attributes.empty() ? "" : ":", attributes,
                      "}");
}

xla::LayoutProto Layout::ToXlaProto() const {
  xla::LayoutProto proto;
  proto.mutable_minor_to_major()->Assign(minor_to_major_.begin(), minor_to_major_.end());
  for (const std::vector<int64_t>& tile : tiles_) {
    proto.add_tiles()->mutable_dimensions()->Assign(tile.begin(), tile.end());
  }
  proto.set_tail_padding_alignment_in_elements(tail_padding_alignment_in_elements_);
  proto.set_element_size_in_bits(element_size_in_bits_);
  proto.set_memory_space(memory_space_);
  proto.set_dynamic_shape_metadata_prefix_bytes(dynamic_shape_metadata_prefix_bytes_);
  return proto;
}

xla::ifrt::LayoutProto Layout::ToIfrtProto() const {
  xla::ifrt::PjRtLayoutProto payload;
  *payload.mutable_xla_layout() = ToXlaProto();
  xla::ifrt::LayoutProto proto;
  *proto.mutable_serialized_layout() = wire::MakeSerialized(payload, wire::kPjRtLayout);
  return proto;
}

bool operator==(const Layout& a, const Layout& b) {
  return a.minor_to_major_ == b.minor_to_major_ && a.tiles_ == b.tiles_ &&
         a.tail_padding_alignment_in_elements_ == b.tail_padding_alignment_in_elements_ &&
         a.element_size_in_bits_ == b.element_size_in_bits_ && a.memory_space_ == b.memory_space_ &&
         a.dynamic_shape_metadata_prefix_bytes_ == b.dynamic_shape_metadata_prefix_bytes_;
}

}  // namespace helmway::program
