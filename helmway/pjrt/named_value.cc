#include "helmway/pjrt/named_value.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "helmway/pjrt/extensions.h"

namespace helmway::pjrt {

AttributeMap ToAttributeMap(const PJRT_NamedValue* values, size_t count) {
  AttributeMap result;
  for (size_t i = 0; i < count; ++i) {
    const PJRT_NamedValue& value = values[i];
    std::string name(value.name, value.name_size);
    switch (EnumNumber(value.type)) {
      case PJRT_NamedValue_kString:
        result[std::move(name)] = std::string(value.string_value, value.value_size);
        break;
      case PJRT_NamedValue_kInt64:
        result[std::move(name)] = value.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        result[std::move(name)] =
            std::vector<int64_t>(value.int64_array_value, value.int64_array_value + value.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        result[std::move(name)] = value.float_value;
        break;
      case PJRT_NamedValue_kBool:
        result[std::move(name)] = value.bool_value;
        break;
    }
  }
  return result;
}

PJRT_NamedValue ToNamedValue(const std::string& name, const AttributeValue& value) {
  PJRT_NamedValue result{.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                         .name = name.data(),
                         .name_size = name.size(),
                         .value_size = 1};
  if (const auto* text = std::get_if<std::string>(&value)) {
    result.type = PJRT_NamedValue_kString;
    result.string_value = text->c_str();
    result.value_size = text->size();
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    result.type = PJRT_NamedValue_kInt64;
    result.int64_value = *integer;
  } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    result.type = PJRT_NamedValue_kInt64List;
    result.int64_array_value = list->data();
    result.value_size = list->size();
  } else if (const auto* number = std::get_if<float>(&value)) {
    result.type = PJRT_NamedValue_kFloat;
    result.float_value = *number;
  } else {
    result.type = PJRT_NamedValue_kBool;
    result.bool_value = std::get<bool>(value);
  }
  return result;
}

}  // namespace helmway::pjrt
