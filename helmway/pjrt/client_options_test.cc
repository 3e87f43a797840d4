#include "helmway/pjrt/client_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttributeValue ValueOf(PluginKind kind, absl::string_view text) {
  const auto option = ParseOption(kind, text);
  EXPECT_TRUE(option.ok()) << option.status();
  return option.ok() ? option->value : AttributeValue();
}

std::string ErrorOf(PluginKind kind, absl::string_view text) {
  const auto option = ParseOption(kind, text);
  EXPECT_EQ(option.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(option.status().message());
}

TEST(ClientOptionsTest, TypesByTheLookOfTheValue) {
  const auto value = [](absl::string_view text) { return ValueOf(PluginKind::kOther, text); };
  EXPECT_EQ(value("a=true"), AttributeValue(true));
  EXPECT_EQ(value("a=false"), AttributeValue(false));
  EXPECT_EQ(value("a=-5"), AttributeValue(int64_t{-5}));
  EXPECT_EQ(value("a=0.75"), AttributeValue(0.75f));
  EXPECT_EQ(value("a=1,2,3"), AttributeValue(std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(value("a=bfc"), AttributeValue(std::string("bfc")));
  EXPECT_EQ(value("a=1,x"), AttributeValue(std::string("1,x")));
  EXPECT_EQ(value("a="), AttributeValue(std::string()));
  EXPECT_EQ(value("a=b=c"), AttributeValue(std::string("b=c")));
}

TEST(ClientOptionsTest, TypesThatAreSaid) {
  const auto value = [](absl::string_view text) { return ValueOf(PluginKind::kOther, text); };
  EXPECT_EQ(value("a:string=5"), AttributeValue(std::string("5")));
  EXPECT_EQ(value("a:float=5"), AttributeValue(5.0f));
  EXPECT_EQ(value("a:ints=5"), AttributeValue(std::vector<int64_t>{5}));
  EXPECT_EQ(value("a:ints="), AttributeValue(std::vector<int64_t>{}));
  EXPECT_EQ(value("a:int=5"), AttributeValue(int64_t{5}));
  EXPECT_EQ(value("a:bool=true"), AttributeValue(true));
}

TEST(ClientOptionsTest, TypesOfKnownOptions) {
  EXPECT_EQ(ValueOf(PluginKind::kGpu, "visible_devices=3"), AttributeValue(std::vector<int64_t>{3}));
  EXPECT_EQ(ValueOf(PluginKind::kGpu, "memory_fraction=1"), AttributeValue(1.0f));
  EXPECT_EQ(ValueOf(PluginKind::kGpu, "mock_gpu_topology=8"), AttributeValue(std::string("8")));
  // Of another kind they are unknown.
  EXPECT_EQ(ValueOf(PluginKind::kTpu, "visible_devices=3"), AttributeValue(int64_t{3}));
}

TEST(ClientOptionsTest, Refused) {
  EXPECT_THAT(ErrorOf(PluginKind::kOther, "novalue"), HasSubstr("'novalue' is not of the form NAME=VALUE"));
  EXPECT_THAT(ErrorOf(PluginKind::kOther, "=5"), HasSubstr("has no name"));
  EXPECT_THAT(ErrorOf(PluginKind::kOther, "a:double=5"), HasSubstr("double is no type"));
  EXPECT_THAT(ErrorOf(PluginKind::kOther, "a:int=x"), HasSubstr("must be a whole number"));
  EXPECT_THAT(ErrorOf(PluginKind::kOther, "a:ints=1,x"), HasSubstr("joined by commas"));
  EXPECT_THAT(ErrorOf(PluginKind::kGpu, "preallocate=yes"), HasSubstr("must be true or false"));
}

TEST(ClientOptionsTest, KindsByFile) {
  EXPECT_EQ(PluginKindOfFile("/tpu/pjrt_c_api_cpu_plugin.so"), PluginKind::kCpu);
  EXPECT_EQ(PluginKindOfFile("xla_cuda_plugin.so"), PluginKind::kGpu);
  EXPECT_EQ(PluginKindOfFile("/a/xla_rocm_plugin.so"), PluginKind::kGpu);
  EXPECT_EQ(PluginKindOfFile("pjrt_c_api_gpu_plugin.so"), PluginKind::kGpu);
  EXPECT_EQ(PluginKindOfFile("/a/libtpu/libtpu.so"), PluginKind::kTpu);
  EXPECT_EQ(PluginKindOfFile("/gpu/plugin.so"), PluginKind::kOther);
  for (const PluginKind kind : {PluginKind::kCpu, PluginKind::kGpu, PluginKind::kTpu, PluginKind::kOther}) {
    EXPECT_EQ(ParsePluginKind(PluginKindName(kind)), kind);
  }
  EXPECT_EQ(ParsePluginKind("cuda"), std::nullopt);
}

TEST(ClientOptionsTest, OptionsOfThePlace) {
  const ClientPlace place{.number = 5, .devices = 2, .first_device = 4, .nodes = 3, .node = 1};
  EXPECT_THAT(OptionsFor(PluginKind::kCpu, place, {}),
              ElementsAre(Option{"cpu_device_count", int64_t{2}}, Option{"process_id", int64_t{5}}));
  EXPECT_THAT(OptionsFor(PluginKind::kGpu, place, {}),
              ElementsAre(Option{"visible_devices", std::vector<int64_t>{4, 5}},
                          Option{"node_id", int64_t{1}}, Option{"num_nodes", int64_t{3}}));
  EXPECT_THAT(OptionsFor(PluginKind::kGpu, {}, {}), ElementsAre());
  EXPECT_THAT(OptionsFor(PluginKind::kTpu, place, {{"a", true}}), ElementsAre(Option{"a", true}));
  // What is given wins.
  EXPECT_THAT(OptionsFor(PluginKind::kGpu, {.devices = 2}, {{"visible_devices", std::vector<int64_t>{7}}}),
              ElementsAre(Option{"visible_devices", std::vector<int64_t>{7}}));
  EXPECT_TRUE(OptionIsOfThePlace(PluginKind::kGpu, "node_id"));
  EXPECT_TRUE(OptionIsOfThePlace(PluginKind::kCpu, "cpu_device_count"));
  EXPECT_FALSE(OptionIsOfThePlace(PluginKind::kGpu, "visible_devices"));
  EXPECT_FALSE(OptionIsOfThePlace(PluginKind::kOther, "node_id"));
}

}  // namespace
}  // namespace helmway::pjrt
