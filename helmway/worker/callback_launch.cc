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

namespace helmway::worker {

absl::Status LaunchRecord::RunPartCallingBack(size_t index, const pjrt::RunContext& context) {
  LaunchPart& part = parts_[index];
  const std::shared_ptr<pjrt::Client>& client = program_->callback_client->client();
  const std::shared_ptr<pjrt::Client>& home = program_->callback_client->home();
  const pjrt::Device* home_device = program_->queues[index]->device();
  const pjrt::Device* device = client->FindDevice(home_device->id());
  if (device == nullptr) return absl::InternalError("the client for callbacks lacks a device");

  // The arguments as buffers of that client. No program there may write them: they are the worker's still.
  std::vector<pjrt::Buffer> arguments;
  std::vector<pjrt::Buffer*> argument_list;
  std::vector<int64_t> kept;
  arguments.reserve(part.arguments.size());
  for (size_t i = 0; i < part.arguments.size(); ++i) {
    const SlotRef& slot = part.arguments[i];
    if (!slot->buffer) return absl::InvalidArgumentError("strings cannot be arguments of an XLA program");
    absl::StatusOr<pjrt::Buffer> argument =
        program_->token_parameters[i] ? MakeToken(*client, device)
                                      : slot->buffer.ShareWith(client, std::make_shared<const SlotRef>(slot));
    HELMWAY_RETURN_IF_ERROR(argument.status());
    arguments.push_back(*std::move(argument));
    argument_list.push_back(&arguments.back());
    kept.push_back(static_cast<int64_t>(i));
  }

  std::vector<pjrt::Buffer> outputs(program_->executable->num_outputs());
  pjrt::Event complete;
  pjrt::ExecuteOptions options;
  options.launch_id = launch_id_;
  options.non_donatable_input_indices = kept;
  options.context = &context;
  HELMWAY_RETURN_IF_ERROR(
      program_->executable->ExecuteOn(device, argument_list, absl::MakeSpan(outputs), &complete, options));
  HELMWAY_RETURN_IF_ERROR(complete.Await());
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
  if (parts > 1) client.AwaitTurn();
  if (cancelled_->load(std::memory_order_relaxed)) status = absl::CancelledError("the session has ended");
  CallbackRun run(sink, threads, /*many_devices=*/parts > 1);
  pjrt::RunContext context;
  if (status.ok()) {
    absl::StatusOr<pjrt::RunContext> made = pjrt::RunContext::Create(*client.client()->plugin(), &run);
    status = made.status();
    if (made.ok()) context = *std::move(made);
  }

  std::vector<absl::Status> outcomes(parts, status);
  if (status.ok()) {
    // Each part on a thread of its own: the plugin may run it there, and the parts may wait for each other.
    std::atomic<size_t> remaining{parts};
    base::Notification all_over;
    const auto run_part = [&](size_t index) {
      outcomes[index] = RunPartCallingBack(index, context);
      if (remaining.fetch_sub(1) == 1) all_over.Notify();
    };
    for (size_t i = 1; i < parts; ++i) threads->Run([&run_part, i] { run_part(i); });
    run_part(0);
    all_over.WaitForNotification();
  }
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
