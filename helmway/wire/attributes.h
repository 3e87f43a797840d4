#ifndef HELMWAY_WIRE_ATTRIBUTES_H_
#define HELMWAY_WIRE_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/wire/ifrt_types.pb.h"

// Setting one attribute of a map (of a device, a client, a cost analysis). A name that is already there gets
// the new value, whatever type it had. Names must be valid UTF-8; string values may be any bytes. Not
// synchronised.
namespace helmway::wire {

inline void SetStringAttribute(xla::ifrt::AttributeMapProto& map, absl::string_view name,
                               absl::string_view value) {
  (*map.mutable_attributes())[std::string(name)].set_string_value(value.data(), value.size());
}

inline void SetBoolAttribute(xla::ifrt::AttributeMapProto& map, absl::string_view name, bool value) {
  (*map.mutable_attributes())[std::string(name)].set_bool_value(value);
}

inline void SetInt64Attribute(xla::ifrt::AttributeMapProto& map, absl::string_view name, int64_t value) {
  (*map.mutable_attributes())[std::string(name)].set_int64_value(value);
}

inline void SetInt64ListAttribute(xla::ifrt::AttributeMapProto& map, absl::string_view name,
                                  absl::Span<const int64_t> value) {
  auto* list = (*map.mutable_attributes())[std::string(name)].mutable_int64_list_value();
  list->mutable_elements()->Assign(value.begin(), value.end());
}

inline void SetFloatAttribute(xla::ifrt::AttributeMapProto& map, absl::string_view name, float value) {
  (*map.mutable_attributes())[std::string(name)].set_float_value(value);
}

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_ATTRIBUTES_H_
