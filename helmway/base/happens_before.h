#ifndef HELMWAY_BASE_HAPPENS_BEFORE_H_
#define HELMWAY_BASE_HAPPENS_BEFORE_H_

#ifdef HELMWAY_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace helmway::base {

// What one thread did before HappensBefore(x) is seen by another after its HappensAfter(x). Needed where the
// thing that really orders them is in a library that ThreadSanitizer does not see into (gRPC, a PJRT plugin).
// These calls order nothing themselves and cost nothing in products. `token` is any address that both know.
inline void HappensBefore([[maybe_unused]] const void* token) {
#ifdef HELMWAY_THREAD_SANITIZER
  __tsan_release(const_cast<void*>(token));
#endif
}

inline void HappensAfter([[maybe_unused]] const void* token) {
#ifdef HELMWAY_THREAD_SANITIZER
  __tsan_acquire(const_cast<void*>(token));
#endif
}

}  // namespace helmway::base

#endif  // HELMWAY_BASE_HAPPENS_BEFORE_H_
