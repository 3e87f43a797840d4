#include "helmway/pjrt/run_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/error.h"
#include "helmway/pjrt/extensions.h"
#include "helmway/pjrt/ffi_api.h"
#include "helmway/pjrt/thread_sanitizer.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {

absl::StatusOr<RunContext> RunContext::Create(const Plugin& plugin, void* data) {
  if (plugin.ffi() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("the PJRT plugin '", plugin.path(), "' has no extension for custom calls"));
  }
  HELMWAY_ASSIGN_OR_RETURN(const XLA_FFI_Api* ffi, FfiApiOf(plugin));
  HELMWAY_ASSIGN_OR_RETURN(const int64_t type_id, RunDataTypeId(ffi));
  const PJRT_Api* api = plugin.api();
  PJRT_ExecuteContext_Create_Args create{.struct_size = PJRT_ExecuteContext_Create_Args_STRUCT_SIZE};
  HELMWAY_RETURN_IF_ERROR(ToStatus(api, api->PJRT_ExecuteContext_Create(&create)));
  RunContext context(api, create.context);
  FfiUserDataAddArgs add{.struct_size = sizeof(FfiUserDataAddArgs),
                         .extension_start = nullptr,
                         .context = create.context,
                         .type_id = type_id,
                         .data = data};
  base::HappensBefore(data);
  HELMWAY_RETURN_IF_ERROR(ToStatus(api, CallPlugin(plugin.ffi()->user_data_add, &add)));
  return context;
}

RunContext::RunContext(RunContext&& other) noexcept
    : api_(other.api_), context_(std::exchange(other.context_, nullptr)) {}

RunContext& RunContext::operator=(RunContext&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(context_, other.context_);
  return *this;
}

RunContext::~RunContext() {
  if (context_ == nullptr) return;
  PJRT_ExecuteContext_Destroy_Args args{.struct_size = PJRT_ExecuteContext_Destroy_Args_STRUCT_SIZE,
                                        .context = context_};
  ToStatus(api_, api_->PJRT_ExecuteContext_Destroy(&args)).IgnoreError();
}

}  // namespace helmway::pjrt
