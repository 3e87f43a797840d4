// Requests about arrays: making, taking apart, copying, reading and forgetting them.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/status.h"
#include "helmway/program/strides.h"
#include "helmway/proxy/copy_semantics.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/ifrt_array.pb.h"
#include "helmway/wire/status.h"
#include "helmway/wire/string_array.h"

namespace helmway::proxy {

using ::helmway::array::Array;
using ::helmway::array::ArrayRef;
using ::helmway::array::ArraySpec;
using ::helmway::array::Shards;
using ::xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest;
using ::xla::ifrt::proxy::CheckValueReadyRequest;
using ::xla::ifrt::proxy::CopyArraysRequest;
using ::xla::ifrt::proxy::CopyToHostBufferRequest;
using ::xla::ifrt::proxy::DeleteArrayRequest;
using ::xla::ifrt::proxy::DestructArrayRequest;
using ::xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest;
using ::xla::ifrt::proxy::FullyReplicatedShardRequest;
using ::xla::ifrt::proxy::IsArrayDeletedRequest;
using ::xla::ifrt::proxy::MakeArrayFromHostBufferRequest;
using ::xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest;
using ::xla::ifrt::proxy::MakeErrorArraysRequest;

namespace {

constexpr char kUnpinnedHost[] = "unpinned_host";

absl::Status CheckDType(array::DType dtype) {
  if (dtype == xla::ifrt::DTypeProto::KIND_OPAQUE) return absl::UnimplementedError("arrays of type opaque");
  return wire::GetDTypeFacts(dtype).status();
}

absl::Status CheckDims(absl::Span<const int64_t> dims) { return program::ElementCount(dims).status(); }

std::optional<std::vector<int64_t>> Strides(bool present, const xla::ifrt::proto::ByteStrides& strides) {
  if (!present) return std::nullopt;
  return std::vector<int64_t>(strides.strides().begin(), strides.strides().end());
}

std::optional<absl::Span<const int64_t>> AsSpan(const std::optional<std::vector<int64_t>>& strides) {
  if (!strides) return std::nullopt;
  return absl::MakeConstSpan(*strides);
}

absl::Status SetLayout(absl::StatusOr<program::Layout> layout, ArraySpec& spec) {
  if (!layout.ok()) return layout.status();
  if (static_cast<size_t>(layout->rank()) != spec.dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layout ", layout->ToText(), " for an array of ", spec.dims.size(), " dimensions"));
  }
  spec.layout = *std::move(layout);
  return absl::OkStatus();
}

// JAX assembles tokens as empty arrays, and an empty array is what the worker has for each.
ArrayRef AsEmptyArray(const Array& token) {
  auto spec = std::make_shared<ArraySpec>(token.spec());
  spec->dtype = xla::ifrt::DTypeProto::KIND_PRED;
  spec->dims = {0};
  ArrayRef empty = base::MakeRef<Array>(std::move(spec), token.shards().Share());
  empty->AddArrivals(token.arrivals());
  return empty;
}

}  // namespace

absl::Status Session::CheckDevices(absl::Span<const int32_t> devices) const {
  for (const int32_t device : devices) {
    if (!device_ids_.contains(device))
      return absl::InvalidArgumentError(absl::StrCat("there is no device ", device));
  }
  return absl::OkStatus();
}

bool Session::AreOfOnePlatform(int32_t device, int32_t other) const {
  if (device == other) return true;
  const std::vector<cluster::DeviceInfo>& devices = proxy_->worker().info().devices;
  const auto find = [&](int32_t id) {
    return std::find_if(devices.begin(), devices.end(), [&](const auto& info) { return info.id == id; });
  };
  const auto a = find(device), b = find(other);
  return a != devices.end() && b != devices.end() && a->platform_name == b->platform_name;
}

absl::StatusOr<ArraySpec> Session::MakeSpec(const xla::ifrt::DTypeProto& dtype,
                                            const xla::ifrt::ShapeProto& shape,
                                            const xla::ifrt::ShardingProto& sharding) const {
  ArraySpec spec;
  spec.dtype = dtype.kind();
  HELMWAY_RETURN_IF_ERROR(CheckDType(spec.dtype));
  spec.dims.assign(shape.dims().begin(), shape.dims().end());
  HELMWAY_RETURN_IF_ERROR(CheckDims(spec.dims));
  if (spec.dtype == xla::ifrt::DTypeProto::KIND_TOKEN && !spec.dims.empty()) {
    return absl::InvalidArgumentError("a token with dimensions");
  }
  HELMWAY_ASSIGN_OR_RETURN(spec.sharding, program::Sharding::Parse(sharding));
  HELMWAY_RETURN_IF_ERROR(CheckDevices(spec.sharding->devices()));
  return spec;
}

absl::StatusOr<ArraySpec> Session::MakeSpec(const xla::ifrt::ArraySpecProto& proto) const {
  HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(proto.dtype(), proto.shape(), proto.sharding()));
  if (proto.has_layout()) {
    HELMWAY_ASSIGN_OR_RETURN(spec.layout, program::Layout::ParseText(proto.layout()));
    if (static_cast<size_t>(spec.layout->rank()) != spec.dims.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layout ", proto.layout(), " for an array of rank ", spec.dims.size()));
    }
  }
  return spec;
}

ArrayRef Session::NewArray(std::shared_ptr<const ArraySpec> spec) {
  const auto count = static_cast<uint32_t>(spec->sharding->num_shards());
  return base::MakeRef<Array>(std::move(spec), Shards::Fresh(proxy_->NewBuffers(count), count, this));
}

// Bytes that the host buffer of a shard must have; none for strings, whose sizes are their own.
absl::StatusOr<std::optional<int64_t>> HostBufferSize(
    array::DType dtype, absl::Span<const int64_t> dims,
    const std::optional<std::vector<int64_t>>& byte_strides) {
  if (dtype == xla::ifrt::DTypeProto::KIND_STRING) {
    if (byte_strides) return absl::InvalidArgumentError("byte strides for an array of strings");
    return std::nullopt;
  }
  HELMWAY_ASSIGN_OR_RETURN(const int64_t element_bytes, wire::HostBytesPerElement(dtype));
  HELMWAY_ASSIGN_OR_RETURN(const int64_t size,
                           program::RegionSizeBytes(dims, element_bytes, AsSpan(byte_strides)));
  return size;
}

// Whether bytes that have come are what their array needs.
absl::Status CheckHostBytes(const base::HostBytes& bytes, const cluster::HostContents& contents,
                            std::optional<int64_t> expected_bytes) {
  if (expected_bytes) {
    if (bytes.size == *expected_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the host buffer has ", bytes.size, " bytes, its array needs ", *expected_bytes));
  }
  HELMWAY_ASSIGN_OR_RETURN(const int64_t count, wire::CountStrings(absl::MakeConstSpan(
                                                    bytes.data, static_cast<size_t>(bytes.size))));
  HELMWAY_ASSIGN_OR_RETURN(const int64_t needed, program::ElementCount(contents.dims));
  if (count == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the host buffer has ", count, " strings, its array needs ", needed));
}

// ---- From the host ---------------------------------------------------------------------------------------

absl::Status Session::HandleMakeArrayFromHostBuffer(const MakeArrayFromHostBufferRequest& request,
                                                    Reply& reply) {
  const uint64_t handle = request.has_array_handle() ? request.array_handle() : request.host_buffer_handle();
  HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(request.dtype(), request.shape(), request.sharding()));
  if (!spec.sharding->IsFullyReplicated() && !spec.sharding->IsSingleDevice()) {
    return absl::UnimplementedError(
        "MakeArrayFromHostBufferRequest with a sharding that splits the array (the client sends the shards "
        "one by one)");
  }
  if (request.has_layout()) {
    HELMWAY_RETURN_IF_ERROR(SetLayout(program::Layout::FromIfrtProto(request.layout()), spec));
  }
  HostShards shards;
  shards.host_buffer = request.host_buffer_handle();
  shards.dims.assign(spec.dims.begin(), spec.dims.end());
  shards.byte_strides = Strides(request.has_byte_strides(), request.byte_strides());
  for (int64_t i = 0; i < spec.sharding->num_shards(); ++i) shards.positions.push_back(i);
  std::vector<HostArray> made(1);
  made[0].handle = handle;
  made[0].spec = std::move(spec);
  made[0].shards.push_back(std::move(shards));
  HELMWAY_RETURN_IF_ERROR(MakeFromHost(made));
  reply.response.mutable_make_array_from_host_buffer_response()->set_array_handle(handle);
  reply.patient = true;
  return absl::OkStatus();
}

absl::Status Session::HandleMakeArraysFromHostBufferShards(
    const MakeArraysFromHostBufferShardsRequest& request, Reply& reply) {
  if (request.specs_size() != request.array_handles_size()) {
    return absl::InvalidArgumentError(absl::StrCat(request.specs_size(), " array specs for ",
                                                   request.array_handles_size(), " array handles"));
  }
  std::vector<HostArray> all;
  for (int i = 0; i < request.specs_size(); ++i) {
    const auto& made = request.specs(i);
    const xla::ifrt::ArraySpecProto& proto = made.array_spec();
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(proto.dtype(), proto.shape(), proto.sharding()));
    if (proto.has_layout()) {
      HELMWAY_RETURN_IF_ERROR(SetLayout(program::Layout::ParseText(proto.layout()), spec));
    }
    if (made.host_buffers_size() != made.addressable_shard_indices_size()) {
      return absl::InvalidArgumentError(absl::StrCat(made.host_buffers_size(), " host buffers for ",
                                                     made.addressable_shard_indices_size(),
                                                     " lists of shards"));
    }
    std::vector<HostShards> shards;
    for (int b = 0; b < made.host_buffers_size(); ++b) {
      const auto& buffer = made.host_buffers(b);
      if (buffer.dtype().kind() != spec.dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("a shard of type ", wire::DTypeName(buffer.dtype().kind()), " for an array of type ",
                         wire::DTypeName(spec.dtype)));
      }
      HostShards shard;
      shard.host_buffer = buffer.host_buffer_handle();
      shard.dims.assign(buffer.shape().dims().begin(), buffer.shape().dims().end());
      shard.byte_strides = Strides(buffer.has_byte_strides(), buffer.byte_strides());
      const auto& indices = made.addressable_shard_indices(b).indices();
      shard.positions.assign(indices.begin(), indices.end());
      shards.push_back(std::move(shard));
    }
    all.push_back({request.array_handles(i), std::move(spec), std::move(shards)});
  }
  HELMWAY_RETURN_IF_ERROR(MakeFromHost(all));
  *reply.response.mutable_make_arrays_from_host_buffer_shards_response()->mutable_array_handles() =
      request.array_handles();
  reply.patient = true;
  return absl::OkStatus();
}

absl::Status Session::CheckHostShards(const ArraySpec& spec, const std::vector<HostShards>& shards) const {
  std::vector<bool> seen(static_cast<size_t>(spec.sharding->num_shards()));
  for (const HostShards& shard : shards) {
    HELMWAY_RETURN_IF_ERROR(CheckDims(shard.dims));
    if (spec.layout && static_cast<size_t>(spec.layout->rank()) != shard.dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the layout ", spec.layout->ToText(), " for shards of ",
                                                     shard.dims.size(), " dimensions"));
    }
    for (const int64_t position : shard.positions) {
      if (position < 0 || position >= spec.sharding->num_shards() || seen[static_cast<size_t>(position)]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shard ", position, " of ", spec.sharding->num_shards(), " does not exist or is given twice"));
      }
      seen[static_cast<size_t>(position)] = true;
      absl::StatusOr<std::vector<int64_t>> dims = spec.sharding->ShardShapeAt(spec.dims, position);
      // A sharding that knows only its devices takes the shards as they are.
      if (!dims.ok() && spec.sharding->kind() != program::Sharding::Kind::kOpaque) return dims.status();
      if (dims.ok() && *dims != shard.dims) {
        return absl::InvalidArgumentError(
            absl::StrCat("shard ", position, " has the shape [", absl::StrJoin(shard.dims, ","),
                         "], its sharding says [", absl::StrJoin(*dims, ","), "]"));
      }
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
    return absl::InvalidArgumentError("some shards of the array have no host buffer");
  }
  return absl::OkStatus();
}

absl::Status Session::MakeFromHost(const std::vector<HostArray>& made) {
  std::vector<std::optional<int64_t>> sizes;  // of every host buffer, array by array
  for (const HostArray& one : made) {
    HELMWAY_RETURN_IF_ERROR(CheckHostShards(one.spec, one.shards));
    if (one.spec.layout && !one.spec.layout->tiles().empty()) {
      return absl::UnimplementedError(
          absl::StrCat("the tiled layout ", one.spec.layout->ToText(), " for an array from the host"));
    }
    for (const HostShards& shard : one.shards) {
      HELMWAY_ASSIGN_OR_RETURN(const std::optional<int64_t> size,
                               HostBufferSize(one.spec.dtype, shard.dims, shard.byte_strides));
      sizes.push_back(size);
    }
  }

  std::vector<cluster::HostContents> contents;
  std::vector<Shards> keeps;
  std::vector<std::shared_ptr<array::Arrival>> arrivals;
  cluster::DeclareBuffers declare;
  {
    base::MutexLock lock(&mu_);
    std::vector<uint64_t> handles;
    std::vector<ArrayRef> arrays;
    for (const HostArray& one : made) {
      handles.push_back(one.handle);
      arrays.push_back(NewArray(std::make_shared<const ArraySpec>(one.spec)));
    }
    HELMWAY_RETURN_IF_ERROR(BindAll(handles, arrays));
    for (const ArrayRef& array : arrays) being_made_.push_back(array->shards().Names());
    for (size_t a = 0; a < made.size(); ++a) {
      const ArraySpec& spec = made[a].spec;
      const Shards& names = arrays[a]->shards();
      const absl::Span<const int32_t> devices = spec.sharding->devices();
      std::vector<std::shared_ptr<const array::Arrival>> of_array;
      for (const HostShards& shard : made[a].shards) {
        cluster::HostContents c;
        c.element_type = spec.dtype;
        c.dims.assign(shard.dims.begin(), shard.dims.end());
        c.byte_strides = shard.byte_strides;
        c.memory_kind = spec.sharding->memory_kind().value_or("");
        c.user_context = user_context_;
        if (spec.layout && !spec.layout->IsDescending()) {
          c.minor_to_major.emplace(spec.layout->minor_to_major().begin(),
                                   spec.layout->minor_to_major().end());
        }
        for (const int64_t position : shard.positions) {
          const auto i = static_cast<size_t>(position);
          c.targets.push_back({names.at(i), devices[i]});
          declare.targets.push_back(c.targets.back());
        }
        contents.push_back(std::move(c));
        // The names must live until they are filled, even if the client drops the array first.
        keeps.push_back(names.Share());
        arrivals.push_back(std::make_shared<array::Arrival>());
        of_array.push_back(arrivals.back());
      }
      arrays[a]->AddArrivals(of_array);
    }
  }
  if (declare.targets.empty()) return absl::OkStatus();
  link_->Declare(std::move(declare));
  size_t next = 0;
  for (const HostArray& one : made) {
    for (const HostShards& shard : one.shards) {
      const size_t i = next++;
      host_buffers_->Take(shard.host_buffer, [self = shared_from_this(), c = std::move(contents[i]),
                                              keep = std::move(keeps[i]), arrival = arrivals[i],
                                              size =
                                                  sizes[i]](absl::StatusOr<base::HostBytes> bytes) mutable {
        self->HostBufferArrived(std::move(c), std::move(keep), std::move(arrival), size, std::move(bytes));
      });
    }
  }
  bool waits = false;
  {
    base::MutexLock lock(&mu_);
    for (const auto& arrival : arrivals) waits |= !arrival->here;
  }
  if (waits) proxy_->WatchSessions(proxy_->options().host_buffer_patience);
  return absl::OkStatus();
}

void Session::HostBufferArrived(cluster::HostContents contents, Shards keep,
                                std::shared_ptr<array::Arrival> arrival,
                                std::optional<int64_t> expected_bytes,
                                absl::StatusOr<base::HostBytes> bytes) {
  if (bytes.ok()) {
    if (absl::Status status = CheckHostBytes(*bytes, contents, expected_bytes); !status.ok()) bytes = status;
  }
  if (bytes.ok()) {
    contents.bytes = *std::move(bytes);
    link_->Fill(std::move(contents));
  } else {
    link_->Fail(contents.targets, wire::WithUserContext(bytes.status(), contents.user_context));
  }
  {
    base::MutexLock lock(&mu_);
    arrival->here = true;
    keep.Reset();
    ReleaseHeldLaunches();
  }
  FlushReleased();
}

// ---- Errors ----------------------------------------------------------------------------------------------

absl::Status Session::HandleMakeErrorArrays(const MakeErrorArraysRequest& request, Reply& reply) {
  if (request.array_specs_size() != request.array_handles_size()) {
    return absl::InvalidArgumentError(absl::StrCat(request.array_specs_size(), " array specs for ",
                                                   request.array_handles_size(), " array handles"));
  }
  const absl::Status error = wire::WithUserContext(wire::StatusFromProto(request.error()), user_context_);
  if (error.ok()) return absl::InvalidArgumentError("error arrays without an error");
  std::vector<std::shared_ptr<const ArraySpec>> specs;
  for (const xla::ifrt::ArraySpecProto& proto : request.array_specs()) {
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(proto.dtype(), proto.shape(), proto.sharding()));
    if (proto.has_layout()) {
      HELMWAY_RETURN_IF_ERROR(SetLayout(program::Layout::ParseText(proto.layout()), spec));
    }
    specs.push_back(std::make_shared<const ArraySpec>(std::move(spec)));
  }
  // They are arrays like any other, with buffers that fail, so that work on them fails where other work would
  // that failed in time.
  cluster::DeclareBuffers declare;
  absl::Status bound;
  auto& response = *reply.response.mutable_make_error_arrays_response();
  {
    base::MutexLock lock(&mu_);
    for (size_t i = 0; i < specs.size(); ++i) {
      ArrayRef array = NewArray(specs[i]);
      const uint64_t handle = request.array_handles(static_cast<int>(i));
      bound = Bind(handle, array);
      if (!bound.ok()) break;
      response.add_array_handles(handle);
      const absl::Span<const int32_t> devices = specs[i]->sharding->devices();
      for (size_t d = 0; d < devices.size(); ++d)
        declare.targets.push_back({array->shards().at(d), devices[d]});
    }
  }
  const cluster::BufferTargets targets = declare.targets;
  link_->Declare(std::move(declare));
  link_->Fail(targets, error);
  user_contexts_.Take(reply.op_id);
  reply.patient = true;
  return bound;
}

// ---- Parts and compositions ------------------------------------------------------------------------------

void Session::CopyShards(const Array& source, const Array& result, bool default_layout) {
  cluster::CopyBuffers copy;
  copy.sources = source.shards().Names();
  copy.results = result.shards().Names();
  const absl::Span<const int32_t> devices = result.spec().sharding->devices();
  copy.devices.assign(devices.begin(), devices.end());
  copy.memory_kind = result.spec().sharding->memory_kind().value_or("");
  copy.default_layout = default_layout;
  copy.user_context = user_context_;
  being_made_.push_back(copy.results);
  link_->Copy(std::move(copy));
}

ArrayRef Session::ShareOrCopy(ArraySpec spec, Shards shards, xla::ifrt::proto::ArrayCopySemantics semantics) {
  ArrayRef shared =
      base::MakeRef<Array>(std::make_shared<const ArraySpec>(std::move(spec)), std::move(shards));
  if (!IsAlwaysCopy(semantics)) return shared;
  ArrayRef copied = NewArray(shared->shared_spec());
  CopyShards(*shared, *copied, /*default_layout=*/false);
  return copied;
}

absl::Status Session::HandleAssembleArray(const AssembleArrayFromSingleDeviceArraysRequest& request,
                                          Reply& reply) {
  ArraySpec spec;
  spec.dims.assign(request.shape().dims().begin(), request.shape().dims().end());
  HELMWAY_RETURN_IF_ERROR(CheckDims(spec.dims));
  HELMWAY_ASSIGN_OR_RETURN(spec.sharding, program::Sharding::Parse(request.sharding()));
  HELMWAY_RETURN_IF_ERROR(CheckDevices(spec.sharding->devices()));
  const absl::Span<const int32_t> devices = spec.sharding->devices();
  if (static_cast<size_t>(request.single_device_array_handles_size()) != devices.size()) {
    return absl::InvalidArgumentError(absl::StrCat(request.single_device_array_handles_size(),
                                                   " shards for a sharding over ", devices.size(),
                                                   " devices"));
  }

  base::MutexLock lock(&mu_);
  std::vector<ArrayRef> given, parts;
  bool are_tokens = false;
  for (size_t i = 0; i < devices.size(); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef part,
                             FindArray(request.single_device_array_handles(static_cast<int>(i))));
    given.push_back(part);
    if (part->spec().dtype == xla::ifrt::DTypeProto::KIND_TOKEN && spec.dims.size() == 1 &&
        spec.dims[0] == 0) {
      are_tokens = true;
      part = AsEmptyArray(*part);
    }
    const ArraySpec& part_spec = part->spec();
    if (part->shards().size() != 1)
      return absl::InvalidArgumentError("a shard is itself an array over several devices");
    if (part_spec.sharding->devices()[0] != devices[i]) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", i, " lies on device ",
                                                     part_spec.sharding->devices()[0],
                                                     ", its sharding wants it on ", devices[i]));
    }
    if (!parts.empty() && part_spec.dtype != parts[0]->spec().dtype) {
      return absl::InvalidArgumentError("the shards have several dtypes");
    }
    absl::StatusOr<std::vector<int64_t>> dims =
        spec.sharding->ShardShapeAt(spec.dims, static_cast<int64_t>(i));
    if (!dims.ok() && spec.sharding->kind() != program::Sharding::Kind::kOpaque) return dims.status();
    if (dims.ok() && absl::MakeConstSpan(*dims) != absl::MakeConstSpan(part_spec.dims)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", i, " has the shape [", absl::StrJoin(part_spec.dims, ","),
                       "], its sharding says [", absl::StrJoin(*dims, ","), "]"));
    }
    const int rank = static_cast<int>(part_spec.dims.size());
    if (!parts.empty() &&
        !array::IsPlaced(parts[0]->spec(), part_spec.layout.value_or(program::Layout::Default(rank)),
                         part_spec.dims)) {
      return absl::InvalidArgumentError("the shards have several layouts");
    }
    parts.push_back(std::move(part));
  }
  spec.dtype = parts[0]->spec().dtype;
  spec.layout = parts[0]->spec().layout;
  if (request.has_dtype() && request.dtype().kind() != spec.dtype &&
      !(are_tokens && request.dtype().kind() == xla::ifrt::DTypeProto::KIND_TOKEN)) {
    return absl::InvalidArgumentError(absl::StrCat("shards of type ", wire::DTypeName(spec.dtype),
                                                   " for an array of type ",
                                                   wire::DTypeName(request.dtype().kind())));
  }
  std::vector<const Shards*> shards;
  for (const ArrayRef& part : parts) shards.push_back(&part->shards());
  ArrayRef array = ShareOrCopy(std::move(spec), Shards::Join(shards), request.copy_semantics());
  for (const ArrayRef& part : parts) array->AddArrivals(part->arrivals());
  HELMWAY_RETURN_IF_ERROR(Bind(request.result_handle(), array));
  if (IsDonate(request.copy_semantics())) {
    for (const ArrayRef& part : given) part->Delete();
  }
  reply.response.mutable_assemble_array_from_single_device_arrays_response()->set_array_handle(
      request.result_handle());
  reply.patient = true;
  return absl::OkStatus();
}

absl::Status Session::HandleDisassemble(const DisassembleIntoSingleDeviceArraysRequest& request,
                                        Reply& reply) {
  base::MutexLock lock(&mu_);
  HELMWAY_ASSIGN_OR_RETURN(ArrayRef whole, FindArray(request.array_handle()));
  const size_t count = whole->shards().size();
  if (static_cast<size_t>(request.result_handles_size()) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.result_handles_size(), " result handles for an array of ", count, " shards"));
  }
  const program::Sharding& sharding = *whole->spec().sharding;
  std::vector<ArrayRef> parts;
  for (size_t i = 0; i < count; ++i) {
    ArraySpec spec;
    spec.dtype = whole->spec().dtype;
    spec.layout = whole->spec().layout;
    HELMWAY_ASSIGN_OR_RETURN(std::vector<int64_t> dims,
                             sharding.ShardShapeAt(whole->spec().dims, static_cast<int64_t>(i)));
    spec.dims.assign(dims.begin(), dims.end());
    HELMWAY_ASSIGN_OR_RETURN(spec.sharding,
                             program::Sharding::SingleDevice(sharding.devices()[i], sharding.memory_kind()));
    ArrayRef part = ShareOrCopy(std::move(spec), whole->shards().ShareOne(i), request.copy_semantics());
    part->AddArrivals(whole->arrivals());
    parts.push_back(std::move(part));
  }
  HELMWAY_RETURN_IF_ERROR(BindAll(request.result_handles(), parts));
  *reply.response.mutable_disassemble_into_single_device_arrays_response()->mutable_array_handles() =
      request.result_handles();
  if (IsDonate(request.copy_semantics())) whole->Delete();
  reply.patient = true;
  return absl::OkStatus();
}

absl::Status Session::HandleFullyReplicatedShard(const FullyReplicatedShardRequest& request, Reply& reply) {
  base::MutexLock lock(&mu_);
  HELMWAY_ASSIGN_OR_RETURN(ArrayRef whole, FindArray(request.array_handle()));
  const program::Sharding& sharding = *whole->spec().sharding;
  if (!sharding.IsFullyReplicated() && !sharding.IsSingleDevice()) {
    return absl::InvalidArgumentError("the array is not fully replicated");
  }
  ArraySpec spec = whole->spec();
  HELMWAY_ASSIGN_OR_RETURN(spec.sharding,
                           program::Sharding::SingleDevice(sharding.devices()[0], sharding.memory_kind()));
  ArrayRef shard = ShareOrCopy(std::move(spec), whole->shards().ShareOne(0), request.copy_semantics());
  shard->AddArrivals(whole->arrivals());
  HELMWAY_RETURN_IF_ERROR(Bind(request.result_handle(), std::move(shard)));
  if (IsDonate(request.copy_semantics())) whole->Delete();
  reply.response.mutable_fully_replicated_shard_response()->set_array_handle(request.result_handle());
  reply.patient = true;
  return absl::OkStatus();
}

absl::Status Session::HandleCopyArrays(const CopyArraysRequest& request, Reply& reply) {
  const int count = request.array_handles_size();
  if (request.result_handles_size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.result_handles_size(), " result handles for ", count, " arrays"));
  }
  const std::vector<int32_t> device_ids(request.device_ids().begin(), request.device_ids().end());
  HELMWAY_RETURN_IF_ERROR(CheckDevices(device_ids));
  std::optional<absl::Span<const int32_t>> devices;
  if (!device_ids.empty()) devices = device_ids;
  // A client that names devices has chosen the memory too, and names it unless it is their default one.
  std::optional<absl::string_view> memory_kind;
  if (request.has_memory_kind() || devices) memory_kind = request.memory_kind();
  base::MutexLock lock(&mu_);
  std::vector<ArrayRef> sources;
  for (const uint64_t handle : request.array_handles()) {
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef source, FindArray(handle));
    sources.push_back(std::move(source));
  }
  std::vector<ArrayRef> results;
  for (const ArrayRef& source : sources) {
    auto spec = std::make_shared<ArraySpec>(source->spec());
    HELMWAY_ASSIGN_OR_RETURN(spec->sharding,
                             source->spec().sharding->WithDevicesAndMemoryKind(devices, memory_kind));
    bool stays = *spec->sharding == *source->spec().sharding;
    // Clients take such copies to have the default layout, and others to keep theirs.
    const bool default_layout =
        request.memory_kind() == kUnpinnedHost ||
        !AreOfOnePlatform(source->spec().sharding->devices()[0], spec->sharding->devices()[0]);
    if (default_layout && spec->layout) {
      stays = stays && spec->layout->IsDescending();
      spec->layout.reset();
    }
    ArrayRef result;
    if (stays && !IsAlwaysCopy(request.copy_semantics())) {
      result = base::MakeRef<Array>(std::move(spec), source->shards().Share());
    } else {
      result = NewArray(std::move(spec));
      CopyShards(*source, *result, default_layout);
    }
    result->AddArrivals(source->arrivals());
    results.push_back(std::move(result));
  }
  HELMWAY_RETURN_IF_ERROR(BindAll(request.result_handles(), results));
  *reply.response.mutable_copy_arrays_response()->mutable_array_handles() = request.result_handles();
  reply.patient = true;
  if (IsDonate(request.copy_semantics())) {
    for (const ArrayRef& source : sources) source->Delete();
  }
  return absl::OkStatus();
}

// ---- Reading ---------------------------------------------------------------------------------------------

absl::Status Session::HandleCopyToHostBuffer(const CopyToHostBufferRequest& request, Reply& reply) {
  cluster::BufferId buffer;
  cluster::ReadFormat format;
  {
    base::MutexLock lock(&mu_);
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef array, FindArray(request.array_handle()));
    const ArraySpec& spec = array->spec();
    if (spec.dtype == xla::ifrt::DTypeProto::KIND_TOKEN) {
      return absl::InvalidArgumentError("a token has no contents to read");
    }
    if (!spec.sharding->IsFullyReplicated() && !spec.sharding->IsSingleDevice()) {
      return absl::UnimplementedError(
          "CopyToHostBufferRequest of an array that is split over devices (clients read its shards)");
    }
    if (request.has_byte_strides()) {
      format.byte_strides = Strides(true, request.byte_strides());
      HELMWAY_ASSIGN_OR_RETURN(const std::optional<int64_t> region,
                               HostBufferSize(spec.dtype, spec.dims, format.byte_strides));
      HELMWAY_ASSIGN_OR_RETURN(const std::optional<int64_t> dense,
                               HostBufferSize(spec.dtype, spec.dims, std::nullopt));
      // Only gaps can make it larger than the array, which is in memory already.
      if (region && dense && *region > *dense && *region > host_buffers_->limit_bytes()) {
        return absl::ResourceExhaustedError(absl::StrCat("a read of ", *dense, " bytes into a region of ",
                                                         *region, "; host buffers may hold ",
                                                         host_buffers_->limit_bytes()));
      }
    }
    buffer = array->shards().at(0);
  }
  reply.deferred = true;
  link_->Read(buffer, std::move(format),
              [self = shared_from_this(), op_id = reply.op_id,
               handle = request.host_buffer_handle()](absl::StatusOr<base::HostBytes> bytes) {
                absl::Status status = bytes.status();
                // Stored before the answer: the client looks it up when it has that.
                if (bytes.ok()) status = self->host_buffers_->Put(handle, *std::move(bytes));
                if (!status.ok()) return self->SendError(op_id, status);
                Response response;
                response.mutable_copy_to_host_buffer_response();
                self->Send(op_id, status, response);
              });
  return absl::OkStatus();
}

absl::Status Session::HandleCheckValueReady(const CheckValueReadyRequest& request, Reply& reply) {
  std::vector<cluster::BufferNames> names;
  {
    base::MutexLock lock(&mu_);
    for (const uint64_t handle : request.value_handles()) {
      HELMWAY_ASSIGN_OR_RETURN(ArrayRef array, FindArray(handle));
      names.push_back(array->shards().Names());
    }
  }
  reply.deferred = true;
  link_->Await(names, [self = shared_from_this(), op_id = reply.op_id](const absl::Status& status) {
    if (!status.ok()) return self->SendError(op_id, status);
    Response response;
    response.mutable_check_value_ready_response();
    self->Send(op_id, status, response);
  });
  return absl::OkStatus();
}

// ---- Forgetting ------------------------------------------------------------------------------------------

absl::Status Session::HandleDeleteArray(const DeleteArrayRequest& request, Reply& reply) {
  base::MutexLock lock(&mu_);
  absl::Status first_error;
  for (const uint64_t handle : request.array_handle()) {
    const auto it = arrays_.find(handle);
    if (it == arrays_.end()) {
      first_error.Update(absl::NotFoundError(absl::StrCat("no array has the handle ", handle)));
    } else {
      // The buffers go, also where other arrays share them.
      if (it->second->status().ok()) released_.push_back(it->second->shards().Names());
      it->second->Delete();
    }
  }
  const uint64_t future = AddFuture(async::DoneCompletion(first_error));
  deletion_futures_.insert(future);
  reply.response.mutable_delete_array_response()->set_deletion_future_handle(future);
  reply.counted = false;
  return absl::OkStatus();
}

absl::Status Session::HandleDestructArray(const DestructArrayRequest& request, Reply& reply) {
  base::MutexLock lock(&mu_);
  absl::Status first_error;
  for (const uint64_t handle : request.array_handle()) {
    if (arrays_.erase(handle) == 0) {
      first_error.Update(absl::NotFoundError(absl::StrCat("no array has the handle ", handle)));
    }
  }
  reply.response.mutable_destruct_array_response();
  reply.patient = true;
  reply.counted = false;
  return first_error;
}

absl::Status Session::HandleIsArrayDeleted(const IsArrayDeletedRequest& request, Reply& reply) {
  base::MutexLock lock(&mu_);
  const auto it = arrays_.find(request.array_handle());
  if (it == arrays_.end())
    return absl::NotFoundError(absl::StrCat("no array has the handle ", request.array_handle()));
  if (!it->second->deleted()) HELMWAY_RETURN_IF_ERROR(it->second->status());
  reply.response.mutable_is_array_deleted_response()->set_deleted(it->second->deleted());
  return absl::OkStatus();
}

}  // namespace helmway::proxy
