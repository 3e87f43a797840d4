#ifndef HELMWAY_PJRT_FFI_H_
#define HELMWAY_PJRT_FFI_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/pjrt/plugin.h"

struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace helmway::pjrt {

// The C function of a typed custom call (XLA_FFI_Handler in third_party/xla_ffi_c_api.h).
using FfiHandler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

// Makes `handler`, which stays valid for the rest of the process, the implementation of the custom call
// `target` on `platform` as XLA names it ("Host", "CUDA", "ROCM"), for all clients of the plugin. Programs
// look it up when they are compiled or loaded. Any thread.
//
// A handler may be built for a younger minor version of the custom call interface than the plugin's: those
// only add functions at the end of tables that carry their size, which handlers look at (tried with 0.5 on
// 0.4). The plugin would refuse it, so it is then registered behind a function that gives the plugin's own
// version.
//
// UNIMPLEMENTED: the plugin has no registry. FAILED_PRECONDITION: the handler was built for another major
// version, or for one younger than any known. RESOURCE_EXHAUSTED: too many such handlers. A second handler
// for a target is not used and no error, as in JAX.
absl::Status RegisterFfiHandler(const Plugin& plugin, absl::string_view target, absl::string_view platform,
                                FfiHandler* handler);

// The version of the custom call interface that a handler was built for, by its own account.
absl::StatusOr<ApiVersion> FfiHandlerVersion(const Plugin& plugin, FfiHandler* handler);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_FFI_H_
