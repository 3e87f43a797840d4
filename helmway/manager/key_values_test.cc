// What the workers of a slice tell each other through the manager.
#include "helmway/manager/key_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "helmway/manager/manager_testing.h"

namespace helmway::manager {
namespace {

using cluster::proto::KeyValueRequest;
using ::testing::AllOf;
using ::testing::HasSubstr;

class KeyValuesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kManager = 77;

  // Two slices of two hosts.
  KeyValuesTest() : harness_(Settings()) {}

  static ManagerSettings Settings() {
    ManagerSettings settings = TestSettings(2, 2);
    settings.key_values.bytes = 100;
    settings.key_values.waiting_calls = 3;
    return settings;
  }

  // A process in a place, that makes its client. Returns its stream.
  ConnectionId Start(uint64_t incarnation, int slice, int task, uint64_t generation = 0) {
    FakeWorker worker{
        .port = static_cast<int>(incarnation), .incarnation = incarnation, .slice = slice, .task = task};
    worker.generation = generation;
    if (generation != 0) {
      cluster::proto::Place held;
      held.set_slice(slice);
      held.set_task(task);
      held.set_worker(2 * slice + task);
      held.set_instance_type("cpu:2x2");
      worker.held = held;
    }
    const ConnectionId connection = harness_.WorkerHello(worker);
    EXPECT_TRUE(harness_.Given(connection).has_value());
    return connection;
  }
  void Formed(ConnectionId connection, uint64_t generation) {
    const auto given = harness_.Given(connection);
    harness_.Ready(connection, TestDevices(given->worker(), 2), false, generation);
    harness_.Tick();
    harness_.AnswerAll();
  }
  bool ToldToRestart(ConnectionId connection) {
    const auto& messages = harness_.to_workers[connection];
    return std::any_of(messages.begin(), messages.end(),
                       [](const auto& message) { return message.has_slice_restarted(); });
  }

  KeyValueRequest Request(uint64_t incarnation, const std::string& key, uint64_t manager = kManager) {
    KeyValueRequest request;
    request.set_incarnation(incarnation);
    request.set_manager_incarnation(manager);
    request.set_key(key);
    return request;
  }
  KeyValueCallId Call(const KeyValueRequest& request) {
    harness_.Apply(harness_.manager->OnKeyValueCall(harness_.now, ++calls_, request));
    return calls_;
  }
  KeyValueCallId Put(uint64_t incarnation, const std::string& key, const std::string& value) {
    KeyValueRequest request = Request(incarnation, key);
    request.set_put(value);
    return Call(request);
  }
  KeyValueCallId Get(uint64_t incarnation, const std::string& key,
                     absl::Duration timeout = absl::Minutes(1)) {
    KeyValueRequest request = Request(incarnation, key);
    request.set_get_within_ms(absl::ToInt64Milliseconds(timeout));
    return Call(request);
  }
  KeyValueCallId GetIfThere(uint64_t incarnation, const std::string& key) {
    KeyValueRequest request = Request(incarnation, key);
    request.set_get_if_there(true);
    return Call(request);
  }
  bool Answered(KeyValueCallId call) const { return harness_.answers.contains(call); }
  absl::Status StatusOf(KeyValueCallId call) const { return harness_.answers.at(call).status; }
  std::string ValueOf(KeyValueCallId call) const {
    const AnswerKeyValue& answer = harness_.answers.at(call);
    return answer.status.ok() ? answer.answer.has_value() ? answer.answer.value() : "(none)"
                              : answer.status.ToString();
  }
  uint64_t GenerationOf(KeyValueCallId call) const { return harness_.answers.at(call).answer.generation(); }

  ManagerHarness harness_;
  KeyValueCallId calls_ = 0;
};

TEST_F(KeyValuesTest, WhatOnePutsTheOthersGet) {
  Start(1, 0, 0);
  Start(2, 0, 1);
  EXPECT_EQ(ValueOf(GetIfThere(1, "a")), "(none)");
  const std::string bytes("1\0\xff", 3);
  EXPECT_TRUE(StatusOf(Put(1, "a", bytes)).ok());
  EXPECT_EQ(ValueOf(GetIfThere(2, "a")), bytes);
  const KeyValueCallId get = Get(2, "a");
  EXPECT_EQ(ValueOf(get), bytes);
  EXPECT_NE(GenerationOf(get), 0u);
}

TEST_F(KeyValuesTest, AGetWaitsForThePut) {
  Start(1, 0, 0);
  Start(2, 0, 1);
  const KeyValueCallId first = Get(1, "a");
  const KeyValueCallId second = Get(2, "a");
  const KeyValueCallId other = Get(2, "b");
  EXPECT_FALSE(Answered(first));
  Put(2, "a", "1");
  EXPECT_EQ(ValueOf(first), "1");
  EXPECT_EQ(ValueOf(second), "1");
  EXPECT_FALSE(Answered(other));
  EXPECT_EQ(GenerationOf(first), GenerationOf(second));
}

TEST_F(KeyValuesTest, AGetHasItsTime) {
  Start(1, 0, 0);
  const KeyValueCallId call = Get(1, "nobody\n", absl::Seconds(7));
  harness_.Advance(absl::Seconds(6.9));
  EXPECT_FALSE(Answered(call));
  harness_.Advance(absl::Seconds(0.2));
  ASSERT_TRUE(Answered(call));
  EXPECT_EQ(StatusOf(call).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(StatusOf(call).message()),
              AllOf(HasSubstr("slice 0"), HasSubstr("'nobody\\n'"), HasSubstr("1 of 2 host(s)")));
  // Answered once.
  harness_.answers.clear();
  Put(1, "nobody\n", "1");
  EXPECT_FALSE(Answered(call));
}

TEST_F(KeyValuesTest, NobodyWaitsForACallerThatIsGone) {
  Start(1, 0, 0);
  const KeyValueCallId call = Get(1, "a", absl::Seconds(7));
  harness_.manager->OnKeyValueGone(call);
  harness_.manager->OnKeyValueGone(call);
  Put(1, "a", "1");
  harness_.Advance(absl::Seconds(10));
  EXPECT_FALSE(Answered(call));
}

TEST_F(KeyValuesTest, AKeyHasOneValue) {
  Start(1, 0, 0);
  Put(1, "a", "1");
  EXPECT_TRUE(StatusOf(Put(1, "a", "1")).ok());
  EXPECT_EQ(StatusOf(Put(1, "a", "2")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ValueOf(GetIfThere(1, "a")), "1");
}

TEST_F(KeyValuesTest, SlicesAreApart) {
  Start(1, 0, 0);
  Start(2, 1, 0);
  Put(1, "a", "1");
  const KeyValueCallId call = GetIfThere(2, "a");
  EXPECT_EQ(ValueOf(call), "(none)");
  EXPECT_NE(GenerationOf(call), GenerationOf(GetIfThere(1, "a")));
}

TEST_F(KeyValuesTest, Bounded) {
  Start(1, 0, 0);
  Start(2, 1, 0);
  EXPECT_TRUE(StatusOf(Put(1, "a", std::string(50, 'x'))).ok());
  const absl::Status full = StatusOf(Put(1, "b", std::string(49, 'x')));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr("51 bytes"), HasSubstr("at most 100")));
  EXPECT_TRUE(StatusOf(Put(1, "b", std::string(48, 'x'))).ok());
  EXPECT_TRUE(StatusOf(Put(2, "b", std::string(99, 'x'))).ok());

  KeyValueCallId waits = 0;
  for (int i = 0; i < 3; ++i) waits = Get(1, "c");
  EXPECT_FALSE(Answered(waits));
  EXPECT_EQ(StatusOf(Get(1, "c")).code(), absl::StatusCode::kResourceExhausted);
  harness_.manager->OnKeyValueGone(waits);
  EXPECT_FALSE(Answered(Get(1, "c")));
}

TEST_F(KeyValuesTest, AnUnknownCallIsSaidToBe) {
  Start(1, 0, 0);
  EXPECT_EQ(StatusOf(Call(Request(1, "a"))).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(KeyValuesTest, AWorkerThatDiesBeforeTheSliceIsFormedBeginsItAnew) {
  const ConnectionId first = Start(1, 0, 0);
  const ConnectionId second = Start(2, 0, 1);
  const uint64_t before = GenerationOf(Put(1, "a", "1"));
  const KeyValueCallId waits = Get(2, "b");
  harness_.KillWorker(first);
  Start(3, 0, 0);
  EXPECT_FALSE(Answered(waits));
  // The new process finds nothing of the old one, and those that waited for that one learn it.
  const KeyValueCallId look = GetIfThere(3, "a");
  EXPECT_EQ(ValueOf(look), "(none)");
  EXPECT_NE(GenerationOf(look), before);
  EXPECT_EQ(StatusOf(waits).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(StatusOf(waits).message()), HasSubstr("host 0 of slice 0 has started again"));
  EXPECT_TRUE(ToldToRestart(second));
  // From now on it is no part of the slice, until it has started again.
  EXPECT_EQ(StatusOf(Put(2, "b", "2")).code(), absl::StatusCode::kAborted);
  harness_.KillWorker(second);
  Start(4, 0, 1);
  const KeyValueCallId put = Put(4, "b", "2");
  EXPECT_EQ(GenerationOf(put), GenerationOf(look));
  EXPECT_EQ(ValueOf(Get(3, "b")), "2");
}

TEST_F(KeyValuesTest, AWorkerThatComesToAFormedSliceRestartsIt) {
  const ConnectionId first = Start(1, 0, 0);
  const ConnectionId second = Start(2, 0, 1);
  const ConnectionId elsewhere = Start(9, 1, 0);
  const uint64_t generation = GenerationOf(Put(1, "a", "1"));
  Put(2, "b", "2");
  const uint64_t other_generation = GenerationOf(Put(9, "a", "1"));
  Formed(first, generation);
  Formed(second, generation);
  Formed(elsewhere, other_generation);
  // Keys go on to be of use.
  EXPECT_TRUE(StatusOf(Put(1, "nccl", "id")).ok());
  EXPECT_EQ(ValueOf(Get(2, "nccl")), "id");
  EXPECT_FALSE(ToldToRestart(first));

  harness_.KillWorker(second);
  EXPECT_FALSE(ToldToRestart(first));
  Start(3, 0, 1);
  EXPECT_EQ(ValueOf(GetIfThere(3, "b")), "(none)");
  EXPECT_TRUE(ToldToRestart(first));
  EXPECT_FALSE(ToldToRestart(elsewhere));
  EXPECT_THAT(harness_.to_workers[first].back().slice_restarted().reason(),
              HasSubstr("host 1 of slice 0 has started again"));
}

TEST_F(KeyValuesTest, AWorkerWithoutAStreamIsToldWhenItComesBack) {
  const ConnectionId first = Start(1, 0, 0);
  const ConnectionId second = Start(2, 0, 1);
  const uint64_t generation = GenerationOf(Put(1, "a", "1"));
  Put(2, "b", "2");
  Formed(first, generation);
  Formed(second, generation);
  harness_.CloseWorker(first);
  harness_.KillWorker(second);
  Start(3, 0, 1);
  Put(3, "b", "3");
  EXPECT_TRUE(ToldToRestart(Start(1, 0, 0, generation)));
}

TEST_F(KeyValuesTest, AManagerThatRestartsHasLostTheKeys) {
  Start(1, 0, 0);
  Put(1, "a", "1");
  harness_.Restart(kManager + 1);
  // One that is making its client, before and after it has registered again.
  const absl::Status before = StatusOf(Get(1, "b"));
  EXPECT_EQ(before.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(before.message()), HasSubstr("the resource manager has started again"));
  Start(1, 0, 0);
  EXPECT_EQ(StatusOf(Get(1, "b")).code(), absl::StatusCode::kAborted);
}

TEST_F(KeyValuesTest, FormedSlicesOutliveTheManager) {
  const ConnectionId first = Start(1, 0, 0);
  Start(2, 0, 1);
  const uint64_t generation = GenerationOf(Put(1, "a", "1"));
  Put(2, "b", "2");
  Formed(first, generation);
  harness_.Restart(kManager + 1);
  KeyValueRequest request = Request(1, "nccl");
  request.set_generation(generation);
  request.set_put("id");
  // It asks again until it is known.
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnavailable);
  const ConnectionId back = Start(1, 0, 0, generation);
  const ConnectionId peer = Start(2, 0, 1, generation);
  EXPECT_TRUE(StatusOf(Call(request)).ok());
  EXPECT_EQ(ValueOf(Get(2, "nccl")), "id");
  EXPECT_FALSE(ToldToRestart(back));
  EXPECT_FALSE(ToldToRestart(peer));
  // And can be restarted by one that has died meanwhile.
  harness_.KillWorker(peer);
  Start(3, 0, 1);
  KeyValueRequest fresh = Request(3, "b", kManager + 1);
  fresh.set_put("3");
  EXPECT_TRUE(StatusOf(Call(fresh)).ok());
  EXPECT_TRUE(ToldToRestart(back));
}

TEST_F(KeyValuesTest, AManagerThatRestartsWhileAWorkerDoes) {
  Start(1, 0, 0);
  Start(2, 0, 1);
  const uint64_t generation = GenerationOf(Put(1, "a", "1"));
  harness_.Restart(kManager + 1);
  // The new process is known before the one that is part of the old client.
  Start(3, 0, 1);
  KeyValueRequest fresh = Request(3, "b", kManager + 1);
  fresh.set_put("3");
  EXPECT_TRUE(StatusOf(Call(fresh)).ok());
  EXPECT_TRUE(ToldToRestart(Start(1, 0, 0, generation)));
}

TEST_F(KeyValuesTest, AWorkerWhosePlaceIsTaken) {
  const ConnectionId first = Start(1, 0, 0);
  harness_.KillWorker(first);
  Start(2, 0, 0);
  EXPECT_EQ(StatusOf(GetIfThere(1, "a")).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace helmway::manager
