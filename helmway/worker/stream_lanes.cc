#include "helmway/worker/stream_lanes.h"

#include <utility>

namespace helmway::worker {

StreamLanes::StreamLanes(async::GrowingPool* threads, int max_running)
    : threads_(threads), max_running_(max_running) {}

void StreamLanes::Push(int64_t stream, absl::AnyInvocable<void()> task) {
  base::MutexLock lock(&mu_);
  const auto [lane, fresh] = lanes_.try_emplace(stream);
  lane->second.push_back(std::move(task));
  if (!fresh) return;
  if (running_ < max_running_) {
    StartLocked(stream);
  } else {
    waiting_.push_back(stream);
  }
}

void StreamLanes::StartLocked(int64_t stream) {
  ++running_;
  threads_->Run([self = shared_from_this(), stream] { self->Drain(stream); });
}

void StreamLanes::Drain(int64_t stream) {
  while (true) {
    absl::AnyInvocable<void()> task;
    {
      base::MutexLock lock(&mu_);
      const auto lane = lanes_.find(stream);
      if (lane->second.empty()) {
        lanes_.erase(lane);
        --running_;
        if (!waiting_.empty()) {
          const int64_t next = waiting_.front();
          waiting_.pop_front();
          StartLocked(next);
        }
        return;
      }
      task = std::move(lane->second.front());
      lane->second.pop_front();
    }
    task();
  }
}

}  // namespace helmway::worker
