#ifndef HELMWAY_BASE_THREAD_SANITIZER_H_
#define HELMWAY_BASE_THREAD_SANITIZER_H_

#include <utility>

#ifdef HELMWAY_THREAD_SANITIZER
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

// What is a library's own business, in builds with ThreadSanitizer: libraries that it does not see into
// (gRPC, a PJRT plugin, Python) make orders that it cannot know. All of it does and costs nothing in other
// builds. Any thread. See happens_before.h for what they order in our code.
namespace helmway::base {

namespace thread_sanitizer_internal {
#ifdef HELMWAY_THREAD_SANITIZER
// How many ForeignCode are around what this thread does, from the last OwnCode on.
inline thread_local int foreign_depth = 0;
inline void Ignore() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }  // writes too
inline void Watch() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#endif
}  // namespace thread_sanitizer_internal

// While it lives, this thread is inside such a library: what it reads and writes is the library's, ordered by
// locks that are invisible, and not looked at.
class ForeignCode {
 public:
  ForeignCode() {
#ifdef HELMWAY_THREAD_SANITIZER
    if (thread_sanitizer_internal::foreign_depth++ == 0) thread_sanitizer_internal::Ignore();
#endif
  }
  ~ForeignCode() {
#ifdef HELMWAY_THREAD_SANITIZER
    if (--thread_sanitizer_internal::foreign_depth == 0) thread_sanitizer_internal::Watch();
#endif
  }
  ForeignCode(const ForeignCode&) = delete;
  ForeignCode& operator=(const ForeignCode&) = delete;
};

// While it lives, such a library has called back into our code, which is looked at again.
class OwnCode {
 public:
  OwnCode() {
#ifdef HELMWAY_THREAD_SANITIZER
    foreign_depth_ = std::exchange(thread_sanitizer_internal::foreign_depth, 0);
    if (foreign_depth_ > 0) thread_sanitizer_internal::Watch();
#endif
  }
  ~OwnCode() {
#ifdef HELMWAY_THREAD_SANITIZER
    thread_sanitizer_internal::foreign_depth = foreign_depth_;
    if (foreign_depth_ > 0) thread_sanitizer_internal::Ignore();
#endif
  }
  OwnCode(const OwnCode&) = delete;
  OwnCode& operator=(const OwnCode&) = delete;

#ifdef HELMWAY_THREAD_SANITIZER
 private:
  int foreign_depth_;
#endif
};

}  // namespace helmway::base

#endif  // HELMWAY_BASE_THREAD_SANITIZER_H_
