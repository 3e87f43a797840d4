#include "helmway/pjrt/buffer.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class BufferTest : public PjrtTest {
 protected:
  void SetUp() override {
    PjrtTest::SetUp();
    if (HasFatalFailure()) return;
    client_ = MakeClient(2);
    ASSERT_NE(client_, nullptr);
    device_ = client_->devices()[0];
  }
  std::shared_ptr<Client> client_;
  const Device* device_ = nullptr;
};

TEST_F(BufferTest, DescribesItself) {
  Buffer buffer =
      MakeBuffer<float>(*client_, ElementType::kF32, {1, 2, 3, 4, 5, 6}, {2, 3}, client_->devices()[1]);
  EXPECT_EQ(buffer.element_type(), ElementType::kF32);
  EXPECT_THAT(buffer.dimensions(), ElementsAre(2, 3));
  EXPECT_EQ(buffer.device(), client_->devices()[1]);
  EXPECT_EQ(buffer.memory(), client_->devices()[1]->default_memory());
  EXPECT_EQ(*buffer.OnDeviceSizeBytes(), 24u);
  EXPECT_EQ(*buffer.HostSizeBytes(), 24u);
  auto layout = buffer.GetMemoryLayout();
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_TRUE(layout->IsDenseRowMajor());
  EXPECT_EQ(*buffer.LayoutText(), "{1,0}");
  EXPECT_THAT(Read<float>(buffer), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(BufferTest, MovesLeaveEmptyBuffers) {
  Buffer a = MakeBuffer<float>(*client_, ElementType::kF32, {1}, {1});
  Buffer b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): the state after a move is what is tested.
  EXPECT_TRUE(b);
  a = std::move(b);
  EXPECT_TRUE(a);
  EXPECT_THAT(Read<float>(a), ElementsAre(1));
}

TEST_F(BufferTest, BoolAndBf16) {
  Buffer flags = MakeBuffer<uint8_t>(*client_, ElementType::kPred, {1, 0, 1}, {3});
  EXPECT_THAT(Read<uint8_t>(flags), ElementsAre(1, 0, 1));
  Buffer halves = MakeBuffer<uint16_t>(*client_, ElementType::kBF16, {0x3f80, 0xc000}, {2});
  EXPECT_THAT(Read<uint16_t>(halves), ElementsAre(0x3f80, 0xc000));
  EXPECT_EQ(*halves.OnDeviceSizeBytes(), 4u);
}

TEST_F(BufferTest, Int4IsPackedOnTheDeviceOnly) {
  const std::vector<int8_t> values = {1, -2, 7, -8, 3};
  Buffer buffer = MakeBuffer(*client_, ElementType::kS4, values, {5});
  EXPECT_EQ(*buffer.HostSizeBytes(), 5u);
  EXPECT_EQ(*buffer.OnDeviceSizeBytes(), 3u);
  EXPECT_EQ(*buffer.LayoutText(), "{0:E(4)}");
  // Only the low four bits of a host byte are the value.
  std::vector<int8_t> read = Read<int8_t>(buffer);
  for (int8_t& value : read) value = static_cast<int8_t>(static_cast<uint8_t>(value) << 4) >> 4;
  EXPECT_THAT(read, ElementsAreArray(values));
  uint8_t raw[3];
  auto event = buffer.CopyRawToHost(raw, 0, 3);
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_TRUE(event->Await().ok());
  EXPECT_EQ(raw[0], 0xe1);  // low half first
  EXPECT_EQ(raw[1], 0x87);
  EXPECT_EQ(raw[2] & 0xf, 0x3);
}

TEST_F(BufferTest, ScalarsAndArraysWithoutElements) {
  Buffer scalar = MakeBuffer<double>(*client_, ElementType::kF64, {2.5}, {});
  EXPECT_TRUE(scalar.dimensions().empty());
  EXPECT_THAT(Read<double>(scalar), ElementsAre(2.5));

  auto empty = client_->BufferFromHost({.type = ElementType::kF32, .dims = {3, 0}, .device = device_});
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_THAT(empty->buffer.dimensions(), ElementsAre(3, 0));
  EXPECT_EQ(*empty->buffer.HostSizeBytes(), 0u);
  auto event = empty->buffer.ToHost(nullptr, 0);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(event->Await().ok());
}

TEST_F(BufferTest, ReadsHostStrides) {
  const std::vector<int32_t> columns = {1, 4, 2, 5, 3, 6};  // [[1,2,3],[4,5,6]], column by column
  const std::vector<int64_t> strides = {4, 8};
  auto result = client_->BufferFromHost({.data = columns.data(),
                                         .type = ElementType::kS32,
                                         .dims = {2, 3},
                                         .byte_strides = strides,
                                         .device = device_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(Read<int32_t>(result->buffer), ElementsAre(1, 2, 3, 4, 5, 6));

  const std::vector<int32_t> line = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> backwards = {-8};  // every other element, from the end
  result = client_->BufferFromHost({.data = line.data() + 5,
                                    .type = ElementType::kS32,
                                    .dims = {3},
                                    .byte_strides = backwards,
                                    .device = device_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(Read<int32_t>(result->buffer), ElementsAre(6, 4, 2));
}

TEST_F(BufferTest, WritesHostLayouts) {
  Buffer buffer = MakeBuffer<int32_t>(*client_, ElementType::kS32, {1, 2, 3, 4, 5, 6}, {2, 3});
  const std::vector<int64_t> column_major = {0, 1};
  EXPECT_THAT(Read<int32_t>(buffer, {.minor_to_major = column_major}), ElementsAre(1, 4, 2, 5, 3, 6));
  const std::vector<int64_t> strides = {4, 8};
  EXPECT_THAT(Read<int32_t>(buffer, {.byte_strides = strides}), ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST_F(BufferTest, RefusesWhatToHostCannotDo) {
  Buffer buffer = MakeBuffer<int32_t>(*client_, ElementType::kS32, {1, 2, 3, 4, 5, 6}, {2, 3});
  std::vector<int32_t> host(12);
  const std::vector<int64_t> gaps = {16, 4};
  EXPECT_EQ(buffer.ToHost(host.data(), 48, {.byte_strides = gaps}).status().code(),
            absl::StatusCode::kUnimplemented);
  const std::vector<int64_t> short_list = {4};
  EXPECT_EQ(buffer.ToHost(host.data(), 48, {.byte_strides = short_list}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int64_t> twice = {1, 1};
  EXPECT_EQ(buffer.ToHost(host.data(), 48, {.minor_to_major = twice}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.ToHost(host.data(), 23).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.ToHost(nullptr, 24).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BufferTest, RefusesWhatBufferFromHostCannotDo) {
  const std::vector<float> values(6);
  const std::vector<int64_t> short_list = {4};
  const std::vector<int64_t> twice = {1, 1};
  auto code = [&](const HostBufferArgs& args) { return client_->BufferFromHost(args).status().code(); };
  EXPECT_EQ(code({.data = values.data(), .type = ElementType::kF32, .dims = {6}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.type = ElementType::kF32, .dims = {6}, .device = device_}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = values.data(), .type = ElementType::kF32, .dims = {-6}, .device = device_}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      code({.data = values.data(), .type = static_cast<ElementType>(36), .dims = {6}, .device = device_}),
      absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code({.data = values.data(),
                  .type = ElementType::kF32,
                  .dims = {2, 3},
                  .byte_strides = short_list,
                  .device = device_}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = values.data(),
                  .type = ElementType::kF32,
                  .dims = {2, 3},
                  .device = device_,
                  .minor_to_major = twice}),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BufferTest, CustomDeviceLayout) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> column_major = {0, 1};
  auto result = client_->BufferFromHost({.data = values.data(),
                                         .type = ElementType::kF32,
                                         .dims = {2, 3},
                                         .device = device_,
                                         .minor_to_major = column_major});
  ASSERT_TRUE(result.ok()) << result.status();
  auto layout = result->buffer.GetMemoryLayout();
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(layout->minor_to_major, ElementsAre(0, 1));
  EXPECT_FALSE(layout->IsDenseRowMajor());
  EXPECT_EQ(*result->buffer.LayoutText(), "{0,1}");
  float raw[6];
  auto event = result->buffer.CopyRawToHost(raw, 0, sizeof(raw));
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_TRUE(event->Await().ok());
  EXPECT_THAT(raw, ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(Read<float>(result->buffer), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(BufferTest, CopiesToDevicesAndMemories) {
  Buffer buffer = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2}, {2});
  auto on_other = buffer.CopyToDevice(client_->devices()[1]);
  ASSERT_TRUE(on_other.ok()) << on_other.status();
  EXPECT_EQ(on_other->device(), client_->devices()[1]);
  EXPECT_THAT(Read<float>(*on_other), ElementsAre(1, 2));
  const Memory* pinned = device_->FindMemory("pinned_host");
  auto in_memory = buffer.CopyToMemory(pinned);
  ASSERT_TRUE(in_memory.ok()) << in_memory.status();
  EXPECT_EQ(in_memory->memory(), pinned);
  EXPECT_THAT(Read<float>(*in_memory), ElementsAre(1, 2));
  EXPECT_FALSE(buffer.IsDeleted());

  const std::vector<float> values = {3};
  auto direct = client_->BufferFromHost(
      {.data = values.data(), .type = ElementType::kF32, .dims = {1}, .device = device_, .memory = pinned});
  ASSERT_TRUE(direct.ok()) << direct.status();
  EXPECT_EQ(direct->buffer.memory(), pinned);
}

TEST_F(BufferTest, RawCopiesStayInside) {
  Buffer buffer = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2}, {2});
  float value = 0;
  auto event = buffer.CopyRawToHost(&value, 4, 4);
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_TRUE(event->Await().ok());
  EXPECT_EQ(value, 2);
  EXPECT_EQ(buffer.CopyRawToHost(&value, 8, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.CopyRawToHost(&value, -4, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffer.CopyRawToHost(&value, 4, INT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BufferTest, DeletedBuffersKeepTheirShapeAndFailUses) {
  Buffer buffer = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2}, {2});
  EXPECT_FALSE(buffer.IsDeleted());
  ASSERT_TRUE(buffer.Delete().ok());
  EXPECT_TRUE(buffer.IsDeleted());
  EXPECT_TRUE(buffer.Delete().ok());
  EXPECT_THAT(buffer.dimensions(), ElementsAre(2));
  EXPECT_EQ(buffer.element_type(), ElementType::kF32);
  EXPECT_EQ(buffer.device(), device_);
  float values[2];
  auto event = buffer.ToHost(values, sizeof(values));
  EXPECT_FALSE(event.ok() && event->Await().ok());
  auto ready = buffer.ReadyEvent();
  EXPECT_FALSE(ready.ok() && ready->Await().ok());
  EXPECT_FALSE(buffer.CopyToDevice(client_->devices()[1]).ok());
  EXPECT_FALSE(ExternalReference::Acquire(buffer).ok());
}

struct AlignedFree {
  void operator()(float* data) const { std::free(data); }
};
std::unique_ptr<float[], AlignedFree> AlignedFloats(size_t count) {
  return std::unique_ptr<float[], AlignedFree>(
      static_cast<float*>(std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64)));
}

TEST_F(BufferTest, ZeroCopyAliasesAlignedMemoryUntilTheBufferDies) {
  for (HostBufferSemantics semantics :
       {HostBufferSemantics::kImmutableZeroCopy, HostBufferSemantics::kMutableZeroCopy}) {
    auto data = AlignedFloats(16);
    for (int i = 0; i < 16; ++i) data[i] = static_cast<float>(i);
    auto result = client_->BufferFromHost({.data = data.get(),
                                           .type = ElementType::kF32,
                                           .dims = {16},
                                           .semantics = semantics,
                                           .device = device_});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result->buffer.OpaqueDevicePointer(), data.get());
    EXPECT_EQ(*result->buffer.UnsafePointer(), reinterpret_cast<uintptr_t>(data.get()));
    EXPECT_FALSE(result->done_with_host_buffer.IsReady());
    EXPECT_EQ(result->done_with_host_buffer.Error().code(), absl::StatusCode::kFailedPrecondition);
    result->buffer.Reset();
    EXPECT_TRUE(result->done_with_host_buffer.Await().ok());
  }
}

TEST_F(BufferTest, ZeroCopyOfUnalignedMemoryCopies) {
  auto data = AlignedFloats(32);
  auto result = client_->BufferFromHost({.data = data.get() + 1,
                                         .type = ElementType::kF32,
                                         .dims = {16},
                                         .semantics = HostBufferSemantics::kImmutableZeroCopy,
                                         .device = device_});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NE(*result->buffer.OpaqueDevicePointer(), data.get() + 1);
  EXPECT_TRUE(result->done_with_host_buffer.Await().ok());
}

TEST_F(BufferTest, ReferencesOfOneBufferByManyThreads) {
  auto client = MakeClient();
  Buffer buffer = MakeBuffer<float>(*client, ElementType::kF32, {1, 2, 3, 4}, {4});
  ASSERT_TRUE(buffer.ReadyEvent()->Await().ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&buffer] {
      for (int i = 0; i < 20000; ++i) {
        auto reference = ExternalReference::Acquire(buffer);
        ASSERT_TRUE(reference.ok()) << reference.status();
        ASSERT_EQ(static_cast<const float*>(reference->data())[3], 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(BufferTest, ExternalReferenceShowsTheContents) {
  Buffer buffer = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2}, {2});
  auto reference = ExternalReference::Acquire(buffer);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(static_cast<const float*>(reference->data())[1], 2);
  ExternalReference moved = *std::move(reference);
  // NOLINTNEXTLINE(bugprone-use-after-move): what a move leaves behind is the question.
  EXPECT_EQ(reference->data(), nullptr);
  moved.Release();
  EXPECT_EQ(moved.data(), nullptr);
}

// ---- Views -----------------------------------------------------------------------------------------------

TEST_F(BufferTest, AViewShowsTheSameBytesAsSomethingElse) {
  Buffer source = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2, 3, 4}, {4});
  int released = 0;
  {
    auto reference = ExternalReference::Acquire(source);
    ASSERT_TRUE(reference.ok()) << reference.status();
    void* data = const_cast<void*>(reference->data());
    auto view = client_->ViewOfDeviceMemory(
        {.data = data, .type = ElementType::kS32, .dims = {2, 2}, .memory = source.memory()},
        [&released] { ++released; });
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(*view->OpaqueDevicePointer(), data);
    EXPECT_EQ(view->memory(), source.memory());
    EXPECT_EQ(*view->OnDeviceSizeBytes(), 16u);
    EXPECT_THAT(Read<int32_t>(*view), ElementsAre(0x3f800000, 0x40000000, 0x40400000, 0x40800000));

    const std::vector<int64_t> column_major = {0, 1};
    auto turned = client_->ViewOfDeviceMemory({.data = data,
                                               .type = ElementType::kF32,
                                               .dims = {2, 2},
                                               .memory = source.memory(),
                                               .minor_to_major = column_major},
                                              [] {});
    ASSERT_TRUE(turned.ok()) << turned.status();
    EXPECT_THAT(Read<float>(*turned), ElementsAre(1, 3, 2, 4));

    auto halves = client_->ViewOfDeviceMemory(
        {.data = data, .type = ElementType::kU4, .dims = {32}, .memory = source.memory()}, [] {});
    ASSERT_TRUE(halves.ok()) << halves.status();
    EXPECT_EQ(*halves->OnDeviceSizeBytes(), 16u);
    std::vector<uint8_t> read = Read<uint8_t>(*halves);
    ASSERT_EQ(read.size(), 32u);
    EXPECT_EQ(read[5] & 0xf, 0x8);  // 0x3f800000, low half first
    EXPECT_EQ(read[6] & 0xf, 0xf);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_THAT(Read<float>(source), ElementsAre(1, 2, 3, 4));
}

TEST_F(BufferTest, ADonatedViewLeavesTheMemoryAlone) {
  Buffer source = MakeBuffer<float>(*client_, ElementType::kF32, {1, 2}, {2});
  auto add_one = Compile(*client_, R"(module @m {
    func.func public @main(%a: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2xf32> {
      %one = stablehlo.constant dense<1.0> : tensor<2xf32>
      %0 = stablehlo.add %a, %one : tensor<2xf32>
      return %0 : tensor<2xf32>
    } })");
  ASSERT_NE(add_one, nullptr);
  auto reference = ExternalReference::Acquire(source);
  ASSERT_TRUE(reference.ok()) << reference.status();
  auto view = client_->ViewOfDeviceMemory({.data = const_cast<void*>(reference->data()),
                                           .type = ElementType::kF32,
                                           .dims = {2},
                                           .memory = source.memory()},
                                          [] {});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<Buffer*> arguments = {&*view};
  std::vector<Buffer> outputs(1);
  Event done;
  absl::Status status =
      add_one->ExecuteOn(device_, absl::MakeSpan(arguments), absl::MakeSpan(outputs), &done, {});
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(done.Await().ok());
  EXPECT_THAT(Read<float>(outputs[0]), ElementsAre(2, 3));
  EXPECT_THAT(Read<float>(source), ElementsAre(1, 2));
}

TEST_F(BufferTest, ViewsThatCannotBeAreReleasedAtOnce) {
  float value = 1;
  int released = 0;
  const auto code = [&](const DeviceViewArgs& args) {
    return client_->ViewOfDeviceMemory(args, [&released] { ++released; }).status().code();
  };
  const Memory* memory = device_->default_memory();
  const std::vector<int64_t> no_order = {1};
  EXPECT_EQ(code({.data = &value, .type = ElementType::kF32, .dims = {-1}, .memory = memory}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = &value, .type = ElementType::kF32, .dims = {0}, .memory = memory}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = &value, .type = ElementType::kF32, .dims = {1}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.type = ElementType::kF32, .dims = {1}, .memory = memory}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.data = &value,
                  .type = ElementType::kF32,
                  .dims = {1},
                  .memory = memory,
                  .minor_to_major = no_order}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(released, 5);
}

// A buffer, and a word that tells when nothing keeps it any more.
struct Kept {
  explicit Kept(Buffer held) : buffer(std::move(held)) {}
  Buffer buffer;
};

TEST_F(BufferTest, SharedWithAnotherClient) {
  auto other = MakeClient(2);
  auto kept = std::make_shared<Kept>(
      MakeBuffer<float>(*client_, ElementType::kF32, {1, 2, 3, 4, 5, 6}, {2, 3}, client_->devices()[1]));
  std::weak_ptr<Kept> alive = kept;
  auto view = kept->buffer.ShareWith(other, kept);
  ASSERT_TRUE(view.ok()) << view.status();
  kept.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(view->client(), other);
  EXPECT_EQ(view->device(), other->devices()[1]);
  EXPECT_THAT(view->dimensions(), ElementsAre(2, 3));
  EXPECT_EQ(*view->OpaqueDevicePointer(), *alive.lock()->buffer.OpaqueDevicePointer());

  auto twice = Compile(*other, R"(
    module @twice { func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %y = stablehlo.add %x, %x : tensor<2x3xf32>
      return %y : tensor<2x3xf32> } })",
                       TestCompileOptions(1, {other->devices()[1]->id()}));
  Buffer* args[] = {&*view};
  Buffer out[1];
  Event done;
  ASSERT_TRUE(twice->ExecuteOn(other->devices()[1], args, absl::MakeSpan(out), &done).ok());
  ASSERT_TRUE(done.Await().ok());
  EXPECT_THAT(Read<float>(out[0]), ElementsAre(2, 4, 6, 8, 10, 12));
  view->Reset();
  EXPECT_TRUE(alive.expired());

  // And back: what the other client has made becomes a buffer of the first.
  auto result = std::make_shared<Kept>(std::move(out[0]));
  auto back = result->buffer.ShareWith(client_, result);
  ASSERT_TRUE(back.ok()) << back.status();
  result.reset();
  auto copy = back->CopyToDevice(client_->devices()[0]);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_THAT(Read<float>(*copy), ElementsAre(2, 4, 6, 8, 10, 12));
  EXPECT_THAT(Read<float>(*back), ElementsAre(2, 4, 6, 8, 10, 12));
}

TEST_F(BufferTest, SharedBuffersOfAnyKind) {
  auto other = MakeClient(2);
  const auto check = [&](Buffer made) {
    auto kept = std::make_shared<Kept>(std::move(made));
    const Buffer& buffer = kept->buffer;
    auto view = buffer.ShareWith(other, kept);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->element_type(), buffer.element_type());
    EXPECT_EQ(view->memory()->kind(), buffer.memory()->kind());
    EXPECT_EQ(view->GetMemoryLayout()->minor_to_major, buffer.GetMemoryLayout()->minor_to_major);
    EXPECT_EQ(Read<uint8_t>(*view), Read<uint8_t>(buffer));
  };
  check(MakeBuffer<uint8_t>(*client_, ElementType::kS4, {1, 2, 3}, {3}));
  check(MakeBuffer<uint8_t>(*client_, ElementType::kPred, {1}, {}));
  check(MakeBuffer<float>(*client_, ElementType::kF32, {}, {0, 3}));
  const float values[] = {1, 2, 3, 4, 5, 6};
  const int64_t column_major[] = {0, 1};
  auto laid_out = client_->BufferFromHost({.data = values,
                                           .type = ElementType::kF32,
                                           .dims = {2, 3},
                                           .device = device_,
                                           .minor_to_major = column_major});
  ASSERT_TRUE(laid_out.ok());
  check(std::move(laid_out->buffer));
  auto pinned = client_->BufferFromHost({.data = values,
                                         .type = ElementType::kF32,
                                         .dims = {2, 3},
                                         .memory = device_->FindMemory("pinned_host")});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  check(std::move(pinned->buffer));
}

}  // namespace
}  // namespace helmway::pjrt
