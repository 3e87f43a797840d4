#ifndef HELMWAY_WORKER_SESSION_H_
#define HELMWAY_WORKER_SESSION_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/callback_lanes.h"
#include "helmway/worker/launch.h"
#include "helmway/worker/slot.h"

namespace helmway::worker {

class Worker;

// One client session on one worker: its buffers and programs by name. The worker must outlive it.
// Threads: as cluster::SessionLink.
class Session final : public cluster::SessionLink, public std::enable_shared_from_this<Session> {
 public:
  Session(Worker* worker, std::shared_ptr<cluster::CallbackSink> callbacks);
  ~Session() override;

  void Declare(cluster::DeclareBuffers command) override;
  void Fill(cluster::HostContents contents) override;
  void Fail(const cluster::BufferTargets& targets, const absl::Status& status) override;
  void Execute(cluster::Launch launch) override;
  void Flush() override;
  void ReleaseLaunch(cluster::LaunchId id) override;
  void Copy(cluster::CopyBuffers command) override;
  void Delete(const std::vector<cluster::BufferNames>& buffers) override;
  void Read(cluster::BufferId buffer, cluster::ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override;
  void Await(const std::vector<cluster::BufferNames>& buffers,
             absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Compile(cluster::CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) override;
  void Unload(cluster::ExecutableId executable) override;
  void CostAnalysis(cluster::ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) override;
  void Close() override;

 private:
  SlotRef FindLocked(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The slot, or a fresh failed one that says that there is no such buffer.
  SlotRef FindOrFailed(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const LoadedProgram> FindProgram(cluster::ExecutableId id);
  absl::StatusOr<cluster::CompiledProgram> CompileNow(const cluster::CompileProgram& command);
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> CompileOn(const pjrt::Client& client,
                                                                    const cluster::CompileProgram& command);
  // This session's client for programs that call back.
  absl::StatusOr<std::shared_ptr<CallbackClient>> GetCallbackClient();
  // Puts a launch into the queues of its devices, once none of its inputs is late.
  void Enqueue(LaunchRef record);

  Worker* const worker_;
  const std::shared_ptr<CallbackLanes> callback_lanes_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<cluster::BufferId, SlotRef> slots_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::ExecutableId, std::shared_ptr<const LoadedProgram>> programs_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::LaunchId, LaunchRef> held_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CallbackClient> callback_client_ ABSL_GUARDED_BY(mu_);  // null until it is needed
  // Has launches that wait for Flush.
  std::atomic<DeviceQueue*> unflushed_{nullptr};
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_SESSION_H_
