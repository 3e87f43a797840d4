#include "helmway/pjrt/hlo_transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kProgram[] = R"(
  module @shown {
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %y = stablehlo.sine %x : tensor<2xf32>
      return %y : tensor<2xf32>
    }
  })";

// What the transform shall do with the programs of this thread.
struct Wish {
  int seen = 0;
  absl::Status refuse;
  std::string from, to;
};
thread_local Wish* wish = nullptr;

absl::StatusOr<std::optional<std::string>> Transform(absl::string_view module) {
  if (wish == nullptr) return std::nullopt;
  ++wish->seen;
  if (!wish->refuse.ok()) return wish->refuse;
  if (wish->from.empty()) return std::nullopt;
  return absl::StrReplaceAll(module, {{wish->from, wish->to}});
}

class HloTransformTest : public PjrtTest {
 protected:
  void SetUp() override {
    PjrtTest::SetUp();
    if (HasFatalFailure()) return;
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(RegisterHloTransform(*plugin_, "test", &Transform).ok());
    client_ = MakeClient();
    wish = &wish_;
  }
  void TearDown() override { wish = nullptr; }

  Wish wish_;
  std::shared_ptr<Client> client_;
};

TEST_F(HloTransformTest, SeesEachProgramOnceOnItsThread) {
  EXPECT_NE(Compile(*client_, kProgram), nullptr);
  EXPECT_EQ(wish_.seen, 1);
  wish = nullptr;
  EXPECT_NE(Compile(*client_, kProgram), nullptr);
  EXPECT_EQ(wish_.seen, 1);
}

TEST_F(HloTransformTest, WhatItReturnsIsRun) {
  // Of one length, so that the module stays well-formed.
  wish_.from = "sine";
  wish_.to = "sqrt";
  auto executable = Compile(*client_, kProgram);
  ASSERT_NE(executable, nullptr);
  Buffer argument = MakeBuffer<float>(*client_, ElementType::kF32, {4, 9}, {2});
  std::vector<Buffer*> arguments = {&argument};
  std::vector<Buffer> outputs(1);
  ASSERT_TRUE(
      executable->ExecuteOn(client_->devices()[0], arguments, absl::MakeSpan(outputs), nullptr, {}).ok());
  EXPECT_THAT(Read<float>(outputs[0]), ElementsAre(2, 3));
}

TEST_F(HloTransformTest, AnErrorEndsTheCompilation) {
  wish_.refuse = absl::UnimplementedError("not this one");
  auto executable = client_->Compile({.code = kProgram, .serialized_options = TestCompileOptions(1)});
  EXPECT_THAT(std::string(executable.status().message()), HasSubstr("not this one"));
  wish_.refuse = absl::OkStatus();
  EXPECT_NE(Compile(*client_, kProgram), nullptr);
}

}  // namespace
}  // namespace helmway::pjrt
