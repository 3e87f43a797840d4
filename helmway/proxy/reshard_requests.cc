// Requests that make arrays of the shards of others: taking them over, moving them, cutting them anew,
// reading their bytes as something else.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/array/remap_plan.h"
#include "helmway/array/reshard_plan.h"
#include "helmway/base/status.h"
#include "helmway/program/strides.h"
#include "helmway/proxy/copy_semantics.h"
#include "helmway/proxy/proxy.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/ifrt_array.pb.h"

namespace helmway::proxy {

using ::helmway::array::Array;
using ::helmway::array::ArrayRef;
using ::helmway::array::ArraySpec;
using ::helmway::array::RemapSource;
using ::helmway::array::ReshardPlan;
using ::helmway::array::Shards;
using ::xla::ifrt::proxy::BitcastArraysRequest;
using ::xla::ifrt::proxy::RemapArraysRequest;
using ::xla::ifrt::proxy::ReshardArraysRequest;

namespace {

absl::Status CheckCounts(int results, int specs, int handles) {
  if (results == specs && specs == handles) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(results, " result handles and ", specs, " specs for ", handles, " arrays"));
}

// Shards that an array gives up go to one result: two would have to share them.
template <typename Request>
absl::Status CheckDonatedOnce(const Request& request) {
  if (!IsDonate(request.copy_semantics())) return absl::OkStatus();
  const absl::flat_hash_set<uint64_t> distinct(request.array_handles().begin(),
                                               request.array_handles().end());
  if (static_cast<int>(distinct.size()) == request.array_handles_size()) return absl::OkStatus();
  return absl::InvalidArgumentError("an array is donated twice");
}

std::optional<std::vector<int64_t>> MinorToMajor(const ArraySpec& spec) {
  if (!spec.layout || spec.layout->IsDescending()) return std::nullopt;
  return std::vector<int64_t>(spec.layout->minor_to_major().begin(), spec.layout->minor_to_major().end());
}

// Bytes of a shard on a device that packs its elements.
absl::StatusOr<int64_t> PackedBytes(array::DType dtype, absl::Span<const int64_t> dims) {
  HELMWAY_ASSIGN_OR_RETURN(const wire::DTypeFacts facts, wire::GetDTypeFacts(dtype));
  HELMWAY_ASSIGN_OR_RETURN(const int64_t elements, program::ElementCount(dims));
  HELMWAY_RETURN_IF_ERROR(program::RegionSizeBytes({elements}, facts.bits, std::nullopt).status());
  const int64_t bits = elements * facts.bits;
  return bits / 8 + (bits % 8 != 0);
}

// The shards of several arrays as one: source i of `sources` becomes shard i.
Shards Gather(const std::vector<ArrayRef>& arrays, const std::vector<RemapSource>& sources) {
  const Array& first = *arrays[static_cast<size_t>(sources[0].array)];
  bool whole = sources.size() == first.shards().size();
  for (size_t i = 0; i < sources.size(); ++i) {
    whole = whole && sources[i].array == sources[0].array && sources[i].position == static_cast<int64_t>(i);
  }
  if (whole) return first.shards().Share();
  std::vector<Shards> parts;
  parts.reserve(sources.size());
  for (const RemapSource& source : sources) {
    parts.push_back(
        arrays[static_cast<size_t>(source.array)]->shards().ShareOne(static_cast<size_t>(source.position)));
  }
  std::vector<const Shards*> pointers;
  for (const Shards& part : parts) pointers.push_back(&part);
  return Shards::Join(pointers);
}

}  // namespace

absl::string_view Session::MemoryKindOn(const program::Sharding& sharding, int32_t device) const {
  if (sharding.memory_kind()) return *sharding.memory_kind();
  const auto it = default_memory_kinds_.find(device);
  return it == default_memory_kinds_.end() ? absl::string_view() : absl::string_view(it->second);
}

// ---- Taking shards over ----------------------------------------------------------------------------------

absl::Status Session::HandleRemapArrays(const RemapArraysRequest& request, Reply& reply) {
  const xla::ifrt::RemapPlanProto& plan = request.plan();
  HELMWAY_RETURN_IF_ERROR(
      CheckCounts(plan.input_specs_size(), plan.input_specs_size(), request.array_handles_size()));
  HELMWAY_RETURN_IF_ERROR(
      CheckCounts(request.result_handles_size(), plan.output_specs_size(), plan.output_specs_size()));
  std::vector<ArraySpec> planned, outputs;
  for (const auto& proto : plan.input_specs()) {
    HELMWAY_ASSIGN_OR_RETURN(planned.emplace_back(), MakeSpec(proto));
  }
  for (const auto& proto : plan.output_specs()) {
    HELMWAY_ASSIGN_OR_RETURN(outputs.emplace_back(), MakeSpec(proto));
  }
  HELMWAY_RETURN_IF_ERROR(CheckDonatedOnce(request));

  base::MutexLock lock(&mu_);
  std::vector<ArrayRef> arrays;
  // What the arrays are counts; the plan may see the same shards as another array of the same type and shape.
  std::vector<ArraySpec> inputs;
  for (size_t i = 0; i < planned.size(); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef array, FindArray(request.array_handles(static_cast<int>(i))));
    const ArraySpec& spec = array->spec();
    const absl::Span<const int32_t> devices = spec.sharding->devices();
    if (spec.dtype != planned[i].dtype || spec.dims != planned[i].dims ||
        devices != planned[i].sharding->devices() ||
        MemoryKindOn(*spec.sharding, devices[0]) != MemoryKindOn(*planned[i].sharding, devices[0])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Remap plan: input ", i, " is ", wire::DTypeName(spec.dtype), "[", absl::StrJoin(spec.dims, ","),
          "] ", spec.sharding->DebugString(), ", the plan expects ", wire::DTypeName(planned[i].dtype), "[",
          absl::StrJoin(planned[i].dims, ","), "] ", planned[i].sharding->DebugString()));
    }
    inputs.push_back(spec);
    arrays.push_back(std::move(array));
  }
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<std::vector<RemapSource>> sources,
                           array::ResolveRemap(plan, inputs, outputs));
  std::vector<ArrayRef> results;
  for (size_t o = 0; o < outputs.size(); ++o) {
    absl::flat_hash_set<int32_t> used;
    for (size_t i = 0; i < sources[o].size(); ++i) {
      used.insert(sources[o][i].array);
      const program::Sharding& from = *inputs[static_cast<size_t>(sources[o][i].array)].sharding;
      const int32_t device = outputs[o].sharding->devices()[i];
      if (MemoryKindOn(from, device) != MemoryKindOn(*outputs[o].sharding, device)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Remap plan: input ", sources[o][i].array, " lies in memory of kind ", MemoryKindOn(from, device),
            ", output ", o, " is to lie in ", MemoryKindOn(*outputs[o].sharding, device)));
      }
    }
    ArrayRef result =
        base::MakeRef<Array>(std::make_shared<const ArraySpec>(outputs[o]), Gather(arrays, sources[o]));
    if (IsAlwaysCopy(request.copy_semantics())) {
      ArrayRef copied = NewArray(result->shared_spec());
      CopyShards(*result, *copied, /*default_layout=*/false);
      result = std::move(copied);
    }
    for (const int32_t input : used) result->AddArrivals(arrays[static_cast<size_t>(input)]->arrivals());
    results.push_back(std::move(result));
  }
  reply.response.mutable_remap_arrays_response();
  for (size_t o = 0; o < results.size(); ++o) {
    const uint64_t handle = request.result_handles(static_cast<int>(o));
    HELMWAY_RETURN_IF_ERROR(Bind(handle, results[o]));
    reply.response.mutable_remap_arrays_response()->add_array_handles(handle);
  }
  if (IsDonate(request.copy_semantics())) {
    for (const ArrayRef& array : arrays) array->Delete();
  }
  reply.patient = true;
  return absl::OkStatus();
}

// ---- Cutting anew ----------------------------------------------------------------------------------------

ArrayRef Session::Reshard(const Array& source, std::shared_ptr<const ArraySpec> spec, ReshardPlan plan,
                          bool may_share) {
  const program::Sharding& from = *source.spec().sharding;
  const program::Sharding& to = *spec->sharding;
  const auto count = static_cast<size_t>(to.num_shards());
  const auto stays = [&](const ReshardPlan::Whole& whole) {
    const int32_t device = to.devices()[static_cast<size_t>(whole.result)];
    return may_share && from.devices()[static_cast<size_t>(whole.source)] == device &&
           MemoryKindOn(from, device) == MemoryKindOn(to, device);
  };

  std::vector<std::optional<size_t>> shared(count);  // position in the source
  size_t num_shared = 0;
  bool unchanged = count == source.shards().size();
  for (const ReshardPlan::Whole& whole : plan.whole) {
    if (!stays(whole)) continue;
    shared[static_cast<size_t>(whole.result)] = static_cast<size_t>(whole.source);
    ++num_shared;
    unchanged = unchanged && whole.source == whole.result;
  }
  if (num_shared == count && unchanged) {
    return base::MakeRef<Array>(std::move(spec), source.shards().Share());
  }
  const auto num_fresh = static_cast<uint32_t>(count - num_shared);
  Shards shards = Shards::Fresh(proxy_->NewBuffers(num_fresh), num_fresh, this);
  if (num_shared > 0) {
    std::vector<Shards> parts;
    parts.reserve(count);
    size_t next_fresh = 0;
    for (const std::optional<size_t>& position : shared) {
      parts.push_back(position ? source.shards().ShareOne(*position) : shards.ShareOne(next_fresh++));
    }
    std::vector<const Shards*> pointers;
    for (const Shards& part : parts) pointers.push_back(&part);
    shards = Shards::Join(pointers);
  }

  const cluster::BufferNames source_names = source.shards().Names();
  const cluster::BufferNames names = shards.Names();
  const std::string memory_kind = to.memory_kind().value_or("");
  cluster::CopyBuffers copy;
  copy.memory_kind = memory_kind;
  for (const ReshardPlan::Whole& whole : plan.whole) {
    const auto result = static_cast<size_t>(whole.result);
    if (shared[result]) continue;
    copy.sources.list.push_back(source_names.at(static_cast<size_t>(whole.source)));
    copy.results.list.push_back(names.at(result));
    copy.devices.push_back(to.devices()[result]);
  }
  if (!copy.devices.empty()) link_->Copy(std::move(copy));

  if (!plan.assemblies.empty()) {
    cluster::AssembleBuffers assemble;
    assemble.sources = source_names;
    assemble.element_type = spec->dtype;
    assemble.memory_kind = memory_kind;
    assemble.minor_to_major = MinorToMajor(*spec);
    for (ReshardPlan::Assembly& assembly : plan.assemblies) {
      cluster::AssembleBuffers::Result& result = assemble.results.emplace_back();
      result.dims = std::move(assembly.dims);
      result.blocks = std::move(assembly.blocks);
      for (const int64_t position : assembly.results) {
        const auto i = static_cast<size_t>(position);
        result.targets.push_back({names.at(i), to.devices()[i]});
      }
    }
    link_->Assemble(std::move(assemble));
  }
  return base::MakeRef<Array>(std::move(spec), std::move(shards));
}

absl::Status Session::HandleReshardArrays(const ReshardArraysRequest& request, Reply& reply) {
  const int count = request.array_handles_size();
  HELMWAY_RETURN_IF_ERROR(CheckCounts(request.result_handles_size(), request.array_specs_size(), count));
  std::vector<std::shared_ptr<const ArraySpec>> specs;
  for (const auto& proto : request.array_specs()) {
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(proto));
    specs.push_back(std::make_shared<const ArraySpec>(std::move(spec)));
  }
  // Plans may be long, so they are made outside the lock. Nobody else changes what a handle stands for.
  std::vector<std::shared_ptr<const ArraySpec>> sources;
  {
    base::MutexLock lock(&mu_);
    for (const uint64_t handle : request.array_handles()) {
      HELMWAY_ASSIGN_OR_RETURN(const ArrayRef source, FindArray(handle));
      sources.push_back(source->shared_spec());
    }
  }
  std::vector<ReshardPlan> plans;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i]->dtype != specs[i]->dtype || sources[i]->dims != specs[i]->dims) {
      return absl::InvalidArgumentError(
          absl::StrCat("an array ", wire::DTypeName(sources[i]->dtype), "[",
                       absl::StrJoin(sources[i]->dims, ","), "] cannot be resharded to ",
                       wire::DTypeName(specs[i]->dtype), "[", absl::StrJoin(specs[i]->dims, ","), "]"));
    }
    HELMWAY_ASSIGN_OR_RETURN(
        plans.emplace_back(),
        array::PlanReshard(*sources[i]->sharding, *specs[i]->sharding, specs[i]->dims,
                           /*allow_whole=*/array::HaveSameLayout(*sources[i], *specs[i])));
  }

  base::MutexLock lock(&mu_);
  std::vector<ArrayRef> arrays;
  for (const uint64_t handle : request.array_handles()) {
    HELMWAY_ASSIGN_OR_RETURN(arrays.emplace_back(), FindArray(handle));
  }
  std::vector<ArrayRef> results;
  absl::flat_hash_set<const Array*> seen;
  for (size_t i = 0; i < arrays.size(); ++i) {
    // What is given up goes to one result only: it may be consumed, and the others stay.
    const bool may_share = !IsAlwaysCopy(request.copy_semantics()) &&
                           (seen.insert(arrays[i].get()).second || !IsDonate(request.copy_semantics()));
    ArrayRef result = Reshard(*arrays[i], specs[i], std::move(plans[i]), may_share);
    result->AddArrivals(arrays[i]->arrivals());
    results.push_back(std::move(result));
  }
  reply.response.mutable_reshard_arrays_response();
  for (int i = 0; i < count; ++i) {
    HELMWAY_RETURN_IF_ERROR(Bind(request.result_handles(i), results[static_cast<size_t>(i)]));
    reply.response.mutable_reshard_arrays_response()->add_array_handles(request.result_handles(i));
  }
  if (IsDonate(request.copy_semantics())) {
    for (const ArrayRef& array : arrays) array->Delete();
  }
  reply.patient = true;
  return absl::OkStatus();
}

// ---- The same bytes as something else --------------------------------------------------------------------

absl::StatusOr<ArrayRef> Session::Bitcast(const Array& source, std::shared_ptr<const ArraySpec> spec) {
  const ArraySpec& before = source.spec();
  const absl::Span<const int32_t> devices = spec->sharding->devices();
  if (before.sharding->devices() != devices) {
    return absl::InvalidArgumentError(absl::StrCat("a bitcast cannot move from ",
                                                   before.sharding->DebugString(), " to ",
                                                   spec->sharding->DebugString()));
  }
  cluster::BitcastBuffers bitcast;
  bool same = before.dtype == spec->dtype && MinorToMajor(before) == MinorToMajor(*spec);
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (MemoryKindOn(*before.sharding, devices[i]) != MemoryKindOn(*spec->sharding, devices[i])) {
      return absl::InvalidArgumentError("a bitcast cannot change the kind of memory");
    }
    HELMWAY_ASSIGN_OR_RETURN(const auto from, before.sharding->ShardShapeAt(before.dims, position));
    HELMWAY_ASSIGN_OR_RETURN(const auto to, spec->sharding->ShardShapeAt(spec->dims, position));
    HELMWAY_ASSIGN_OR_RETURN(const int64_t from_bytes, PackedBytes(before.dtype, from));
    HELMWAY_ASSIGN_OR_RETURN(const int64_t to_bytes, PackedBytes(spec->dtype, to));
    if (from_bytes != to_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", i, " of ", from_bytes, " bytes (", wire::DTypeName(before.dtype), "[",
                       absl::StrJoin(from, ","), "]) cannot be taken for one of ", to_bytes, " bytes (",
                       wire::DTypeName(spec->dtype), "[", absl::StrJoin(to, ","), "])"));
    }
    same = same && from == to;
    bitcast.dims.emplace_back(to.begin(), to.end());
  }
  if (same) return base::MakeRef<Array>(std::move(spec), source.shards().Share());
  ArrayRef result = NewArray(std::move(spec));
  bitcast.sources = source.shards().Names();
  bitcast.results = result->shards().Names();
  bitcast.element_type = result->spec().dtype;
  bitcast.minor_to_major = MinorToMajor(result->spec());
  link_->Bitcast(std::move(bitcast));
  return result;
}

absl::Status Session::HandleBitcastArrays(const BitcastArraysRequest& request, Reply& reply) {
  const int count = request.array_handles_size();
  HELMWAY_RETURN_IF_ERROR(CheckCounts(request.result_handles_size(), request.array_specs_size(), count));
  if (IsAlwaysCopy(request.copy_semantics())) {
    return absl::InvalidArgumentError("a bitcast does not copy");
  }
  HELMWAY_RETURN_IF_ERROR(CheckDonatedOnce(request));
  std::vector<std::shared_ptr<const ArraySpec>> specs;
  for (const auto& proto : request.array_specs()) {
    HELMWAY_ASSIGN_OR_RETURN(ArraySpec spec, MakeSpec(proto));
    specs.push_back(std::make_shared<const ArraySpec>(std::move(spec)));
  }

  base::MutexLock lock(&mu_);
  std::vector<ArrayRef> arrays;
  for (const uint64_t handle : request.array_handles()) {
    HELMWAY_ASSIGN_OR_RETURN(arrays.emplace_back(), FindArray(handle));
  }
  std::vector<ArrayRef> results;
  for (size_t i = 0; i < arrays.size(); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(ArrayRef result, Bitcast(*arrays[i], std::move(specs[i])));
    result->AddArrivals(arrays[i]->arrivals());
    results.push_back(std::move(result));
  }
  reply.response.mutable_bitcast_arrays_response();
  for (int i = 0; i < count; ++i) {
    HELMWAY_RETURN_IF_ERROR(Bind(request.result_handles(i), results[static_cast<size_t>(i)]));
    reply.response.mutable_bitcast_arrays_response()->add_array_handles(request.result_handles(i));
  }
  if (IsDonate(request.copy_semantics())) {
    for (const ArrayRef& array : arrays) array->Delete();
  }
  reply.patient = true;
  return absl::OkStatus();
}

}  // namespace helmway::proxy
