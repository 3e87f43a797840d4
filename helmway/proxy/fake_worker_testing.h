#ifndef HELMWAY_PROXY_FAKE_WORKER_TESTING_H_
#define HELMWAY_PROXY_FAKE_WORKER_TESTING_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::proxy {

// Bytes of a string, for answers and uploads.
base::HostBytes BytesOf(absl::string_view text);

// Collects what contradicts a contract, so that tests and fuzz targets look at one place. Any thread.
class BrokenPromises {
 public:
  void Add(std::string text);
  std::vector<std::string> list() const;

 private:
  mutable base::Mutex mu_;
  std::vector<std::string> list_ ABSL_GUARDED_BY(mu_);
};

// The worker's end of one session, for tests of whoever gives the commands. Does nothing of its own: it keeps
// the commands in order, holds what wants an answer, and the test decides when it comes and what it says.
// Close answers what still waits with CANCELLED, as the contract says.
//
// Checks what the caller owes by the contract of cluster::SessionLink: that new names are new, that names in
// use are neither unknown nor deleted, that a declared buffer gets its bytes once, that only loaded programs
// run and only held launches are released. Any thread.
class FakeSessionLink final : public cluster::SessionLink {
 public:
  explicit FakeSessionLink(std::shared_ptr<BrokenPromises> broken) : broken_(std::move(broken)) {}

  // ---- For tests: what came ----
  // The commands since the last call, oldest first, one line each:
  //   "declare 1@10 2@11"                   buffer@device
  //   "fill 1@10 f32[2,3] 24 bytes"         then, if given: "strides [12,4]", "kind pinned_host", "layout
  //   {0,1}" "fail 1@10 CANCELLED: the text" "execute #2 program 1 (1,2; 3) -> (4)" a ";" between arguments;
  //   then "donates [0]", "keeps [1]", "held" "flush"                               only if a launch came
  //   since the one before "release #2" "copy 1,2 -> 3,4 @12,13"              then "kind pinned_host" "delete
  //   1,2" "read 1", with "strides [8]" "await 1,2; 3" "compile 1", "unload 1", "cost 1", "close"
  std::vector<std::string> TakeCommands();
  // Every buffer that was declared, with its device, oldest first.
  cluster::BufferTargets declared() const;
  // The bytes that a declared buffer was filled with.
  std::string contents(cluster::BufferId buffer) const;
  cluster::CompileProgram compile(cluster::ExecutableId executable) const;
  // What waits for an answer, oldest first.
  std::vector<cluster::LaunchId> launches_under_way() const;
  std::vector<cluster::ExecutableId> compiling() const;
  // Names that are in use: made and not deleted.
  std::set<cluster::BufferId> live_buffers() const;
  std::set<cluster::ExecutableId> loaded() const;
  size_t num_waiting() const;  // Reads, awaits, compiles, cost analyses and launches without an answer.
  bool closed() const;
  // Blocks until a command has come that begins with `prefix`, and was not taken.
  void AwaitCommand(absl::string_view prefix) const;
  // Blocks until there are launches that are under way and not held; returns them.
  std::vector<cluster::LaunchId> AwaitReadyLaunches() const;

  // ---- For tests: what is answered ----
  // Each answers the oldest that waits; nothing that waits is a broken promise of the test.
  void FinishLaunch(cluster::LaunchId launch, const absl::Status& status = absl::OkStatus());
  void AnswerRead(cluster::BufferId buffer, absl::StatusOr<base::HostBytes> bytes);
  void AnswerAwait(const absl::Status& status = absl::OkStatus());
  void AnswerCompile(cluster::ExecutableId executable, absl::StatusOr<cluster::CompiledProgram> program);
  void AnswerCostAnalysis(cluster::ExecutableId executable, absl::StatusOr<cluster::CostProperties> costs);
  // Answers one of whatever waits, by number below num_waiting(), with an error if `status` is one; `program`
  // is what a compile gets. For random tests.
  void AnswerAny(size_t which, const absl::Status& status, const cluster::CompiledProgram& program);

  // ---- For tests: what is expected ----
  // While true, what is deleted may still be used: a client deletes buffers that others of its arrays share,
  // and their uses get the worker's error.
  void set_client_deletes(bool deletes);

  // ---- cluster::SessionLink ----
  void Declare(cluster::DeclareBuffers command) override;
  void Fill(cluster::HostContents contents) override;
  void Fail(const cluster::BufferTargets& targets, const absl::Status& status) override;
  void Execute(cluster::Launch launch) override;
  void Flush() override;
  void ReleaseLaunch(cluster::LaunchId id, uint64_t /*place*/) override;
  // Only groups settle.
  void Settle(cluster::LaunchId /*id*/, const absl::Status& /*status*/) override {}
  void Copy(cluster::CopyBuffers command) override;
  void Assemble(cluster::AssembleBuffers command) override;
  void Bitcast(cluster::BitcastBuffers command) override;
  // A proxy has one worker, or a group of them that sends; neither of these comes from it.
  void Send(cluster::SendBuffers command) override;
  void Receive(cluster::ReceiveBuffers command) override;
  void Load(cluster::LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) override;
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> lost) override;
  absl::Status Loss() override { return absl::OkStatus(); }
  void WhenPeerLost(PeerLost /*lost*/) override {}
  void WhenPythonSays(PythonSays /*says*/) override {}
  void TellPython(const std::string& /*text*/) override {}
  void Delete(const std::vector<cluster::BufferNames>& buffers) override;
  void Read(cluster::BufferId buffer, cluster::ReadFormat format,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override;
  void Await(const std::vector<cluster::BufferNames>& buffers,
             absl::AnyInvocable<void(const absl::Status&)> done) override;
  void Compile(cluster::CompileProgram command,
               absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) override;
  void Unload(cluster::ExecutableId executable, std::optional<int64_t> stream) override;
  void CostAnalysis(cluster::ExecutableId executable,
                    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) override;
  void Close() override;

 private:
  enum class Kind { kLaunch, kRead, kAwait, kCompile, kCost };
  struct Waiting {
    Kind kind;
    uint64_t name = 0;  // launch, buffer or executable
    absl::AnyInvocable<void(const absl::Status&)> launch_or_await;
    absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> read;
    absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> compile;
    absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> cost;
  };
  std::vector<cluster::LaunchId> ReadyLaunches() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Log(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(absl::string_view text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeName(cluster::BufferId buffer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UseName(cluster::BufferId buffer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UseNames(const cluster::BufferNames& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the wait for the bytes of declared buffers.
  void Settle(const cluster::BufferTargets& targets, const std::string& contents)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the oldest of that kind and name out; a broken promise and one that does nothing if there is none.
  Waiting TakeWaiting(Kind kind, uint64_t name);
  // With no lock held. OK becomes an answer without contents, of a compile `program`.
  void Answer(Waiting waiting, const absl::Status& status, const cluster::CompiledProgram& program);

  const std::shared_ptr<BrokenPromises> broken_;
  mutable base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool unflushed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> commands_ ABSL_GUARDED_BY(mu_);
  cluster::BufferTargets declared_ ABSL_GUARDED_BY(mu_);
  std::set<cluster::BufferId> awaiting_bytes_ ABSL_GUARDED_BY(mu_);
  std::map<cluster::BufferId, std::string> contents_ ABSL_GUARDED_BY(mu_);
  std::set<cluster::BufferId> live_ ABSL_GUARDED_BY(mu_);
  std::set<cluster::BufferId> deleted_ ABSL_GUARDED_BY(mu_);
  bool client_deletes_ ABSL_GUARDED_BY(mu_) = false;
  std::set<cluster::BufferId> deleted_by_client_ ABSL_GUARDED_BY(mu_);
  std::set<cluster::ExecutableId> loaded_ ABSL_GUARDED_BY(mu_);
  std::map<cluster::ExecutableId, cluster::CompileProgram> compiles_ ABSL_GUARDED_BY(mu_);
  std::set<cluster::LaunchId> held_ ABSL_GUARDED_BY(mu_);
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

// A worker of a few devices for tests: ids 10, 11, ...; each has the memories "device" (the default) and
// "pinned_host". Set it up before a proxy uses it; its links are for any thread.
class FakeWorker final : public cluster::WorkerLink {
 public:
  explicit FakeWorker(int num_devices = 4);

  // ---- For tests ----
  cluster::WorkerInfo& mutable_info() { return info_; }
  // The links, oldest first.
  std::vector<std::shared_ptr<FakeSessionLink>> links() const;
  const std::shared_ptr<BrokenPromises>& broken_promises() const { return broken_; }
  // What DefaultLayout answers, and what it was last asked.
  absl::StatusOr<std::string> default_layout = std::string("{}");
  std::pair<cluster::ElementType, std::vector<int64_t>> default_layout_asked;
  // Whether it waits with the answer until AnswerDefaultLayout.
  bool holds_default_layout = false;
  void AnswerDefaultLayout() { std::exchange(default_layout_done_, nullptr)(default_layout); }
  // What DefaultDeviceAssignment answers; by default the devices in order.
  absl::Status default_assignment_error;

  // ---- cluster::WorkerLink ----
  const cluster::WorkerInfo& info() const override { return info_; }
  cluster::PeerAddress peer_address() const override { return {}; }
  absl::Status Loss() override { return absl::OkStatus(); }
  std::shared_ptr<cluster::SessionLink> OpenSession(
      cluster::SessionId session, std::shared_ptr<cluster::CallbackSink> callbacks) override;
  void DefaultLayout(cluster::ElementType type, const std::vector<int64_t>& dims,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override;
  absl::StatusOr<std::vector<cluster::DeviceId>> DefaultDeviceAssignment(int replicas,
                                                                         int partitions) override;

 private:
  cluster::WorkerInfo info_;
  absl::AnyInvocable<void(absl::StatusOr<std::string>)> default_layout_done_;
  const std::shared_ptr<BrokenPromises> broken_ = std::make_shared<BrokenPromises>();
  mutable base::Mutex mu_;
  std::vector<std::shared_ptr<FakeSessionLink>> links_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_FAKE_WORKER_TESTING_H_
