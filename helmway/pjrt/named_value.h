#ifndef HELMWAY_PJRT_NAMED_VALUE_H_
#define HELMWAY_PJRT_NAMED_VALUE_H_

#include <cstddef>

#include "helmway/pjrt/attribute.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {

// Copies what the plugin gave. Values of a type that the interface does not name are left out.
AttributeMap ToAttributeMap(const PJRT_NamedValue* values, size_t count);

// Refers to `name` and `value`, which must outlive the result.
PJRT_NamedValue ToNamedValue(const std::string& name, const AttributeValue& value);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_NAMED_VALUE_H_
