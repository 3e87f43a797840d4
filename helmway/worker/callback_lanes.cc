#include "helmway/worker/callback_lanes.h"

#include <utility>

namespace helmway::worker {
namespace {

// Streams of a session that run at one time. More than a program has threads that call JAX, as a rule; the
// plugin has a limit of its own for each device, XLA's on CPU of 32.
constexpr int kMaxRunning = 64;

}  // namespace

CallbackLanes::CallbackLanes(std::shared_ptr<cluster::CallbackSink> sink, async::GrowingPool* threads)
    : sink_(std::move(sink)), threads_(threads) {}

void CallbackLanes::Push(int64_t stream, LaunchRef launch) {
  base::MutexLock lock(&mu_);
  const auto [lane, fresh] = lanes_.try_emplace(stream);
  lane->second.push_back(std::move(launch));
  if (!fresh) return;
  if (running_ < kMaxRunning) {
    StartLocked(stream);
  } else {
    waiting_.push_back(stream);
  }
}

void CallbackLanes::PushInOrder(CallbackClient& client, LaunchRef launch) {
  client.RunInOrder([sink = sink_, threads = threads_,
                     launch = std::move(launch)] { launch->RunCallingBack(sink.get(), threads); },
                    threads_);
}

void CallbackLanes::StartLocked(int64_t stream) {
  ++running_;
  threads_->Run([self = shared_from_this(), stream] { self->Drain(stream); });
}

void CallbackLanes::Drain(int64_t stream) {
  while (true) {
    LaunchRef launch;
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
      launch = std::move(lane->second.front());
      lane->second.pop_front();
    }
    launch->RunCallingBack(sink_.get(), threads_);
  }
}

}  // namespace helmway::worker
