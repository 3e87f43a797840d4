#include "helmway/worker/device_queue.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace helmway::worker {

DeviceQueue::DeviceQueue(const pjrt::Device* device) : device_(device), thread_([this] { Run(); }) {}

DeviceQueue::~DeviceQueue() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    pushed_.Signal();
  }
  thread_.join();
  WaitUntilIdle();
}

void DeviceQueue::Push(LaunchRef launch, size_t part) {
  absl::MutexLock lock(&mu_);
  items_.push_back({std::move(launch), part});
  pushed_.Signal();
}

void DeviceQueue::WaitForRoom() {
  absl::MutexLock lock(&mu_);
  while (in_flight_ >= kMaxLaunchesInFlight) finished_.Wait(&mu_);
}

void DeviceQueue::WaitUntilIdle() {
  absl::MutexLock lock(&mu_);
  while (in_flight_ > 0) finished_.Wait(&mu_);
}

void DeviceQueue::LaunchStarted() {
  absl::MutexLock lock(&mu_);
  ++in_flight_;
}

void DeviceQueue::LaunchFinished() {
  absl::MutexLock lock(&mu_);
  --in_flight_;
  finished_.Signal();
}

void DeviceQueue::Run() {
  pthread_setname_np(pthread_self(), absl::StrCat("device-", device_->id()).substr(0, 15).c_str());
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mu_);
      while (items_.empty() && !stopping_) pushed_.Wait(&mu_);
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    item.launch->RunPart(item.part, this);
  }
}

void Sequencer::Enqueue(const LaunchRef& launch) {
  absl::MutexLock lock(&mu_);
  const std::vector<DeviceQueue*>& queues = launch->program().queues;
  for (size_t i = 0; i < queues.size(); ++i) queues[i]->Push(launch, i);
}

}  // namespace helmway::worker
