#ifndef HELMWAY_ASYNC_THREAD_POOL_H_
#define HELMWAY_ASYNC_THREAD_POOL_H_

#include <pthread.h>

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "helmway/base/mutex.h"

namespace helmway::async {

// A fixed number of threads that run tasks in the order of Post; with one thread the tasks run one after
// the other. The queue is bounded: a full one refuses, and the caller tells its own caller. Any thread.
class ThreadPool {
 public:
  struct Options {
    std::string name;  // shown by debuggers; 15 characters at most are kept
    int threads = 1;
    size_t max_queued = 1024;  // tasks that wait; running ones do not count
    size_t stack_bytes = 0;    // 0 = the system's default
  };
  explicit ThreadPool(Options options);
  ~ThreadPool() { Stop(); }

  // False, and the task is dropped, if the queue is full or the pool was stopped.
  [[nodiscard]] bool Post(absl::AnyInvocable<void()> task);
  // A task that is refused runs here and now: for what must run, and preferably not inside this call.
  void PostOrRun(absl::AnyInvocable<void()> task);
  // Runs what is queued, then joins. Not from one of its own threads, nor from two at once.
  void Stop();

 private:
  // Takes the task unless it refuses.
  bool TryPost(absl::AnyInvocable<void()>& task);
  static void* Main(void* self);
  void Run();

  const Options options_;
  base::Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<pthread_t> threads_;
};

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_THREAD_POOL_H_
