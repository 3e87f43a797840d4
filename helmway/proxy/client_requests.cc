#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/program/layout.h"
#include "helmway/program/strides.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/attributes.h"
#include "helmway/wire/dtype.h"

namespace helmway::proxy {

using ::xla::ifrt::proxy::CheckFutureRequest;
using ::xla::ifrt::proxy::GetDefaultDeviceAssignmentRequest;
using ::xla::ifrt::proxy::GetDefaultLayoutRequest;
using ::xla::ifrt::proxy::InitResponse;

namespace {

// Orbax compares it with this text.
constexpr char kRuntimeType[] = "pathways";

// What JAX sees as an attribute of each device (python_callbacks.proto, Hello.session_key).
constexpr char kCallbackKey[] = "helmway_callback_key";

struct SetAttribute {
  xla::ifrt::AttributeMapProto& map;
  const std::string& name;
  void operator()(const std::string& v) const { wire::SetStringAttribute(map, name, v); }
  void operator()(bool v) const { wire::SetBoolAttribute(map, name, v); }
  void operator()(int64_t v) const { wire::SetInt64Attribute(map, name, v); }
  void operator()(const std::vector<int64_t>& v) const { wire::SetInt64ListAttribute(map, name, v); }
  void operator()(float v) const { wire::SetFloatAttribute(map, name, v); }
};

// FNV-1a: one number per platform name, the same everywhere.
uint64_t PlatformId(const std::string& name) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

absl::Status Session::HandleInit(Reply& reply) {
  const cluster::WorkerInfo& info = proxy_->worker().info();
  InitResponse& init = *reply.response.mutable_init_response();
  init.set_platform_name(info.platform_name);
  init.set_platform_version(info.platform_version);
  init.set_platform_id(PlatformId(info.platform_name));
  init.set_process_index(0);
  init.set_runtime_type(kRuntimeType);
  init.set_session_id(id_);
  int local_id = 0;
  for (const cluster::DeviceInfo& device : info.devices) {
    InitResponse::Device& d = *init.add_all_devices();
    d.set_id(device.id);
    d.set_local_hardware_id(device.local_hardware_id);
    d.set_local_device_id(local_id++);
    d.set_device_kind(device.kind);
    d.set_debug_string(device.debug_string);
    d.set_to_string(device.to_string);
    d.set_platform_name(device.platform_name);
    if (device.default_memory) d.set_default_memory_id(*device.default_memory);
    for (const int32_t memory : device.memories) d.add_memory_ids(memory);
    d.mutable_attributes();
    for (const auto& [name, value] : device.attributes) {
      std::visit(SetAttribute{*d.mutable_attributes(), name}, value.value);
    }
    // How a client of this session shows that it is one when it opens its stream of callbacks.
    wire::SetStringAttribute(*d.mutable_attributes(), kCallbackKey, callbacks_->key());
    init.add_addressable_device_ids(device.id);
    init.add_primary_device_ids(device.id);
  }
  for (const cluster::MemoryInfo& memory : info.memories) {
    InitResponse::Memory& m = *init.add_memories();
    m.set_id(memory.id);
    m.set_memory_space_kind(memory.kind);
    m.set_kind_id(memory.kind_id);
    m.set_debug_string(memory.debug_string);
    m.set_to_string(memory.to_string);
    for (const int32_t device : memory.devices) m.add_device_ids(device);
  }
  // What JAX asks of a backend by these names: jax.export keeps shardings in the form of Shardy, which is how
  // programs come here anyway; JAX's own compilation cache leaves executables alone, which stay on the
  // server.
  wire::SetBoolAttribute(*init.mutable_client_attributes(), "serialize_with_sdy", true);
  wire::SetBoolAttribute(*init.mutable_client_attributes(), "supports_executable_serialization", false);
  reply.counted = false;
  return absl::OkStatus();
}

absl::Status Session::HandleCheckFuture(const CheckFutureRequest& request, Reply& reply) {
  reply.response.mutable_check_future_response();
  return AnswerWithFuture(request.future_handle(), reply);
}

absl::Status Session::HandleGetDefaultDeviceAssignment(const GetDefaultDeviceAssignmentRequest& request,
                                                       Reply& reply) {
  const uint64_t devices = proxy_->worker().info().devices.size();
  if (request.num_replicas() < 1 || request.num_partitions() < 1 || request.num_replicas() > devices ||
      request.num_partitions() > devices / request.num_replicas()) {
    return absl::InvalidArgumentError(absl::StrCat(request.num_replicas(), " replicas of ",
                                                   request.num_partitions(), " partitions do not fit on ",
                                                   devices, " devices"));
  }
  const int replicas = static_cast<int>(request.num_replicas());
  const int partitions = static_cast<int>(request.num_partitions());
  HELMWAY_ASSIGN_OR_RETURN(std::vector<cluster::DeviceId> ids,
                           proxy_->worker().DefaultDeviceAssignment(replicas, partitions));
  xla::DeviceAssignmentProto& assignment =
      *reply.response.mutable_get_default_device_assignment_response()->mutable_device_assignment();
  assignment.set_replica_count(replicas);
  assignment.set_computation_count(partitions);
  for (int partition = 0; partition < partitions; ++partition) {
    auto& computation = *assignment.add_computation_devices();
    for (int replica = 0; replica < replicas; ++replica) {
      computation.add_replica_device_ids(ids[static_cast<size_t>(replica * partitions + partition)]);
    }
  }
  return absl::OkStatus();
}

absl::Status Session::HandleGetDefaultLayout(const GetDefaultLayoutRequest& request, Reply& reply) {
  HELMWAY_ASSIGN_OR_RETURN(const wire::DTypeFacts dtype, wire::GetDTypeFacts(request.dtype().kind()));
  HELMWAY_RETURN_IF_ERROR(CheckDevices({request.device_id()}));
  std::vector<int64_t> dims(request.dims().begin(), request.dims().end());
  HELMWAY_RETURN_IF_ERROR(program::ElementCount(dims).status());
  if (dtype.host_bytes <= 0) {
    // No plugin is asked about tokens and strings.
    reply.response.mutable_get_default_layout_response()->set_serialized_pjrt_layout(
        program::Layout::Default(static_cast<int>(dims.size())).ToText());
    return absl::OkStatus();
  }
  reply.deferred = true;
  proxy_->worker().DefaultLayout(
      request.dtype().kind(), dims,
      [self = shared_from_this(), op_id = reply.op_id](absl::StatusOr<std::string> text) {
        if (!text.ok()) return self->SendError(op_id, wire::WithoutUserContext(text.status()));
        Response response;
        response.mutable_get_default_layout_response()->set_serialized_pjrt_layout(*std::move(text));
        self->Send(op_id, absl::OkStatus(), response);
      });
  return absl::OkStatus();
}

}  // namespace helmway::proxy
