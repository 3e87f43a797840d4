#ifndef HELMWAY_PJRT_LAYOUT_TEXT_H_
#define HELMWAY_PJRT_LAYOUT_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/plugin.h"

namespace helmway::pjrt {

// The plugin's Layouts extension, or UNIMPLEMENTED.
absl::StatusOr<const LayoutsExtension*> RequireLayouts(const Plugin& plugin);

// Text of `layout`, which stays the caller's.
absl::StatusOr<std::string> LayoutToText(const Plugin& plugin, LayoutHandle* layout);

// The same, and destroys `layout`.
absl::StatusOr<std::string> ConsumeLayout(const Plugin& plugin, LayoutHandle* layout);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_LAYOUT_TEXT_H_
