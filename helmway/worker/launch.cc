#include "helmway/worker/launch.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "helmway/wire/status.h"
#include "helmway/worker/device_queue.h"

namespace helmway::worker {

LaunchRecord::LaunchRecord(std::shared_ptr<const LoadedProgram> program, int32_t launch_id,
                           uint64_t user_context, std::shared_ptr<const std::atomic<bool>> cancelled,
                           absl::AnyInvocable<void(const absl::Status&)> on_done)
    : program_(std::move(program)),
      launch_id_(launch_id),
      user_context_(user_context),
      cancelled_(std::move(cancelled)),
      on_done_(std::move(on_done)) {}

absl::Status LaunchRecord::PrepareInputs(const LaunchPart& part, const DeviceQueue* queue) const {
  if (cancelled_->load(std::memory_order_relaxed)) return absl::CancelledError("the session has ended");
  for (const SlotRef& argument : part.arguments) {
    // What an earlier launch of this queue makes may be used before it is there: the plugin orders its own
    // work.
    const bool wait = argument->producer != queue || program_->starts_together() || !argument->buffer;
    if (wait || argument->ready->done()) {
      if (const absl::Status& status = argument->ready->Wait(); !status.ok()) return status;
    }
    if (!argument->buffer) return absl::InvalidArgumentError("strings cannot be arguments of an XLA program");
  }
  return absl::OkStatus();
}

bool LaunchRecord::InputsAreHere(size_t index, const DeviceQueue* queue) const {
  for (const SlotRef& argument : parts_[index].arguments) {
    if (argument->producer != queue && !argument->ready->done()) return false;
  }
  return true;
}

absl::Status LaunchRecord::Meet(const absl::Status& mine) {
  base::MutexLock lock(&mu_);
  meeting_.Update(mine);
  if (++arrived_ == parts_.size() && cancelled_->load(std::memory_order_relaxed)) {
    meeting_.Update(absl::CancelledError("the session has ended"));
  }
  auto all_here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return arrived_ == parts_.size(); };
  mu_.Await(absl::Condition(&all_here));
  return meeting_;
}

void LaunchRecord::RunPart(size_t index, DeviceQueue* queue) {
  LaunchPart& part = parts_[index];
  absl::Status status = PrepareInputs(part, queue);
  if (program_->has_cross_device_ops) {
    queue->WaitUntilIdle();
  } else if (status.ok()) {
    queue->WaitForRoom();
  }
  if (status.ok() && program_->check_room) {
    // What runs already may have memory that it has not used yet.
    queue->WaitUntilIdle();
    status = program_->check_room();
  }
  if (program_->starts_together()) status = Meet(status);
  if (!status.ok()) {
    part.arguments.clear();
    FinishPart(index, status);
    return;
  }

  absl::InlinedVector<pjrt::Buffer*, 16> arguments;
  arguments.reserve(part.arguments.size());
  absl::InlinedVector<async::CompletionRef, 4> pending;
  for (const SlotRef& argument : part.arguments) {
    arguments.push_back(&argument->buffer);
    if (!argument->ready->done()) pending.push_back(argument->ready);
  }
  absl::InlinedVector<pjrt::Buffer, 8> outputs(program_->executable->num_outputs());
  pjrt::Event complete;
  pjrt::ExecuteOptions options;
  options.launch_id = launch_id_;
  options.non_donatable_input_indices = part.kept_arguments;
  status = program_->executable->ExecuteOn(queue->device(), absl::MakeSpan(arguments),
                                           absl::MakeSpan(outputs), &complete, options);
  // The plugin holds what the run needs; memory that nobody else wants is free as soon as the run is over.
  part.arguments.clear();
  if (!status.ok()) {
    FinishPart(index, status);
    return;
  }
  for (size_t i = 0; i < outputs.size() && i < part.results.size(); ++i) {
    part.results[i]->buffer = std::move(outputs[i]);
  }
  queue->LaunchStarted();
  complete.OnReady([launch = LaunchRef(this), index, queue, pending](absl::Status outcome) {
    // Before the results are ready, so that a program that waits for them finds room at once.
    queue->LaunchFinished();
    if (!outcome.ok()) {
      // The plugin passes an argument's failure on under another code; the first cause is what a reader
      // needs.
      for (const async::CompletionRef& argument : pending) {
        if (argument->done() && !argument->status().ok()) outcome = argument->status();
      }
    }
    launch->FinishPart(index, outcome);
  });
}

void LaunchRecord::FinishPart(size_t index, const absl::Status& error) {
  LaunchRef keep(this);
  const absl::Status status = wire::WithUserContext(error, user_context_);
  LaunchPart& part = parts_[index];
  part.results.clear();
  const async::CompletionRef done = std::move(part.done);
  done->Finish(status);
  bool last;
  absl::Status outcome;
  {
    base::MutexLock lock(&mu_);
    outcome_.Update(status);
    last = ++finished_ == parts_.size();
    outcome = outcome_;
  }
  if (last && on_done_) std::exchange(on_done_, nullptr)(outcome);
}

void LaunchRecord::Drop(const absl::Status& status) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].arguments.clear();
    FinishPart(i, status);
  }
}

}  // namespace helmway::worker
