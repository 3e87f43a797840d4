#include "helmway/net/completion_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "helmway/cluster/completion_tag.h"

namespace helmway::net {
namespace {

// What waits for an idle moment waits for no more calls than this: others wait for it.
constexpr int kMaxCallsBeforeIdle = 32;

}  // namespace

CompletionThread::CompletionThread()
    : builder_(std::make_unique<grpc::ServerBuilder>()),
      queue_(builder_->AddCompletionQueue()),
      thread_([this] { Run(); }) {}

CompletionThread::~CompletionThread() {
  queue_->Shutdown();
  thread_.join();
}

bool CompletionThread::WhenIdle(absl::AnyInvocable<void()> task) {
  if (std::this_thread::get_id() != thread_.get_id()) return false;
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
        RunIdleTasks();
        continue;
      }
    }
    ++calls_since_idle_;
    cluster::Run(tag, ok);
  }
}

void CompletionThread::RunIdleTasks() {
  calls_since_idle_ = 0;
  decltype(idle_tasks_) tasks;
  tasks.swap(idle_tasks_);
  for (auto& task : tasks) task();
}

}  // namespace helmway::net
