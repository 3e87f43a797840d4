#include "helmway/pjrt/ffi_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/pjrt_testing.h"
#include "helmway/pjrt/run_context.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a run carries: its custom call writes down what it sees, and waits for the test.
struct Record {
  std::vector<FfiBuffer> arguments;
  std::vector<FfiBuffer> results;
  std::vector<std::vector<int64_t>> argument_dims;
  absl::StatusOr<uint64_t> key = absl::UnknownError("");
  absl::StatusOr<uint64_t> other = absl::UnknownError("");
  std::vector<int64_t> list;
  absl::Status no_list;
  FfiPromise promise;
  base::Notification called;
};

absl::Status Note(FfiCall& call) {
  auto* record = static_cast<Record*>(call.run_data());
  for (size_t i = 0; i < call.num_arguments(); ++i) {
    absl::StatusOr<FfiBuffer> argument = call.argument(i);
    if (!argument.ok()) return argument.status();
    record->argument_dims.emplace_back(argument->dims.begin(), argument->dims.end());
    record->arguments.push_back(*argument);
  }
  for (size_t i = 0; i < call.num_results(); ++i) {
    absl::StatusOr<FfiBuffer> result = call.result(i);
    if (!result.ok()) return result.status();
    record->results.push_back(*result);
  }
  record->key = call.Uint64Attribute("key");
  record->other = call.Uint64Attribute("other");
  if (auto list = call.Int64ArrayAttribute("list"); list.ok())
    record->list.assign(list->begin(), list->end());
  record->no_list = call.Int64ArrayAttribute("other").status();
  absl::StatusOr<FfiPromise> promise = call.Defer();
  if (!promise.ok()) return promise.status();
  record->promise = *std::move(promise);
  record->called.Notify();
  return absl::OkStatus();
}

absl::Status Refuse(FfiCall& /*call*/) { return absl::OutOfRangeError("not today"); }

class FfiCallTest : public PjrtTest {
 protected:
  void SetUp() override {
    PjrtTest::SetUp();
    if (HasFatalFailure()) return;
    ASSERT_TRUE(RegisterFfiHandler(*plugin_, "test_note", "Host", &FfiHandlerOf<&Note>).ok());
    ASSERT_TRUE(RegisterFfiHandler(*plugin_, "test_refuse", "Host", &FfiHandlerOf<&Refuse>).ok());
    client_ = MakeClient();
  }

  std::vector<Buffer> Numbers(const std::vector<float>& values) {
    std::vector<Buffer> arguments;
    arguments.push_back(MakeBuffer<float>(*client_, ElementType::kF32, values, {4}));
    return arguments;
  }

  // One custom call, then plus one.
  std::unique_ptr<LoadedExecutable> CompileCall(const std::string& target) {
    return Compile(*client_, absl::StrCat(R"(
      module @call {
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %y = stablehlo.custom_call @)",
                                          target,
                                          R"((%x) {
                 api_version = 4 : i32, has_side_effect = true,
                 backend_config = {key = 18446744073709551615 : ui64, other = 1 : i32,
                                   list = array<i64: 3, -4>}}
               : (tensor<4xf32>) -> tensor<4xf32>
          %one = stablehlo.constant dense<1.0> : tensor<4xf32>
          %z = stablehlo.add %y, %one : tensor<4xf32>
          return %z : tensor<4xf32>
        }
      })"));
  }

  std::shared_ptr<Client> client_;
};

// One run of a program, on a thread of its own: the plugin may or may not wait for the calls of the program
// before it returns.
class ProgramRun {
 public:
  ProgramRun(const LoadedExecutable& executable, std::vector<Buffer> arguments, const RunContext* context)
      : arguments_(std::move(arguments)),
        outputs_(executable.num_outputs()),
        thread_([&executable, context, this] {
          std::vector<Buffer*> args;
          for (Buffer& argument : arguments_) args.push_back(&argument);
          ExecuteOptions options;
          options.context = context;
          Event done;
          status_ = executable.ExecuteOn(executable.addressable_devices()[0], args, absl::MakeSpan(outputs_),
                                         &done, options);
          if (status_.ok()) status_ = done.Await();
        }) {}
  absl::Status Await() {
    thread_.join();
    return status_;
  }
  const Buffer& output(size_t i) const { return outputs_[i]; }

 private:
  std::vector<Buffer> arguments_;
  std::vector<Buffer> outputs_;
  absl::Status status_;
  std::thread thread_;
};

TEST_F(FfiCallTest, APromiseEndsTheCallLater) {
  Record record;
  auto context = RunContext::Create(*plugin_, &record);
  ASSERT_TRUE(context.ok()) << context.status();
  auto executable = CompileCall("test_note");
  ProgramRun run(*executable, Numbers({1, 2, 3, 4}), &*context);
  record.called.WaitForNotification();
  ASSERT_EQ(record.arguments.size(), 1u);
  ASSERT_EQ(record.results.size(), 1u);
  EXPECT_EQ(record.arguments[0].type, ElementType::kF32);
  EXPECT_EQ(record.arguments[0].bytes, 16);
  EXPECT_THAT(record.argument_dims[0], ElementsAre(4));
  EXPECT_EQ(record.key.value_or(0), ~uint64_t{0});
  EXPECT_EQ(record.other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(record.list, ElementsAre(3, -4));
  EXPECT_EQ(record.no_list.code(), absl::StatusCode::kInvalidArgument);
  // Another run comes to its call meanwhile, and each finds its own data.
  Record second;
  auto second_context = RunContext::Create(*plugin_, &second);
  ASSERT_TRUE(second_context.ok());
  ProgramRun second_run(*executable, Numbers({0, 0, 0, 0}), &*second_context);
  second.called.WaitForNotification();

  const float* from = reinterpret_cast<const float*>(record.arguments[0].data);
  float* to = reinterpret_cast<float*>(record.results[0].data);
  for (int i = 0; i < 4; ++i) to[i] = 10 * from[i];
  std::thread([&] { record.promise.Finish(absl::OkStatus()); }).join();
  EXPECT_TRUE(run.Await().ok());
  EXPECT_EQ(Read<float>(run.output(0)), (std::vector<float>{11, 21, 31, 41}));

  second.promise.Finish(absl::AbortedError("given up"));
  const absl::Status status = second_run.Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("given up"));
}

TEST_F(FfiCallTest, ADroppedPromiseFailsTheCall) {
  Record record;
  auto context = RunContext::Create(*plugin_, &record);
  ASSERT_TRUE(context.ok()) << context.status();
  auto executable = CompileCall("test_note");
  ProgramRun run(*executable, Numbers({1, 2, 3, 4}), &*context);
  record.called.WaitForNotification();
  record.promise = FfiPromise();
  EXPECT_THAT(std::string(run.Await().message()), HasSubstr("given up"));
}

TEST_F(FfiCallTest, AnErrorFailsTheRun) {
  auto executable = CompileCall("test_refuse");
  const absl::Status status = ProgramRun(*executable, Numbers({1, 2, 3, 4}), nullptr).Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not today"));
}

TEST_F(FfiCallTest, BuffersOfOddTypes) {
  Record record;
  auto context = RunContext::Create(*plugin_, &record);
  ASSERT_TRUE(context.ok()) << context.status();
  auto executable = Compile(*client_, R"(
    module @call {
      func.func @main() -> tensor<5xi4> {
        %token = stablehlo.create_token : !stablehlo.token
        %a = stablehlo.constant dense<[1, 2, 3, -1, 5]> : tensor<5xi4>
        %b = stablehlo.constant dense<1.5> : tensor<2x0xbf16>
        %c = stablehlo.constant dense<true> : tensor<i1>
        %y:2 = stablehlo.custom_call @test_note(%token, %a, %b, %c) {
               api_version = 4 : i32, has_side_effect = true, backend_config = {}}
             : (!stablehlo.token, tensor<5xi4>, tensor<2x0xbf16>, tensor<i1>)
               -> (!stablehlo.token, tensor<5xi4>)
        return %y#1 : tensor<5xi4>
      }
    })");
  ProgramRun run(*executable, {}, &*context);
  record.called.WaitForNotification();
  ASSERT_EQ(record.arguments.size(), 4u);
  EXPECT_EQ(record.arguments[0].type, ElementType::kToken);
  EXPECT_EQ(record.arguments[0].bytes, 0);
  EXPECT_EQ(record.arguments[1].type, ElementType::kS4);
  ASSERT_EQ(record.arguments[1].bytes, 3);
  EXPECT_EQ(record.arguments[1].data[0], 0x21);
  EXPECT_EQ(record.arguments[1].data[1], 0xf3);
  EXPECT_EQ(record.arguments[1].data[2] & 0xf, 0x5);
  EXPECT_EQ(record.arguments[2].type, ElementType::kBF16);
  EXPECT_EQ(record.arguments[2].bytes, 0);
  EXPECT_EQ(record.arguments[3].type, ElementType::kPred);
  EXPECT_EQ(record.arguments[3].data[0], 1);
  EXPECT_EQ(record.key.status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(record.results.size(), 2u);
  std::memcpy(record.results[1].data, "\x54\x76\x08", 3);
  record.promise.Finish(absl::OkStatus());
  ASSERT_TRUE(run.Await().ok());
  std::vector<uint8_t> got = Read<uint8_t>(run.output(0));
  for (uint8_t& value : got) value &= 0xf;
  EXPECT_THAT(got, ElementsAre(4, 5, 6, 7, 8));
}

// Long programs too, if the client is not asynchronous: none waits for another's call.
TEST_F(FfiCallTest, RunsOfOneDeviceStandSideBySide) {
  auto client = Client::Create(plugin_, {{"cpu_device_count", int64_t{1}}, {"asynchronous", false}});
  ASSERT_TRUE(client.ok()) << client.status();
  auto executable = Compile(**client, R"(
    module @call {
      func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
        %y = stablehlo.dot %x, %x : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %z = stablehlo.custom_call @test_note(%y) {
               api_version = 4 : i32, has_side_effect = true, backend_config = {}}
             : (tensor<64x64xf32>) -> tensor<64x64xf32>
        return %z : tensor<64x64xf32>
      }
    })");
  Record records[3];
  RunContext contexts[3];
  std::vector<std::unique_ptr<ProgramRun>> runs;
  for (int i = 0; i < 3; ++i) {
    auto context = RunContext::Create(*plugin_, &records[i]);
    ASSERT_TRUE(context.ok()) << context.status();
    contexts[i] = *std::move(context);
    std::vector<Buffer> arguments;
    arguments.push_back(
        MakeBuffer<float>(**client, ElementType::kF32, std::vector<float>(64 * 64, 1), {64, 64}));
    runs.push_back(std::make_unique<ProgramRun>(*executable, std::move(arguments), &contexts[i]));
  }
  for (Record& record : records) record.called.WaitForNotification();
  for (Record& record : records) record.promise.Finish(absl::OkStatus());
  for (auto& run : runs) EXPECT_TRUE(run->Await().ok());
}

// The tokens of a program that begins and ends with one: any buffer does for the first.
TEST_F(FfiCallTest, AnEmptyArrayServesAsToken) {
  Record record;
  auto context = RunContext::Create(*plugin_, &record);
  ASSERT_TRUE(context.ok()) << context.status();
  auto executable = Compile(*client_, R"(
    module @call {
      func.func @main(%t: !stablehlo.token, %x: tensor<f32>) -> (!stablehlo.token, tensor<f32>) {
        %y:2 = stablehlo.custom_call @test_note(%t, %x) {
               api_version = 4 : i32, has_side_effect = true, backend_config = {}}
             : (!stablehlo.token, tensor<f32>) -> (!stablehlo.token, tensor<f32>)
        return %y#0, %y#1 : !stablehlo.token, tensor<f32>
      }
    })");
  std::vector<Buffer> arguments;
  arguments.push_back(MakeBuffer<uint8_t>(*client_, ElementType::kPred, {}, {0}));
  arguments.push_back(MakeBuffer<float>(*client_, ElementType::kF32, {7}, {}));
  ProgramRun run(*executable, std::move(arguments), &*context);
  record.called.WaitForNotification();
  std::memcpy(record.results[1].data, record.arguments[1].data, sizeof(float));
  record.promise.Finish(absl::OkStatus());
  const absl::Status status = run.Await();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(run.output(0).element_type(), ElementType::kToken);
  EXPECT_THAT(Read<float>(run.output(1)), ElementsAre(7));
}

}  // namespace
}  // namespace helmway::pjrt
