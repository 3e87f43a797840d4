#ifndef HELMWAY_PJRT_ATTRIBUTE_H_
#define HELMWAY_PJRT_ATTRIBUTE_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace helmway::pjrt {

// A named value as the plugin gives and takes it: plugin and device attributes, client options, cost
// properties.
using AttributeValue = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using AttributeMap = std::map<std::string, AttributeValue>;

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_ATTRIBUTE_H_
