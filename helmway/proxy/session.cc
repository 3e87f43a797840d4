#include "helmway/proxy/session.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/available_memory.h"
#include "helmway/base/status.h"
#include "helmway/proxy/proxy.h"
#include "helmway/wire/status.h"

namespace helmway::proxy {

using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::IfrtResponse;

Session::Session(Proxy* proxy, uint64_t id, std::string peer_host, std::shared_ptr<net::SessionStream> stream,
                 std::shared_ptr<HostBuffers> host_buffers, ClientVersions versions)
    : live_(proxy->live_sessions().Begin()),
      proxy_(proxy),
      id_(id),
      peer_host_(std::move(peer_host)),
      stream_(std::move(stream)),
      versions_(std::move(versions)),
      host_buffers_(std::move(host_buffers)),
      link_(proxy->worker().OpenSession(id, callbacks_)) {
  const cluster::WorkerInfo& worker = proxy->worker().info();
  absl::flat_hash_map<int32_t, const cluster::MemoryInfo*> memories;
  for (const cluster::MemoryInfo& memory : worker.memories) memories[memory.id] = &memory;
  for (const cluster::DeviceInfo& device : worker.devices) {
    device_ids_[device.id] = device.id;
    const auto memory = device.default_memory ? memories.find(*device.default_memory) : memories.end();
    if (memory != memories.end()) default_memory_kinds_[device.id] = memory->second->kind;
  }
}

Session::~Session() {
  link_->Close();
  host_buffers_->Close();
  callbacks_->Close();
  // Handles go before the members that their shares report to.
  base::MutexLock lock(&mu_);
  arrays_.clear();
}

void Session::OnRequest(IfrtRequest& request) {
  const uint64_t op_id = request.request_metadata().op_id();
  user_context_ = request.request_metadata().user_context_id();
  // A run gives its own up when it is over.
  if (!request.has_loaded_executable_execute_request()) user_contexts_.Begin(op_id, user_context_);
  const bool is_reading =
      request.has_check_value_ready_request() || request.has_copy_to_host_buffer_request();
  IfrtResponse response;
  Reply reply{op_id, response};
  const absl::Status status = Dispatch(request, reply);
  if (status.ok() && !being_made_.empty()) KeepUserContext(op_id);
  being_made_.clear();
  FlushReleased();
  link_->Flush();
  if (!status.ok()) {
    // Elsewhere clients show the number instead of the call site.
    SendError(op_id, is_reading ? status : wire::WithoutUserContext(status));
  } else if (!reply.deferred) {
    Send(op_id, status, response, reply.patient, reply.counted);
  }
}

absl::Status Session::Dispatch(IfrtRequest& request, Reply& reply) {
  switch (request.request_case()) {
    case IfrtRequest::kInitRequest:
      return HandleInit(reply);
    case IfrtRequest::kCheckFutureRequest:
      return HandleCheckFuture(request.check_future_request(), reply);
    case IfrtRequest::kMakeArrayFromHostBufferRequest: {
      const auto& r = request.make_array_from_host_buffer_request();
      absl::Status status = HandleMakeArrayFromHostBuffer(r, reply);
      if (!status.ok()) {
        BindErrors(
            std::initializer_list<uint64_t>{r.has_array_handle() ? r.array_handle() : r.host_buffer_handle()},
            status);
        DropHostBuffer(r.host_buffer_handle());
      }
      return status;
    }
    case IfrtRequest::kMakeArraysFromHostBufferShardsRequest: {
      const auto& r = request.make_arrays_from_host_buffer_shards_request();
      absl::Status status = HandleMakeArraysFromHostBufferShards(r, reply);
      if (!status.ok()) {
        BindErrors(r.array_handles(), status);
        for (const auto& spec : r.specs()) {
          for (const auto& buffer : spec.host_buffers()) DropHostBuffer(buffer.host_buffer_handle());
        }
      }
      return status;
    }
    case IfrtRequest::kAssembleArrayFromSingleDeviceArraysRequest: {
      const auto& r = request.assemble_array_from_single_device_arrays_request();
      absl::Status status = HandleAssembleArray(r, reply);
      if (!status.ok()) BindErrors(std::initializer_list<uint64_t>{r.result_handle()}, status);
      return status;
    }
    case IfrtRequest::kDisassembleIntoSingleDeviceArraysRequest: {
      const auto& r = request.disassemble_into_single_device_arrays_request();
      absl::Status status = HandleDisassemble(r, reply);
      if (!status.ok()) BindErrors(r.result_handles(), status);
      return status;
    }
    case IfrtRequest::kFullyReplicatedShardRequest: {
      const auto& r = request.fully_replicated_shard_request();
      absl::Status status = HandleFullyReplicatedShard(r, reply);
      if (!status.ok()) BindErrors(std::initializer_list<uint64_t>{r.result_handle()}, status);
      return status;
    }
    case IfrtRequest::kCopyArraysRequest: {
      const auto& r = request.copy_arrays_request();
      absl::Status status = HandleCopyArrays(r, reply);
      if (!status.ok()) BindErrors(r.result_handles(), status);
      return status;
    }
    case IfrtRequest::kRemapArraysRequest: {
      const auto& r = request.remap_arrays_request();
      absl::Status status = HandleRemapArrays(r, reply);
      if (!status.ok()) BindErrors(r.result_handles(), status);
      return status;
    }
    case IfrtRequest::kReshardArraysRequest: {
      const auto& r = request.reshard_arrays_request();
      absl::Status status = HandleReshardArrays(r, reply);
      if (!status.ok()) BindErrors(r.result_handles(), status);
      return status;
    }
    case IfrtRequest::kBitcastArraysRequest: {
      const auto& r = request.bitcast_arrays_request();
      absl::Status status = HandleBitcastArrays(r, reply);
      if (!status.ok()) BindErrors(r.result_handles(), status);
      return status;
    }
    case IfrtRequest::kCopyToHostBufferRequest:
      return HandleCopyToHostBuffer(request.copy_to_host_buffer_request(), reply);
    case IfrtRequest::kCheckValueReadyRequest:
      return HandleCheckValueReady(request.check_value_ready_request(), reply);
    case IfrtRequest::kDeleteArrayRequest:
      return HandleDeleteArray(request.delete_array_request(), reply);
    case IfrtRequest::kDestructArrayRequest:
      return HandleDestructArray(request.destruct_array_request(), reply);
    case IfrtRequest::kIsArrayDeletedRequest:
      return HandleIsArrayDeleted(request.is_array_deleted_request(), reply);
    case IfrtRequest::kCompileRequest:
      return HandleCompile(*request.mutable_compile_request(), reply);
    case IfrtRequest::kLoadedExecutableMetadataRequest:
      return HandleLoadedExecutableMetadata(request.loaded_executable_metadata_request(), reply);
    case IfrtRequest::kLoadedExecutableExecuteRequest: {
      const auto& r = request.loaded_executable_execute_request();
      absl::Status status = HandleLoadedExecutableExecute(r, reply);
      if (!status.ok()) {
        BindErrors(r.result_array_handle(), status);
        if (r.result_status_handle() != 0) {
          base::MutexLock lock(&mu_);
          futures_.try_emplace(r.result_status_handle(), async::DoneCompletion(status));
        }
      }
      return status;
    }
    case IfrtRequest::kLoadedExecutableFetchExecuteResultRequest:
      return HandleLoadedExecutableFetchExecuteResult(
          request.loaded_executable_fetch_execute_result_request(), reply);
    case IfrtRequest::kLoadedExecutableCostAnalysisRequest:
      return HandleLoadedExecutableCostAnalysis(request.loaded_executable_cost_analysis_request(), reply);
    case IfrtRequest::kLoadedExecutableHumanReadableProgramTextRequest:
      return HandleLoadedExecutableHumanReadableProgramText(
          request.loaded_executable_human_readable_program_text_request(), reply);
    case IfrtRequest::kLoadedExecutableDestructRequest:
      return HandleLoadedExecutableDestruct(request.loaded_executable_destruct_request(), reply);
    case IfrtRequest::kGetDefaultDeviceAssignmentRequest:
      return HandleGetDefaultDeviceAssignment(request.get_default_device_assignment_request(), reply);
    case IfrtRequest::kGetDefaultLayoutRequest:
      return HandleGetDefaultLayout(request.get_default_layout_request(), reply);

    case IfrtRequest::kMakeErrorArraysRequest: {
      const auto& r = request.make_error_arrays_request();
      absl::Status status = HandleMakeErrorArrays(r, reply);
      if (!status.ok()) BindErrors(r.array_handles(), status);
      return status;
    }
    case IfrtRequest::REQUEST_NOT_SET:
      return absl::InvalidArgumentError("the request has no member that this server knows");
    default: {
      // The member's own name says best what is missing.
      const google::protobuf::FieldDescriptor* field =
          IfrtRequest::descriptor()->FindFieldByNumber(static_cast<int>(request.request_case()));
      return absl::UnimplementedError(absl::StrCat(
          field != nullptr ? field->message_type()->name() : "this request", " is not supported"));
    }
  }
}

void Session::DropHostBuffer(uint64_t handle) {
  host_buffers_->Take(handle, [](const absl::StatusOr<base::HostBytes>&) {});
}

void Session::Send(uint64_t op_id, const absl::Status& status, IfrtResponse& response, bool patient,
                   bool counted) {
  response.mutable_response_metadata()->set_op_id(op_id);
  if (!status.ok()) *response.mutable_response_metadata()->mutable_status() = wire::StatusToProto(status);
  user_contexts_.Settle(*response.mutable_response_metadata(), status.ok(), counted);
  stream_->Send(response, patient);
}

void Session::KeepUserContext(uint64_t op_id) {
  const std::vector<cluster::BufferNames> made = std::exchange(being_made_, {});
  const uint64_t user_context = user_contexts_.Take(op_id);
  if (user_context == 0) return;
  link_->Await(made, [self = shared_from_this(), user_context](const absl::Status& status) {
    if (status.ok()) self->user_contexts_.Release(user_context);
  });
}

void Session::SendError(uint64_t op_id, const absl::Status& status) {
  VLOG(1) << "op " << op_id << ": " << status;
  IfrtResponse response;
  Send(op_id, status, response);
}

absl::StatusOr<array::ArrayRef> Session::FindArray(uint64_t handle) {
  const auto it = arrays_.find(handle);
  if (it == arrays_.end()) return absl::NotFoundError(absl::StrCat("no array has the handle ", handle));
  if (!it->second->status().ok()) return it->second->status();
  return it->second;
}

std::shared_ptr<const Executable> Session::FindExecutable(uint64_t handle) {
  const auto it = executables_.find(handle);
  return it == executables_.end() ? nullptr : it->second;
}

absl::StatusOr<std::shared_ptr<const Executable>> Session::GetExecutable(uint64_t handle) {
  base::MutexLock lock(&mu_);
  std::shared_ptr<const Executable> executable = FindExecutable(handle);
  if (executable == nullptr)
    return absl::NotFoundError(absl::StrCat("no executable has the handle ", handle));
  return executable;
}

absl::Status Session::Bind(uint64_t handle, ArrayRef array) {
  if (handle == 0) return absl::InvalidArgumentError("0 is no array handle");
  if (!arrays_.try_emplace(handle, std::move(array)).second) {
    return absl::AlreadyExistsError(absl::StrCat("the array handle ", handle, " is in use"));
  }
  return absl::OkStatus();
}

uint64_t Session::AddFuture(async::CompletionRef future) {
  const uint64_t handle = NewServerHandle();
  futures_[handle] = std::move(future);
  return handle;
}

absl::Status Session::AnswerWithFuture(uint64_t handle, Reply& reply) {
  async::CompletionRef future;
  {
    base::MutexLock lock(&mu_);
    const auto it = futures_.find(handle);
    if (it == futures_.end()) return absl::NotFoundError(absl::StrCat("no future has the handle ", handle));
    future = std::move(it->second);
    futures_.erase(it);
    reply.counted = deletion_futures_.erase(handle) == 0;
  }
  if (future->done()) return future->status();
  reply.deferred = true;
  future->OnDone([self = shared_from_this(), op_id = reply.op_id,
                  response = std::make_shared<IfrtResponse>(reply.response)](const absl::Status& status) {
    if (!status.ok()) return self->SendError(op_id, status);
    self->Send(op_id, status, *response);
  });
  return absl::OkStatus();
}

void Session::Release(cluster::BufferId first, uint32_t count) {
  // Under mu_: shares are only touched there.
  mu_.AssertHeld();
  if (!released_.empty()) {
    cluster::BufferNames& last = released_.back();
    if (last.list.empty() && last.first + last.count == first) {
      last.count += count;
      return;
    }
  }
  released_.push_back({first, count, {}});
}

void Session::FlushReleased() {
  std::vector<cluster::BufferNames> released;
  {
    base::MutexLock lock(&mu_);
    if (released_.empty()) return;
    released.swap(released_);
  }
  link_->Delete(released);
}

void Session::OnClosed() {
  link_->Close();
  host_buffers_->Close();
  callbacks_->Close();
  decltype(executables_) executables;
  {
    base::MutexLock lock(&mu_);
    closed_ = true;
    arrays_.clear();
    futures_.clear();
    deletion_futures_.clear();
    held_.clear();
    late_answers_.clear();
    released_.clear();
    executables.swap(executables_);
  }
  proxy_->Forget(id_);
  // Compiling leaves much behind. Without a thread for it, the next session that ends does it.
  executables.clear();
  proxy_->RunBlocking([] { base::ReturnFreeMemory(); });
  LOG(INFO) << "a session from " << peer_host_ << " has ended";
}

absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> Session::StoreHostBuffer(uint64_t handle,
                                                                                int64_t size) {
  return host_buffers_->Store(handle, size);
}

absl::StatusOr<base::HostBytes> Session::LookupHostBuffer(uint64_t handle) {
  return host_buffers_->Lookup(handle);
}

absl::Status Session::DeleteHostBuffer(uint64_t handle) { return host_buffers_->Delete(handle); }

absl::Status Session::ReadHostBufferFromDisk(uint64_t handle, int64_t size) {
  const std::string& directory = proxy_->options().large_transfer_directory;
  if (directory.empty()) {
    return absl::UnimplementedError(
        "transfers through a shared directory are off: set "
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY for "
        "the server too");
  }
  // The client narrows the handle to 32 bits with a sign in the file's name.
  const std::string path = absl::StrCat(directory, "/lt_", static_cast<int32_t>(handle));
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    const absl::Status status =
        absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
    // Whoever waits for the bytes hears why they do not come; the client does in any case.
    host_buffers_->Fail(handle, status).IgnoreError();
    return status;
  }
  absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> writer;
  absl::Status status;
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != size) {
    status = absl::InvalidArgumentError(absl::StrCat(path, " is no file of ", size, " bytes"));
    host_buffers_->Fail(handle, status).IgnoreError();
  } else if (writer = host_buffers_->Store(handle, size); !writer.ok()) {
    status = writer.status();
  } else {
    uint8_t* target = (*writer)->Reserve(size);
    int64_t done = 0;
    while (done < size) {
      const ssize_t got = read(fd, target + done, static_cast<size_t>(size - done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        status = absl::InternalError(
            absl::StrCat("cannot read ", path, ": ", got < 0 ? std::strerror(errno) : "it became shorter"));
        break;
      }
      done += got;
    }
  }
  close(fd);
  // The name may serve another buffer next.
  unlink(path.c_str());
  if (!status.ok()) return status;
  return (*writer)->Finish();
}

}  // namespace helmway::proxy
