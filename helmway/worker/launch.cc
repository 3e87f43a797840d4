#include "helmway/worker/launch.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/client.h"
#include "helmway/wire/status.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/device_queue.h"

namespace helmway::worker {

absl::StatusOr<pjrt::Buffer> MakeToken(const pjrt::Client& client, const pjrt::Device* device) {
  constexpr int64_t kNoElements[] = {0};
  HELMWAY_ASSIGN_OR_RETURN(
      pjrt::HostBufferResult made,
      client.BufferFromHost({.type = pjrt::ElementType::kPred, .dims = kNoElements, .device = device}));
  return std::move(made.buffer);
}

void LoadedProgram::NoteTokens(const program::ExecutableSpec& spec) {
  for (const program::ValueSpec& value : spec.parameters) token_parameters.push_back(value.is_token);
  for (const program::ValueSpec& value : spec.outputs) token_outputs.push_back(value.is_token);
}

LaunchRecord::LaunchRecord(async::Outstanding::Token under_way, std::shared_ptr<const LoadedProgram> program,
                           int32_t launch_id, uint64_t user_context,
                           std::shared_ptr<const std::atomic<bool>> cancelled,
                           absl::AnyInvocable<void(const absl::Status&)> on_done,
                           std::unique_ptr<LaunchShare> share)
    : under_way_(std::move(under_way)),
      program_(std::move(program)),
      launch_id_(launch_id),
      user_context_(user_context),
      cancelled_(std::move(cancelled)),
      share_(std::move(share)),
      on_done_(std::move(on_done)) {}

absl::Status LaunchRecord::PrepareInputs(const LaunchPart& part, const DeviceQueue* queue) const {
  if (cancelled_->load(std::memory_order_relaxed)) return absl::CancelledError("the session has ended");
  HELMWAY_RETURN_IF_ERROR(program_->loaded->status());
  for (const SlotRef& argument : part.arguments) {
    // What an earlier launch of this queue makes may be used before it is there: the plugin orders its own
    // work.
    const bool wait = argument->producer != queue || (program_->starts_together() && share_ == nullptr) ||
                      program_->plugin_collectives || !argument->buffer;
    if (wait || argument->ready->done()) {
      if (const absl::Status& status = argument->ready->Wait(); !status.ok()) return status;
    }
    if (!argument->buffer) return absl::InvalidArgumentError("strings cannot be arguments of an XLA program");
  }
  return share_ == nullptr ? absl::OkStatus() : share_->status();
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
  // At once, since peers may wait for this part while it waits for the other parts here.
  if (share_ != nullptr) status = share_->Settle(status);
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
  // Nothing may keep this worker from its part of what the others start.
  if (status.ok() && program_->plugin_collectives) status = share_->StartWithOthers();
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
    // It may have failed since PrepareInputs.
    if (!argument->ready->done() || !argument->ready->status().ok()) pending.push_back(argument->ready);
  }
  const bool own_collectives = share_ != nullptr && !program_->plugin_collectives;
  if (own_collectives) queue->WaitForTurnOf(pending);
  absl::InlinedVector<pjrt::Buffer, 8> outputs(program_->executable->num_outputs());
  pjrt::Event complete;
  pjrt::ExecuteOptions options;
  options.launch_id = launch_id_;
  options.non_donatable_input_indices = part.kept_arguments;
  if (own_collectives) {
    absl::StatusOr<const pjrt::RunContext*> context =
        share_->Context(*program_->executable->client()->plugin(), index, program_->positions[index]);
    if (!context.ok()) {
      part.arguments.clear();
      FinishPart(index, context.status());
      return;
    }
    options.context = *context;
  }
  status = program_->executable->ExecuteOn(queue->device(), absl::MakeSpan(arguments),
                                           absl::MakeSpan(outputs), &complete, options);
  // The plugin holds what the run needs; memory that nobody else wants is free as soon as the run is over.
  part.arguments.clear();
  if (!status.ok()) {
    FinishPartBehind(index, status, pending);
    return;
  }
  for (size_t i = 0; i < outputs.size() && i < part.results.size(); ++i) {
    if (!program_->token_outputs[i]) part.results[i]->buffer = std::move(outputs[i]);
  }
  queue->LaunchStarted(own_collectives ? part.done : async::CompletionRef());
  complete.OnReady([launch = LaunchRef(this), index, queue, pending](const absl::Status& outcome) {
    // Before the results are ready, so that a program that waits for them finds room at once.
    queue->LaunchFinished();
    launch->FinishPartBehind(index, outcome, pending);
  });
}

void LaunchRecord::FinishPartBehind(size_t index, const absl::Status& outcome,
                                    absl::Span<const async::CompletionRef> arguments) {
  if (outcome.ok() || arguments.empty()) return FinishPart(index, outcome);
  // The plugin passes an argument's failure on under another code, maybe before the launch that makes it has
  // been told. The first cause is what a reader needs.
  async::WhenAllDone(arguments,
                     [launch = LaunchRef(this), index, outcome,
                      all = std::vector<async::CompletionRef>(arguments.begin(), arguments.end())] {
                       for (const async::CompletionRef& argument : all) {
                         if (!argument->status().ok()) return launch->FinishPart(index, argument->status());
                       }
                       launch->FinishPart(index, outcome);
                     });
}

void LaunchRecord::FinishPart(size_t index, const absl::Status& error) {
  LaunchRef keep(this);
  LaunchPart& part = parts_[index];
  const async::CompletionRef done = std::move(part.done);
  const absl::Status status =
      wire::WithUserContext(share_ == nullptr ? error : share_->Settle(error), user_context_);
  done->Finish(status);
  if (part.tokens_done) FinishTokens(index);
  part.results.clear();
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

void LaunchRecord::FinishTokens(size_t index) {
  LaunchPart& part = parts_[index];
  const pjrt::Client& client =
      program_->callback_client ? *program_->callback_client->home() : *program_->client;
  absl::Status status;
  for (size_t i = 0; i < part.results.size(); ++i) {
    if (!program_->token_outputs[i]) continue;
    absl::StatusOr<pjrt::Buffer> token = MakeToken(client, program_->queues[index]->device());
    status.Update(token.status());
    if (token.ok()) part.results[i]->buffer = *std::move(token);
  }
  part.tokens_done->Finish(status);
}

void LaunchRecord::Drop(const absl::Status& status) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].arguments.clear();
    FinishPart(i, status);
  }
}

}  // namespace helmway::worker
