#include "helmway/pjrt/ffi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/pjrt_testing.h"
#include "xla_ffi_c_api.h"

namespace helmway::pjrt {
namespace {

using ::testing::HasSubstr;

// A handler that says it was built for interface 0.`minor`, and adds `minor` to each of four floats.
template <int major, int minor>
XLA_FFI_Error* Add(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata =
        reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
    metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, major, minor};
    return nullptr;
  }
  const auto* in = static_cast<const float*>(static_cast<XLA_FFI_Buffer*>(frame->args.args[0])->data);
  auto* out = static_cast<float*>(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0])->data);
  for (int i = 0; i < 4; ++i) out[i] = in[i] + minor;
  return nullptr;
}

class FfiTest : public PjrtTest {
 protected:
  // Runs a program of one custom call on {1, 2, 3, 4}.
  absl::StatusOr<std::vector<float>> Call(const std::string& target) {
    const std::string module = absl::StrCat(
        "module @call { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { %y = stablehlo.custom_call @",
        target,
        "(%x) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32> return %y : tensor<4xf32> } }");
    auto client = MakeClient();
    auto executable = client->Compile({.code = module, .serialized_options = TestCompileOptions(1)});
    if (!executable.ok()) return executable.status();
    Buffer in = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
    Buffer* args[] = {&in};
    Buffer out[1];
    absl::Status status = (*executable)->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
    if (!status.ok()) return status;
    return Read<float>(out[0]);
  }
};

TEST_F(FfiTest, HandlersOfThePluginsOwnAndOfOlderAndYoungerVersionsRun) {
  ASSERT_TRUE(RegisterFfiHandler(*plugin_, "test_add_3", "Host", &Add<0, 3>).ok());
  ASSERT_TRUE(RegisterFfiHandler(*plugin_, "test_add_4", "Host", &Add<0, 4>).ok());
  ASSERT_TRUE(RegisterFfiHandler(*plugin_, "test_add_5", "Host", &Add<0, 5>).ok());
  EXPECT_EQ(Call("test_add_3").value(), (std::vector<float>{4, 5, 6, 7}));
  EXPECT_EQ(Call("test_add_4").value(), (std::vector<float>{5, 6, 7, 8}));
  EXPECT_EQ(Call("test_add_5").value(), (std::vector<float>{6, 7, 8, 9}));
}

TEST_F(FfiTest, UnknownVersionsAreRefusedByName) {
  const absl::Status major = RegisterFfiHandler(*plugin_, "test_major", "Host", &Add<1, 0>);
  EXPECT_EQ(major.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(major.message()), HasSubstr("'test_major' was built for version 1.0"));
  EXPECT_EQ(RegisterFfiHandler(*plugin_, "test_minor", "Host", &Add<0, 99>).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FfiHandlerVersion(*plugin_, &Add<0, 99>)->minor, 99);
  EXPECT_THAT(std::string(Call("test_major").status().message()), HasSubstr("test_major"));
}

}  // namespace
}  // namespace helmway::pjrt
