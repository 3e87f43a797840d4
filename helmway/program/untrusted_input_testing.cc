#include "helmway/program/untrusted_input_testing.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "helmway/program/compile_options.h"
#include "helmway/program/executable_spec.h"
#include "helmway/program/layout.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::program {
namespace {

void Require(bool condition, absl::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "Broken promise: %s\n", std::string(what).c_str());
  std::abort();
}

// The shards of `dims` lie inside the array and agree with the other answers.
void UseDims(const Sharding& sharding, const std::vector<int64_t>& dims) {
  const auto shape = sharding.ShardShape(dims);
  const auto domains = sharding.IndexDomains(dims);
  if (!domains.ok()) return;
  Require(shape.ok(), "index domains without a shard shape");
  Require(static_cast<int64_t>(domains->size()) == sharding.num_shards(), "a domain per shard");
  for (size_t position = 0; position < domains->size(); ++position) {
    const IndexDomain& domain = (*domains)[position];
    const auto own = sharding.ShardShapeAt(dims, static_cast<int64_t>(position));
    Require(own.ok() && *own == domain.shape, "ShardShapeAt agrees with IndexDomains");
    for (size_t i = 0; i < dims.size(); ++i) {
      Require(domain.origin[i] >= 0 && domain.shape[i] >= 0 && domain.shape[i] <= (*shape)[i] &&
                  domain.shape[i] <= dims[i] - domain.origin[i],
              "a shard lies inside the array");
    }
  }
}

void UseSharding(const Sharding& sharding) {
  Require(sharding.num_shards() > 0, "at least one device");
  Require(!sharding.op_sharding().has_named_sharding(), "no named sharding is left");
  Require(!sharding.DebugString().empty(), "a debug string");
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{}, {5}, {4, 6}, {0, 3}, {INT64_MAX, 1}, {2, 3, 4}, {1, 1, 1, 9}}) {
    UseDims(sharding, dims);
    if (const auto global = sharding.GlobalShape(dims); global.ok()) UseDims(sharding, *global);
  }
  const auto again = Sharding::Parse(sharding.Encode());
  Require(again.ok(), "what was encoded parses");
  Require(**again == sharding, "parsing what was encoded gives the same");
  const auto moved = sharding.WithDevicesAndMemoryKind(std::nullopt, "elsewhere");
  Require(moved.ok() && (*moved)->memory_kind() == "elsewhere", "the memory kind changes");
}

void UseLayout(const Layout& layout) {
  const auto from_text = Layout::ParseText(layout.ToText());
  Require(from_text.ok() && *from_text == layout, "a layout's text parses to the same");
  const auto from_proto = Layout::FromIfrtProto(layout.ToIfrtProto());
  Require(from_proto.ok() && *from_proto == layout, "a layout's message parses to the same");
}

}  // namespace

bool TrySharding(absl::string_view bytes) {
  xla::ifrt::ShardingProto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  const auto sharding = Sharding::Parse(proto);
  if (!sharding.ok()) return false;
  UseSharding(**sharding);
  return true;
}

bool TryExecutableSpec(absl::string_view bytes, bool with_config) {
  bool accepted = false;
  const std::vector<int32_t> devices = {10, 11, 12, 13};
  for (int partitions : {1, 2, 4}) {
    const auto spec = FromOptimizedHlo(with_config ? "hlo_with_config" : "hlo", bytes,
                                       absl::MakeConstSpan(devices).first(partitions), 1, partitions);
    if (!spec.ok()) continue;
    accepted = true;
    for (const auto* values : {&spec->parameters, &spec->outputs}) {
      for (const ValueSpec& value : *values) {
        Require(value.sharding != nullptr, "every value has a sharding");
        UseSharding(*value.sharding);
        UseLayout(value.layout);
        Require(static_cast<size_t>(value.layout.rank()) == value.shard_dims.size(),
                "layouts have the values' rank");
        const auto shape = value.sharding->ShardShape(value.global_dims);
        Require(shape.ok() && *shape == value.shard_dims, "global dims divide into the shard dims");
      }
    }
    for (int32_t donated : spec->donated_parameters) {
      Require(donated >= 0 && donated < static_cast<int32_t>(spec->parameters.size()),
              "donations are parameters");
    }
  }
  return accepted;
}

bool TryCompileOptions(absl::string_view bytes) {
  const auto options = ParseXlaCompileOptions(bytes);
  if (!options.ok()) return false;
  const auto devices = options->device_ids();
  Require(devices.empty() || static_cast<int64_t>(devices.size()) ==
                                 int64_t{options->num_replicas()} * options->num_partitions(),
          "a device per replica and partition");
  absl::flat_hash_map<int32_t, int32_t> ids;
  for (int32_t device : devices) ids.emplace(device, static_cast<int32_t>(ids.size()));
  const auto for_plugin = options->SerializeForPlugin(ids);
  Require(for_plugin.ok(), "options serialize");
  xla::CompileOptionsProto proto;
  Require(proto.ParseFromString(*for_plugin), "what was serialized parses");
  Require(!proto.executable_build_options().has_debug_options(), "no debug options are left");
  return true;
}

bool TryLayout(absl::string_view bytes) {
  bool accepted = false;
  const auto use = [&](const absl::StatusOr<Layout>& layout) {
    if (!layout.ok()) return;
    accepted = true;
    UseLayout(*layout);
  };
  use(Layout::ParseText(bytes));
  xla::LayoutProto xla_proto;
  if (xla_proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    use(Layout::FromXlaProto(xla_proto));
  xla::ifrt::LayoutProto ifrt_proto;
  if (ifrt_proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    use(Layout::FromIfrtProto(ifrt_proto));
  return accepted;
}

}  // namespace helmway::program
