#include "helmway/pjrt/event.h"

#include <atomic>
#include <memory>

#include "helmway/base/mutex.h"
#include "helmway/pjrt/pjrt_testing.h"

namespace helmway::pjrt {
namespace {

class EventTest : public PjrtTest {
 protected:
  // An event that becomes ready when `*buffer` is dropped: a zero-copy buffer's hold on its host memory.
  Event OpenEvent(const Client& client, Buffer* buffer) {
    auto result = client.BufferFromHost({.data = data_,
                                         .type = ElementType::kF32,
                                         .dims = {16},
                                         .semantics = HostBufferSemantics::kImmutableZeroCopy,
                                         .device = client.devices()[0]});
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return Event();
    *buffer = std::move(result->buffer);
    return std::move(result->done_with_host_buffer);
  }
  alignas(64) float data_[16] = {};
};

TEST_F(EventTest, EmptyEventsAreReady) {
  Event event;
  EXPECT_TRUE(event.empty());
  EXPECT_TRUE(event.IsReady());
  EXPECT_TRUE(event.Await().ok());
  EXPECT_TRUE(event.Error().ok());
  int calls = 0;
  event.OnReady([&](absl::Status status) { calls += status.ok(); });
  EXPECT_EQ(calls, 1);
}

TEST_F(EventTest, CallbackRunsOnceAfterTheEventIsGone) {
  auto client = MakeClient();
  Buffer buffer;
  Event event = OpenEvent(*client, &buffer);
  ASSERT_FALSE(event.IsReady());
  std::atomic<int> calls = 0;
  base::Notification called;
  auto state = std::make_shared<int>(7);
  std::weak_ptr<int> watch = state;
  event.OnReady([&, state = std::move(state)](absl::Status status) {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(*state, 7);
    ++calls;
    called.Notify();
  });
  event.Reset();
  EXPECT_TRUE(event.empty());
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(watch.expired());
  buffer.Reset();
  called.WaitForNotification();
  client.reset();  // Ends the plugin's threads, so that the callback has returned and freed its state.
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(watch.expired());
}

TEST_F(EventTest, EveryCallbackRuns) {
  auto client = MakeClient();
  Buffer buffer;
  Event event = OpenEvent(*client, &buffer);
  std::atomic<int> calls = 0;
  for (int i = 0; i < 10; ++i) event.OnReady([&](absl::Status) { ++calls; });
  buffer.Reset();
  ASSERT_TRUE(event.Await().ok());
  event.OnReady([&](absl::Status) { ++calls; });
  client.reset();
  EXPECT_EQ(calls, 11);
}

TEST_F(EventTest, ReadyEventCallsBackAtOnceWithItsError) {
  auto client = MakeClient();
  auto buffer =
      client->ErrorBuffer(absl::AbortedError("no more"), ElementType::kF32, {}, client->memories()[0]);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto event = buffer->ReadyEvent();
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_EQ(event->Await().code(), absl::StatusCode::kAborted);
  absl::Status seen;
  event->OnReady([&](absl::Status status) { seen = std::move(status); });
  EXPECT_EQ(seen.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(event->Error().code(), absl::StatusCode::kAborted);
}

TEST_F(EventTest, MovesCarryTheEvent) {
  auto client = MakeClient();
  Buffer buffer;
  Event a = OpenEvent(*client, &buffer);
  Event b = std::move(a);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move): the state after a move is what is tested.
  EXPECT_FALSE(b.IsReady());
  a = std::move(b);
  EXPECT_FALSE(a.IsReady());
  buffer.Reset();
  EXPECT_TRUE(a.Await().ok());
}

}  // namespace
}  // namespace helmway::pjrt
