#ifndef HELMWAY_PJRT_ERROR_H_
#define HELMWAY_PJRT_ERROR_H_

#include "absl/status/status.h"

struct PJRT_Api;
struct PJRT_Error;

namespace helmway::pjrt {

// Takes ownership of `error` (may be null: OK) and frees it. The code is kept (a code that abseil lacks
// becomes UNKNOWN) and so is the text.
absl::Status ToStatus(const PJRT_Api* api, PJRT_Error* error);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_ERROR_H_
