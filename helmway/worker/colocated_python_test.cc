#include "helmway/worker/colocated_python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/worker/link_testing.h"
#include "helmway/worker/python_programs_testing.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr cluster::ElementType kF32 = 11;

class ColocatedPythonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(TestPython().empty()) << "HELMWAY_PYTHON is not set";
    MakeWorker(TestPython());
  }
  void TearDown() override {
    session_->Close();
    session_.reset();
    worker_.reset();
  }

  void MakeWorker(const std::string& python) {
    if (session_ != nullptr) TearDown();
    const char* plugin = std::getenv("HELMWAY_PJRT_PLUGIN");
    ASSERT_NE(plugin, nullptr);
    auto worker =
        Worker::Create({.plugin_path = plugin, .python = python, .virtual_devices = 2, .host_memory = pool_});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    session_ = worker_->OpenSession(1, nullptr);
  }

  absl::Status Load(cluster::ExecutableId id, const std::string& name, const std::string& jax_version = "") {
    cluster::CompileProgram command;
    command.executable = id;
    command.code = PythonProgramOf(name);
    command.devices = {0, 1};
    command.python.emplace();
    command.python->hosts = {{0, 2, 0, 0}};
    command.python->jax_version = jax_version;
    Answer<absl::StatusOr<cluster::CompiledProgram>> compiled;
    session_->Compile(std::move(command), compiled);
    const auto& answer = compiled.Wait();
    if (answer.ok()) {
      EXPECT_EQ(answer->name, name);
      EXPECT_THAT(answer->devices, ElementsAre(0, 1));
    }
    return answer.status();
  }
  // The buffers `first` and the next.
  void Declare(cluster::BufferId first) { session_->Declare({{{first, 0}, {first + 1, 1}}}); }
  void Fill(cluster::BufferId first, const std::vector<float>& values) {
    for (int d = 0; d < 2; ++d) {
      cluster::HostContents contents;
      contents.targets = {{first + d, d}};
      contents.element_type = kF32;
      contents.dims = {2};
      contents.bytes =
          Lasting(std::string(reinterpret_cast<const char*>(values.data() + 2 * d), 2 * sizeof(float)));
      session_->Fill(std::move(contents));
    }
  }
  StatusAnswer Run(cluster::ExecutableId executable, cluster::BufferId argument, cluster::BufferId result,
                   bool settles = false, int64_t stream = 7) {
    StatusAnswer done;
    cluster::Launch launch;
    launch.id = next_launch_++;
    launch.executable = executable;
    launch.arguments = {{argument, 2, {}}};
    launch.results = {{result, 2, {}}};
    launch.stream = stream;
    launch.settles = settles;
    launch.on_done = done;
    session_->Execute(std::move(launch));
    return done;
  }
  absl::StatusOr<std::vector<float>> Read(cluster::BufferId first) {
    std::vector<float> values;
    for (int d = 0; d < 2; ++d) {
      ReadAnswer read;
      session_->Read(first + d, {}, read);
      const absl::StatusOr<base::HostBytes>& bytes = read.Wait();
      if (!bytes.ok()) return bytes.status();
      for (const float value : Values(*bytes)) values.push_back(value);
    }
    return values;
  }
  bool IsReady(cluster::BufferId buffer) {
    StatusAnswer ready;
    session_->Await({{buffer, 1, {}}}, ready);
    return ready.done();
  }

  std::shared_ptr<base::HostMemoryPool> pool_ = std::make_shared<base::HostMemoryPool>(64 << 20);
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<cluster::SessionLink> session_;
  cluster::LaunchId next_launch_ = 1;
};

TEST_F(ColocatedPythonTest, RunsWhenItsInputsAreHere) {
  ASSERT_TRUE(Load(1, "add_one").ok());
  Declare(10);
  const StatusAnswer done = Run(1, 10, 20);
  const StatusAnswer next = Run(1, 20, 30);
  EXPECT_FALSE(done.done());
  Fill(10, {1, 2, 3, 4});
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  EXPECT_TRUE(next.Wait().ok()) << next.Wait();
  EXPECT_EQ(Read(20).value(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(Read(30).value(), (std::vector<float>{3, 4, 5, 6}));
}

TEST_F(ColocatedPythonTest, ErrorsAreValues) {
  ASSERT_TRUE(Load(1, "add_one").ok());
  ASSERT_TRUE(Load(2, "fail").ok());
  Declare(10);
  const StatusAnswer done = Run(2, 10, 20);
  const StatusAnswer after = Run(1, 20, 30);
  Fill(10, {1, 2, 3, 4});
  for (const absl::Status& status : {done.Wait(), after.Wait(), Read(20).status(), Read(30).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("colocated Python fail: ValueError: no such row"));
  }
}

TEST_F(ColocatedPythonTest, ResultsMayWaitForOthers) {
  ASSERT_TRUE(Load(1, "add_one").ok());
  Declare(10);
  Fill(10, {1, 2, 3, 4});
  EXPECT_TRUE(Run(1, 10, 20, /*settles=*/true).Wait().ok());
  EXPECT_TRUE(Run(1, 10, 30, /*settles=*/true).Wait().ok());
  EXPECT_TRUE(Run(1, 10, 40, /*settles=*/true).Wait().ok());
  EXPECT_FALSE(IsReady(20));
  session_->Settle(2, absl::InvalidArgumentError("it failed elsewhere"));
  session_->Settle(1, absl::OkStatus());
  session_->Settle(99, absl::OkStatus());
  EXPECT_EQ(Read(20).value(), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_THAT(std::string(Read(30).status().message()), HasSubstr("elsewhere"));
  // Failures come at any time.
  ASSERT_TRUE(Load(2, "sleep").ok());
  const StatusAnswer sleeps = Run(2, 10, 50, /*settles=*/true, /*stream=*/8);
  session_->Settle(4, absl::InvalidArgumentError("it failed elsewhere"));
  EXPECT_THAT(std::string(Read(50).status().message()), HasSubstr("elsewhere"));
  EXPECT_FALSE(sleeps.done());
  StatusAnswer waits;
  session_->Await({{40, 1, {}}}, waits);
  EXPECT_FALSE(waits.done());
  session_->Close();
  EXPECT_EQ(waits.Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(ColocatedPythonTest, ADeadSidecarIsReplacedForNewFunctions) {
  ASSERT_TRUE(Load(1, "keep").ok());
  ASSERT_TRUE(Load(2, "leave").ok());
  Declare(10);
  Fill(10, {0, 0, 0, 0});
  EXPECT_TRUE(Run(1, 10, 20).Wait().ok());
  EXPECT_EQ(Run(2, 10, 30).Wait().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Run(1, 10, 40).Wait().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(20).value(), (std::vector<float>{1, 1, 1, 1}));
  ASSERT_TRUE(Load(3, "keep").ok());
  EXPECT_TRUE(Run(3, 10, 50).Wait().ok());
  EXPECT_EQ(Read(50).value(), (std::vector<float>{1, 1, 1, 1}));
}

TEST_F(ColocatedPythonTest, UnloadedAfterWhatWasCommanded) {
  ASSERT_TRUE(Load(1, "add_one").ok());
  Declare(10);
  const StatusAnswer done = Run(1, 10, 20);
  session_->Unload(1, std::nullopt);
  Fill(10, {1, 2, 3, 4});
  EXPECT_TRUE(done.Wait().ok()) << done.Wait();
  session_->Unload(1, 7);  // nobody knows it any more
}

TEST_F(ColocatedPythonTest, TheEndOfTheSessionEndsWhatRuns) {
  ASSERT_TRUE(Load(1, "sleep").ok());
  Declare(10);
  Fill(10, {1, 2, 3, 4});
  const StatusAnswer runs = Run(1, 10, 20);
  const StatusAnswer waits = Run(1, 10, 30);
  session_->Close();
  EXPECT_EQ(runs.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(waits.Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Load(2, "add_one").code(), absl::StatusCode::kCancelled);
}

TEST_F(ColocatedPythonTest, VersionsMustBeTheClients) {
  const absl::Status other = Load(1, "add_one", "0.1.2");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("the client has jax 0.1.2, the server's "));
  MakeWorker("");
  EXPECT_THAT(std::string(Load(1, "add_one").message()), HasSubstr("--python=PATH"));
}

TEST_F(ColocatedPythonTest, ProgramsThatCannotBe) {
  cluster::CompileProgram command;
  command.executable = 1;
  command.python.emplace();
  command.python->hosts = {{0, 2, 0, 0}};
  for (const char* code : {"\xff", ""}) {
    command.code = code;
    Answer<absl::StatusOr<cluster::CompiledProgram>> compiled;
    session_->Compile(command, compiled);
    EXPECT_EQ(compiled.Wait().status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace helmway::worker
