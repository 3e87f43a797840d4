// A server of the IFRT proxy protocol that does no work: it acknowledges. What an unmodified client reaches
// against it is the client's own ceiling, the yardstick for a server that computes.
//
//   null_server [--devices N]     serves on a free port, prints
//                                 "export JAX_BACKEND_TARGET=grpc://127.0.0.1:PORT", ends when stdin is
//                                 closed
//
// Every program is taken to have one output, with the dtype, shape and sharding of its first argument; a
// program without arguments, or with other outputs, is answered UNIMPLEMENTED or gives wrong shapes. Stored
// host buffers are received and dropped, and every read yields zeros. Arrays whose bytes are still on their
// way are not ready, so that the time of a transfer is the real one.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/serve.h"
#include "helmway/wire/ifrt_service.grpc.pb.h"
#include "helmway/wire/ifrt_service.pb.h"
#include "helmway/wire/ifrt_session.pb.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::bench {
namespace {

namespace ifrt = xla::ifrt;
namespace proxy = xla::ifrt::proxy;

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int kProtocolVersion = 25;
constexpr int kSerdesVersion = 6;
// Handles made by the server start here; smaller ones belong to the client.
constexpr uint64_t kFirstServerHandle = uint64_t{1} << 48;

// Bytes from the client, or a promise of them: the request that names a buffer may come before its bytes.
class HostBuffer {
 public:
  // Calls `then` when the bytes are here; at once if they are. Any thread.
  void WhenHere(std::function<void()> then) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!here_) {
        waiters_.push_back(std::move(then));
        return;
      }
    }
    then();
  }

  void Arrived() {
    std::vector<std::function<void()>> waiters;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      here_ = true;
      waiters.swap(waiters_);
    }
    for (auto& waiter : waiters) waiter();
  }

  // For buffers that the server fills.
  int64_t size_bytes = 0;

 private:
  std::mutex mutex_;
  bool here_ = false;
  std::vector<std::function<void()>> waiters_;
};

// The host buffers of all sessions. Any thread.
class HostBuffers {
 public:
  std::shared_ptr<HostBuffer> Get(uint64_t session, uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<HostBuffer>& buffer = buffers_[{session, handle}];
    if (buffer == nullptr) buffer = std::make_shared<HostBuffer>();
    return buffer;
  }
  // Null if there is none.
  std::shared_ptr<HostBuffer> Find(uint64_t session, uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = buffers_.find({session, handle});
    return it == buffers_.end() ? nullptr : it->second;
  }
  void Drop(uint64_t session, uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    buffers_.erase({session, handle});
  }
  void DropSession(uint64_t session) {
    std::lock_guard<std::mutex> lock(mutex_);
    buffers_.erase(buffers_.lower_bound({session, 0}), buffers_.upper_bound({session, UINT64_MAX}));
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<HostBuffer>> buffers_;
};

struct ArraySpec {
  ifrt::DTypeProto dtype;
  ifrt::ShapeProto shape;
  ifrt::ShardingProto sharding;
};

struct Array {
  std::shared_ptr<const ArraySpec> spec;
  std::vector<std::shared_ptr<HostBuffer>> pending;  // Buffers that fill it; empty for results of programs.
};

// The size of a dense buffer, or -1 for a type that this server does not know.
int64_t SizeBytes(const ArraySpec& spec) {
  int64_t size = 0;
  switch (spec.dtype.kind()) {
    case ifrt::DTypeProto::KIND_PRED:
    case ifrt::DTypeProto::KIND_S8:
    case ifrt::DTypeProto::KIND_U8:
      size = 1;
      break;
    case ifrt::DTypeProto::KIND_S16:
    case ifrt::DTypeProto::KIND_U16:
    case ifrt::DTypeProto::KIND_F16:
    case ifrt::DTypeProto::KIND_BF16:
      size = 2;
      break;
    case ifrt::DTypeProto::KIND_S32:
    case ifrt::DTypeProto::KIND_U32:
    case ifrt::DTypeProto::KIND_F32:
      size = 4;
      break;
    case ifrt::DTypeProto::KIND_S64:
    case ifrt::DTypeProto::KIND_U64:
    case ifrt::DTypeProto::KIND_F64:
    case ifrt::DTypeProto::KIND_C64:
      size = 8;
      break;
    default:
      return -1;
  }
  for (int64_t dim : spec.shape.dims()) size *= dim;
  return size;
}

void SetUnimplemented(tensorflow::StatusProto* status, const std::string& what) {
  status->set_code(tensorflow::error::UNIMPLEMENTED);
  status->set_message("the null server has no " + what);
}

// One stream. A blocking call on a thread of its own, which costs less per message than the callback API.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Stream = grpc::ServerReaderWriter<proxy::IfrtResponse, proxy::IfrtRequest>;

  Session(HostBuffers* buffers, int num_devices, Stream* stream)
      : buffers_(buffers), num_devices_(num_devices), stream_(stream) {
    static std::atomic<uint64_t> next_id{1};
    id_ = next_id++;
  }

  // Returns when the client ends the stream.
  void Run() {
    proxy::IfrtRequest request;
    while (stream_->Read(&request)) Handle(request);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stream_ = nullptr;
    }
    arrays_.clear();  // Their buffers may hold waiters that hold this session.
    buffers_->DropSession(id_);
  }

 private:
  // Acknowledgements that the client does not wait for share one write with those that follow, up to
  // kMaxHeld of them; the last few may stay behind until the client waits for something.
  void Send(const proxy::IfrtResponse& response, bool awaited) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream_ == nullptr) return;
    grpc::WriteOptions options;
    if (!awaited && ++held_ < kMaxHeld) {
      options.set_buffer_hint();
    } else {
      held_ = 0;
    }
    stream_->Write(response, options);
  }

  std::shared_ptr<const ArraySpec> SpecOf(uint64_t handle) const {
    auto it = arrays_.find(handle);
    return it == arrays_.end() ? nullptr : it->second.spec;
  }

  // Answers `request`, or arranges that the answer is sent later.
  void Handle(const proxy::IfrtRequest& request) {
    proxy::IfrtResponse response;
    response.mutable_response_metadata()->set_op_id(request.request_metadata().op_id());
    const std::string missing = Fill(request, &response);
    if (missing == kLater) return;
    if (!missing.empty()) {
      response.clear_response();
      SetUnimplemented(response.mutable_response_metadata()->mutable_status(), missing);
    }
    Send(response, !missing.empty() || Awaited(response));
  }

  // Whether the client may stand still until it has this response.
  static bool Awaited(const proxy::IfrtResponse& response) {
    switch (response.response_case()) {
      case proxy::IfrtResponse::kLoadedExecutableExecuteResponse:
        return response.loaded_executable_execute_response().outputs_size() > 0;
      case proxy::IfrtResponse::kMakeArrayFromHostBufferResponse:
      case proxy::IfrtResponse::kMakeArraysFromHostBufferShardsResponse:
      case proxy::IfrtResponse::kFullyReplicatedShardResponse:
      case proxy::IfrtResponse::kDisassembleIntoSingleDeviceArraysResponse:
      case proxy::IfrtResponse::kDestructArrayResponse:
        return false;
      default:
        return true;
    }
  }

  // Returns the name of what is missing, empty on success, or kLater.
  std::string Fill(const proxy::IfrtRequest& request, proxy::IfrtResponse* response) {
    switch (request.request_case()) {
      case proxy::IfrtRequest::kInitRequest:
        Init(response->mutable_init_response());
        return "";
      case proxy::IfrtRequest::kCheckFutureRequest:
        response->mutable_check_future_response();
        return "";
      case proxy::IfrtRequest::kMakeArrayFromHostBufferRequest: {
        const auto& make = request.make_array_from_host_buffer_request();
        auto spec = std::make_shared<ArraySpec>();
        spec->dtype = make.dtype();
        spec->shape = make.shape();
        spec->sharding = make.sharding();
        arrays_[make.array_handle()] = {std::move(spec), {TakeBuffer(make.host_buffer_handle())}};
        response->mutable_make_array_from_host_buffer_response()->set_array_handle(make.array_handle());
        return "";
      }
      case proxy::IfrtRequest::kMakeArraysFromHostBufferShardsRequest: {
        const auto& make = request.make_arrays_from_host_buffer_shards_request();
        if (make.specs_size() != make.array_handles_size()) return "handle for every spec";
        for (int i = 0; i < make.specs_size(); ++i) {
          auto spec = std::make_shared<ArraySpec>();
          spec->dtype = make.specs(i).array_spec().dtype();
          spec->shape = make.specs(i).array_spec().shape();
          spec->sharding = make.specs(i).array_spec().sharding();
          Array array{std::move(spec), {}};
          for (const auto& buffer : make.specs(i).host_buffers()) {
            array.pending.push_back(TakeBuffer(buffer.host_buffer_handle()));
          }
          arrays_[make.array_handles(i)] = std::move(array);
        }
        *response->mutable_make_arrays_from_host_buffer_shards_response()->mutable_array_handles() =
            make.array_handles();
        return "";
      }
      case proxy::IfrtRequest::kFullyReplicatedShardRequest: {
        const auto& shard = request.fully_replicated_shard_request();
        arrays_[shard.result_handle()] = arrays_[shard.array_handle()];
        response->mutable_fully_replicated_shard_response()->set_array_handle(shard.result_handle());
        return "";
      }
      case proxy::IfrtRequest::kDisassembleIntoSingleDeviceArraysRequest: {
        const auto& parts = request.disassemble_into_single_device_arrays_request();
        if (parts.result_handles_size() != 1) return "array with more than one shard";
        arrays_[parts.result_handles(0)] = arrays_[parts.array_handle()];
        response->mutable_disassemble_into_single_device_arrays_response()->add_array_handles(
            parts.result_handles(0));
        return "";
      }
      case proxy::IfrtRequest::kCopyToHostBufferRequest: {
        const auto& copy = request.copy_to_host_buffer_request();
        const std::shared_ptr<const ArraySpec> spec = SpecOf(copy.array_handle());
        if (spec == nullptr) return "such array";
        const int64_t size = SizeBytes(*spec);
        if (size < 0) return "arrays of this element type";
        auto buffer = buffers_->Get(id_, copy.host_buffer_handle());
        buffer->size_bytes = size;
        buffer->Arrived();
        response->mutable_copy_to_host_buffer_response();
        return "";
      }
      case proxy::IfrtRequest::kCheckValueReadyRequest: {
        response->mutable_check_value_ready_response();
        std::vector<std::shared_ptr<HostBuffer>> pending;
        for (uint64_t handle : request.check_value_ready_request().value_handles()) {
          auto it = arrays_.find(handle);
          if (it == arrays_.end()) return "such array";
          pending.insert(pending.end(), it->second.pending.begin(), it->second.pending.end());
        }
        if (pending.empty()) return "";
        auto left = std::make_shared<std::atomic<size_t>>(pending.size());
        for (const auto& buffer : pending) {
          buffer->WhenHere([self = shared_from_this(), left, answer = *response] {
            if (--*left == 0) self->Send(answer, true);
          });
        }
        return kLater;
      }
      case proxy::IfrtRequest::kDeleteArrayRequest:
        response->mutable_delete_array_response()->set_deletion_future_handle(next_handle_++);
        return "";
      case proxy::IfrtRequest::kIsArrayDeletedRequest:
        response->mutable_is_array_deleted_response()->set_deleted(false);
        return "";
      case proxy::IfrtRequest::kDestructArrayRequest:
        for (uint64_t handle : request.destruct_array_request().array_handle()) arrays_.erase(handle);
        response->mutable_destruct_array_response();
        return "";
      case proxy::IfrtRequest::kCompileRequest:
        return Compile(request.compile_request(), response->mutable_compile_response());
      case proxy::IfrtRequest::kLoadedExecutableMetadataRequest: {
        auto* metadata = response->mutable_loaded_executable_metadata_response();
        metadata->mutable_output_memory_kinds()->add_memory_kind_lists()->add_memory_kinds("device");
        SetUnimplemented(metadata->mutable_parameter_layouts_error(), "layouts");
        SetUnimplemented(metadata->mutable_output_layouts_error(), "layouts");
        metadata->mutable_donated_input_indices();
        SetUnimplemented(metadata->mutable_compiled_memory_stats_error(), "memory statistics");
        return "";
      }
      case proxy::IfrtRequest::kLoadedExecutableExecuteRequest:
        return Execute(request.loaded_executable_execute_request(),
                       response->mutable_loaded_executable_execute_response());
      case proxy::IfrtRequest::kLoadedExecutableFetchExecuteResultRequest:
        response->mutable_loaded_executable_fetch_execute_result_response();
        return "";
      case proxy::IfrtRequest::kLoadedExecutableDestructRequest:
        outputs_.erase(request.loaded_executable_destruct_request().loaded_executable_handle());
        response->mutable_loaded_executable_destruct_response();
        return "";
      case proxy::IfrtRequest::kGetDefaultLayoutRequest: {
        std::string layout = "{";
        for (int i = request.get_default_layout_request().dims_size() - 1; i >= 0; --i) {
          layout += std::to_string(i) + (i > 0 ? "," : "");
        }
        response->mutable_get_default_layout_response()->set_serialized_pjrt_layout(layout + "}");
        return "";
      }
      default:
        return "handler for request number " + std::to_string(request.request_case());
    }
  }

  void Init(proxy::InitResponse* init) {
    init->set_platform_name("cpu");
    init->set_platform_version("null");
    init->set_runtime_type("pathways");
    init->set_session_id(id_);
    for (int i = 0; i < num_devices_; ++i) {
      auto* device = init->add_all_devices();
      device->set_id(i);
      device->set_local_hardware_id(i);
      device->set_device_kind("cpu");
      device->set_debug_string("NullDevice(" + std::to_string(i) + ")");
      device->set_to_string(device->debug_string());
      device->set_default_memory_id(i);
      device->add_memory_ids(i);
      device->set_local_device_id(i);
      device->set_platform_name("cpu");
      init->add_addressable_device_ids(i);
      init->add_primary_device_ids(i);
      auto* memory = init->add_memories();
      memory->set_id(i);
      memory->set_memory_space_kind("device");
      memory->add_device_ids(i);
      memory->set_debug_string("NullMemory(" + std::to_string(i) + ")");
      memory->set_to_string(memory->debug_string());
    }
  }

  std::string Compile(const proxy::CompileRequest& compile, proxy::CompileResponse* response) {
    ifrt::XlaCompileOptionsProto options;
    if (!options.ParseFromString(compile.compile_options().data())) return "way to read these options";
    if (compile.host_callbacks_size() > 0) return "host callbacks";
    response->set_loaded_executable_handle(next_handle_++);
    response->set_name("null");
    for (const auto& partition :
         options.compile_options().executable_build_options().device_assignment().computation_devices()) {
      for (int64_t id : partition.replica_device_ids()) {
        response->add_device_ids(static_cast<int32_t>(id));
        response->add_addressable_device_ids(static_cast<int32_t>(id));
      }
    }
    response->set_num_devices(response->device_ids_size());
    response->set_ready_future_handle(next_handle_++);
    return "";
  }

  std::string Execute(const proxy::LoadedExecutableExecuteRequest& execute,
                      proxy::LoadedExecutableExecuteResponse* response) {
    std::shared_ptr<const ArraySpec>& spec = outputs_[execute.loaded_executable_handle()];
    if (spec == nullptr) {
      if (execute.args_handles_size() > 0) spec = SpecOf(execute.args_handles(0));
      if (spec == nullptr) return "outputs for a program without arguments";
    }
    if (execute.execute_options().fill_status() && execute.result_status_handle() == 0) {
      response->set_status_handle(next_handle_++);
    }
    for (uint64_t handle : execute.result_array_handle()) arrays_[handle] = {spec, {}};
    if (execute.result_array_handle_size() == 0) {
      auto* output = response->add_outputs();
      *output->mutable_dtype() = spec->dtype;
      *output->mutable_shape() = spec->shape;
      *output->mutable_sharding() = spec->sharding;
      output->set_array_handle(next_handle_);
      arrays_[next_handle_++] = {spec, {}};
    }
    return "";
  }

  // The buffer is dropped from the table when its bytes have come.
  std::shared_ptr<HostBuffer> TakeBuffer(uint64_t handle) {
    auto buffer = buffers_->Get(id_, handle);
    buffer->WhenHere([buffers = buffers_, session = id_, handle] { buffers->Drop(session, handle); });
    return buffer;
  }

  // Not the name of anything that could be missing.
  static constexpr char kLater[] = "(later)";

  static constexpr int kMaxHeld = 32;

  HostBuffers* const buffers_;
  const int num_devices_;
  uint64_t id_;

  // Used by the reading thread only.
  uint64_t next_handle_ = kFirstServerHandle;
  std::unordered_map<uint64_t, Array> arrays_;
  std::unordered_map<uint64_t, std::shared_ptr<const ArraySpec>> outputs_;  // By executable.

  std::mutex mutex_;  // Writes come from the reading thread and from those that receive buffers.
  Stream* stream_;    // Null when the stream is over.
  int held_ = 0;
};

class StoreReactor : public grpc::ServerReadReactor<proxy::GrpcHostBufferStoreRequest> {
 public:
  StoreReactor(HostBuffers* buffers, grpc::CallbackServerContext* context) : buffers_(buffers) {
    const auto& headers = context->client_metadata();
    auto it = headers.find("ifrt-proxy-grpc-host-buffer-store-metadata-bin");
    if (it == headers.end() ||
        !metadata_.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
      Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "host buffer store without its header"));
      return;
    }
    StartRead(&piece_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      bytes_ += static_cast<int64_t>(piece_.data().size());
      StartRead(&piece_);
      return;
    }
    if (bytes_ != metadata_.buffer_size()) {
      Finish(grpc::Status(grpc::StatusCode::DATA_LOSS, "host buffer store fell short"));
      return;
    }
    buffers_->Get(metadata_.session_id(), metadata_.handle())->Arrived();
    Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  HostBuffers* const buffers_;
  proxy::GrpcHostBufferStoreMetadata metadata_;
  proxy::GrpcHostBufferStoreRequest piece_;
  int64_t bytes_ = 0;
};

class LookupReactor : public grpc::ServerWriteReactor<proxy::GrpcHostBufferLookupResponse> {
 public:
  LookupReactor(HostBuffers* buffers, const proxy::GrpcHostBufferLookupRequest& request) {
    auto buffer = buffers->Find(request.session_id(), request.handle());
    if (buffer == nullptr) {
      Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such host buffer"));
      return;
    }
    left_ = buffer->size_bytes;
    Next();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    } else if (left_ > 0) {
      Next();
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    const int64_t size = std::min(left_, kChunkBytes);
    left_ -= size;
    if (static_cast<int64_t>(piece_.data().size()) != size) piece_.mutable_data()->assign(size, '\0');
    StartWrite(&piece_);
  }

  int64_t left_ = 0;
  proxy::GrpcHostBufferLookupResponse piece_;
};

using BlockingSession = proxy::GrpcIfrtService::WithCallbackMethod_GetVersion<
    proxy::GrpcIfrtService::WithCallbackMethod_HostBufferStore<
        proxy::GrpcIfrtService::WithCallbackMethod_HostBufferLookup<
            proxy::GrpcIfrtService::WithCallbackMethod_HostBufferDelete<
                proxy::GrpcIfrtService::WithCallbackMethod_HostBufferReadFromDisk<
                    proxy::GrpcIfrtService::Service>>>>>;

class NullService : public BlockingSession {
 public:
  explicit NullService(int num_devices) : num_devices_(num_devices) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const proxy::GrpcGetVersionRequest* request,
                                       proxy::GrpcGetVersionResponse* response) override {
    const auto& lowest = request->min_version();
    const auto& highest = request->max_version();
    const int protocol = std::min(highest.protocol_version(), kProtocolVersion);
    const int serdes = std::min(highest.ifrt_serdes_version_number(), kSerdesVersion);
    auto* reactor = context->DefaultReactor();
    if (protocol < lowest.protocol_version() || serdes < lowest.ifrt_serdes_version_number()) {
      reactor->Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the client is too new"));
      return reactor;
    }
    response->mutable_version()->set_protocol_version(protocol);
    response->mutable_version()->set_ifrt_serdes_version_number(serdes);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::Status IfrtSession(grpc::ServerContext*, Session::Stream* stream) override {
    std::make_shared<Session>(&buffers_, num_devices_, stream)->Run();
    return grpc::Status::OK;
  }
  grpc::ServerReadReactor<proxy::GrpcHostBufferStoreRequest>* HostBufferStore(
      grpc::CallbackServerContext* context, proxy::GrpcHostBufferStoreResponse*) override {
    return new StoreReactor(&buffers_, context);
  }
  grpc::ServerWriteReactor<proxy::GrpcHostBufferLookupResponse>* HostBufferLookup(
      grpc::CallbackServerContext*, const proxy::GrpcHostBufferLookupRequest* request) override {
    return new LookupReactor(&buffers_, *request);
  }
  grpc::ServerUnaryReactor* HostBufferDelete(grpc::CallbackServerContext* context,
                                             const proxy::GrpcHostBufferDeleteRequest* request,
                                             proxy::GrpcHostBufferDeleteResponse*) override {
    buffers_.Drop(request->session_id(), request->handle());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* HostBufferReadFromDisk(grpc::CallbackServerContext* context,
                                                   const proxy::GrpcHostBufferReadFromDiskRequest* request,
                                                   proxy::GrpcHostBufferReadFromDiskResponse*) override {
    const auto& metadata = request->metadata();
    const char* directory = std::getenv("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY");
    auto* reactor = context->DefaultReactor();
    std::error_code error;
    // The client narrows the handle in the name of the file.
    const std::filesystem::path path = std::filesystem::path(directory == nullptr ? "" : directory) /
                                       ("lt_" + std::to_string(static_cast<int32_t>(metadata.handle())));
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error || size != static_cast<uintmax_t>(metadata.buffer_size())) {
      reactor->Finish(
          grpc::Status(grpc::StatusCode::DATA_LOSS, "no file of the right size: " + path.string()));
      return reactor;
    }
    std::filesystem::remove(path, error);
    buffers_.Get(metadata.session_id(), metadata.handle())->Arrived();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const int num_devices_;
  HostBuffers buffers_;
};

int Serve(int num_devices) {
  NullService service(num_devices);
  return ServeUntilStdinCloses("null_server", service, [](int port) {
    std::cout << "export JAX_BACKEND_TARGET=grpc://127.0.0.1:" << port << std::endl;
  });
}

}  // namespace
}  // namespace helmway::bench

int main(int argc, char** argv) {
  int num_devices = 1;
  if (argc == 3 && std::string(argv[1]) == "--devices") {
    num_devices = std::atoi(argv[2]);
  } else if (argc != 1) {
    num_devices = 0;
  }
  if (num_devices < 1) {
    std::cerr << "use: null_server [--devices N]" << std::endl;
    return 2;
  }
  return helmway::bench::Serve(num_devices);
}
