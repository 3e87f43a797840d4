#include "helmway/proxy/session_testing.h"

#include <cstring>

#include "helmway/base/host_memory.h"

namespace helmway::proxy {

using ::xla::ifrt::proxy::IfrtRequest;

// ---- Clients ---------------------------------------------------------------------------------------------

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
  if (proxy_) {
    // Nothing of what clients sent is left on its way.
    const std::unique_ptr<TestClient> last = NewClient();
    EXPECT_THAT(last->session->StoreHostBuffer(1, max_host_buffer_bytes_).status(), IsOk());
  }
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
