#include "helmway/net/completion_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "absl/time/time.h"
#include "helmway/cluster/completion_tag.h"

namespace helmway::net {
namespace {

// What waits for an idle moment waits for no more calls than this: others wait for it.
constexpr int kMaxCallsBeforeIdle = 32;

// So long the thread may be busy with one call before another stands in. Much less than after what peers are
// taken for lost.
constexpr absl::Duration kLongCall = absl::Milliseconds(500);
constexpr std::chrono::milliseconds kStandInStep(50);

class Busy {
 public:
  explicit Busy(std::atomic<uint64_t>* turn) : turn_(turn) { Next(); }
  ~Busy() { Next(); }

 private:
  // One thread alone writes it.
  void Next() { turn_->store(turn_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  std::atomic<uint64_t>* const turn_;
};

}  // namespace

CompletionThread::CompletionThread(uint16_t message_port)
    : sockets_(message_port),
      builder_(std::make_unique<grpc::ServerBuilder>()),
      queue_(builder_->AddCompletionQueue()),
      thread_([this] { Run(); }),
      stand_in_([this] { StandIn(); }) {}

CompletionThread::~CompletionThread() {
  queue_->Shutdown();
  thread_.join();
  {
    base::MutexLock lock(&mu_);
    ends_ = true;
  }
  stand_in_.join();
}

bool CompletionThread::WhenIdle(absl::AnyInvocable<void()> task) {
  if (std::this_thread::get_id() != thread_.get_id()) return sockets_.WhenIdle(task);
  idle_tasks_.push_back(std::move(task));
  return true;
}

void CompletionThread::Run() {
  pthread_setname_np(pthread_self(), "grpc-calls");
  void* tag;
  bool ok;
  while (true) {
    if (idle_tasks_.empty()) {
      calls_since_idle_ = 0;
      if (!queue_->Next(&tag, &ok)) return;
    } else {
      const auto status = calls_since_idle_ >= kMaxCallsBeforeIdle
                              ? grpc::CompletionQueue::TIMEOUT
                              : queue_->AsyncNext(&tag, &ok, std::chrono::system_clock::time_point());
      if (status != grpc::CompletionQueue::GOT_EVENT) {
        const Busy busy(&turn_);
        RunIdleTasks();
        continue;
      }
    }
    ++calls_since_idle_;
    const Busy busy(&turn_);
    cluster::Run(tag, ok);
  }
}

void CompletionThread::StandIn() {
  pthread_setname_np(pthread_self(), "grpc-stand-in");
  // Nothing ever comes back on it; but whoever waits on any queue serves all connections of the process.
  grpc::CompletionQueue none;
  uint64_t before = 0;
  while (true) {
    {
      base::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&ends_), kLongCall)) break;
    }
    const uint64_t now = turn_.load(std::memory_order_relaxed);
    const bool long_call = now % 2 == 1 && now == before;
    before = now;
    while (long_call && turn_.load(std::memory_order_relaxed) == now) {
      void* tag;
      bool ok;
      none.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kStandInStep);
    }
  }
  none.Shutdown();
  void* tag;
  bool ok;
  while (none.Next(&tag, &ok)) {
  }
}

void CompletionThread::RunIdleTasks() {
  calls_since_idle_ = 0;
  decltype(idle_tasks_) tasks;
  tasks.swap(idle_tasks_);
  for (auto& task : tasks) task();
}

}  // namespace helmway::net
