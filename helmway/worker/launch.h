#ifndef HELMWAY_WORKER_LAUNCH_H_
#define HELMWAY_WORKER_LAUNCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "helmway/async/completion.h"
#include "helmway/async/growing_pool.h"
#include "helmway/async/outstanding.h"
#include "helmway/base/mutex.h"
#include "helmway/base/ref_counted.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/pjrt/executable.h"
#include "helmway/pjrt/run_context.h"
#include "helmway/program/executable_spec.h"
#include "helmway/worker/collectives.h"
#include "helmway/worker/slot.h"

namespace helmway::worker {

class CallbackClient;
class CallbackRun;
class DeviceQueue;

// A program of a session. Immutable but for what `loaded` says; any thread.
struct LoadedProgram {
  const pjrt::Client* client = nullptr;  // that of the worker
  // Null until `loaded`, and for good if that fails. A program from the cache is known before it is loaded.
  std::unique_ptr<pjrt::LoadedExecutable> executable;
  async::CompletionRef loaded = async::DoneCompletion();
  std::vector<DeviceQueue*> queues;  // of its devices in assignment order
  // The program's devices talk to each other while it runs, by XLA's own means.
  bool has_cross_device_ops = false;
  // By ours, or by the plugin's with devices of other workers; then these are the positions of the queues'
  // devices in the program. Else null and empty.
  std::shared_ptr<CollectiveProgram> collectives;
  bool plugin_collectives = false;
  std::vector<int32_t> positions;
  // On several devices: its parts start together or not at all. XLA's CPU client lets no program of several
  // devices begin before every device of the one before it has been called.
  bool starts_together() const { return queues.size() > 1; }
  // On one device, and so short that handing it to the plugin never takes long: it may be started on the
  // thread that takes the command.
  bool may_start_at_once = false;
  bool spans_workers = false;  // others run other parts of it
  // Set if the program calls Python functions of its client: `executable` belongs to this client.
  std::shared_ptr<CallbackClient> callback_client;
  // Which of them are tokens. Outside the plugin an empty array stands for each.
  std::vector<bool> token_parameters;
  std::vector<bool> token_outputs;
  void NoteTokens(const program::ExecutableSpec& spec);
  // Whether there is room for what a run allocates; only for programs that allocate much.
  std::function<absl::Status()> check_room;
};

// The empty array that stands for a token, which the plugin takes for one.
absl::StatusOr<pjrt::Buffer> MakeToken(const pjrt::Client& client, const pjrt::Device* device);

// One device's part of a launch.
struct LaunchPart {
  std::vector<SlotRef> arguments;
  std::vector<SlotRef> results;
  std::vector<int64_t> kept_arguments;  // donated by the program, to be kept in this launch
  async::CompletionRef done;            // also the `ready` of the results
  // The `ready` of results that are tokens, if there are any. Tokens only order: they are good whatever came
  // of the run.
  async::CompletionRef tokens_done;
  std::vector<ReadHold> holds;  // keep the arguments from being donated meanwhile
};

// One run of one program. The parts are run by the queues of their devices, each part once.
class LaunchRecord final : public base::RefCounted<LaunchRecord> {
 public:
  // `under_way` counts it for as long as it exists.
  LaunchRecord(async::Outstanding::Token under_way, std::shared_ptr<const LoadedProgram> program,
               int32_t launch_id, uint64_t user_context, std::shared_ptr<const std::atomic<bool>> cancelled,
               absl::AnyInvocable<void(const absl::Status&)> on_done,
               std::unique_ptr<LaunchShare> share = nullptr);

  const LoadedProgram& program() const { return *program_; }
  std::vector<LaunchPart>& parts() { return parts_; }

  // Runs part `index` on the calling thread, which must be that of `queue`. Blocks while inputs are made
  // elsewhere, while the queue's device has its fill of launches, and for programs of several devices until
  // all parts have come this far with their inputs: a part starts only when all start. With cross-device
  // operations of XLA it also waits until nothing else is in flight, since XLA's collectives hold a thread
  // for each device and abort the process when peers stay away. With our collectives inputs that earlier
  // launches of the queue make need not be there: whoever fails tells the others.
  void RunPart(size_t index, DeviceQueue* queue);

  // Whether RunPart would not have to wait for an input.
  bool InputsAreHere(size_t index, const DeviceQueue* queue) const;

  // Runs all parts of a program that calls back, and returns when the launch is over: inputs are waited for,
  // and Python functions. On a thread that nobody else needs.
  void RunCallingBack(cluster::CallbackSink* sink, async::GrowingPool* threads);

  // Fails every part that has not run. For launches that never entered the queues.
  void Drop(const absl::Status& status);

 private:
  absl::Status PrepareInputs(const LaunchPart& part, const DeviceQueue* queue) const;
  // Waits for all parts; gives the first error that any of them brought.
  absl::Status Meet(const absl::Status& mine);
  // Parts of launches that call back (callback_launch.cc).
  struct CallingPart;
  absl::Status PrepareCallingBack(size_t index, const pjrt::RunContext& context, CallbackRun* run,
                                  CallingPart* prepared);
  absl::Status RunPartCallingBack(size_t index, CallingPart* prepared);
  void FinishPart(size_t index, const absl::Status& error);
  // Of a part that was run while `arguments` were being made, by launches before it.
  void FinishPartBehind(size_t index, const absl::Status& outcome,
                        absl::Span<const async::CompletionRef> arguments);
  void FinishTokens(size_t index);

  const async::Outstanding::Token under_way_;  // dropped last: the worker may go then
  const std::shared_ptr<const LoadedProgram> program_;
  const int32_t launch_id_;
  const uint64_t user_context_;
  const std::shared_ptr<const std::atomic<bool>> cancelled_;
  const std::unique_ptr<LaunchShare> share_;  // null for programs without our collectives
  absl::AnyInvocable<void(const absl::Status&)> on_done_;
  std::vector<LaunchPart> parts_;

  base::Mutex mu_;
  size_t arrived_ ABSL_GUARDED_BY(mu_) = 0;
  size_t finished_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status meeting_ ABSL_GUARDED_BY(mu_);  // first error before the start
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);  // first error of all
};

using LaunchRef = base::Ref<LaunchRecord>;

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_LAUNCH_H_
