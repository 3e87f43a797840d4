#include "helmway/pjrt/hlo_transform.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {
namespace {

struct Registered {
  TransformCallbacks callbacks;  // first, so that the plugin's pointer to it leads here
  HloTransform* transform;
};

void Call(TransformCallbacks* callbacks, TransformArgs* args) {
  base::OwnCode own;
  base::HappensAfter(callbacks);
  HloTransform* const transform = reinterpret_cast<Registered*>(callbacks)->transform;
  absl::StatusOr<std::optional<std::string>> result =
      transform(absl::string_view(args->module.data, args->module.size));
  args->has_error = !result.ok();
  args->changed = result.ok() && result->has_value();
  if (!args->has_error && !args->changed) return;
  auto text = std::make_unique<std::string>(args->has_error ? std::string(result.status().message())
                                                            : std::move(**result));
  (args->has_error ? args->error : args->new_module) = {text->data(), text->size()};
  if (args->has_error) args->code = static_cast<PJRT_Error_Code>(result.status().code());
  args->cleanup = [](void* data) { delete static_cast<std::string*>(data); };
  args->data = text.release();
}

}  // namespace

absl::Status RegisterHloTransform(const Plugin& plugin, absl::string_view name, HloTransform* transform) {
  if (plugin.xla_transform() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' does not let programs be rewritten"));
  }
  static base::Mutex& mu = *new base::Mutex;
  static auto& known = *new std::set<std::pair<const PJRT_Api*, HloTransform*>>;
  base::MutexLock lock(&mu);
  if (known.contains({plugin.api(), transform})) return absl::OkStatus();
  // Stays, as the plugin does.
  auto* registered = new Registered{{kXlaTransformVersion, nullptr, &Call}, transform};
  RegisterTransformArgs args{.struct_size = sizeof(RegisterTransformArgs),
                             .name = name.data(),
                             .name_size = name.size(),
                             .stage = kBeforeScheduling,
                             .callbacks = &registered->callbacks};
  base::HappensBefore(&registered->callbacks);
  HELMWAY_RETURN_IF_ERROR(
      ToStatus(plugin.api(), CallPlugin(plugin.xla_transform()->register_transform, &args)));
  known.insert({plugin.api(), transform});
  return absl::OkStatus();
}

}  // namespace helmway::pjrt
