#include "helmway/async/thread_pool.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace helmway::async {

ThreadPool::ThreadPool(Options options) : options_(std::move(options)) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (options_.stack_bytes > 0) pthread_attr_setstacksize(&attributes, options_.stack_bytes);
  threads_.resize(static_cast<size_t>(options_.threads));
  for (pthread_t& thread : threads_) {
    if (const int error = pthread_create(&thread, &attributes, &ThreadPool::Main, this); error != 0) {
      std::fprintf(stderr, "cannot start a thread for %s: %s\n", options_.name.c_str(), std::strerror(error));
      std::abort();
    }
    pthread_setname_np(thread, options_.name.substr(0, 15).c_str());
  }
  pthread_attr_destroy(&attributes);
}

void ThreadPool::Stop() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
}

bool ThreadPool::Post(absl::AnyInvocable<void()> task) { return TryPost(task); }

void ThreadPool::PostOrRun(absl::AnyInvocable<void()> task) {
  if (!TryPost(task)) task();
}

bool ThreadPool::TryPost(absl::AnyInvocable<void()>& task) {
  base::MutexLock lock(&mu_);
  if (stopping_ || queue_.size() >= options_.max_queued) return false;
  queue_.push_back(std::move(task));
  return true;
}

void* ThreadPool::Main(void* self) {
  static_cast<ThreadPool*>(self)->Run();
  return nullptr;
}

void ThreadPool::Run() {
  auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); };
  while (true) {
    absl::AnyInvocable<void()> task;
    {
      base::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace helmway::async
