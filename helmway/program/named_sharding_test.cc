#include "helmway/program/named_sharding.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace helmway::program {
namespace {

using ::xla::OpSharding;

xla::NamedShardingProto Named(const std::string& text) {
  xla::NamedShardingProto proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
  return proto;
}

constexpr char k2x4[] = "mesh { axes { name: 'a' size: 2 } axes { name: 'b' size: 4 } } ";
constexpr char k2x2x2[] = "mesh { axes { size: 2 } axes { size: 2 } axes { size: 2 } } ";
constexpr char k8[] = "mesh { axes { size: 8 } } ";

TEST(NamedToTiled, Forms) {
  struct Case {
    const char* name;
    std::string named;
    std::string tiled;
  };
  const Case cases[] = {
      {"no axes", "mesh {}", "type: REPLICATED"},
      {"no axes, two dimensions", "mesh {} dim_shardings {} dim_shardings {}", "type: REPLICATED"},
      {"no dimension split", std::string(k2x4) + "dim_shardings {} dim_shardings {}", "type: REPLICATED"},
      {"all axes replicated by name", std::string(k2x4) + "replicated_axes { mesh_axis_index: 1 }",
       "type: REPLICATED"},
      {"one device", "mesh { device_ids: 5 }",
       "type: MAXIMAL tile_assignment_dimensions: 1 tile_assignment_devices: 5"},
      // The next ones have the form that JAX 0.11.2 itself gives the same partition specs.
      {"P(a, b)",
       std::string(k2x4) + "dim_shardings { axes {} } dim_shardings { axes { mesh_axis_index: 1 } }",
       "type: OTHER tile_assignment_dimensions: [2, 4] iota_reshape_dims: 8 iota_transpose_perm: 0"},
      {"P(b, a)",
       std::string(k2x4) + "dim_shardings { axes { mesh_axis_index: 1 } } dim_shardings { axes {} }",
       "type: OTHER tile_assignment_dimensions: [4, 2] iota_reshape_dims: [2, 4] iota_transpose_perm: [1, "
       "0]"},
      {"P(b) of two dimensions",
       std::string(k2x4) + "dim_shardings { axes { mesh_axis_index: 1 } } dim_shardings {}",
       "type: OTHER tile_assignment_dimensions: [4, 1, 2] replicate_on_last_tile_dim: true "
       "iota_reshape_dims: [2, 4] iota_transpose_perm: [1, 0]"},
      {"P((b, a))", std::string(k2x4) + "dim_shardings { axes { mesh_axis_index: 1 } axes {} }",
       "type: OTHER tile_assignment_dimensions: 8 iota_reshape_dims: [2, 4] iota_transpose_perm: [1, 0]"},
      {"P(c, -, a)",
       std::string(k2x2x2) +
           "dim_shardings { axes { mesh_axis_index: 2 } } dim_shardings {} dim_shardings { axes {} }",
       "type: OTHER tile_assignment_dimensions: [2, 1, 2, 2] replicate_on_last_tile_dim: true "
       "iota_reshape_dims: [4, 2] iota_transpose_perm: [1, 0]"},
      {"P(-, b)", std::string(k2x2x2) + "dim_shardings {} dim_shardings { axes { mesh_axis_index: 1 } }",
       "type: OTHER tile_assignment_dimensions: [1, 2, 4] replicate_on_last_tile_dim: true "
       "iota_reshape_dims: [2, 2, 2] iota_transpose_perm: [1, 0, 2]"},
      {"P((a, c), b)",
       std::string(k2x2x2) + "dim_shardings { axes {} axes { mesh_axis_index: 2 } } dim_shardings { axes { "
                             "mesh_axis_index: 1 } }",
       "type: OTHER tile_assignment_dimensions: [4, 2] iota_reshape_dims: [2, 2, 2] iota_transpose_perm: [0, "
       "2, 1]"},
      {"unreduced and replicated",
       std::string(k2x2x2) + "dim_shardings { axes {} } unreduced_axes { mesh_axis_index: 2 }",
       "type: OTHER tile_assignment_dimensions: [2, 2, 2] last_tile_dims: [UNREDUCED, REPLICATED] "
       "iota_reshape_dims: [2, 2, 2] iota_transpose_perm: [0, 2, 1]"},
      {"unreduced by a maximum",
       std::string(k2x4) + "dim_shardings {} unreduced_axes { mesh_axis_index: 1 } reduction_op: MAX",
       "type: OTHER tile_assignment_dimensions: [1, 4, 2] last_tile_dims: [UNREDUCED, REPLICATED] "
       "iota_reshape_dims: [2, 4] iota_transpose_perm: [1, 0] "
       "metadata { op_type: 'sdy::reduction_op' op_name: 'MAX' }"},
      {"manual", std::string(k2x4) + "dim_shardings { axes {} } manual_axes { mesh_axis_index: 1 }",
       "type: OTHER tile_assignment_dimensions: [2, 4] last_tile_dims: MANUAL iota_reshape_dims: 8 "
       "iota_transpose_perm: 0"},
      {"minor part of an axis",
       std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 4 size: 2 } } }",
       "type: OTHER tile_assignment_dimensions: [2, 4] replicate_on_last_tile_dim: true "
       "iota_reshape_dims: [4, 2] iota_transpose_perm: [1, 0]"},
      {"parts of an axis, swapped",
       std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 2 size: 4 } } } "
                         "dim_shardings { axes { sub_axis_info { pre_size: 1 size: 2 } } }",
       "type: OTHER tile_assignment_dimensions: [4, 2] iota_reshape_dims: [2, 4] iota_transpose_perm: [1, "
       "0]"},
      {"parts of an axis, in order",
       std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 1 size: 2 } } } "
                         "dim_shardings { axes { sub_axis_info { pre_size: 2 size: 4 } } }",
       "type: OTHER tile_assignment_dimensions: [2, 4] iota_reshape_dims: 8 iota_transpose_perm: 0"},
      {"devices in another order",
       "mesh { axes { size: 2 } axes { size: 2 } device_ids: [3, 1, 0, 2] } "
       "dim_shardings { axes { mesh_axis_index: 1 } axes {} }",
       "type: OTHER tile_assignment_dimensions: 4 tile_assignment_devices: [3, 0, 1, 2]"},
      {"devices in a transposed order",
       "mesh { axes { size: 4 } axes { size: 2 } iota_transform { reshape_dims: [2, 4] transpose_perm: [1, "
       "0] } } "
       "dim_shardings { axes {} } dim_shardings { axes { mesh_axis_index: 1 } }",
       "type: OTHER tile_assignment_dimensions: [4, 2] tile_assignment_devices: [0, 4, 1, 5, 2, 6, 3, 7]"},
      {"axes of size 1",
       "mesh { axes { size: 1 } axes { size: 8 } axes { size: 1 } } "
       "dim_shardings { axes { mesh_axis_index: 2 } } dim_shardings { axes { mesh_axis_index: 1 } }",
       "type: OTHER tile_assignment_dimensions: [1, 8] iota_reshape_dims: 8 iota_transpose_perm: 0"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    OpSharding expected;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.tiled, &expected));
    const xla::NamedShardingProto named = Named(c.named);
    int64_t devices = 1;
    for (const auto& axis : named.mesh().axes()) devices *= axis.size();
    if (devices == 1) devices = 8;
    const auto tiled = NamedToTiled(named, devices);
    ASSERT_TRUE(tiled.ok()) << tiled.status();
    EXPECT_EQ(tiled->DebugString(), expected.DebugString());
  }
}

TEST(NamedToTiled, Refusals) {
  const std::string cases[] = {
      // Sizes.
      "mesh { axes { size: 4 } }",
      "mesh { axes { size: 16 } }",
      "mesh { axes { size: 0 } axes { size: 8 } }",
      "mesh { axes { size: -8 } }",
      "mesh { axes { size: 9223372036854775807 } axes { size: 9223372036854775807 } }",
      // A mesh without axes.
      "mesh { device_ids: [0, 1] }",
      "mesh { device_ids: 8 }",
      "mesh { device_ids: -1 }",
      "mesh {} dim_shardings { axes {} }",
      "mesh {} unreduced_axes {}",
      // References.
      std::string(k8) + "dim_shardings { axes { mesh_axis_index: 1 } }",
      std::string(k8) + "dim_shardings { axes { mesh_axis_index: -1 } }",
      std::string(k8) + "dim_shardings { axes {} } dim_shardings { axes {} }",
      std::string(k8) + "dim_shardings { axes {} } manual_axes {}",
      std::string(k8) + "dim_shardings { axes {} axes { sub_axis_info { pre_size: 2 size: 2 } } }",
      std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 0 size: 2 } } }",
      std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 2 size: 0 } } }",
      std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 3 size: 2 } } }",
      std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 4 size: 4 } } }",
      std::string(k8) + "dim_shardings { axes { sub_axis_info { pre_size: 9223372036854775807 size: 2 } } }",
      // Device orders.
      "mesh { axes { size: 8 } device_ids: [0, 1] } dim_shardings { axes {} }",
      "mesh { axes { size: 8 } iota_transform { reshape_dims: 4 transpose_perm: 0 } } dim_shardings { axes "
      "{} }",
      "mesh { axes { size: 8 } iota_transform { reshape_dims: 8 transpose_perm: 4294967296 } } "
      "dim_shardings { axes {} }",
  };
  for (const std::string& text : cases) {
    SCOPED_TRACE(text);
    EXPECT_EQ(NamedToTiled(Named(text), 8).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // Parts that cut an axis of 6 at 2 and at 3.
  EXPECT_EQ(NamedToTiled(Named("mesh { axes { size: 6 } } "
                               "dim_shardings { axes { sub_axis_info { pre_size: 1 size: 2 } } } "
                               "dim_shardings { axes { sub_axis_info { pre_size: 3 size: 2 } } }"),
                         6)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace helmway::program
