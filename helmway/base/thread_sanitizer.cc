// Linked into every program of a build with ThreadSanitizer, and into no other: threads that a library starts
// for itself run its code, so what they do is not looked at until they call back (OwnCode). The linker
// prefers a program's own functions to those of the libraries, also for calls from other libraries.

#include "helmway/base/thread_sanitizer.h"

#include <dlfcn.h>
#include <pthread.h>

#include <memory>
#include <thread>

namespace helmway::base {
namespace {

// Where the program or library that holds an address begins; null if there is none.
const void* ModuleOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

struct Start {
  void* (*routine)(void*);
  void* argument;
};

void* RunForeign(void* start) {
  const Start run = *std::unique_ptr<Start>(static_cast<Start*>(start));
  ForeignCode foreign;
  return run.routine(run.argument);
}

}  // namespace
}  // namespace helmway::base

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                              void* argument) noexcept {
  using helmway::base::ModuleOf;
  using helmway::base::Start;
  static auto* const real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  static const void* const program = ModuleOf(reinterpret_cast<const void*>(&pthread_create));
  // std::thread starts its threads there, ours and others'.
  static const void* const standard =
      ModuleOf(reinterpret_cast<const void*>(&std::thread::hardware_concurrency));
  const void* caller = ModuleOf(__builtin_return_address(0));
  if (caller == program || caller == standard) return real(thread, attributes, routine, argument);
  auto start = std::make_unique<Start>(Start{routine, argument});
  const int error = real(thread, attributes, &helmway::base::RunForeign, start.get());
  if (error == 0) start.release();
  return error;
}
