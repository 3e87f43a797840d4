#include "helmway/net/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

namespace helmway::net {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

std::shared_ptr<SharedArena> MakeArena(int64_t capacity = 4 * kMiB) {
  auto arena = SharedArena::Create(capacity);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

std::unique_ptr<LaneSender> MakeLane(std::shared_ptr<SharedArena> arena) {
  auto lane = LaneSender::Create(std::move(arena));
  EXPECT_TRUE(lane.ok()) << lane.status();
  return *std::move(lane);
}

base::HostBytes Filled(SharedArena& arena, int64_t size, uint8_t value) {
  std::optional<base::HostBlock> block = arena.Allocate(size);
  EXPECT_TRUE(block.has_value());
  if (!block) return {};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data) % base::kHostMemoryAlignment, 0U);
  std::memset(block->data, value, static_cast<size_t>(size));
  return std::move(*block).Finish();
}

TEST(SharedArenaTest, GivesOutWhatIsFreeAndTakesItBack) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  EXPECT_FALSE(arena->Allocate(0));
  EXPECT_FALSE(arena->Allocate(4 * kMiB + 1));
  {
    const auto all = arena->Allocate(4 * kMiB);
    EXPECT_TRUE(all);
    EXPECT_FALSE(arena->Allocate(1));
  }
  // In pieces that come back in any order, and are one again.
  std::vector<base::HostBlock> pieces;
  for (int i = 0; i < 4; ++i) pieces.push_back(*arena->Allocate(kMiB - 7));
  EXPECT_FALSE(arena->Allocate(kMiB));
  for (const size_t i : {2, 0, 3, 1}) pieces[i] = {};
  EXPECT_TRUE(arena->Allocate(4 * kMiB));
  uint8_t other = 0;
  EXPECT_FALSE(arena->OffsetOf(&other));
}

TEST(SharedArenaTest, SaysThatTheSystemHasNone) {
  const auto none = SharedArena::Create(int64_t{1} << 62);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), HasSubstr("memory to share"));
}

TEST(LaneTest, BytesStayUntilTheyAreGivenBack) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  const std::unique_ptr<LaneSender> sender = MakeLane(arena);
  base::HostBytes bytes = Filled(*arena, 3 * kMiB, 7);
  EXPECT_FALSE(sender->Share(bytes)) << "before the receiver has opened the lane";
  auto receiver = LaneReceiver::Open(sender->offer());
  ASSERT_TRUE(receiver.ok()) << receiver.status();
  EXPECT_TRUE(sender->accepted());

  const std::optional<LaneBytes> shared = sender->Share(bytes);
  ASSERT_TRUE(shared);
  bytes = {};
  auto taken = (*receiver)->Take(*shared);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size, 3 * kMiB);
  EXPECT_EQ(taken->data[0], 7);
  EXPECT_EQ(taken->data[3 * kMiB - 1], 7);
  EXPECT_FALSE(taken->exclusive);
  sender->Collect();
  EXPECT_FALSE(arena->Allocate(2 * kMiB));

  // The bytes outlive the receiver's end.
  receiver->reset();
  EXPECT_EQ(taken->data[kMiB], 7);
  *taken = {};
  sender->Collect();
  EXPECT_TRUE(arena->Allocate(4 * kMiB));
}

TEST(LaneTest, ManyUsesGoRound) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  const std::unique_ptr<LaneSender> sender = MakeLane(arena);
  const auto receiver = LaneReceiver::Open(sender->offer());
  ASSERT_TRUE(receiver.ok()) << receiver.status();
  const base::HostBytes bytes = Filled(*arena, 64, 1);
  for (int i = 0; i < 20000; ++i) {
    const auto shared = sender->Share(bytes);
    ASSERT_TRUE(shared);
    ASSERT_TRUE((*receiver)->Take(*shared).ok());
  }
  // One that gives nothing back gets no more at some time.
  std::vector<base::HostBytes> kept;
  for (int i = 0; i < 20000; ++i) {
    const auto shared = sender->Share(bytes);
    if (!shared) break;
    kept.push_back(*(*receiver)->Take(*shared));
  }
  EXPECT_LT(kept.size(), 20000U);
  kept.clear();
  EXPECT_TRUE(sender->Share(bytes));
}

TEST(LaneTest, WhatALostReceiverHasIsNotUsedAgain) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  std::unique_ptr<LaneSender> sender = MakeLane(arena);
  const auto receiver = LaneReceiver::Open(sender->offer());
  ASSERT_TRUE(receiver.ok()) << receiver.status();
  const auto shared = sender->Share(Filled(*arena, kMiB, 9));
  ASSERT_TRUE(shared);
  const auto taken = (*receiver)->Take(*shared);
  ASSERT_TRUE(taken.ok());
  sender.reset();
  EXPECT_TRUE(arena->retired());
  EXPECT_FALSE(arena->Allocate(1));
  EXPECT_EQ(taken->data[0], 9);

  // One that has nothing takes nothing along.
  const std::shared_ptr<SharedArena> other = MakeArena();
  ASSERT_TRUE(LaneReceiver::Open(MakeLane(other)->offer()).ok());
  EXPECT_FALSE(other->retired());
}

TEST(LaneTest, RefusesWhatIsNoSuchMemory) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  const std::unique_ptr<LaneSender> sender = MakeLane(arena);
  auto refusal = [&](auto change) {
    LaneOffer offer = sender->offer();
    change(offer);
    const auto receiver = LaneReceiver::Open(offer);
    EXPECT_EQ(receiver.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(sender->accepted());
    return std::string(receiver.status().message());
  };
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const int growing = memfd_create("helmway-lane", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(growing, 1 << 20), 0);
  EXPECT_THAT(refusal([](LaneOffer& o) { o.process = 0x7ffffff0; }), HasSubstr("No such file"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.process = -1; }), HasSubstr("process -1"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.lane_fd = 9999; }), HasSubstr("No such file"));
  EXPECT_THAT(refusal([&](LaneOffer& o) { o.lane_fd = pipes[0]; }), HasSubstr("not memory to share"));
  EXPECT_THAT(refusal([&](LaneOffer& o) { o.lane_fd = growing; }), HasSubstr("size"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.lane_fd = o.arena_fd; }), HasSubstr("size"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.arena_size += 1; }), HasSubstr("size"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.arena_size = -1; }), HasSubstr("size"));
  EXPECT_THAT(refusal([](LaneOffer& o) { o.token ^= 1; }), HasSubstr("another one"));
  for (const int fd : {pipes[0], pipes[1], growing}) close(fd);

  const auto receiver = LaneReceiver::Open(sender->offer());
  ASSERT_TRUE(receiver.ok()) << receiver.status();
  const int64_t size = 4 * kMiB;
  for (const LaneBytes& bytes : {LaneBytes{0, 0, 1}, LaneBytes{1, -1, 1}, LaneBytes{1, 0, -1},
                                 LaneBytes{1, size, 1}, LaneBytes{1, 1, size}, LaneBytes{1, size + 1, 0}}) {
    EXPECT_EQ((*receiver)->Take(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(LaneTest, AProcessThatIsKilledTakesItsMemoryAlong) {
  const std::shared_ptr<SharedArena> arena = MakeArena();
  const std::unique_ptr<LaneSender> sender = MakeLane(arena);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const LaneOffer offer = sender->offer();
  const pid_t child = fork();
  if (child == 0) {
    // What it has inherited is not what it would open.
    const auto receiver = LaneReceiver::Open(offer);
    const char answer = receiver.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_TRUE(sender->Share(Filled(*arena, kMiB, 3)));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  for (const int fd : ready) close(fd);
}

}  // namespace
}  // namespace helmway::net
