#include "helmway/worker/embedded_python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace helmway::worker {
namespace {

using ::testing::HasSubstr;

// One process has one interpreter, so what fails before there is one comes first.
TEST(EmbeddedPython, ACommandThatIsNotThereOrNoPython) {
  const absl::Status missing = EmbeddedPython::Get("/nowhere/python3").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere/python3"));
  EXPECT_EQ(EmbeddedPython::Get("/bin/false").status().code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status no_library = EmbeddedPython::Get("/bin/true").status();
  EXPECT_EQ(no_library.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_library.message()), HasSubstr("libpython3"));
}

class RunningPython : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* command = std::getenv("HELMWAY_PYTHON");
    if (command == nullptr) GTEST_SKIP() << "HELMWAY_PYTHON names no Python";
    auto python = EmbeddedPython::Get(command);
    ASSERT_TRUE(python.ok()) << python.status();
    python_ = *python;
  }
  EmbeddedPython* python_ = nullptr;
};

void SetNumber(int64_t* number, int64_t value) { *number = value; }

TEST_F(RunningPython, ScriptsCallBackAndKeepNothing) {
  int64_t number = 0;
  const std::string target = absl::StrCat(
      "import ctypes\nset = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(",
      reinterpret_cast<uintptr_t>(&SetNumber), ")\nout = ", reinterpret_cast<uintptr_t>(&number), "\n");
  ASSERT_TRUE(python_->Run(target + "x = 42\nset(out, x)\n").ok());
  EXPECT_EQ(number, 42);
  EXPECT_TRUE(python_->Run(target + "set(out, 1 if 'x' in globals() else 2)").ok());
  EXPECT_EQ(number, 2);
  // Python and its packages are those of the command.
  EXPECT_TRUE(python_->Run(target + "import sys, numpy\nset(out, int(sys.prefix in numpy.__file__))").ok());
  EXPECT_EQ(number, 1);
}

TEST_F(RunningPython, ExceptionsComeBackAsText) {
  const absl::Status status = python_->Run("x = 'quoted \"\"\" and \\\\ back'\nraise ValueError(x)");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "ValueError: quoted \"\"\" and \\ back");
  EXPECT_THAT(std::string(python_->Run("def (").message()), HasSubstr("SyntaxError"));
  EXPECT_THAT(std::string(python_->Run("import sys; sys.exit(3)").message()), HasSubstr("SystemExit"));
  EXPECT_TRUE(python_->Run("").ok());
}

TEST_F(RunningPython, AnyThreadAndOneInterpreter) {
  std::thread threads[4];
  for (std::thread& thread : threads) {
    thread = std::thread([this] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(python_->Run("sum(range(100))").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(EmbeddedPython::Get(python_->command()).value(), python_);
  EXPECT_THAT(std::string(EmbeddedPython::Get("/bin/true").status().message()),
              HasSubstr("embedded already"));
}

}  // namespace
}  // namespace helmway::worker
