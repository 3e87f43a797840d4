#ifndef HELMWAY_PROXY_SESSION_H_
#define HELMWAY_PROXY_SESSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/array/array.h"
#include "helmway/array/reshard_plan.h"
#include "helmway/array/shards.h"
#include "helmway/async/completion.h"
#include "helmway/async/outstanding.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/program/executable_spec.h"
#include "helmway/proxy/host_buffers.h"
#include "helmway/proxy/python_callbacks.h"
#include "helmway/proxy/user_contexts.h"
#include "helmway/wire/ifrt_array.pb.h"
#include "helmway/wire/ifrt_session.pb.h"
#include "helmway/wire/status.h"

namespace helmway::proxy {

class Proxy;

// A program that the worker has loaded, and all that its runs and its client need to know. Immutable.
struct Executable {
  cluster::ExecutableId id = 0;
  program::ExecutableSpec spec;
  std::vector<int32_t> devices;
  std::vector<std::string> output_memory_kinds;
  absl::StatusOr<std::string> memory_stats = absl::UnimplementedError("memory stats");
  int64_t code_size_bytes = 0;
  std::string optimized_hlo_format;
  std::string optimized_hlo;
  std::vector<std::shared_ptr<const array::ArraySpec>> outputs;
  // A Python function of the client (colocated Python). Of `spec` it has the name; `outputs` and these are as
  // the client says. The devices of an argument or output may come in another order than the program's.
  bool is_python = false;
  std::vector<array::ArraySpec> python_inputs;
  std::shared_ptr<const CallbackUse> callbacks;  // null: the program calls none
};

// What a client says of itself when it opens its session (python/helmway/_jax_plugin.py), so that it can be
// told when Python functions would not survive the journey. Empty: it does not say.
struct ClientVersions {
  std::string python;  // "3.12"
  std::string jax;     // "0.11.2"
};
inline constexpr char kPythonVersionKey[] = "helmway_python_version";
inline constexpr char kJaxVersionKey[] = "helmway_jax_version";

// One client session: its handles and the order of its commands.
//
// Requests come from one thread at a time, in stream order, and do their bookkeeping at once: a request takes
// what it needs (shares in buffers, futures) before the next one is looked at. Answers that must wait come
// later from other threads. `mu_` guards the handles; it is never held while a callback runs or bytes move.
// Handlers are named after their request and sit in the file of the object that they are about:
// array_requests.cc, reshard_requests.cc (arrays made of the shards of others), program_requests.cc
// (compiling), executable_requests.cc, client_requests.cc.
class Session final : public net::SessionHandler,
                      public array::ReleaseSink,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(Proxy* proxy, uint64_t id, std::string peer_host, std::shared_ptr<net::SessionStream> stream,
          std::shared_ptr<HostBuffers> host_buffers, ClientVersions versions = {});
  ~Session() override;

  uint64_t id() const { return id_; }
  const std::string& peer_host() const { return peer_host_; }
  HostBuffers& host_buffers() { return *host_buffers_; }
  PythonCallbacks& callbacks() { return *callbacks_; }
  // Answers clients that have waited since before `time` for the end of a first run. Returns whether waits
  // remain.
  bool AnswerRunsBefore(absl::Time time);

  void OnRequest(xla::ifrt::proxy::IfrtRequest& request) override;
  void OnClosed() override;
  absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> StoreHostBuffer(uint64_t handle,
                                                                         int64_t size) override;
  absl::StatusOr<base::HostBytes> LookupHostBuffer(uint64_t handle) override;
  absl::Status DeleteHostBuffer(uint64_t handle) override;
  absl::Status ReadHostBufferFromDisk(uint64_t handle, int64_t size) override;

  // ReleaseSink; called under mu_.
  void Release(cluster::BufferId first, uint32_t count) override;

 private:
  using Request = xla::ifrt::proxy::IfrtRequest;
  using Response = xla::ifrt::proxy::IfrtResponse;
  using ArrayRef = array::ArrayRef;

  // A handler returns OK if it has filled `response`, or an error for the client; or it takes the duty to
  // answer later, with the op id, by setting `deferred`.
  struct Reply {
    uint64_t op_id;
    Response& response;
    bool deferred = false;
    bool patient = false;  // the client does not wait for this success
    bool counted = true;   // the client looks at the number of this success
  };

  // ---- client_requests.cc ----
  absl::Status HandleInit(Reply& reply);
  absl::Status HandleCheckFuture(const xla::ifrt::proxy::CheckFutureRequest& request, Reply& reply);
  absl::Status HandleGetDefaultDeviceAssignment(
      const xla::ifrt::proxy::GetDefaultDeviceAssignmentRequest& request, Reply& reply);
  absl::Status HandleGetDefaultLayout(const xla::ifrt::proxy::GetDefaultLayoutRequest& request, Reply& reply);

  // ---- array_requests.cc ----
  absl::Status HandleMakeArrayFromHostBuffer(const xla::ifrt::proxy::MakeArrayFromHostBufferRequest& request,
                                             Reply& reply);
  absl::Status HandleMakeArraysFromHostBufferShards(
      const xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest& request, Reply& reply);
  absl::Status HandleMakeErrorArrays(const xla::ifrt::proxy::MakeErrorArraysRequest& request, Reply& reply);
  absl::Status HandleAssembleArray(
      const xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest& request, Reply& reply);
  absl::Status HandleDisassemble(const xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest& request,
                                 Reply& reply);
  absl::Status HandleFullyReplicatedShard(const xla::ifrt::proxy::FullyReplicatedShardRequest& request,
                                          Reply& reply);
  absl::Status HandleCopyArrays(const xla::ifrt::proxy::CopyArraysRequest& request, Reply& reply);
  absl::Status HandleCopyToHostBuffer(const xla::ifrt::proxy::CopyToHostBufferRequest& request, Reply& reply);
  absl::Status HandleCheckValueReady(const xla::ifrt::proxy::CheckValueReadyRequest& request, Reply& reply);
  absl::Status HandleDeleteArray(const xla::ifrt::proxy::DeleteArrayRequest& request, Reply& reply);
  absl::Status HandleDestructArray(const xla::ifrt::proxy::DestructArrayRequest& request, Reply& reply);
  absl::Status HandleIsArrayDeleted(const xla::ifrt::proxy::IsArrayDeletedRequest& request, Reply& reply);

  // ---- reshard_requests.cc ----
  absl::Status HandleRemapArrays(const xla::ifrt::proxy::RemapArraysRequest& request, Reply& reply);
  absl::Status HandleReshardArrays(const xla::ifrt::proxy::ReshardArraysRequest& request, Reply& reply);
  absl::Status HandleBitcastArrays(const xla::ifrt::proxy::BitcastArraysRequest& request, Reply& reply);

  // ---- program_requests.cc ----
  absl::Status HandleCompile(xla::ifrt::proxy::CompileRequest& request, Reply& reply);
  absl::Status CompilePython(xla::ifrt::proxy::CompileRequest& request, Reply& reply);
  void AnswerCompile(uint64_t op_id, std::shared_ptr<const Executable> executable,
                     const std::string& fingerprint);

  // ---- executable_requests.cc ----
  absl::Status HandleLoadedExecutableMetadata(
      const xla::ifrt::proxy::LoadedExecutableMetadataRequest& request, Reply& reply);
  absl::Status HandleLoadedExecutableExecute(const xla::ifrt::proxy::LoadedExecutableExecuteRequest& request,
                                             Reply& reply);
  absl::Status HandleLoadedExecutableFetchExecuteResult(
      const xla::ifrt::proxy::LoadedExecutableFetchExecuteResultRequest& request, Reply& reply);
  absl::Status HandleLoadedExecutableCostAnalysis(
      const xla::ifrt::proxy::LoadedExecutableCostAnalysisRequest& request, Reply& reply);
  absl::Status HandleLoadedExecutableHumanReadableProgramText(
      const xla::ifrt::proxy::LoadedExecutableHumanReadableProgramTextRequest& request, Reply& reply);
  absl::Status HandleLoadedExecutableDestruct(
      const xla::ifrt::proxy::LoadedExecutableDestructRequest& request, Reply& reply);

  // ---- Answers (any thread) ----
  void Send(uint64_t op_id, const absl::Status& status, Response& response, bool patient = false,
            bool counted = true);
  void SendError(uint64_t op_id, const absl::Status& status);
  // Lets the request's call site go only when being_made_ has its contents.
  void KeepUserContext(uint64_t op_id);

  // ---- Handles ----
  absl::Status Dispatch(Request& request, Reply& reply);
  // The array behind a handle if it can be used; else the error that its user meets.
  absl::StatusOr<ArrayRef> FindArray(uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const Executable> FindExecutable(uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<const Executable>> GetExecutable(uint64_t handle);
  // Binds a client's new handle. ALREADY_EXISTS if it is in use, INVALID_ARGUMENT for 0.
  absl::Status Bind(uint64_t handle, ArrayRef array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Binds one handle to each array, or none to any: those that were bound before one could not be stand for
  // its error then.
  template <typename Handles>
  absl::Status BindAll(const Handles& handles, const std::vector<ArrayRef>& arrays)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Binds every handle that is not in use to an error, so that later uses meet its cause. For the request
  // that is being handled.
  template <typename Handles>
  void BindErrors(const Handles& handles, const absl::Status& status);
  uint64_t NewServerHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return next_server_handle_++; }
  uint64_t AddFuture(async::CompletionRef future) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Answers with the future's outcome when it is known; the future is gone then.
  absl::Status AnswerWithFuture(uint64_t handle, Reply& reply);
  // Gives up a host buffer that a failed request would have taken, also if its bytes are still on their way.
  void DropHostBuffer(uint64_t handle);
  // Frees what lost its last handle.
  void FlushReleased();

  // ---- Arrays (array_requests.cc) ----
  // A new array whose buffers the worker is about to make.
  ArrayRef NewArray(std::shared_ptr<const array::ArraySpec> spec) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One array of which several devices take the same host buffer.
  struct HostShards {
    uint64_t host_buffer = 0;
    std::vector<int64_t> dims;  // of the shard
    std::optional<std::vector<int64_t>> byte_strides;
    std::vector<int64_t> positions;
  };
  struct HostArray {
    uint64_t handle = 0;
    array::ArraySpec spec;
    std::vector<HostShards> shards;
  };
  // Makes all of them or none.
  absl::Status MakeFromHost(const std::vector<HostArray>& made);
  absl::Status CheckHostShards(const array::ArraySpec& spec, const std::vector<HostShards>& shards) const;
  absl::StatusOr<array::ArraySpec> MakeSpec(const xla::ifrt::DTypeProto& dtype,
                                            const xla::ifrt::ShapeProto& shape,
                                            const xla::ifrt::ShardingProto& sharding) const;
  absl::StatusOr<array::ArraySpec> MakeSpec(const xla::ifrt::ArraySpecProto& proto) const;
  absl::Status CheckDevices(absl::Span<const int32_t> devices) const;
  bool AreOfOnePlatform(int32_t device, int32_t other) const;
  void HostBufferArrived(cluster::HostContents contents, array::Shards keep,
                         std::shared_ptr<array::Arrival> arrival, std::optional<int64_t> expected_bytes,
                         absl::StatusOr<base::HostBytes> bytes);
  // An array of these buffers, or of copies of them.
  ArrayRef ShareOrCopy(array::ArraySpec spec, array::Shards shards,
                       xla::ifrt::proto::ArrayCopySemantics semantics) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CopyShards(const array::Array& source, const array::Array& result, bool default_layout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Arrays made of the shards of others (reshard_requests.cc) ----
  // The kind of memory that a shard of such a sharding lies in on a device.
  absl::string_view MemoryKindOn(const program::Sharding& sharding, int32_t device) const;
  // The array that a plan makes of `source`; with `may_share` it takes over the shards that stay where they
  // are.
  ArrayRef Reshard(const array::Array& source, std::shared_ptr<const array::ArraySpec> spec,
                   array::ReshardPlan plan, bool may_share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<ArrayRef> Bitcast(const array::Array& source, std::shared_ptr<const array::ArraySpec> spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- Launches (executable_requests.cc) ----
  void LaunchDone();
  // Answers the client if it still waits for this run. An error takes back the handles of its outputs.
  void AnswerFirstRun(cluster::LaunchId launch, const absl::Status& status);
  // Lets launches go whose host bytes are all here, in order.
  void ReleaseHeldLaunches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const async::Outstanding::Token live_;  // dropped last: the proxy may go then
  Proxy* const proxy_;
  const uint64_t id_;
  const std::string peer_host_;
  const std::shared_ptr<net::SessionStream> stream_;
  const ClientVersions versions_;
  const std::shared_ptr<HostBuffers> host_buffers_;
  const std::shared_ptr<PythonCallbacks> callbacks_ = std::make_shared<PythonCallbacks>();
  const std::shared_ptr<cluster::SessionLink> link_;
  absl::flat_hash_map<int32_t, int32_t> device_ids_;  // session id -> worker's id, for every device
  absl::flat_hash_map<int32_t, std::string> default_memory_kinds_;  // by device

  UserContexts user_contexts_;
  // Of the request that is being handled, for the thread that handles it: its call site, and what fails with
  // that if it fails, apart from the results of runs.
  uint64_t user_context_ = 0;
  std::vector<cluster::BufferNames> being_made_;

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // Declared before everything that holds shards, since they report to it until the end.
  std::vector<cluster::BufferNames> released_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, ArrayRef> arrays_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Executable>> executables_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, async::CompletionRef> futures_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<uint64_t> deletion_futures_ ABSL_GUARDED_BY(mu_);  // some of futures_
  uint64_t next_server_handle_ ABSL_GUARDED_BY(mu_) = uint64_t{1} << 48;

  struct HeldLaunch {
    cluster::LaunchId id;
    std::vector<std::shared_ptr<const array::Arrival>> arrivals;
  };
  std::deque<HeldLaunch> held_ ABSL_GUARDED_BY(mu_);
  // First runs of programs with callbacks. Users expect the error of a callback from the call itself, as
  // JAX's CPU backend gives it, and the client waits for a first run's answer anyway: it comes when the run
  // is done. But not for ever, since a callback may wait for what its caller does next.
  struct LateAnswer {
    uint64_t op_id = 0;
    absl::Time since;
    std::vector<uint64_t> outputs;
    xla::ifrt::proxy::IfrtResponse response;
  };
  absl::flat_hash_map<cluster::LaunchId, LateAnswer> late_answers_ ABSL_GUARDED_BY(mu_);
  int64_t launches_under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
};

template <typename Handles>
absl::Status Session::BindAll(const Handles& handles, const std::vector<ArrayRef>& arrays) {
  size_t bound = 0;
  for (const uint64_t handle : handles) {
    if (absl::Status status = Bind(handle, arrays[bound]); !status.ok()) {
      for (const uint64_t taken_back : handles) {
        if (bound-- == 0) break;
        arrays_[taken_back] = base::MakeRef<array::Array>(status);
      }
      return status;
    }
    ++bound;
  }
  return absl::OkStatus();
}

template <typename Handles>
void Session::BindErrors(const Handles& handles, const absl::Status& status) {
  const absl::Status error = wire::WithUserContext(status, user_context_);
  base::MutexLock lock(&mu_);
  for (const uint64_t handle : handles) {
    if (handle != 0) arrays_.try_emplace(handle, base::MakeRef<array::Array>(error));
  }
}

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_SESSION_H_
