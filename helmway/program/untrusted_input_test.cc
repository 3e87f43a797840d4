// Random and damaged input to every parser of this folder. The seed is printed; run again with
// --gtest_random_seed=<seed> for other input (0, the default, is a seed like any other).
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "helmway/program/collectives.h"
#include "helmway/program/layout.h"
#include "helmway/program/named_sharding.h"
#include "helmway/program/sharding.h"
#include "helmway/program/testdata_testing.h"
#include "helmway/program/untrusted_input_testing.h"
#include "helmway/wire/serialized.h"

namespace helmway::program {
namespace {

using ::xla::OpSharding;

class Random {
 public:
  Random() {
    const int seed = GTEST_FLAG_GET(random_seed);
    std::cout << "seed " << seed << std::endl;
    engine_.seed(seed);
  }

  // Uniform in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool OneIn(int n) { return Between(1, n) == 1; }

  std::string Bytes(int max_size) {
    std::string bytes(Between(0, max_size), '\0');
    for (char& byte : bytes) byte = static_cast<char>(Between(0, 255));
    return bytes;
  }

  // A few bytes changed, removed, added, doubled or cut off.
  std::string Damage(std::string bytes) {
    for (int64_t n = Between(1, 4); n > 0; --n) {
      const int64_t size = static_cast<int64_t>(bytes.size());
      const int64_t at = Between(0, size);
      switch (Between(0, 4)) {
        case 0:
          if (at < size) bytes[at] = static_cast<char>(Between(0, 255));
          break;
        case 1:
          if (at < size) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Between(0, 7)));
          break;
        case 2:
          bytes.insert(at, Bytes(4));
          break;
        case 3:
          bytes.erase(at, Between(0, 4));
          break;
        case 4:
          bytes.insert(at, bytes.substr(at, Between(0, 16)));
          break;
      }
    }
    return bytes;
  }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
  google::protobuf::LogSilencer no_parse_errors_;  // They are expected by the thousand.
};

std::vector<std::string> ShardingMessages() {
  std::vector<std::string> messages;
  const std::vector<int32_t> devices = {3, 1, 2, 0};
  OpSharding iota;
  iota.set_type(OpSharding::OTHER);
  for (int dim : {2, 1, 2}) iota.add_tile_assignment_dimensions(dim);
  for (int dim : {2, 2}) iota.add_iota_reshape_dims(dim);
  for (int dim : {1, 0}) iota.add_iota_transpose_perm(dim);
  iota.set_replicate_on_last_tile_dim(true);
  OpSharding list;
  list.set_type(OpSharding::OTHER);
  for (int dim : {2, 2}) list.add_tile_assignment_dimensions(dim);
  for (int device : {2, 0, 3, 1}) list.add_tile_assignment_devices(device);
  for (const OpSharding& op : {OpSharding(), iota, list}) {
    messages.push_back((*Sharding::FromOpSharding(devices, op, "device"))->Encode().SerializeAsString());
  }
  xla::ifrt::HloShardingProto named;
  for (int32_t device : devices) named.mutable_devices()->add_device_ids(device);
  auto& sharding = *named.mutable_xla_op_sharding()->mutable_named_sharding();
  for (int size : {2, 2}) sharding.mutable_mesh()->add_axes()->set_size(size);
  sharding.add_dim_shardings()->add_axes()->set_mesh_axis_index(1);
  auto& part = *sharding.add_dim_shardings()->add_axes()->mutable_sub_axis_info();
  part.set_pre_size(1);
  part.set_size(2);
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(named, wire::kHloSharding);
  messages.push_back(proto.SerializeAsString());
  messages.push_back((*Sharding::SingleDevice(5, "pinned_host"))->Encode().SerializeAsString());
  messages.push_back(
      (*Sharding::ConcreteEven({1, 2}, {4, 6}, {2, 6}, false, {}))->Encode().SerializeAsString());
  messages.push_back((*Sharding::Concrete({1, 2}, {5}, {{3}, {2}}, {}))->Encode().SerializeAsString());
  messages.push_back((*Sharding::Opaque({1, 2}, {}))->Encode().SerializeAsString());
  return messages;
}

std::vector<std::string> Programs() {
  std::vector<std::string> programs;
  for (const char* name : {"sharded_step.hlo.pb", "factor.hlo.pb"}) {
    programs.push_back(ReadTestdata(name));
  }
  return programs;
}

std::string CompileOptionsMessage() {
  xla::ifrt::XlaCompileOptionsProto proto;
  auto& build = *proto.mutable_compile_options()->mutable_executable_build_options();
  build.set_num_replicas(1);
  build.set_num_partitions(2);
  build.mutable_debug_options();
  build.mutable_device_assignment()->set_replica_count(1);
  build.mutable_device_assignment()->set_computation_count(2);
  for (int id : {4, 5})
    build.mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(id);
  (*proto.mutable_compile_options()->mutable_env_option_overrides())["x"].set_int_field(1);
  return proto.SerializeAsString();
}

TEST(UntrustedInput, RandomBytes) {
  Random random;
  for (int i = 0; i < 5000; ++i) {
    const std::string bytes = random.Bytes(40);
    TrySharding(bytes);
    TryExecutableSpec(bytes, random.OneIn(2));
    TryCompileOptions(bytes);
    TryLayout(bytes);
    // Past the name, where the payloads are.
    for (absl::string_view name : {wire::kHloSharding, wire::kSingleDeviceSharding,
                                   wire::kConcreteEvenSharding, wire::kConcreteSharding}) {
      xla::ifrt::ShardingProto proto;
      proto.mutable_serialized_sharding()->set_type_name(std::string(name));
      proto.mutable_serialized_sharding()->set_data(bytes);
      TrySharding(proto.SerializeAsString());
    }
  }
}

TEST(UntrustedInput, DamagedMessages) {
  Random random;
  int accepted = 0;
  const std::vector<std::string> shardings = ShardingMessages();
  for (const std::string& message : shardings) ASSERT_TRUE(TrySharding(message));
  for (int i = 0; i < 20000; ++i) {
    accepted += TrySharding(random.Damage(shardings[random.Between(0, std::ssize(shardings) - 1)]));
  }
  const std::vector<std::string> programs = Programs();
  for (const std::string& program : programs) ASSERT_TRUE(TryExecutableSpec(program, false));
  for (int i = 0; i < 1000; ++i) {
    accepted +=
        TryExecutableSpec(random.Damage(programs[random.Between(0, std::ssize(programs) - 1)]), false);
  }
  const std::string options = CompileOptionsMessage();
  ASSERT_TRUE(TryCompileOptions(options));
  for (int i = 0; i < 10000; ++i) accepted += TryCompileOptions(random.Damage(options));

  const Layout layout = *Layout::ParseText("{1,0:T(8,128)(2,1)E(4)S(5)}");
  const std::vector<std::string> layouts = {layout.ToText(), layout.ToXlaProto().SerializeAsString(),
                                            layout.ToIfrtProto().SerializeAsString()};
  for (const std::string& text : layouts) ASSERT_TRUE(TryLayout(text));
  for (int i = 0; i < 10000; ++i) accepted += TryLayout(random.Damage(layouts[random.Between(0, 2)]));
  // Damage that nothing notices must occur, or the damage is too heavy to reach the later checks.
  EXPECT_GT(accepted, 1000);
}

// Well-formed messages with sensible numbers that need not fit together, and sometimes do.
TEST(UntrustedInput, ShardingsOfRandomNumbers) {
  Random random;
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t num_devices = random.Between(1, 8);
    xla::ifrt::HloShardingProto payload;
    for (int64_t d = 0; d < num_devices; ++d)
      payload.mutable_devices()->add_device_ids(static_cast<int32_t>(d));
    OpSharding& op = *payload.mutable_xla_op_sharding();
    if (random.OneIn(2)) {
      op.set_type(random.OneIn(8) ? static_cast<OpSharding::Type>(random.Between(-1, 8)) : OpSharding::OTHER);
      for (int64_t n = random.Between(0, 3); n > 0; --n)
        op.add_tile_assignment_dimensions(random.Between(1, 4));
      if (random.OneIn(2)) {
        for (int64_t n = random.Between(1, 3); n > 0; --n) {
          op.add_iota_transpose_perm(op.iota_reshape_dims_size());
          op.add_iota_reshape_dims(random.Between(1, 4));
        }
        if (random.OneIn(2))
          op.mutable_iota_transpose_perm()->SwapElements(0, op.iota_transpose_perm_size() - 1);
      } else {
        std::vector<int64_t> order(num_devices);
        std::iota(order.begin(), order.end(), 0);
        random.Shuffle(order);
        op.mutable_tile_assignment_devices()->Assign(order.begin(), order.end());
      }
      op.set_replicate_on_last_tile_dim(random.OneIn(3));
      if (random.OneIn(4)) op.add_last_tile_dims(static_cast<OpSharding::Type>(random.Between(0, 6)));
    } else {
      auto& named = *op.mutable_named_sharding();
      for (int64_t n = random.Between(0, 3); n > 0; --n)
        named.mutable_mesh()->add_axes()->set_size(random.Between(1, 4));
      const auto reference = [&](xla::AxisRefProto& ref) {
        ref.set_mesh_axis_index(random.Between(0, 2));
        if (random.OneIn(3)) {
          ref.mutable_sub_axis_info()->set_pre_size(random.Between(1, 2));
          ref.mutable_sub_axis_info()->set_size(random.Between(1, 4));
        }
      };
      for (int64_t n = random.Between(0, 3); n > 0; --n) {
        auto& dim = *named.add_dim_shardings();
        for (int64_t k = random.Between(0, 1); k > 0; --k) reference(*dim.add_axes());
      }
      if (random.OneIn(4)) reference(*named.add_unreduced_axes());
      if (random.OneIn(4)) reference(*named.add_manual_axes());
    }
    xla::ifrt::ShardingProto proto;
    *proto.mutable_serialized_sharding() = wire::MakeSerialized(payload, wire::kHloSharding);
    accepted += TrySharding(proto.SerializeAsString());
  }
  EXPECT_GT(accepted, 500);
}

// Where a shard of a random named sharding lies, once by tiles and once digit by digit of the mesh
// coordinates.
TEST(UntrustedInput, NamedShardingsPlaceShardsByMeshCoordinates) {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    // A mesh of up to 3 axes; each axis a product of factors, which are what shardings refer to.
    struct Factor {
      int axis;
      int64_t before;  // Product of the factors of the axis left of this one.
      int64_t size;
    };
    std::vector<Factor> factors;
    xla::NamedShardingProto named;
    int64_t num_devices = 1;
    const int axes = static_cast<int>(random.Between(1, 3));
    for (int axis = 0; axis < axes; ++axis) {
      int64_t axis_size = 1;
      for (int64_t n = random.Between(1, 2); n > 0; --n) {
        const int64_t size = random.Between(2, 3);
        factors.push_back({axis, axis_size, size});
        axis_size *= size;
      }
      named.mutable_mesh()->add_axes()->set_size(axis_size);
      num_devices *= axis_size;
    }
    std::vector<int64_t> device_of_place(num_devices);
    std::iota(device_of_place.begin(), device_of_place.end(), 0);
    if (random.OneIn(2)) {
      random.Shuffle(device_of_place);
      named.mutable_mesh()->mutable_device_ids()->Assign(device_of_place.begin(), device_of_place.end());
    }
    // Each factor goes to one of two dimensions or to none.
    std::vector<Factor> shuffled = factors;
    random.Shuffle(shuffled);
    std::vector<std::vector<Factor>> dims(2);
    for (const Factor& factor : shuffled) {
      const int64_t dim = random.Between(0, 2);
      if (dim < 2) dims[dim].push_back(factor);
    }
    std::vector<int64_t> shape;
    for (const std::vector<Factor>& dim : dims) {
      auto& sharding = *named.add_dim_shardings();
      int64_t tiles = 1;
      for (const Factor& factor : dim) {
        auto& ref = *sharding.add_axes();
        ref.set_mesh_axis_index(factor.axis);
        ref.mutable_sub_axis_info()->set_pre_size(factor.before);
        ref.mutable_sub_axis_info()->set_size(factor.size);
        tiles *= factor.size;
      }
      shape.push_back(tiles * 5);
    }

    SCOPED_TRACE(named.ShortDebugString());
    OpSharding op;
    *op.mutable_named_sharding() = named;
    std::vector<int32_t> devices(num_devices);
    std::iota(devices.begin(), devices.end(), 0);
    const auto sharding = Sharding::FromOpSharding(devices, op, {});
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    const auto domains = (*sharding)->IndexDomains(shape);
    ASSERT_TRUE(domains.ok()) << domains.status();
    for (int64_t place = 0; place < num_devices; ++place) {
      std::vector<int64_t> coordinates(axes);
      for (int64_t axis = axes, rest = place; axis-- > 0;) {
        coordinates[axis] = rest % named.mesh().axes(static_cast<int>(axis)).size();
        rest /= named.mesh().axes(static_cast<int>(axis)).size();
      }
      std::vector<int64_t> origin;
      for (const std::vector<Factor>& dim : dims) {
        int64_t tile = 0;
        for (const Factor& factor : dim) {
          const int64_t right = named.mesh().axes(factor.axis).size() / (factor.before * factor.size);
          tile = tile * factor.size + coordinates[factor.axis] / right % factor.size;
        }
        origin.push_back(tile * 5);
      }
      const int64_t position = device_of_place[place];
      const bool whole = (*sharding)->IsFullyReplicated();
      ASSERT_EQ((*domains)[position].origin, whole ? std::vector<int64_t>(2, 0) : origin)
          << "device " << position;
    }
  }
}

// Modules with every form of collective, damaged, for programs of any size.
TEST(UntrustedInputTest, Collectives) {
  Random random;
  for (const char* name : {"hlo_text_instructions.pb", "hlo_text_all_to_all.pb", "hlo_text_all_gather.pb"}) {
    const std::string bytes = ReadTestdata(name);
    ASSERT_FALSE(bytes.empty()) << name;
    for (int i = 0; i < 2000; ++i) {
      xla::HloModuleProtoWithConfig program;
      if (!program.ParseFromString(random.Damage(bytes))) continue;
      xla::HloModuleProto& module = *program.mutable_hlo_module();
      const ProgramSize size = {random.Between(0, 9), random.Between(0, 9)};
      for (const auto& computation : module.computations()) {
        for (const auto& instruction : computation.instructions()) {
          const absl::StatusOr<Collective> read = ReadCollective(size, module, instruction);
          if (!read.ok()) continue;
          for (const auto& group : read->groups) {
            for (const int64_t device : group) {
              ASSERT_GE(device, 0);
              ASSERT_LT(device, size.replicas * size.partitions);
            }
          }
        }
      }
      ReplaceCollectives(size, &module).status().IgnoreError();
    }
  }
}

}  // namespace
}  // namespace helmway::program
