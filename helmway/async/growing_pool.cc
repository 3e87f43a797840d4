#include "helmway/async/growing_pool.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace helmway::async {

GrowingPool::GrowingPool(Options options) : options_(std::move(options)) {}

GrowingPool::~GrowingPool() {
  auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return threads_ == 0; };
  base::MutexLock lock(&mu_);
  stopping_ = true;
  posted_.SignalAll();
  mu_.Await(absl::Condition(&none));
}

void GrowingPool::Run(absl::AnyInvocable<void()> task) {
  base::MutexLock lock(&mu_);
  queue_.push_back(std::move(task));
  // Each idle thread takes one of the tasks that wait.
  if (queue_.size() <= idle_) {
    posted_.Signal();
    return;
  }
  if (threads_ >= options_.max_threads) return;
  pthread_t thread;
  if (pthread_create(&thread, nullptr, &GrowingPool::Main, this) != 0) {
    if (threads_ > 0) return;
    std::fprintf(stderr, "cannot start a thread for %s\n", options_.name.c_str());
    std::abort();
  }
  ++threads_;
  pthread_setname_np(thread, options_.name.substr(0, 15).c_str());
  pthread_detach(thread);
}

size_t GrowingPool::threads() const {
  base::MutexLock lock(&mu_);
  return threads_;
}

void* GrowingPool::Main(void* self) {
  static_cast<GrowingPool*>(self)->Serve();
  return nullptr;
}

void GrowingPool::Serve() {
  mu_.Lock();
  while (true) {
    while (queue_.empty() && !stopping_ && idle_ < options_.max_idle) {
      ++idle_;
      posted_.Wait(&mu_);
      --idle_;
    }
    if (queue_.empty()) break;
    {
      absl::AnyInvocable<void()> task = std::move(queue_.front());
      queue_.pop_front();
      mu_.Unlock();
      task();
    }
    mu_.Lock();
  }
  --threads_;
  mu_.Unlock();
}

}  // namespace helmway::async
