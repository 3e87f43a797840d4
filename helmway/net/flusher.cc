#include "helmway/net/flusher.h"

#include <pthread.h>

#include <utility>

namespace helmway::net {

Flusher::Flusher(absl::Duration patience) : patience_(patience), thread_([this] { Run(); }) {}

Flusher::~Flusher() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Flusher::Add(std::shared_ptr<Sender> sender) {
  base::MutexLock lock(&mu_);
  due_.push_back(std::move(sender));
}

void Flusher::Run() {
  pthread_setname_np(pthread_self(), "flusher");
  auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !due_.empty(); };
  auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    std::vector<std::shared_ptr<Sender>> due;
    {
      base::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (mu_.AwaitWithTimeout(absl::Condition(&stop), patience_)) return;
      due.swap(due_);
    }
    for (const auto& sender : due) sender->Flush();
  }
}

}  // namespace helmway::net
