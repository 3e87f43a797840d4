#ifndef HELMWAY_PJRT_THREAD_SANITIZER_H_
#define HELMWAY_PJRT_THREAD_SANITIZER_H_

#include "helmway/base/thread_sanitizer.h"
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

// Calls a function of the plugin that is not in that interface, but in an extension's.
template <typename Result, typename Args>
Result CallPlugin(Result (*function)(Args*), Args* args) {
  base::ForeignCode foreign;
  return function(args);
}

// For HappensBefore at the end of a custom call, and HappensAfter where its results may be seen: in later
// calls and once an event is ready. The plugin lets nothing see them before. Which call it was is not known
// there, so this orders more than the plugin does.
inline constexpr char results_of_custom_calls = 0;

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_THREAD_SANITIZER_H_
