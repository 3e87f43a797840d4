#ifndef HELMWAY_BASE_LEAK_SANITIZER_H_
#define HELMWAY_BASE_LEAK_SANITIZER_H_

#ifndef HELMWAY_LEAK_SANITIZER
#if defined(__SANITIZE_ADDRESS__)
#define HELMWAY_LEAK_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HELMWAY_LEAK_SANITIZER 1
#endif
#endif
#endif

#ifdef HELMWAY_LEAK_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

namespace helmway::base {

// While it lives, what this thread allocates is no leak for LeakSanitizer: for libraries that keep things
// until the process ends, in memory that it does not search. Does and costs nothing in builds without
// AddressSanitizer.
class KeptByLibrary {
 public:
#ifdef HELMWAY_LEAK_SANITIZER
  KeptByLibrary() { __lsan_disable(); }
  ~KeptByLibrary() { __lsan_enable(); }
#else
  KeptByLibrary() {}
  ~KeptByLibrary() {}
#endif
  KeptByLibrary(const KeptByLibrary&) = delete;
  KeptByLibrary& operator=(const KeptByLibrary&) = delete;
};

}  // namespace helmway::base

#endif  // HELMWAY_BASE_LEAK_SANITIZER_H_
