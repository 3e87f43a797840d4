#ifndef HELMWAY_WORKER_SESSION_H_
#define HELMWAY_WORKER_SESSION_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/callback_clients.h"
#include "helmway/worker/colocated_python.h"
#include "helmway/worker/launch.h"
#include "helmway/worker/slot.h"
#include "helmway/worker/stream_lanes.h"

namespace helmway::worker {

class Worker;

// One client session on one worker: its buffers and programs by name. The worker must outlive it.
// Threads: as cluster::SessionLink.
class Session final : public cluster::SessionLink, public std::enable_shared_from_this<Session> {
 public:
  Session(Worker* worker, cluster::SessionId id, std::shared_ptr<cluster::CallbackSink> callbacks);
  ~Session() override;

  void Declare(cluster::DeclareBuffers command) override;
  void Fill(cluster::HostContents contents) override;
  void Fail(const cluster::BufferTargets& targets, const absl::Status& status) override;
  void Execute(cluster::Launch launch) override;
  void Flush() override;
  void ReleaseLaunch(cluster::LaunchId id, uint64_t /*place*/) override;
  void Settle(cluster::LaunchId id, const absl::Status& status) override;
  void Copy(cluster::CopyBuffers command) override;
  void Send(cluster::SendBuffers command) override;
  void Receive(cluster::ReceiveBuffers command) override;
  void Assemble(cluster::AssembleBuffers command) override;
  void Bitcast(cluster::BitcastBuffers command) override;
  void Delete(const std::vector<cluster::BufferNames>& buffers) override;
  void Read(cluster::BufferId buffer, cluster::ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override;
  void Await(const std::vector<cluster::BufferNames>& buffers,
             absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Compile(cluster::CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) override;
  void Load(cluster::LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Unload(cluster::ExecutableId executable, std::optional<int64_t> stream) override;
  void CostAnalysis(cluster::ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) override;
  // A worker in this process is never lost.
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) override {}
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost lost) override;
  void WhenPythonSays(PythonSays says) override { python_->WhenSays(std::move(says)); }
  void TellPython(const std::string& text) override { python_->Tell(text); }
  void Close() override;

  // What a peer has sent under the name of a buffer, whether or not Receive has named it already.
  void TakeFromPeer(cluster::BufferId buffer, absl::StatusOr<cluster::HostContents> contents);

 private:
  // Where a buffer that a peer sends shall lie. Its name may be deleted meanwhile: what was commanded waits
  // for it.
  struct Receiving {
    cluster::DeviceId device;
    std::string memory_kind;
    bool default_layout = false;
    SlotRef slot;
  };
  SlotRef FindLocked(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The slot that the host's bytes of that name are for, deleted or not.
  SlotRef FindForHost(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The slot, or a fresh failed one that says that there is no such buffer.
  SlotRef FindOrFailed(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same for a slot that is to be read: also failed if an earlier launch consumes it.
  SlotRef FindReadable(cluster::BufferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const LoadedProgram> FindProgram(cluster::ExecutableId id);
  // Sets `program`'s check_room if its runs, which allocate so many bytes on all their devices, allocate
  // much.
  void CheckRoomFor(int64_t bytes, LoadedProgram& program);
  // `load` is set if the program is still to be loaded, once it has been answered.
  absl::StatusOr<cluster::CompiledProgram> CompileNow(const cluster::CompileProgram& command,
                                                      absl::AnyInvocable<void()>* load);
  absl::StatusOr<cluster::CompiledProgram> CompileForSeveral(const cluster::CompileProgram& command);
  // The same with the plugin's own collectives: its client spans the workers of a slice.
  absl::StatusOr<cluster::CompiledProgram> CompileForSlice(const cluster::CompileProgram& command);
  absl::Status LoadNow(const cluster::LoadProgram& command);
  void BindReceived(Receiving receiving, absl::StatusOr<cluster::HostContents> contents);
  // Binds contents to slots on their devices, here or on a thread for transfers.
  void FillSlots(absl::InlinedVector<std::pair<SlotRef, cluster::DeviceId>, 1> slots,
                 cluster::HostContents contents);
  // This session's client for programs that call back.
  absl::StatusOr<std::shared_ptr<CallbackClient>> GetCallbackClient();
  // Puts a launch into the queues of its devices, once its program is loaded and none of its inputs is late.
  void Enqueue(LaunchRef record);
  // Runs a launch that calls back, on the thread that it is run on.
  absl::AnyInvocable<void()> RunOf(LaunchRef record);
  void CallPython(cluster::Launch launch, const std::shared_ptr<PythonProgram>& program);

  Worker* const worker_;
  const cluster::SessionId id_;
  const std::shared_ptr<cluster::CallbackSink> callbacks_;
  const std::shared_ptr<StreamLanes> callback_lanes_;
  const std::shared_ptr<ColocatedPython> python_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<cluster::BufferId, SlotRef> slots_ ABSL_GUARDED_BY(mu_);
  // Deleted before their bytes came from the host: what was commanded before that waits for them.
  absl::flat_hash_map<cluster::BufferId, SlotRef> deleted_awaiting_host_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::ExecutableId, std::shared_ptr<const LoadedProgram>> programs_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::LaunchId, LaunchRef> held_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::BufferId, Receiving> receiving_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<cluster::BufferId, absl::StatusOr<cluster::HostContents>> arrived_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CallbackClient> callback_client_ ABSL_GUARDED_BY(mu_);  // null until it is needed
  // Has launches that wait for Flush.
  std::atomic<DeviceQueue*> unflushed_{nullptr};
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_SESSION_H_
