// The schemas and the small helpers around them: unknown fields, serialized payloads, attributes.
#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>

#include "helmway/wire/attributes.h"
#include "helmway/wire/ifrt_session.pb.h"
#include "helmway/wire/serialized.h"
#include "helmway/wire/xla_compile_options.pb.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Adds a varint and a length-delimited field that the schema does not name.
void AddUnknown(google::protobuf::Message& message, int number) {
  auto* unknown = message.GetReflection()->MutableUnknownFields(&message);
  unknown->AddVarint(number, 4711);
  unknown->AddLengthDelimited(number + 1, std::string("\0raw\xff", 5));
}

void ExpectUnknown(const google::protobuf::Message& message, int number) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  ASSERT_EQ(unknown.field_count(), 2) << message.GetTypeName();
  EXPECT_EQ(unknown.field(0).number(), number);
  EXPECT_EQ(unknown.field(0).varint(), 4711u);
  EXPECT_EQ(unknown.field(1).number(), number + 1);
  EXPECT_EQ(unknown.field(1).length_delimited(), std::string("\0raw\xff", 5));
}

TEST(UnknownFieldsTest, CompileOptionsKeepWhatWeDoNotName) {
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_num_partitions(4);
  build->set_device_ordinal(3);
  AddUnknown(options, 800);
  AddUnknown(*build, 20);  // used by jaxlib 0.10.2
  AddUnknown(*build->mutable_debug_options(), 60);

  xla::CompileOptionsProto copy;
  ASSERT_TRUE(copy.ParseFromString(options.SerializeAsString()));
  copy.mutable_executable_build_options()->set_device_ordinal(-1);
  xla::CompileOptionsProto edited;
  ASSERT_TRUE(edited.ParseFromString(copy.SerializeAsString()));

  EXPECT_EQ(edited.executable_build_options().device_ordinal(), -1);
  EXPECT_EQ(edited.executable_build_options().num_partitions(), 4);
  ExpectUnknown(edited, 800);
  ExpectUnknown(edited.executable_build_options(), 20);
  ExpectUnknown(edited.executable_build_options().debug_options(), 60);
}

TEST(UnknownFieldsTest, ModulesKeepWhatWeDoNotName) {
  xla::HloModuleProtoWithConfig program;
  auto* module = program.mutable_hlo_module();
  module->set_name("m");
  auto* computation = module->add_computations();
  auto* instruction = computation->add_instructions();
  instruction->set_opcode("all-reduce");
  instruction->add_operand_ids(7);
  AddUnknown(*module, 24);
  AddUnknown(*computation, 900);
  AddUnknown(*instruction, 102);
  AddUnknown(*program.mutable_config(), 38);

  xla::HloModuleProtoWithConfig copy;
  ASSERT_TRUE(copy.ParseFromString(program.SerializeAsString()));
  copy.mutable_hlo_module()->mutable_computations(0)->mutable_instructions(0)->set_opcode("custom-call");
  xla::HloModuleProtoWithConfig edited;
  ASSERT_TRUE(edited.ParseFromString(copy.SerializeAsString()));

  const auto& result = edited.hlo_module().computations(0);
  EXPECT_EQ(result.instructions(0).opcode(), "custom-call");
  EXPECT_THAT(result.instructions(0).operand_ids(), ElementsAre(7));
  ExpectUnknown(edited.hlo_module(), 24);
  ExpectUnknown(result, 900);
  ExpectUnknown(result.instructions(0), 102);
  ExpectUnknown(edited.config(), 38);
}

// Bytes written out by hand, so that a changed number or type in the schemas shows here too.
TEST(EncodingTest, ResponseHasTheDocumentedBytes) {
  xla::ifrt::proxy::IfrtResponse response;
  response.mutable_response_metadata()->set_op_id(5);
  response.mutable_check_future_response();
  EXPECT_EQ(response.SerializeAsString(), std::string("\x0a\x09\x09\x05\0\0\0\0\0\0\0\x1a\0", 13));
}

TEST(EncodingTest, ValueHandlesAreNotPacked) {
  xla::ifrt::proxy::CheckValueReadyRequest request;
  request.add_value_handles(1);
  request.add_value_handles(2);
  EXPECT_EQ(request.SerializeAsString(), std::string("\x09\1\0\0\0\0\0\0\0\x09\2\0\0\0\0\0\0\0", 18));
}

TEST(SerializedTest, RoundTrip) {
  xla::ifrt::SingleDeviceShardingProto sharding;
  sharding.set_device_id(9);
  const xla::ifrt::Serialized serialized = MakeSerialized(sharding, kSingleDeviceSharding);
  EXPECT_EQ(serialized.type_name(), "xla::ifrt::SingleDeviceSharding");
  auto parsed = ParseSerialized<xla::ifrt::SingleDeviceShardingProto>(serialized, kSingleDeviceSharding);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->device_id(), 9);
}

TEST(SerializedTest, AnotherTypeAndTornBytesAreRefused) {
  xla::ifrt::Serialized serialized;
  serialized.set_type_name(std::string(kHloSharding));
  auto other = ParseSerialized<xla::ifrt::SingleDeviceShardingProto>(serialized, kSingleDeviceSharding);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("got \"xla::ifrt::HloSharding\""));

  serialized.set_data("\x0a\x7f");
  auto torn = ParseSerialized<xla::ifrt::HloShardingProto>(serialized, kHloSharding);
  EXPECT_EQ(torn.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(torn.status().message()), HasSubstr("HloShardingProto"));
}

TEST(SerializedTest, ThePluginPrefixHasTheLengthOfTheFormat) { EXPECT_EQ(kPluginProgramPrefix.size(), 28u); }

TEST(AttributesTest, EachSetterFillsItsMemberAndReplacesTheOld) {
  xla::ifrt::AttributeMapProto map;
  SetStringAttribute(map, "s", std::string("a\0\xff", 3));
  SetBoolAttribute(map, "b", true);
  SetInt64Attribute(map, "i", -2);
  SetInt64ListAttribute(map, "l", {1, 2, 3});
  SetFloatAttribute(map, "f", 0.5f);
  SetInt64Attribute(map, "x", 1);
  SetBoolAttribute(map, "x", false);
  SetInt64ListAttribute(map, "l", {4, 5});

  xla::ifrt::AttributeMapProto copy;
  ASSERT_TRUE(copy.ParseFromString(map.SerializeAsString()));
  ASSERT_EQ(copy.attributes_size(), 6);
  EXPECT_EQ(copy.attributes().at("s").string_value(), std::string("a\0\xff", 3));
  EXPECT_TRUE(copy.attributes().at("b").bool_value());
  EXPECT_EQ(copy.attributes().at("i").int64_value(), -2);
  EXPECT_THAT(copy.attributes().at("l").int64_list_value().elements(), ElementsAre(4, 5));
  EXPECT_EQ(copy.attributes().at("f").float_value(), 0.5f);
  EXPECT_TRUE(copy.attributes().at("x").has_bool_value());
}

}  // namespace
}  // namespace helmway::wire
