#include "helmway/pjrt/layout_text.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/thread_sanitizer.h"

namespace helmway::pjrt {

absl::StatusOr<const LayoutsExtension*> RequireLayouts(const Plugin& plugin) {
  if (plugin.layouts() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' lacks the Layouts extension"));
  }
  return plugin.layouts();
}

absl::StatusOr<std::string> LayoutToText(const Plugin& plugin, LayoutHandle* layout) {
  LayoutSerializeArgs args{.struct_size = sizeof(LayoutSerializeArgs), .layout = layout};
  if (absl::Status status = ToStatus(plugin.api(), CallPlugin(plugin.layouts()->serialize, &args));
      !status.ok())
    return status;
  std::string text(args.bytes, args.bytes_size);
  CallPlugin(args.serialized_deleter, args.serialized);
  return text;
}

absl::StatusOr<std::string> ConsumeLayout(const Plugin& plugin, LayoutHandle* layout) {
  absl::StatusOr<std::string> text = LayoutToText(plugin, layout);
  LayoutDestroyArgs args{.struct_size = sizeof(LayoutDestroyArgs), .layout = layout};
  absl::Status destroyed = ToStatus(plugin.api(), CallPlugin(plugin.layouts()->destroy, &args));
  if (text.ok() && !destroyed.ok()) return destroyed;
  return text;
}

}  // namespace helmway::pjrt
