#ifndef HELMWAY_ASYNC_COMPLETION_H_
#define HELMWAY_ASYNC_COMPLETION_H_

#include <atomic>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "helmway/base/mutex.h"
#include "helmway/base/ref_counted.h"

namespace helmway::async {

// A one-shot event with a status: something will be done, or fail, once.
//
// Sticky: the first Finish decides; later ones change nothing and return false.
// Continuations run exactly once, in no particular order: inside OnDone if the event is done already, else on
// the thread that calls Finish. No lock is held while they run. They must return fast and must not block;
// they may call OnDone, Finish other events and drop the last reference to this one.
// Any thread.
class Completion final : public base::RefCounted<Completion> {
 public:
  using Continuation = absl::AnyInvocable<void(const absl::Status&)>;

  Completion() = default;
  // Continuations of an event that was never finished are dropped without being run: whoever makes a
  // Completion must finish it.
  ~Completion() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  // The outcome. Only after done().
  const absl::Status& status() const { return status_; }

  bool Finish(absl::Status status);
  void OnDone(Continuation continuation);
  // Blocks until done; returns the outcome.
  const absl::Status& Wait();

 private:
  mutable base::Mutex mu_;
  std::atomic<bool> done_{false};
  absl::Status status_;  // written once, before done_
  absl::InlinedVector<Continuation, 1> continuations_ ABSL_GUARDED_BY(mu_);
};

using CompletionRef = base::Ref<Completion>;

// Runs `done` once when all of these are done, failed or not: inside the call, or as their continuations run.
void WhenAllDone(absl::Span<const CompletionRef> events, absl::AnyInvocable<void()> done);

// An event that is done from the start.
CompletionRef DoneCompletion(absl::Status status = absl::OkStatus());

}  // namespace helmway::async

#endif  // HELMWAY_ASYNC_COMPLETION_H_
