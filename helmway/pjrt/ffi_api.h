#ifndef HELMWAY_PJRT_FFI_API_H_
#define HELMWAY_PJRT_FFI_API_H_

// The custom call interface of a plugin. Inside this folder only.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/pjrt/plugin.h"

struct XLA_FFI_Api;
struct XLA_FFI_Error;

namespace helmway::pjrt {

// Valid for the rest of the process. UNIMPLEMENTED without the FFI extension. Any thread.
absl::StatusOr<const XLA_FFI_Api*> FfiApiOf(const Plugin& plugin);

// The number under which RunContext's data travels; the same for all plugins that share `api`. Any thread.
absl::StatusOr<int64_t> RunDataTypeId(const XLA_FFI_Api* api);

// To and from the interface's own errors. TakeFfiError frees `error`, which may be null (OK).
XLA_FFI_Error* MakeFfiError(const XLA_FFI_Api* api, const absl::Status& status);
absl::Status TakeFfiError(const XLA_FFI_Api* api, XLA_FFI_Error* error);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_FFI_API_H_
