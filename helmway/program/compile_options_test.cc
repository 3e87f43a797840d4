#include "helmway/program/compile_options.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::xla::ifrt::XlaCompileOptionsProto;

// Ids in replica-major order: id(replica, partition) = first + replica * partitions + partition.
XlaCompileOptionsProto Options(int replicas, int partitions, int first) {
  XlaCompileOptionsProto proto;
  auto& build = *proto.mutable_compile_options()->mutable_executable_build_options();
  build.set_device_ordinal(-1);
  build.set_num_replicas(replicas);
  build.set_num_partitions(partitions);
  build.set_use_spmd_partitioning(true);
  auto& assignment = *build.mutable_device_assignment();
  assignment.set_replica_count(replicas);
  assignment.set_computation_count(partitions);
  for (int p = 0; p < partitions; ++p) {
    auto& devices = *assignment.add_computation_devices();
    for (int r = 0; r < replicas; ++r) devices.add_replica_device_ids(first + r * partitions + p);
  }
  return proto;
}

TEST(CompileOptions, Devices) {
  const auto partitions = ParseXlaCompileOptions(Options(1, 4, 10).SerializeAsString());
  ASSERT_TRUE(partitions.ok()) << partitions.status();
  EXPECT_EQ(partitions->num_replicas(), 1);
  EXPECT_EQ(partitions->num_partitions(), 4);
  EXPECT_THAT(partitions->device_ids(), ElementsAre(10, 11, 12, 13));
  EXPECT_FALSE(partitions->compile_portable_executable());

  const auto both = ParseXlaCompileOptions(Options(2, 3, 0).SerializeAsString());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->device_ids(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(CompileOptions, PortableWithoutDevices) {
  XlaCompileOptionsProto proto = Options(1, 1, 0);
  proto.mutable_compile_options()->set_compile_portable_executable(true);
  proto.mutable_compile_options()->mutable_executable_build_options()->clear_device_assignment();
  const auto options = ParseXlaCompileOptions(proto.SerializeAsString());
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->compile_portable_executable());
  EXPECT_TRUE(options->device_ids().empty());
  xla::CompileOptionsProto out;
  ASSERT_TRUE(out.ParseFromString(*options->SerializeForPlugin({})));
  EXPECT_FALSE(out.executable_build_options().has_device_assignment());
}

TEST(CompileOptions, ForPlugin) {
  XlaCompileOptionsProto proto = Options(1, 2, 7);
  auto& options = *proto.mutable_compile_options();
  options.set_profile_version(-1);
  (*options.mutable_env_option_overrides())["xla_b"].set_bool_field(true);
  (*options.mutable_env_option_overrides())["xla_a"].set_string_field("deep");
  // Fields that our copy of the messages does not name.
  const auto add_unknown = [](google::protobuf::Message& message, int field) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(field, 4711);
  };
  add_unknown(options, 900);
  add_unknown(*options.mutable_executable_build_options(), 901);
  add_unknown(*options.mutable_executable_build_options()->mutable_debug_options(), 902);

  const auto parsed = ParseXlaCompileOptions(proto.SerializeAsString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->proto().env_option_overrides().at("xla_a").string_field(), "deep");
  const auto bytes = parsed->SerializeForPlugin({{7, 2049}, {8, 0}, {9, 1}});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, *parsed->SerializeForPlugin({{8, 0}, {7, 2049}}));

  xla::CompileOptionsProto expected = options;
  auto& build = *expected.mutable_executable_build_options();
  build.clear_debug_options();
  build.mutable_device_assignment()->mutable_computation_devices(0)->set_replica_device_ids(0, 2049);
  build.mutable_device_assignment()->mutable_computation_devices(1)->set_replica_device_ids(0, 0);
  xla::CompileOptionsProto out;
  ASSERT_TRUE(out.ParseFromString(*bytes));
  EXPECT_EQ(out.DebugString(), expected.DebugString());
  EXPECT_THAT(out.DebugString(), HasSubstr("901: 4711"));
  EXPECT_THAT(out.DebugString(), Not(HasSubstr("902: 4711")));

  EXPECT_EQ(parsed->SerializeForPlugin({{7, 0}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed->SerializeForPlugin({{7, 0}, {8, 0}}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompileOptions, Refusals) {
  const auto code = [](auto change) {
    XlaCompileOptionsProto proto = Options(2, 2, 0);
    change(proto, *proto.mutable_compile_options()->mutable_executable_build_options());
    return ParseXlaCompileOptions(proto.SerializeAsString()).status().code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](auto&, auto&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& p, auto&) { p.set_version_number(4); }), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& p, auto&) { p.set_version_number(5); }), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code([](auto& p, auto&) { p.add_outputs_bundle_slice_sizes(1); }),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code([](auto&, auto& b) { b.set_num_replicas(0); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.set_num_partitions(-1); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.set_num_partitions(INT64_MAX); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.set_num_partitions(3); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.mutable_device_assignment()->set_replica_count(3); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.mutable_device_assignment()->set_computation_count(1); }), kInvalid);
  EXPECT_EQ(code([](auto&, auto& b) { b.mutable_device_assignment()->add_computation_devices(); }), kInvalid);
  const auto with_id = [&](int64_t id) {
    return code([id](auto&, auto& b) {
      b.mutable_device_assignment()->mutable_computation_devices(0)->set_replica_device_ids(0, id);
    });
  };
  EXPECT_EQ(with_id(3), kInvalid);
  EXPECT_EQ(with_id(-1), kInvalid);
  EXPECT_EQ(with_id(int64_t{1} << 31), kInvalid);
  EXPECT_EQ(with_id((int64_t{1} << 32) + 1), kInvalid);
  EXPECT_EQ(ParseXlaCompileOptions("\xff\xff").status().code(), kInvalid);
  // Nothing at all names neither replicas nor partitions.
  EXPECT_EQ(ParseXlaCompileOptions("").status().code(), kInvalid);
}

TEST(CompileOptions, KeysAreThoseOfTheProgramNotOfItsPlace) {
  const auto key = [](xla::CompileOptionsProto proto, bool devices_matter = false) {
    return CompileOptionsForKey(proto.SerializeAsString(), devices_matter).value();
  };
  const xla::CompileOptionsProto here = Options(1, 2, 0).compile_options();
  const xla::CompileOptionsProto there = Options(1, 2, 4096).compile_options();
  EXPECT_EQ(key(here), key(there));
  EXPECT_NE(key(here), key(Options(2, 1, 0).compile_options()));

  xla::CompileOptionsProto moved = here;
  moved.mutable_executable_build_options()->set_process_index(3);
  moved.mutable_executable_build_options()->set_device_ordinal(7);
  (*moved.mutable_env_option_overrides())["xla_dump_to"].set_string_field("/tmp");
  EXPECT_EQ(key(here), key(moved));
  xla::CompileOptionsProto other = here;
  (*other.mutable_env_option_overrides())["xla_a"].set_string_field("1");
  EXPECT_NE(key(here), key(other));

  // The order of devices, where it counts, but not which they are.
  xla::CompileOptionsProto swapped = here;
  auto& assignment = *swapped.mutable_executable_build_options()->mutable_device_assignment();
  assignment.mutable_computation_devices(0)->set_replica_device_ids(0, 1);
  assignment.mutable_computation_devices(1)->set_replica_device_ids(0, 0);
  EXPECT_EQ(key(here), key(swapped));
  EXPECT_EQ(key(here, true), key(there, true));
  EXPECT_NE(key(here, true), key(swapped, true));
  EXPECT_FALSE(CompileOptionsForKey("\xff", false).ok());
}

TEST(CompileOptions, DevicesOfThePlugin) {
  xla::CompileOptionsProto options = Options(2, 3, 4096).compile_options();
  const auto parsed = ParseXlaCompileOptions(Options(2, 3, 4096).SerializeAsString()).value();
  const std::vector<int32_t> devices = AssignedDevices(options.SerializeAsString()).value();
  EXPECT_EQ(absl::MakeConstSpan(devices), parsed.device_ids());
  auto& assignment = *options.mutable_executable_build_options()->mutable_device_assignment();
  assignment.set_replica_count(1 << 30);
  EXPECT_TRUE(absl::IsInvalidArgument(AssignedDevices(options.SerializeAsString()).status()));
  assignment.Clear();
  EXPECT_TRUE(absl::IsInvalidArgument(AssignedDevices(options.SerializeAsString()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(AssignedDevices("\xff").status()));
}

TEST(CompileOptions, TheClientsXlaOptionsWinOverTheDefaults) {
  auto proto = Options(1, 1, 0);
  (*proto.mutable_compile_options()->mutable_env_option_overrides())["xla_a"].set_string_field("client");
  const auto parsed = ParseXlaCompileOptions(proto.SerializeAsString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  XlaOptions defaults;
  defaults["xla_a"].set_string_field("default");
  defaults["xla_b"].set_bool_field(true);
  xla::CompileOptionsProto out;
  ASSERT_TRUE(out.ParseFromString(parsed->SerializeForPlugin({{0, 0}}, defaults).value()));
  EXPECT_EQ(out.env_option_overrides().size(), 2U);
  EXPECT_EQ(out.env_option_overrides().at("xla_a").string_field(), "client");
  EXPECT_TRUE(out.env_option_overrides().at("xla_b").bool_field());

  ASSERT_TRUE(out.ParseFromString(SerializeDefaultCompileOptions(defaults)));
  EXPECT_EQ(out.executable_build_options().num_partitions(), 1);
  EXPECT_EQ(out.env_option_overrides().at("xla_a").string_field(), "default");
}

}  // namespace
}  // namespace helmway::program
