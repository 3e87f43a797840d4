#include "helmway/worker/device_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace helmway::worker {

DeviceQueue::DeviceQueue(const pjrt::Device* device) : device_(device), thread_([this] { Run(); }) {}

DeviceQueue::~DeviceQueue() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
    pushed_.Signal();
  }
  thread_.join();
  WaitUntilIdle();
}

void DeviceQueue::Push(LaunchRef launch, size_t part) {
  base::MutexLock lock(&mu_);
  items_.push_back({std::move(launch), part});
  pushed_.Signal();
}

void DeviceQueue::PushQuietly(LaunchRef launch, size_t part) {
  base::MutexLock lock(&mu_);
  items_.push_back({std::move(launch), part});
}

void DeviceQueue::Wake() {
  base::MutexLock lock(&mu_);
  pushed_.Signal();
}

void DeviceQueue::RunOrWake() {
  mu_.Lock();
  while (!items_.empty()) {
    const Item& next = items_.front();
    if (running_ || in_flight_ >= kMaxLaunchesInFlight || !next.launch->program().may_start_at_once ||
        !next.launch->InputsAreHere(next.part, this)) {
      pushed_.Signal();
      break;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    running_ = true;
    mu_.Unlock();
    item.launch->RunPart(item.part, this);
    item.launch.reset();
    mu_.Lock();
    running_ = false;
    // The queue's thread may have been woken meanwhile, for the end or for a launch of another session.
    if (stopping_) pushed_.Signal();
  }
  mu_.Unlock();
}

void DeviceQueue::WaitForRoom() {
  base::MutexLock lock(&mu_);
  while (in_flight_ >= kMaxLaunchesInFlight) finished_.Wait(&mu_);
}

void DeviceQueue::WaitUntilIdle() {
  base::MutexLock lock(&mu_);
  while (in_flight_ > 0) finished_.Wait(&mu_);
}

void DeviceQueue::WaitForTurnOf(absl::Span<const async::CompletionRef> pending) {
  base::MutexLock lock(&mu_);
  const auto is_last = [last = last_.get()](const async::CompletionRef& event) {
    return event.get() == last;
  };
  if (last_ && std::any_of(pending.begin(), pending.end(), is_last)) return;
  while (in_flight_ > 0) finished_.Wait(&mu_);
}

void DeviceQueue::LaunchStarted(async::CompletionRef done) {
  base::MutexLock lock(&mu_);
  ++in_flight_;
  last_ = std::move(done);
}

void DeviceQueue::LaunchFinished() {
  base::MutexLock lock(&mu_);
  --in_flight_;
  finished_.Signal();
}

void DeviceQueue::Run() {
  pthread_setname_np(pthread_self(), absl::StrCat("device-", device_->id()).substr(0, 15).c_str());
  while (true) {
    Item item;
    {
      base::MutexLock lock(&mu_);
      while (running_ || (items_.empty() && !stopping_)) pushed_.Wait(&mu_);
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
      running_ = true;
    }
    item.launch->RunPart(item.part, this);
    base::MutexLock lock(&mu_);
    running_ = false;
  }
}

void Sequencer::Enqueue(const LaunchRef& launch) {
  GivenUp given_up;
  base::MutexLock lock(&mu_);
  Push(launch, &given_up);
}

uint64_t Sequencer::Announce(LaunchRef launch) {
  base::MutexLock lock(&mu_);
  waiting_.push_back({std::move(launch)});
  return first_ + waiting_.size() - 1;
}

bool Sequencer::EnqueueUnlessSomeWait(const LaunchRef& launch) {
  GivenUp given_up;
  base::MutexLock lock(&mu_);
  if (!waiting_.empty()) return false;
  Push(launch, &given_up);
  return true;
}

void Sequencer::SetReady(uint64_t announced) {
  GivenUp given_up;
  base::MutexLock lock(&mu_);
  waiting_[announced - first_].ready = true;
  while (!waiting_.empty() && waiting_.front().ready) {
    Push(waiting_.front().launch, &given_up);
    waiting_.pop_front();
    ++first_;
  }
}

async::CompletionRef Sequencer::AddEntering() {
  base::MutexLock lock(&mu_);
  entering_.push_back(base::MakeRef<async::Completion>());
  return entering_.back();
}

void Sequencer::AppendEntering(std::vector<async::CompletionRef>* entering) {
  base::MutexLock lock(&mu_);
  const auto is_done = [](const async::CompletionRef& event) { return event->done(); };
  entering_.erase(std::remove_if(entering_.begin(), entering_.end(), is_done), entering_.end());
  entering->insert(entering->end(), entering_.begin(), entering_.end());
}

void Sequencer::Push(const LaunchRef& launch, GivenUp* given_up) {
  // Both before the launch may begin, which gives them up when it ends.
  const size_t first = given_up->slots.size();
  for (LaunchPart& part : launch->parts()) {
    for (const SlotRef& slot : part.results) {
      if (slot->late.load(std::memory_order_relaxed)) given_up->slots.push_back(slot);
    }
    for (ReadHold& hold : part.holds) given_up->holds.push_back(std::move(hold));
    part.holds.clear();
  }
  const std::vector<DeviceQueue*>& queues = launch->program().queues;
  for (size_t i = 0; i < queues.size(); ++i) queues[i]->Push(launch, i);
  // What comes after this has its place behind it in the queues.
  for (size_t i = first; i < given_up->slots.size(); ++i) {
    given_up->slots[i]->late.store(false, std::memory_order_release);
  }
}

}  // namespace helmway::worker
