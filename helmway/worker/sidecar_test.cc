#include "helmway/worker/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/worker/python_programs_testing.h"

namespace helmway::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(2);

class SidecarTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(TestPython().empty()) << "HELMWAY_PYTHON is not set"; }
  void TearDown() override {
    for (const auto& sidecar : started_) sidecar->Kill();
  }

  std::shared_ptr<Sidecar> Start(const std::string& python = TestPython()) {
    started_.push_back(Sidecar::Start({python, 0, {{0, 2, 0, 0}}}, &threads_));
    return started_.back();
  }

  // A command that takes the place of Python and says what the script says, on the descriptor 3.
  std::string Command(const std::string& script) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/sidecar_test_", getpid(), "_", number_++);
    std::ofstream(path) << "#!" << TestPython() << "\n" << script;
    chmod(path.c_str(), 0700);
    return path;
  }

  static SidecarArrays Halves(const std::vector<float>& values) {
    std::vector<SidecarShard> shards;
    for (int d = 0; d < 2; ++d) {
      const std::string bytes(reinterpret_cast<const char*>(values.data() + 2 * d), 2 * sizeof(float));
      shards.push_back({d, Lasting(bytes)});
    }
    return {shards};
  }
  static std::vector<float> Values(const SidecarArrays& arrays) {
    std::vector<float> values;
    for (const SidecarShard& shard : arrays.at(0)) {
      values.resize(values.size() + static_cast<size_t>(shard.bytes.size) / sizeof(float));
      std::memcpy(&*values.end() - shard.bytes.size / sizeof(float), shard.bytes.data,
                  static_cast<size_t>(shard.bytes.size));
    }
    return values;
  }
  static absl::Status Load(Sidecar& sidecar, cluster::ExecutableId id, const std::string& name) {
    return sidecar.Load(id, name, Lasting(PickledFunctions().at(name)), false);
  }

  async::GrowingPool threads_{{.name = "test"}};

 private:
  std::vector<std::shared_ptr<Sidecar>> started_;
  int number_ = 0;
};

TEST_F(SidecarTest, RunsFunctions) {
  const auto sidecar = Start();
  ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok()) << sidecar->AwaitReady(kPatience);
  EXPECT_THAT(sidecar->python_version(), HasSubstr("3."));
  EXPECT_THAT(sidecar->jax_version(), HasSubstr("."));
  ASSERT_TRUE(Load(*sidecar, 1, "add_one").ok());
  ASSERT_TRUE(Load(*sidecar, 2, "keep").ok());
  for (int i = 0; i < 2; ++i) {
    const auto outputs = sidecar->Run(1, 7, Halves({1, 2, 3, 4}));
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ(Values(*outputs), (std::vector<float>{2, 3, 4, 5}));
  }
  for (int i = 1; i < 3; ++i) {
    const auto outputs = sidecar->Run(2, i, Halves({0, 0, 0, 0}));
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    EXPECT_EQ(Values(*outputs)[0], i);
  }
  sidecar->Unload(1, 7);
}

TEST_F(SidecarTest, ErrorsArePythons) {
  const auto sidecar = Start();
  ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok());
  const absl::Status unreadable = Load(*sidecar, 1, "unreadable");
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unreadable.message()), HasSubstr("ZeroDivisionError: division by zero\nTraceback"));
  ASSERT_TRUE(Load(*sidecar, 2, "fail").ok());
  const absl::Status failed = sidecar->Run(2, 1, Halves({1, 2, 3, 4})).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("ValueError: no such row\nTraceback"));
  ASSERT_TRUE(Load(*sidecar, 3, "numpy_array").ok());
  EXPECT_THAT(std::string(sidecar->Run(3, 1, Halves({1, 2, 3, 4})).status().message()),
              HasSubstr("output 0 is a ndarray, it must be a jax.Array"));
  // It goes on.
  ASSERT_TRUE(Load(*sidecar, 4, "add_one").ok());
  EXPECT_TRUE(sidecar->Run(4, 1, Halves({1, 2, 3, 4})).ok());
}

TEST_F(SidecarTest, ItsEndIsDataLoss) {
  const auto sidecar = Start();
  ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok());
  ASSERT_TRUE(Load(*sidecar, 1, "sleep").ok());
  ASSERT_TRUE(Load(*sidecar, 2, "leave").ok());
  absl::Status sleeping;
  std::thread waits([&] { sleeping = sidecar->Run(1, 1, Halves({1, 2, 3, 4})).status(); });
  const absl::Status left = sidecar->Run(2, 2, Halves({1, 2, 3, 4})).status();
  waits.join();
  for (const absl::Status& status : {left, sleeping, sidecar->status(), Load(*sidecar, 3, "add_one"),
                                     sidecar->Run(1, 1, Halves({1, 2, 3, 4})).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("exit code 5"));
  }
}

TEST_F(SidecarTest, KillEndsWhatRuns) {
  const auto sidecar = Start();
  ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok());
  ASSERT_TRUE(Load(*sidecar, 1, "sleep").ok());
  std::thread kills([&] {
    absl::SleepFor(absl::Milliseconds(50));
    sidecar->Kill();
  });
  EXPECT_EQ(sidecar->Run(1, 1, Halves({1, 2, 3, 4})).status().code(), absl::StatusCode::kCancelled);
  kills.join();
  // Before it is ready, too.
  const auto early = Start();
  early->Kill();
  EXPECT_EQ(early->AwaitReady(kPatience).code(), absl::StatusCode::kCancelled);
}

TEST_F(SidecarTest, CommandsThatAreNoPython) {
  EXPECT_EQ(Start("/no/such/python")->AwaitReady(kPatience).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status ended = Start("/bin/false")->AwaitReady(kPatience);
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("exit code 1"));
}

// Functions may write to the connection what they like; only their own session is lost.
TEST_F(SidecarTest, BadMessagesEndIt) {
  const std::string ready =
      "import array, json, os, socket, struct, time\n"
      "s = socket.socket(fileno=3)\n"
      "def say(text, flags=0, size=0, fds=()):\n"
      "  prefix = struct.pack('<IIQ', len(text), flags, size)\n"
      "  rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []\n"
      "  s.sendmsg([prefix + text], rights)\n"
      "say(b'{\"ready\": 1, \"python\": \"3.1\", \"jax\": \"0.1\"}')\n"
      // Until it is called.
      "heard = b''\n"
      "while b'\"stream\":1' not in heard: heard = heard[-100:] + s.recv(1 << 16)\n";
  for (const std::string bad : {
           "s.send(b'x' * 64)", "say(b'[1]')", "say(b'{')", "say(b'{}')", "say(b'{\"call\": \"1\"}')",
           "say(b'{\"call\": 1}', 0, 1 << 20)",
           "say(b'{\"call\": 1}', 1, 1 << 20)",                                     // no file
           "say(b'{\"call\": 1}', 1, 1 << 20, [os.open('/dev/null', os.O_RDWR)])",  // another kind of file
           "say(b'{\"call\": 1}', 1, 1 << 20, [os.memfd_create('x')])",             // that may be cut off
       }) {
    const auto sidecar = Start(Command(absl::StrCat(ready, bad, "\ntime.sleep(1000)\n")));
    ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok()) << bad;
    EXPECT_EQ(sidecar->Run(1, 1, Halves({1, 2, 3, 4})).status().code(), absl::StatusCode::kDataLoss) << bad;
  }
  for (const std::string outputs : {"1", "[1]", "[[1]]", "[[[0, 0]]]", "[[[0, 0, \"8\"]]]", "[[[0, 0, 8]]]",
                                    "[[[0, -8, 8]]]", "[[[0, 0, -8]]]", "[[[0, 9223372036854775807, 8]]]"}) {
    const auto sidecar = Start(Command(
        absl::StrCat(ready, "say(b'{\"call\": 1, \"outputs\": ", outputs, "}')\ntime.sleep(1000)\n")));
    ASSERT_TRUE(sidecar->AwaitReady(kPatience).ok());
    EXPECT_EQ(sidecar->Run(1, 1, Halves({1, 2, 3, 4})).status().code(), absl::StatusCode::kInternal)
        << outputs;
  }
}

}  // namespace
}  // namespace helmway::worker
