#include "helmway/async/completion.h"

#include <utility>

namespace helmway::async {

bool Completion::Finish(absl::Status status) {
  absl::InlinedVector<Continuation, 1> run;
  // A continuation may drop the last outside reference; status_ must outlive the loop.
  CompletionRef keep(this);
  {
    base::MutexLock lock(&mu_);
    if (done_.load(std::memory_order_relaxed)) return false;
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
    run = std::move(continuations_);
    continuations_.clear();
  }
  for (Continuation& continuation : run) continuation(status_);
  return true;
}

void Completion::OnDone(Continuation continuation) {
  if (!done()) {
    base::MutexLock lock(&mu_);
    if (!done_.load(std::memory_order_relaxed)) {
      continuations_.push_back(std::move(continuation));
      return;
    }
  }
  continuation(status_);
}

const absl::Status& Completion::Wait() {
  if (!done()) {
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](std::atomic<bool>* done) { return done->load(std::memory_order_relaxed); }, &done_));
  }
  return status_;
}

void WhenAllDone(absl::Span<const CompletionRef> events, absl::AnyInvocable<void()> done) {
  struct State {
    std::atomic<size_t> remaining;
    absl::AnyInvocable<void()> done;

    void OneDone() {
      if (remaining.fetch_sub(1) == 1) done();
    }
  };
  // One more than the events, for this call: so that an empty list is answered, and not before all are asked.
  auto state = std::make_shared<State>();
  state->remaining.store(events.size() + 1);
  state->done = std::move(done);
  for (const CompletionRef& event : events) {
    event->OnDone([state](const absl::Status&) { state->OneDone(); });
  }
  state->OneDone();
}

CompletionRef DoneCompletion(absl::Status status) {
  CompletionRef completion = base::MakeRef<Completion>();
  completion->Finish(std::move(status));
  return completion;
}

}  // namespace helmway::async
