#ifndef HELMWAY_ASYNC_GROWING_POOL_H_
#define HELMWAY_ASYNC_GROWING_POOL_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "helmway/base/mutex.h"

namespace helmway::async {

// As many threads as there are tasks that run: for tasks that wait for each other or for the world outside,
// so that none stands in another's way. Any thread may call.
class GrowingPool {
 public:
  struct Options {
    std::string name;           // shown by debuggers; 15 characters at most are kept
    size_t max_threads = 1024;  // beyond it, or if the system gives no more, tasks wait for one that ends
    size_t max_idle = 16;       // threads without a task that are kept
  };
  explicit GrowingPool(Options options);
  // Waits for all tasks. Must not be called from one of them.
  ~GrowingPool();

  // Runs `task`. What waits is not bounded here: callers bound what they have under way.
  void Run(absl::AnyInvocable<void()> task);

  // Threads that exist now.
  size_t threads() const;

 private:
  static void* Main(void* self);
  void Serve();

  const Options options_;
  mutable base::Mutex mu_;
  base::CondVar posted_;
  std::deque<absl::AnyInvocable<void()>> queue_ ABSL_GUARDED_BY(mu_);
  size_t threads_ ABSL_GUARDED_BY(mu_) = 0;
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_GROWING_POOL_H_
