#ifndef HELMWAY_PROXY_SESSION_TESTING_H_
#define HELMWAY_PROXY_SESSION_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/fake_stream_testing.h"
#include "helmway/proxy/fake_worker_testing.h"
#include "helmway/proxy/proxy.h"
#include "helmway/wire/ifrt_array.pb.h"
#include "helmway/wire/ifrt_session.pb.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/versions.h"

// What tests of the proxy's request handlers share: a proxy on a fake worker, clients of it, and short ways
// to write requests. Every test ends with a look at the contracts that the fakes watch.
namespace helmway::proxy {

inline constexpr auto kF32 = xla::ifrt::DTypeProto::KIND_F32;
inline constexpr auto kS32 = xla::ifrt::DTypeProto::KIND_S32;

// ---- Parts of requests -----------------------------------------------------------------------------------

xla::ifrt::DTypeProto DType(xla::ifrt::DTypeProto::Kind kind);
xla::ifrt::ShapeProto Shape(const std::vector<int64_t>& dims);
xla::ifrt::proto::ByteStrides Strides(const std::vector<int64_t>& strides);
xla::ifrt::ShardingProto OneDevice(int32_t device, std::optional<std::string> memory_kind = std::nullopt);
xla::ifrt::ShardingProto Replicated(const std::vector<int32_t>& devices);
// The first of `rank` dimensions is split over the devices.
xla::ifrt::ShardingProto Split(const std::vector<int32_t>& devices, int rank = 1);
xla::ifrt::ShardingProto OpaqueOver(const std::vector<int32_t>& devices);
xla::ifrt::ArraySpecProto Spec(const std::vector<int64_t>& dims, const xla::ifrt::ShardingProto& sharding,
                               xla::ifrt::DTypeProto::Kind dtype = kF32);

// A request for an array of f32 whose host buffer has the array's handle.
xla::ifrt::proxy::MakeArrayFromHostBufferRequest FromHost(uint64_t handle, const std::vector<int64_t>& dims,
                                                          const xla::ifrt::ShardingProto& sharding);
// Requests about handles alone.
xla::ifrt::proxy::CheckValueReadyRequest Ready(const std::vector<uint64_t>& handles);
xla::ifrt::proxy::DeleteArrayRequest Delete(const std::vector<uint64_t>& handles);
xla::ifrt::proxy::DestructArrayRequest Destruct(const std::vector<uint64_t>& handles);
xla::ifrt::proxy::IsArrayDeletedRequest IsDeleted(uint64_t handle);
xla::ifrt::proxy::CheckFutureRequest CheckFuture(uint64_t handle);
xla::ifrt::proxy::CopyToHostBufferRequest ReadInto(uint64_t host_buffer, uint64_t array);
xla::ifrt::proxy::FullyReplicatedShardRequest ShardOf(uint64_t array, uint64_t result);
xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest Disassemble(uint64_t array,
                                                                       const std::vector<uint64_t>& results);

// A host buffer of that many numbers, which shards at these positions have in common.
struct ShardBuffer {
  uint64_t handle;
  std::vector<int64_t> dims;
  std::vector<int64_t> positions;
};
// Adds an array to the request.
void AddArray(xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest& request, uint64_t handle,
              const xla::ifrt::ArraySpecProto& spec, const std::vector<ShardBuffer>& buffers);
xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest Assemble(
    const std::vector<uint64_t>& parts, uint64_t result, const std::vector<int64_t>& dims,
    const xla::ifrt::ShardingProto& sharding,
    xla::ifrt::proto::ArrayCopySemantics semantics = xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
xla::ifrt::proxy::CopyArraysRequest Copy(
    const std::vector<uint64_t>& arrays, const std::vector<uint64_t>& results,
    const std::vector<int32_t>& devices,
    xla::ifrt::proto::ArrayCopySemantics semantics = xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);

// ---- Programs --------------------------------------------------------------------------------------------

struct ProgramForm {
  struct Value {
    std::vector<int64_t> shard_dims;
    bool split = false;  // the first dimension over the devices; else the same on all
  };
  std::vector<Value> parameters;
  std::vector<Value> outputs;
  std::vector<int32_t> donated = {};
  std::vector<int32_t> devices = {10};
  std::vector<std::string> output_memory_kinds = {};  // empty: "device" for each
  std::vector<uint64_t> python_callbacks = {};
};

// What a compiler says about a program of f32 values called "form".
cluster::CompiledProgram Compiled(const ProgramForm& form);
// A request to compile something for these devices, with the options' format version of that serdes number.
xla::ifrt::proxy::CompileRequest CompileFor(const std::vector<int32_t>& devices,
                                            int serdes = wire::kMaxSerdesVersion);

// ---- Clients ---------------------------------------------------------------------------------------------

// The member of IfrtRequest for a request of that type.
const google::protobuf::FieldDescriptor* RequestMember(const google::protobuf::Descriptor* type);

// One client of a proxy: sends requests, looks at the answers, and at what reached the worker.
class TestClient {
 public:
  static constexpr char kPeer[] = "ipv4:127.0.0.1:4711";

  TestClient(Proxy& proxy, FakeWorker& worker, const xla::ifrt::proxy::IfrtProxyVersion& version);
  ~TestClient();

  // Hands a request over and returns its op id.
  uint64_t Send(const google::protobuf::Message& request);
  uint64_t SendWhole(xla::ifrt::proxy::IfrtRequest request);
  // The answer that has come; the test fails if there is none. An error that is not expected shows itself.
  Answer AnswerTo(uint64_t op_id) const;
  bool Answered(uint64_t op_id) const { return stream->Find(op_id).has_value(); }
  // Both in one, for requests that are answered at once.
  Answer Ask(const google::protobuf::Message& request) { return AnswerTo(Send(request)); }
  absl::Status Status(const google::protobuf::Message& request) { return Ask(request).status; }
  // What a use of the array meets: OK, or the error that is bound to it. Sends nothing to the worker that
  // needs an answer if there is an error; answers the worker's wait otherwise.
  absl::Status Use(uint64_t array);

  // The bytes of a host buffer come, as a client sends them.
  absl::Status Upload(uint64_t handle, absl::string_view bytes);
  // A new f32 array whose bytes are here. Returns its first buffer.
  cluster::BufferId MakeArray(uint64_t handle, const std::vector<int64_t>& dims,
                              const xla::ifrt::ShardingProto& sharding);
  // An array of four numbers on the first device.
  cluster::BufferId MakeArray(uint64_t handle) { return MakeArray(handle, {4}, OneDevice(10)); }
  // An array split over devices, one buffer for each: shard i has `shard_dim` numbers. Returns its first
  // buffer.
  cluster::BufferId MakeSplitArray(uint64_t handle, int64_t shard_dim, const std::vector<int32_t>& devices);
  // The handle of a loaded program.
  uint64_t Load(const ProgramForm& form);
  // The commands since the last look.
  std::vector<std::string> Commands() { return link->TakeCommands(); }
  // The stream ends; all that waits must be answered by then, and nothing may keep the session alive.
  void Close();

  const std::shared_ptr<FakeStream> stream;
  std::shared_ptr<net::SessionHandler> session;  // null if it was refused
  absl::Status refusal;
  std::shared_ptr<FakeSessionLink> link;

 private:
  const std::shared_ptr<BrokenPromises> broken_;
  uint64_t next_op_ = 1;
};

// A run of a loaded program.
struct Run {
  uint64_t executable = 0;
  std::vector<uint64_t> arguments = {};
  std::vector<uint64_t> results = {};  // none: the first run
  bool fill_status = false;
  uint64_t status_handle = 0;
  std::vector<int32_t> not_donatable = {};
};
xla::ifrt::proxy::LoadedExecutableExecuteRequest Execute(const Run& run);

class SessionTest : public ::testing::Test {
 protected:
  // The protocol and serdes numbers of new clients.
  virtual std::pair<int, int> version() const { return {wire::kMaxProtocolVersion, wire::kMaxSerdesVersion}; }
  virtual ProxyOptions options();
  void TearDown() override;

  // Made when first used, so that a test may set the worker up before.
  Proxy& proxy();
  // The first client.
  TestClient& client();
  std::unique_ptr<TestClient> NewClient();
  // Sends a request that fails, and expects that each of its results then fails alike, and that the worker
  // heard of nothing.
  void ExpectFails(const google::protobuf::Message& request, const std::vector<uint64_t>& results,
                   absl::StatusCode code, const std::string& text);

  FakeWorker worker_;
  int64_t max_host_buffer_bytes_ = 1 << 20;

 private:
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<TestClient> client_;
};

// The same, at the oldest and newest of both numbers.
class VersionedSessionTest : public SessionTest, public ::testing::WithParamInterface<std::pair<int, int>> {
 protected:
  std::pair<int, int> version() const override { return GetParam(); }
  int protocol() const { return GetParam().first; }
  int serdes() const { return GetParam().second; }
};
inline constexpr std::pair<int, int> kVersions[] = {{wire::kMinProtocolVersion, wire::kMinSerdesVersion},
                                                    {wire::kMinProtocolVersion, wire::kMaxSerdesVersion},
                                                    {wire::kMaxProtocolVersion, wire::kMinSerdesVersion},
                                                    {wire::kMaxProtocolVersion, wire::kMaxSerdesVersion}};
inline std::string VersionName(const ::testing::TestParamInfo<std::pair<int, int>>& info) {
  return absl::StrCat("Protocol", info.param.first, "Serdes", info.param.second);
}

MATCHER_P2(FailsWith, code, text, "") {
  const absl::Status status = arg;
  *result_listener << status;
  return status.code() == code && ::testing::Value(std::string(status.message()), ::testing::HasSubstr(text));
}
MATCHER(IsOk, "") {
  const absl::Status status = arg;
  *result_listener << status;
  return status.ok();
}

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kNotFound = absl::StatusCode::kNotFound;
inline constexpr auto kAlreadyExists = absl::StatusCode::kAlreadyExists;
inline constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
inline constexpr auto kCancelled = absl::StatusCode::kCancelled;
inline constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
inline constexpr auto kResourceExhausted = absl::StatusCode::kResourceExhausted;

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_SESSION_TESTING_H_
