#include "helmway/async/event_loop.h"

#include <pthread.h>

#include <utility>

#include "helmway/base/clock.h"

namespace helmway::async {

EventLoop::EventLoop(std::string name, absl::AnyInvocable<void()> on_deadline)
    : name_(std::move(name)), on_deadline_(std::move(on_deadline)), thread_([this] { Run(); }) {}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Stop() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  base::MutexLock lock(&mu_);
  tasks_.clear();
}

void EventLoop::Post(absl::AnyInvocable<void()> task) {
  base::MutexLock lock(&mu_);
  if (!stopping_) tasks_.push_back(std::move(task));
}

void EventLoop::SetDeadline(absl::Time deadline) {
  base::MutexLock lock(&mu_);
  // A wait under way must see a deadline that comes earlier.
  rearmed_ = rearmed_ || deadline < deadline_;
  deadline_ = deadline;
}

void EventLoop::Run() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  auto wanted = [this]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || rearmed_ || !tasks_.empty(); };
  while (true) {
    absl::AnyInvocable<void()> task;
    bool due = false;
    {
      base::MutexLock lock(&mu_);
      if (deadline_ == absl::InfiniteFuture()) {
        mu_.Await(absl::Condition(&wanted));
      } else {
        mu_.AwaitWithTimeout(absl::Condition(&wanted), deadline_ - base::SteadyNow());
      }
      if (stopping_) return;
      rearmed_ = false;
      if (deadline_ <= base::SteadyNow()) {
        due = true;
        deadline_ = absl::InfiniteFuture();
      } else if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (due) {
      on_deadline_();
    } else if (task) {
      task();
    }
  }
}

}  // namespace helmway::async
