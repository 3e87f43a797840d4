#ifndef HELMWAY_PJRT_THREAD_SANITIZER_H_
#define HELMWAY_PJRT_THREAD_SANITIZER_H_

#include "pjrt_c_api.h"

namespace helmway::pjrt {

// The interface through which a plugin is called. In a build with ThreadSanitizer its functions say that what
// is done inside them is the plugin's (base::ForeignCode), then call the plugin's own; in others it is `api`
// itself. `api` has at least PJRT_Api_STRUCT_SIZE bytes. Any thread.
#ifdef HELMWAY_THREAD_SANITIZER
const PJRT_Api* InterfaceOf(const PJRT_Api* api);
#else
inline const PJRT_Api* InterfaceOf(const PJRT_Api* api) { return api; }
#endif

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_THREAD_SANITIZER_H_
