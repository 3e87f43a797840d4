#ifndef HELMWAY_PROXY_REQUESTS_TESTING_H_
#define HELMWAY_PROXY_REQUESTS_TESTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/wire/ifrt_array.pb.h"
#include "helmway/wire/ifrt_session.pb.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/versions.h"

// Short ways to write what clients send and what a compiler says. Pure functions.
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
// One host buffer of an array, and the shards that take it.
struct ShardBuffer {
  uint64_t handle;
  std::vector<int64_t> dims;
  std::vector<int64_t> positions;
};
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

// The member of IfrtRequest for a request of that type.
const google::protobuf::FieldDescriptor* RequestMember(const google::protobuf::Descriptor* type);

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
};

// What a compiler says about a program of f32 values called "form".
cluster::CompiledProgram Compiled(const ProgramForm& form);
// A request to compile something for these devices, with the options' format version of that serdes number.
xla::ifrt::proxy::CompileRequest CompileFor(const std::vector<int32_t>& devices,
                                            int serdes = wire::kMaxSerdesVersion);

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

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_REQUESTS_TESTING_H_
