// Launches of programs that call back: LaunchRecord::RunCallingBack.

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "helmway/base/status.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/launch.h"
#include "helmway/worker/python_callback.h"
#include "helmway/worker/run_data.h"

namespace helmway::worker {

// What one part of a launch needs to run on the client for callbacks.
struct LaunchRecord::CallingPart {
  const pjrt::Device* device = nullptr;
  std::vector<pjrt::Buffer> arguments;  // as buffers of that client
  const pjrt::RunContext* context = nullptr;
};

absl::Status LaunchRecord::PrepareCallingBack(size_t index, const pjrt::RunContext& context, CallbackRun* run,
                                              CallingPart* prepared) {
  LaunchPart& part = parts_[index];
  const std::shared_ptr<pjrt::Client>& client = program_->callback_client->client();
  prepared->device = client->FindDevice(program_->queues[index]->device()->id());
  if (prepared->device == nullptr) return absl::InternalError("the client for callbacks lacks a device");
  prepared->arguments.reserve(part.arguments.size());
  for (size_t i = 0; i < part.arguments.size(); ++i) {
    const SlotRef& slot = part.arguments[i];
    if (!slot->buffer) return absl::InvalidArgumentError("strings cannot be arguments of an XLA program");
    HELMWAY_ASSIGN_OR_RETURN(pjrt::Buffer argument,
                             program_->token_parameters[i]
                                 ? MakeToken(*client, prepared->device)
                                 : slot->buffer.ShareWith(client, std::make_shared<const SlotRef>(slot)));
    prepared->arguments.push_back(std::move(argument));
  }
  prepared->context = &context;
  if (share_ != nullptr) {
    HELMWAY_ASSIGN_OR_RETURN(prepared->context,
                             share_->Context(*client->plugin(), index, program_->positions[index], run));
  }
  return absl::OkStatus();
}

absl::Status LaunchRecord::RunPartCallingBack(size_t index, CallingPart* prepared) {
  LaunchPart& part = parts_[index];
  std::vector<pjrt::Buffer*> arguments;
  std::vector<int64_t> kept;
  for (pjrt::Buffer& argument : prepared->arguments) {
    kept.push_back(static_cast<int64_t>(arguments.size()));
    arguments.push_back(&argument);
  }
  pjrt::ExecuteOptions options;
  options.launch_id = launch_id_;
  // No program of the other client may write the arguments: they are the worker's still.
  options.non_donatable_input_indices = kept;
  options.context = prepared->context;
  std::vector<pjrt::Buffer> outputs(program_->executable->num_outputs());
  pjrt::Event complete;
  HELMWAY_RETURN_IF_ERROR(program_->executable->ExecuteOn(prepared->device, arguments,
                                                          absl::MakeSpan(outputs), &complete, options));
  HELMWAY_RETURN_IF_ERROR(complete.Await());
  const std::shared_ptr<pjrt::Client>& home = program_->callback_client->home();
  for (size_t i = 0; i < outputs.size() && i < part.results.size(); ++i) {
    if (program_->token_outputs[i]) continue;
    auto made = std::make_shared<const pjrt::Buffer>(std::move(outputs[i]));
    HELMWAY_ASSIGN_OR_RETURN(part.results[i]->buffer, made->ShareWith(home, made));
  }
  return absl::OkStatus();
}

void LaunchRecord::RunCallingBack(cluster::CallbackSink* sink, async::GrowingPool* threads) {
  absl::Status status;
  for (const LaunchPart& part : parts_) {
    for (const SlotRef& argument : part.arguments) status.Update(argument->ready->Wait());
  }
  const size_t parts = parts_.size();
  CallbackClient& client = *program_->callback_client;
  // Without collectives of XLA nothing in a run waits for another device but ours, and those know of
  // failures.
  const bool must_go_on = parts > 1 && !program_->spans_workers;
  if (parts > 1) client.AwaitTurn();
  if (cancelled_->load(std::memory_order_relaxed)) status = absl::CancelledError("the session has ended");
  CallbackRun run(sink, threads, must_go_on);
  RunData data{.callbacks = &run};
  pjrt::RunContext context;
  if (status.ok() && share_ == nullptr) {
    absl::StatusOr<pjrt::RunContext> made = pjrt::RunContext::Create(*client.client()->plugin(), &data);
    status = made.status();
    if (made.ok()) context = *std::move(made);
  }
  // All parts before any runs, since XLA waits for the devices that have not been called.
  std::vector<CallingPart> prepared(parts);
  for (size_t i = 0; i < parts && status.ok(); ++i) {
    status = PrepareCallingBack(i, context, &run, &prepared[i]);
  }
  // At once, since other workers may wait for this one.
  if (share_ != nullptr) status = share_->Settle(status);

  std::vector<absl::Status> outcomes(parts, status);
  if (status.ok()) {
    // Each part on a thread of its own: the plugin may run it there, and the parts may wait for each other.
    std::atomic<size_t> remaining{parts};
    base::Notification all_over;
    const auto run_part = [&](size_t index) {
      outcomes[index] = RunPartCallingBack(index, &prepared[index]);
      if (share_ != nullptr) outcomes[index] = share_->Settle(outcomes[index]);
      if (remaining.fetch_sub(1) == 1) all_over.Notify();
    };
    for (size_t i = 1; i < parts; ++i) threads->Run([&run_part, i] { run_part(i); });
    run_part(0);
    all_over.WaitForNotification();
  }
  prepared.clear();
  if (parts > 1) client.EndTurn();
  // A call that failed is the first cause of whatever else the run came to.
  if (const absl::Status failure = run.failure(); !failure.ok()) outcomes.assign(parts, failure);
  for (size_t i = 0; i < parts; ++i) {
    parts_[i].arguments.clear();
    parts_[i].holds.clear();
    FinishPart(i, outcomes[i]);
  }
}

}  // namespace helmway::worker
