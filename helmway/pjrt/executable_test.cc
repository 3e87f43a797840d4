#include "helmway/pjrt/executable.h"

#include <cstdlib>
#include <thread>

#include "gmock/gmock.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kAdd[] = R"(
module @add_module {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";

// The first argument is donated to the output.
constexpr char kDonatingAdd[] = R"(
module @donating_add {
  func.func public @main(%a: tensor<16xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<16xf32>) -> tensor<16xf32> {
    %0 = stablehlo.add %a, %b : tensor<16xf32>
    return %0 : tensor<16xf32>
  }
})";

// Four partitions: the sum over all of them (an all-reduce), and twice the own part.
constexpr char kPartitioned[] = R"(
module @partitioned attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%a: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<f32> {mhlo.sharding = "{replicated}"}, tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %1 = stablehlo.add %a, %a : tensor<8xf32>
    return %0, %1 : tensor<f32>, tensor<8xf32>
  }
})";

class ExecutableTest : public PjrtTest {};

TEST_F(ExecutableTest, DescribesItself) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  EXPECT_THAT(executable->name(), HasSubstr("add_module"));
  EXPECT_EQ(executable->num_replicas(), 1);
  EXPECT_EQ(executable->num_partitions(), 1);
  EXPECT_THAT(executable->addressable_devices(), ElementsAre(client->devices()[0]));
  EXPECT_EQ(executable->num_outputs(), 1u);
  EXPECT_THAT(executable->output_element_types(), ElementsAre(ElementType::kF32));
  EXPECT_THAT(executable->output_dimensions(), ElementsAre(ElementsAre(4)));
  auto kinds = executable->OutputMemoryKinds();
  ASSERT_TRUE(kinds.ok()) << kinds.status();
  EXPECT_THAT(*kinds, ElementsAre("device"));
  auto layouts = executable->ParameterLayouts();
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_THAT(*layouts, ElementsAre("{0}", "{0}"));
  layouts = executable->OutputLayouts();
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_THAT(*layouts, ElementsAre("{0}"));
  auto size = executable->GeneratedCodeSizeBytes();
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_GE(*size, 0);
}

TEST_F(ExecutableTest, FingerprintNamesTheProgram) {
  auto client = MakeClient();
  auto a = Compile(*client, kAdd);
  auto b = Compile(*client, kAdd);
  auto c = Compile(*client, kDonatingAdd);
  ASSERT_TRUE(a && b && c);
  ASSERT_TRUE(a->Fingerprint().ok()) << a->Fingerprint().status();
  EXPECT_EQ(*a->Fingerprint(), *b->Fingerprint());
  EXPECT_NE(*a->Fingerprint(), *c->Fingerprint());
}

TEST_F(ExecutableTest, OptimizedHloHoldsTheModule) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  auto program = executable->OptimizedHlo();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->format, "hlo_with_config");
  EXPECT_THAT(program->bytes, HasSubstr("add_module"));
}

TEST_F(ExecutableTest, MemoryStats) {
  auto client = MakeClient();
  auto executable = Compile(*client, kDonatingAdd);
  ASSERT_NE(executable, nullptr);
  auto stats = executable->GetCompiledMemoryStats();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->argument_bytes, 128);
  EXPECT_EQ(stats->output_bytes, 64);
  EXPECT_EQ(stats->alias_bytes, 64);
  EXPECT_GE(stats->peak_memory_bytes, 128);
}

// The CPU plugin has no cost analysis; what it says must come through.
TEST_F(ExecutableTest, CostAnalysisIsUnimplementedOrHasValues) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  auto cost = executable->CostAnalysis();
  if (cost.ok()) {
    EXPECT_FALSE(cost->empty());
  } else {
    EXPECT_EQ(cost.status().code(), absl::StatusCode::kUnimplemented) << cost.status();
  }
}

TEST_F(ExecutableTest, ExecutesOnOneDevice) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  Buffer b = MakeBuffer<float>(*client, ElementType::kF32, {10, 20, 30, 40}, {4});
  Buffer* args[] = {&a, &b};
  Buffer out[1];
  Event complete;
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out), &complete);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(complete.empty());
  EXPECT_TRUE(complete.Await().ok());
  EXPECT_THAT(Read<float>(out[0]), ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(out[0].dimensions(), ElementsAre(4));
  EXPECT_FALSE(a.IsDeleted());
  // Outputs given again are replaced, also when one is an argument.
  Buffer* more[] = {&out[0], &b};
  status = executable->ExecuteOn(client->devices()[0], more, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Read<float>(out[0]), ElementsAre(21, 42, 63, 84));
}

TEST_F(ExecutableTest, RefusesWrongCalls) {
  auto client = MakeClient(2);
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  Buffer empty;
  Buffer* args[] = {&a, &a};
  Buffer* one_arg[] = {&a};
  Buffer* empty_arg[] = {&a, &empty};
  Buffer* null_arg[] = {&a, nullptr};
  Buffer out[2];
  const Device* device = client->devices()[0];
  auto code = [&](auto&&... call) { return executable->ExecuteOn(call...).code(); };
  auto one = absl::MakeSpan(out, 1);
  EXPECT_EQ(code(device, args, absl::MakeSpan(out)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(nullptr, args, one), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(device, empty_arg, one), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(device, null_arg, one), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(device, one_arg, one), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(code(client->devices()[1], args, one), absl::StatusCode::kOk);
  Buffer wrong = MakeBuffer<float>(*client, ElementType::kF32, {1, 2}, {2});
  Buffer* wrong_arg[] = {&a, &wrong};
  EXPECT_EQ(code(device, wrong_arg, one), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(out[0]);
  const absl::Span<Buffer* const> list = args;
  EXPECT_EQ(executable->ExecuteAll({list, list}, {one, one}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExecutableTest, ErrorsOfArgumentsReachTheOutputs) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  auto bad = client->ErrorBuffer(absl::DataLossError("ate it"), ElementType::kF32, {4},
                                 client->devices()[0]->default_memory());
  ASSERT_TRUE(bad.ok()) << bad.status();
  Buffer* args[] = {&a, &*bad};
  Buffer out[1];
  Event complete;
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out), &complete);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(complete.Await().ok());
  auto ready = out[0].ReadyEvent();
  ASSERT_TRUE(ready.ok()) << ready.status();
  status = ready->Await();
  EXPECT_THAT(std::string(status.message()), HasSubstr("ate it")) << status;
}

TEST_F(ExecutableTest, UsingADeletedArgumentIsAnError) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  ASSERT_TRUE(a.Delete().ok());
  Buffer* args[] = {&a, &a};
  Buffer out[1];
  EXPECT_EQ(executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ExecutableTest, DonationHappensInPlace) {
  auto client = MakeClient();
  auto executable = Compile(*client, kDonatingAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer(*client, ElementType::kF32, std::vector<float>(16, 1), {16});
  Buffer b = MakeBuffer(*client, ElementType::kF32, std::vector<float>(16, 2), {16});
  void* address = *a.OpaqueDevicePointer();
  Buffer* args[] = {&a, &b};
  Buffer out[1];
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(a.IsDeleted());
  EXPECT_FALSE(b.IsDeleted());
  EXPECT_THAT(Read<float>(out[0]), Each(3));
  EXPECT_EQ(*out[0].OpaqueDevicePointer(), address);
}

TEST_F(ExecutableTest, NonDonatableInputsAreKept) {
  auto client = MakeClient();
  auto executable = Compile(*client, kDonatingAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer(*client, ElementType::kF32, std::vector<float>(16, 1), {16});
  Buffer* args[] = {&a, &a};
  Buffer out[1];
  const int64_t keep[] = {0};
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out), nullptr,
                                              {.non_donatable_input_indices = keep});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(a.IsDeleted());
  EXPECT_THAT(Read<float>(out[0]), Each(2));
  EXPECT_THAT(Read<float>(a), Each(1));
}

TEST_F(ExecutableTest, DonationWithAnExternalReference) {
  auto client = MakeClient();
  auto executable = Compile(*client, kDonatingAdd);
  ASSERT_NE(executable, nullptr);
  Buffer a = MakeBuffer(*client, ElementType::kF32, std::vector<float>(16, 1), {16});
  Buffer b = MakeBuffer(*client, ElementType::kF32, std::vector<float>(16, 2), {16});
  auto reference = ExternalReference::Acquire(a);
  ASSERT_TRUE(reference.ok());
  Buffer* args[] = {&a, &b};
  Buffer out[1];
  // The plugin gives up the donation, not the reference: it copies, and the argument lives on.
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(a.IsDeleted());
  EXPECT_THAT(Read<float>(out[0]), Each(3));
  EXPECT_NE(*out[0].OpaqueDevicePointer(), reference->data());
  EXPECT_THAT(absl::MakeSpan(static_cast<const float*>(reference->data()), 16), Each(1));
  // Once the reference is gone, donation is in place again.
  void* address = *a.OpaqueDevicePointer();
  reference->Release();
  status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(a.IsDeleted());
  EXPECT_EQ(*out[0].OpaqueDevicePointer(), address);
}

class ZeroCopyDonationTest : public PjrtTest {
 protected:
  // Donates `data_` as a buffer of `semantics`; data_ holds ones, the output threes.
  void Donate(HostBufferSemantics semantics, Buffer& argument, Event& done, Buffer& output) {
    client_ = MakeClient();
    ASSERT_NE(client_, nullptr);
    auto executable = Compile(*client_, kDonatingAdd);
    ASSERT_NE(executable, nullptr);
    std::fill(data_, data_ + 16, 1.0f);
    auto result = client_->BufferFromHost({.data = data_,
                                           .type = ElementType::kF32,
                                           .dims = {16},
                                           .semantics = semantics,
                                           .device = client_->devices()[0]});
    ASSERT_TRUE(result.ok()) << result.status();
    argument = std::move(result->buffer);
    done = std::move(result->done_with_host_buffer);
    ASSERT_EQ(*argument.OpaqueDevicePointer(), data_);
    Buffer b = MakeBuffer(*client_, ElementType::kF32, std::vector<float>(16, 2), {16});
    Buffer* args[] = {&argument, &b};
    absl::Status status = executable->ExecuteOn(client_->devices()[0], args, absl::MakeSpan(&output, 1));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(Read<float>(output), Each(3));
    EXPECT_TRUE(argument.IsDeleted());
  }

  std::shared_ptr<Client> client_;
  alignas(64) float data_[16];
};

// The caller's memory is not written: the plugin copies, and lets go of the memory after the run.
TEST_F(ZeroCopyDonationTest, ImmutableIsCopied) {
  Buffer argument, output;
  Event done;
  ASSERT_NO_FATAL_FAILURE(Donate(HostBufferSemantics::kImmutableZeroCopy, argument, done, output));
  EXPECT_TRUE(done.Await().ok());
  EXPECT_NE(*output.OpaqueDevicePointer(), data_);
  EXPECT_THAT(data_, Each(1));
}

// The output lies in the caller's memory, which stays in use until the output dies.
TEST_F(ZeroCopyDonationTest, MutableHappensInPlace) {
  Buffer argument, output;
  Event done;
  ASSERT_NO_FATAL_FAILURE(Donate(HostBufferSemantics::kMutableZeroCopy, argument, done, output));
  EXPECT_EQ(*output.OpaqueDevicePointer(), data_);
  EXPECT_THAT(data_, Each(3));
  argument.Reset();
  EXPECT_FALSE(done.IsReady());
  output.Reset();
  EXPECT_TRUE(done.Await().ok());
}

class PartitionedTest : public PjrtTest {
 protected:
  void SetUp() override {
    PjrtTest::SetUp();
    if (HasFatalFailure()) return;
    client_ = MakeClient(4);
    ASSERT_NE(client_, nullptr);
    executable_ = Compile(*client_, kPartitioned, TestCompileOptions(4, {0, 1, 2, 3}));
    ASSERT_NE(executable_, nullptr);
    for (int d = 0; d < 4; ++d) {
      const float value = static_cast<float>(d);
      args_[d] =
          MakeBuffer<float>(*client_, ElementType::kF32, {value, value + 0.5f}, {2}, client_->devices()[d]);
    }
  }
  void ExpectResults(std::vector<std::array<Buffer, 2>>& outputs) {
    for (int d = 0; d < 4; ++d) {
      const float value = static_cast<float>(d);
      EXPECT_THAT(Read<float>(outputs[d][0]), ElementsAre(14));
      EXPECT_THAT(Read<float>(outputs[d][1]), ElementsAre(2 * value, 2 * value + 1));
      EXPECT_EQ(outputs[d][0].device(), client_->devices()[d]);
    }
  }
  std::shared_ptr<Client> client_;
  std::unique_ptr<LoadedExecutable> executable_;
  Buffer args_[4];
};

TEST_F(PartitionedTest, DescribesOneDevice) {
  EXPECT_EQ(executable_->num_partitions(), 4);
  EXPECT_EQ(executable_->addressable_devices().size(), 4u);
  EXPECT_THAT(executable_->output_dimensions(), ElementsAre(ElementsAre(), ElementsAre(2)));
  auto shardings = executable_->ParameterShardings();
  ASSERT_TRUE(shardings.ok()) << shardings.status();
  ASSERT_TRUE(shardings->has_value());
  EXPECT_EQ((*shardings)->size(), 1u);
  EXPECT_FALSE((**shardings)[0].empty());
  shardings = executable_->OutputShardings();
  ASSERT_TRUE(shardings.ok()) << shardings.status();
  ASSERT_TRUE(shardings->has_value());
  EXPECT_EQ((*shardings)->size(), 2u);
}

TEST_F(PartitionedTest, ExecutesAllDevicesAtOnce) {
  Buffer* arg_handles[4] = {&args_[0], &args_[1], &args_[2], &args_[3]};
  std::vector<absl::Span<Buffer* const>> args;
  std::vector<std::array<Buffer, 2>> outputs(4);
  std::vector<absl::Span<Buffer>> output_spans;
  for (int d = 0; d < 4; ++d) {
    args.push_back(absl::MakeSpan(&arg_handles[d], 1));
    output_spans.push_back(absl::MakeSpan(outputs[d]));
  }
  Event complete[4];
  absl::Status status =
      executable_->ExecuteAll(args, output_spans, absl::MakeSpan(complete), {.launch_id = 5});
  ASSERT_TRUE(status.ok()) << status;
  for (Event& event : complete) EXPECT_TRUE(event.Await().ok());
  ExpectResults(outputs);
}

TEST_F(PartitionedTest, ExecutesEachDeviceFromItsOwnThread) {
  for (int run = 1; run <= 20; ++run) {
    std::vector<std::array<Buffer, 2>> outputs(4);
    Event complete[4];
    absl::Status status[4];
    std::vector<std::thread> threads;
    for (int d = 0; d < 4; ++d) {
      threads.emplace_back([&, d] {
        Buffer* args[] = {&args_[d]};
        status[d] = executable_->ExecuteOn(client_->devices()[d], args, absl::MakeSpan(outputs[d]),
                                           &complete[d], {.launch_id = run});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int d = 0; d < 4; ++d) {
      ASSERT_TRUE(status[d].ok()) << status[d];
      ASSERT_TRUE(complete[d].Await().ok());
    }
    ExpectResults(outputs);
  }
}

TEST_F(ExecutableTest, SerializesAndLoads) {
  auto client = MakeClient();
  std::string bytes;
  {
    auto executable = Compile(*client, kAdd);
    ASSERT_NE(executable, nullptr);
    auto serialized = executable->Serialize();
    ASSERT_TRUE(serialized.ok()) << serialized.status();
    bytes = *std::move(serialized);
  }
  for (bool with_options : {false, true}) {
    auto loaded = with_options ? client->DeserializeAndLoad(bytes, TestCompileOptions(1, {0}))
                               : client->DeserializeAndLoad(bytes);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT((*loaded)->output_dimensions(), ElementsAre(ElementsAre(4)));
    Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
    Buffer* args[] = {&a, &a};
    Buffer out[1];
    absl::Status status = (*loaded)->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(Read<float>(out[0]), ElementsAre(2, 4, 6, 8));
  }
}

TEST_F(ExecutableTest, PortableExecutableRunsAnywhere) {
  auto client = MakeClient(2);
  auto executable = Compile(*client, kAdd, TestCompileOptions(1, {}, /*portable=*/true));
  ASSERT_NE(executable, nullptr);
  EXPECT_TRUE(executable->addressable_devices().empty());
  for (const Device* device : client->devices()) {
    Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4}, device);
    Buffer* args[] = {&a, &a};
    Buffer out[1];
    absl::Status status = executable->ExecuteOn(device, args, absl::MakeSpan(out));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(out[0].device(), device);
    EXPECT_THAT(Read<float>(out[0]), ElementsAre(2, 4, 6, 8));
  }
  EXPECT_EQ(executable->ExecuteAll({}, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExecutableTest, OutputMemoryKind) {
  auto client = MakeClient();
  auto executable = Compile(*client, R"(
    func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) {
      return %a : tensor<4xf32>
    })");
  ASSERT_NE(executable, nullptr);
  EXPECT_THAT(*executable->OutputMemoryKinds(), ElementsAre("pinned_host"));
  Buffer a = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  Buffer* args[] = {&a};
  Buffer out[1];
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_NE(out[0].memory(), nullptr);
  EXPECT_EQ(out[0].memory()->kind(), "pinned_host");
}

TEST_F(ExecutableTest, DeleteShows) {
  auto client = MakeClient();
  auto executable = Compile(*client, kAdd);
  ASSERT_NE(executable, nullptr);
  EXPECT_FALSE(executable->IsDeleted());
  ASSERT_TRUE(executable->Delete().ok());
  EXPECT_TRUE(executable->IsDeleted());
}

TEST_F(ExecutableTest, MoreArgumentsThanTheInlineRoom) {
  auto client = MakeClient();
  constexpr int kCount = 100;
  std::string params, results, values;
  for (int i = 0; i < kCount; ++i) {
    const std::string comma = i == 0 ? "" : ", ";
    params += comma + "%a" + std::to_string(i) + ": tensor<f32>";
    results += comma + "tensor<f32>";
    values += comma + "%a" + std::to_string(kCount - 1 - i);
  }
  auto executable = Compile(*client, "func.func public @main(" + params + ") -> (" + results + ") { return " +
                                         values + " : " + results + " }");
  ASSERT_NE(executable, nullptr);
  std::vector<Buffer> buffers;
  std::vector<Buffer*> args;
  for (int i = 0; i < kCount; ++i) {
    buffers.push_back(MakeBuffer<float>(*client, ElementType::kF32, {static_cast<float>(i)}, {}));
  }
  for (Buffer& buffer : buffers) args.push_back(&buffer);
  std::vector<Buffer> out(kCount);
  absl::Status status = executable->ExecuteOn(client->devices()[0], args, absl::MakeSpan(out));
  ASSERT_TRUE(status.ok()) << status;
  for (int i = 0; i < kCount; ++i) EXPECT_THAT(Read<float>(out[i]), ElementsAre(kCount - 1 - i));
}

}  // namespace
}  // namespace helmway::pjrt
