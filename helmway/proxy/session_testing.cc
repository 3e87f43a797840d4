#include "helmway/proxy/session_testing.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/serialized.h"
#include "helmway/wire/xla_data.pb.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::proxy {

using ::xla::ifrt::proxy::IfrtRequest;

// ---- Parts of requests -----------------------------------------------------------------------------------

xla::ifrt::DTypeProto DType(xla::ifrt::DTypeProto::Kind kind) {
  xla::ifrt::DTypeProto proto;
  proto.set_kind(kind);
  return proto;
}

xla::ifrt::ShapeProto Shape(const std::vector<int64_t>& dims) {
  xla::ifrt::ShapeProto proto;
  proto.mutable_dims()->Assign(dims.begin(), dims.end());
  return proto;
}

xla::ifrt::proto::ByteStrides Strides(const std::vector<int64_t>& strides) {
  xla::ifrt::proto::ByteStrides proto;
  proto.mutable_strides()->Assign(strides.begin(), strides.end());
  return proto;
}

xla::ifrt::ShardingProto OneDevice(int32_t device, std::optional<std::string> memory_kind) {
  xla::ifrt::SingleDeviceShardingProto payload;
  payload.set_device_id(device);
  if (memory_kind) payload.set_memory_kind(*memory_kind);
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, wire::kSingleDeviceSharding);
  return proto;
}

namespace {

xla::ifrt::ShardingProto Hlo(const std::vector<int32_t>& devices, const xla::OpSharding& op_sharding) {
  xla::ifrt::HloShardingProto payload;
  payload.mutable_devices()->mutable_device_ids()->Assign(devices.begin(), devices.end());
  *payload.mutable_xla_op_sharding() = op_sharding;
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, wire::kHloSharding);
  return proto;
}

xla::OpSharding SplitFirst(size_t num_devices, size_t rank) {
  xla::OpSharding sharding;
  sharding.set_type(xla::OpSharding::OTHER);
  sharding.add_tile_assignment_dimensions(static_cast<int64_t>(num_devices));
  for (size_t i = 1; i < rank; ++i) sharding.add_tile_assignment_dimensions(1);
  sharding.add_iota_reshape_dims(static_cast<int64_t>(num_devices));
  sharding.add_iota_transpose_perm(0);
  return sharding;
}

}  // namespace

xla::ifrt::ShardingProto Replicated(const std::vector<int32_t>& devices) {
  return Hlo(devices, xla::OpSharding());
}

xla::ifrt::ShardingProto Split(const std::vector<int32_t>& devices, int rank) {
  return Hlo(devices, SplitFirst(devices.size(), static_cast<size_t>(rank)));
}

xla::ifrt::ShardingProto OpaqueOver(const std::vector<int32_t>& devices) {
  xla::ifrt::OpaqueShardingProto payload;
  payload.mutable_devices()->mutable_device_ids()->Assign(devices.begin(), devices.end());
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, wire::kOpaqueSharding);
  return proto;
}

xla::ifrt::ArraySpecProto Spec(const std::vector<int64_t>& dims, const xla::ifrt::ShardingProto& sharding,
                               xla::ifrt::DTypeProto::Kind dtype) {
  xla::ifrt::ArraySpecProto spec;
  *spec.mutable_dtype() = DType(dtype);
  *spec.mutable_shape() = Shape(dims);
  *spec.mutable_sharding() = sharding;
  return spec;
}

xla::ifrt::proxy::MakeArrayFromHostBufferRequest FromHost(uint64_t handle, const std::vector<int64_t>& dims,
                                                          const xla::ifrt::ShardingProto& sharding) {
  xla::ifrt::proxy::MakeArrayFromHostBufferRequest request;
  *request.mutable_dtype() = DType(kF32);
  *request.mutable_shape() = Shape(dims);
  *request.mutable_sharding() = sharding;
  request.set_host_buffer_handle(handle);
  request.set_array_handle(handle);
  return request;
}

xla::ifrt::proxy::CheckValueReadyRequest Ready(const std::vector<uint64_t>& handles) {
  xla::ifrt::proxy::CheckValueReadyRequest request;
  request.mutable_value_handles()->Assign(handles.begin(), handles.end());
  return request;
}

xla::ifrt::proxy::DeleteArrayRequest Delete(const std::vector<uint64_t>& handles) {
  xla::ifrt::proxy::DeleteArrayRequest request;
  request.mutable_array_handle()->Assign(handles.begin(), handles.end());
  return request;
}

xla::ifrt::proxy::DestructArrayRequest Destruct(const std::vector<uint64_t>& handles) {
  xla::ifrt::proxy::DestructArrayRequest request;
  request.mutable_array_handle()->Assign(handles.begin(), handles.end());
  return request;
}

xla::ifrt::proxy::IsArrayDeletedRequest IsDeleted(uint64_t handle) {
  xla::ifrt::proxy::IsArrayDeletedRequest request;
  request.set_array_handle(handle);
  return request;
}

xla::ifrt::proxy::CheckFutureRequest CheckFuture(uint64_t handle) {
  xla::ifrt::proxy::CheckFutureRequest request;
  request.set_future_handle(handle);
  return request;
}

xla::ifrt::proxy::CopyToHostBufferRequest ReadInto(uint64_t host_buffer, uint64_t array) {
  xla::ifrt::proxy::CopyToHostBufferRequest request;
  request.set_host_buffer_handle(host_buffer);
  request.set_array_handle(array);
  return request;
}

xla::ifrt::proxy::FullyReplicatedShardRequest ShardOf(uint64_t array, uint64_t result) {
  xla::ifrt::proxy::FullyReplicatedShardRequest request;
  request.set_array_handle(array);
  request.set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  request.set_result_handle(result);
  return request;
}

xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest Disassemble(uint64_t array,
                                                                       const std::vector<uint64_t>& results) {
  xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest request;
  request.set_array_handle(array);
  request.set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  request.mutable_result_handles()->Assign(results.begin(), results.end());
  return request;
}

void AddArray(xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest& request, uint64_t handle,
              const xla::ifrt::ArraySpecProto& spec, const std::vector<ShardBuffer>& buffers) {
  request.add_array_handles(handle);
  auto& made = *request.add_specs();
  *made.mutable_array_spec() = spec;
  for (const ShardBuffer& buffer : buffers) {
    auto& host_buffer = *made.add_host_buffers();
    *host_buffer.mutable_dtype() = spec.dtype();
    *host_buffer.mutable_shape() = Shape(buffer.dims);
    host_buffer.set_host_buffer_handle(buffer.handle);
    made.add_addressable_shard_indices()->mutable_indices()->Assign(buffer.positions.begin(),
                                                                    buffer.positions.end());
  }
}

xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest Assemble(
    const std::vector<uint64_t>& parts, uint64_t result, const std::vector<int64_t>& dims,
    const xla::ifrt::ShardingProto& sharding, xla::ifrt::proto::ArrayCopySemantics semantics) {
  xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest request;
  *request.mutable_shape() = Shape(dims);
  *request.mutable_sharding() = sharding;
  request.mutable_single_device_array_handles()->Assign(parts.begin(), parts.end());
  request.set_copy_semantics(semantics);
  request.set_single_device_shard_semantics(
      xla::ifrt::proto::SINGLE_DEVICE_SHARD_SEMANTICS_ADDRESSABLE_SHARDS);
  request.set_result_handle(result);
  return request;
}

xla::ifrt::proxy::CopyArraysRequest Copy(const std::vector<uint64_t>& arrays,
                                         const std::vector<uint64_t>& results,
                                         const std::vector<int32_t>& devices,
                                         xla::ifrt::proto::ArrayCopySemantics semantics) {
  xla::ifrt::proxy::CopyArraysRequest request;
  request.mutable_array_handles()->Assign(arrays.begin(), arrays.end());
  request.mutable_result_handles()->Assign(results.begin(), results.end());
  request.mutable_device_ids()->Assign(devices.begin(), devices.end());
  request.set_copy_semantics(semantics);
  return request;
}

// ---- Programs --------------------------------------------------------------------------------------------

cluster::CompiledProgram Compiled(const ProgramForm& form) {
  xla::HloModuleProto module;
  module.set_name("form");
  const auto describe = [](const ProgramForm::Value& value, xla::ShapeProto* shape) {
    shape->set_element_type(xla::F32);
    shape->mutable_dimensions()->Assign(value.shard_dims.begin(), value.shard_dims.end());
  };
  const auto shard = [&](const ProgramForm::Value& value) {
    return value.split ? SplitFirst(form.devices.size(), value.shard_dims.size()) : xla::OpSharding();
  };
  const bool many = form.devices.size() > 1;
  for (const ProgramForm::Value& parameter : form.parameters) {
    describe(parameter, module.mutable_host_program_shape()->add_parameters());
    if (many) *module.add_spmd_parameters_shardings() = shard(parameter);
  }
  xla::ShapeProto& result = *module.mutable_host_program_shape()->mutable_result();
  result.set_element_type(xla::TUPLE);
  if (many) module.mutable_spmd_output_sharding()->set_type(xla::OpSharding::TUPLE);
  for (const ProgramForm::Value& output : form.outputs) {
    describe(output, result.add_tuple_shapes());
    if (many) *module.mutable_spmd_output_sharding()->add_tuple_shardings() = shard(output);
  }
  for (const int32_t donated : form.donated) {
    auto& alias = *module.mutable_input_output_alias()->add_entries();
    alias.set_parameter_number(donated);
    alias.set_kind(xla::MUST_ALIAS);
  }
  for (const uint64_t callback : form.python_callbacks) {
    xla::HloInstructionProto& call = *module.add_computations()->add_instructions();
    call.set_opcode("custom-call");
    call.set_custom_call_target(cluster::kPythonCallbackTarget);
    call.set_backend_config(absl::StrCat("{callback = ", callback, " : ui64}"));
  }
  cluster::CompiledProgram program;
  program.name = "form";
  program.num_partitions = static_cast<int32_t>(form.devices.size());
  program.devices = form.devices;
  program.optimized_hlo_format = "hlo";
  program.optimized_hlo = module.SerializeAsString();
  program.outline = program.optimized_hlo;
  program.output_memory_kinds = form.output_memory_kinds;
  if (program.output_memory_kinds.empty()) {
    program.output_memory_kinds.assign(form.outputs.size(), "device");
  }
  return program;
}

xla::ifrt::proxy::CompileRequest CompileFor(const std::vector<int32_t>& devices, int serdes) {
  xla::ifrt::XlaCompileOptionsProto options;
  if (serdes >= wire::kSerdesCompileOptions) options.set_version_number(wire::kSerdesCompileOptions);
  auto& build = *options.mutable_compile_options()->mutable_executable_build_options();
  build.set_num_replicas(1);
  build.set_num_partitions(static_cast<int64_t>(devices.size()));
  build.mutable_debug_options();
  auto& assignment = *build.mutable_device_assignment();
  assignment.set_replica_count(1);
  assignment.set_computation_count(static_cast<int32_t>(devices.size()));
  for (const int32_t device : devices) {
    assignment.add_computation_devices()->add_replica_device_ids(device);
  }
  xla::ifrt::proxy::CompileRequest request;
  request.mutable_program()->set_type_name(std::string(wire::kXlaProgram));
  request.mutable_program()->set_data("code");
  *request.mutable_compile_options() = wire::MakeSerialized(options, wire::kXlaCompileOptions);
  return request;
}

xla::ifrt::proxy::LoadedExecutableExecuteRequest Execute(const Run& run) {
  xla::ifrt::proxy::LoadedExecutableExecuteRequest request;
  request.set_loaded_executable_handle(run.executable);
  request.mutable_args_handles()->Assign(run.arguments.begin(), run.arguments.end());
  request.mutable_result_array_handle()->Assign(run.results.begin(), run.results.end());
  request.set_result_status_handle(run.status_handle);
  auto& options = *request.mutable_execute_options();
  options.set_fill_status(run.fill_status);
  options.mutable_non_donatable_input_indices()->Assign(run.not_donatable.begin(), run.not_donatable.end());
  return request;
}

// ---- Clients ---------------------------------------------------------------------------------------------

const google::protobuf::FieldDescriptor* RequestMember(const google::protobuf::Descriptor* type) {
  const google::protobuf::OneofDescriptor& members = *IfrtRequest::descriptor()->FindOneofByName("request");
  for (int i = 0; i < members.field_count(); ++i) {
    if (members.field(i)->message_type() == type) return members.field(i);
  }
  return nullptr;
}

TestClient::TestClient(Proxy& proxy, FakeWorker& worker, const xla::ifrt::proxy::IfrtProxyVersion& version)
    : stream(std::make_shared<FakeStream>(worker.broken_promises())), broken_(worker.broken_promises()) {
  xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
  *metadata.mutable_version() = version;
  auto opened = proxy.OpenSession(metadata, kPeer, stream);
  refusal = opened.status();
  if (!opened.ok()) return;
  session = *std::move(opened);
  link = worker.links().back();
}

TestClient::~TestClient() { Close(); }

uint64_t TestClient::Send(const google::protobuf::Message& request) {
  IfrtRequest whole;
  const google::protobuf::FieldDescriptor* member = RequestMember(request.GetDescriptor());
  whole.GetReflection()->MutableMessage(&whole, member)->CopyFrom(request);
  return SendWhole(std::move(whole));
}

uint64_t TestClient::SendWhole(IfrtRequest request) {
  const uint64_t op_id = next_op_++;
  request.mutable_request_metadata()->set_op_id(op_id);
  stream->Expect(request);
  session->OnRequest(request);
  return op_id;
}

Answer TestClient::AnswerTo(uint64_t op_id) const {
  std::optional<Answer> answer = stream->Find(op_id);
  if (answer) return *std::move(answer);
  ADD_FAILURE() << "op " << op_id << " is not answered";
  Answer none;
  none.status = absl::InternalError("not answered");
  return none;
}

absl::Status TestClient::Use(uint64_t array) {
  const uint64_t op_id = Send(Ready({array}));
  if (!Answered(op_id)) {
    link->AnswerAwait();
    link->TakeCommands();
  }
  return AnswerTo(op_id).status;
}

absl::Status TestClient::Upload(uint64_t handle, absl::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  auto writer = session->StoreHostBuffer(handle, size);
  if (!writer.ok()) return writer.status();
  uint8_t* target = (*writer)->Reserve(size);
  if (size > 0) std::memcpy(target, bytes.data(), bytes.size());
  return (*writer)->Finish();
}

cluster::BufferId TestClient::MakeArray(uint64_t handle, const std::vector<int64_t>& dims,
                                        const xla::ifrt::ShardingProto& sharding) {
  const size_t before = link->declared().size();
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  EXPECT_EQ(Upload(handle, std::string(static_cast<size_t>(count * 4), 'x')), absl::OkStatus());
  EXPECT_EQ(Status(FromHost(handle, dims, sharding)), absl::OkStatus());
  link->TakeCommands();
  const cluster::BufferTargets declared = link->declared();
  return declared.size() > before ? declared[before].buffer : 0;
}

cluster::BufferId TestClient::MakeSplitArray(uint64_t handle, int64_t shard_dim,
                                             const std::vector<int32_t>& devices) {
  const size_t before = link->declared().size();
  xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest request;
  request.add_array_handles(handle);
  auto& made = *request.add_specs();
  *made.mutable_array_spec() = Spec({shard_dim * static_cast<int64_t>(devices.size())}, Split(devices, 1));
  for (size_t i = 0; i < devices.size(); ++i) {
    const uint64_t buffer = handle + i;
    EXPECT_EQ(Upload(buffer, std::string(static_cast<size_t>(shard_dim * 4), 'x')), absl::OkStatus());
    auto& host_buffer = *made.add_host_buffers();
    *host_buffer.mutable_dtype() = DType(kF32);
    *host_buffer.mutable_shape() = Shape({shard_dim});
    host_buffer.set_host_buffer_handle(buffer);
    made.add_addressable_shard_indices()->add_indices(static_cast<int64_t>(i));
  }
  EXPECT_EQ(Status(request), absl::OkStatus());
  link->TakeCommands();
  const cluster::BufferTargets declared = link->declared();
  return declared.size() > before ? declared[before].buffer : 0;
}

uint64_t TestClient::Load(const ProgramForm& form) {
  const uint64_t op_id = Send(CompileFor(form.devices));
  const std::vector<cluster::ExecutableId> compiling = link->compiling();
  if (compiling.empty()) {
    ADD_FAILURE() << "nothing is compiled: " << AnswerTo(op_id).status;
    return 0;
  }
  link->AnswerCompile(compiling.back(), Compiled(form));
  link->TakeCommands();
  const Answer answer = AnswerTo(op_id);
  EXPECT_EQ(answer.status, absl::OkStatus());
  return answer.response.compile_response().loaded_executable_handle();
}

void TestClient::Close() {
  if (!session) return;
  session->OnClosed();
  if (stream->num_unanswered() > 0) broken_->Add("the end of the session leaves requests unanswered");
  const std::weak_ptr<net::SessionHandler> watched = session;
  session.reset();
  // A thread of the proxy that has just told the session something may still let go of it.
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (!watched.expired() && absl::Now() < limit) std::this_thread::yield();
  if (!watched.expired()) broken_->Add("something keeps a session that has ended");
}

// ---- The fixture -----------------------------------------------------------------------------------------

ProxyOptions SessionTest::options() {
  ProxyOptions options;
  options.host_memory = std::make_shared<base::HostMemoryPool>(0);
  options.max_host_buffer_bytes = max_host_buffer_bytes_;
  return options;
}

Proxy& SessionTest::proxy() {
  if (!proxy_) proxy_ = std::make_unique<Proxy>(&worker_, options());
  return *proxy_;
}

std::unique_ptr<TestClient> SessionTest::NewClient() {
  xla::ifrt::proxy::IfrtProxyVersion numbers;
  numbers.set_protocol_version(version().first);
  numbers.set_ifrt_serdes_version_number(version().second);
  auto client = std::make_unique<TestClient>(proxy(), worker_, numbers);
  EXPECT_EQ(client->refusal, absl::OkStatus());
  return client;
}

TestClient& SessionTest::client() {
  if (!client_) client_ = NewClient();
  return *client_;
}

void SessionTest::TearDown() {
  client_.reset();
  proxy_.reset();
  EXPECT_THAT(worker_.broken_promises()->list(), ::testing::IsEmpty());
}

void SessionTest::ExpectFails(const google::protobuf::Message& request, const std::vector<uint64_t>& results,
                              absl::StatusCode code, const std::string& text) {
  client().Commands();
  const absl::Status status = client().Status(request);
  EXPECT_THAT(status, FailsWith(code, text)) << request.ShortDebugString();
  EXPECT_THAT(client().Commands(), ::testing::IsEmpty());
  for (const uint64_t result : results) EXPECT_EQ(client().Use(result), status);
}

}  // namespace helmway::proxy
