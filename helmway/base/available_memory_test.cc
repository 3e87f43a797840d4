#include "helmway/base/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace helmway::base {
namespace {

class AvailableMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    800 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int64_t Available() {
    return AvailableMemoryBytes({(root_ / "proc").string(), (root_ / "cgroup").string()});
  }

  std::filesystem::path root_;
};

TEST_F(AvailableMemoryTest, OfTheMachine) { EXPECT_EQ(Available(), 800 * 1024); }

TEST_F(AvailableMemoryTest, UnlimitedWhereNothingSaysSo) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(Available(), INT64_MAX);
  Write("proc/meminfo", "MemAvailable: lots\n");
  EXPECT_EQ(Available(), INT64_MAX);
}

TEST_F(AvailableMemoryTest, OfTheSmallestGroup) {
  Write("proc/self/cgroup", "0::/outer/inner\n");
  Write("cgroup/outer/inner/memory.max", "max\n");
  Write("cgroup/outer/inner/memory.current", "1000\n");
  EXPECT_EQ(Available(), 800 * 1024);
  Write("cgroup/outer/memory.max", "700000\n");
  Write("cgroup/outer/memory.current", "300000\n");
  EXPECT_EQ(Available(), 400000);
  Write("cgroup/outer/memory.stat", "anon 5\ninactive_file 100000\nactive_file 7\n");
  EXPECT_EQ(Available(), 500000);
  Write("cgroup/outer/inner/memory.max", "500\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(AvailableMemoryTest, OfGroupsOfTheFirstVersion) {
  Write("proc/self/cgroup", "5:cpu:/a\n4:hugetlb,memory:/a\n0::/\n");
  Write("cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  Write("cgroup/memory/a/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(Available(), 800 * 1024);
  Write("cgroup/memory/memory.limit_in_bytes", "1000\n");
  Write("cgroup/memory/memory.usage_in_bytes", "600\n");
  Write("cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  EXPECT_EQ(Available(), 500);
}

TEST(AvailableMemory, HereItIsSomething) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), INT64_MAX);
}

}  // namespace
}  // namespace helmway::base
