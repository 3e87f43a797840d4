#include "helmway/apps/plugin_choice.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace helmway::apps {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PluginChoiceTest : public ::testing::Test {
 protected:
  PluginChoiceTest() {
    std::string pattern = (fs::temp_directory_path() / "helmway_plugin_choice_test.XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    for (const char* name : {"xla_cuda_plugin.so", "libtpu.so", "pjrt_c_api_cpu_plugin.so", "plugin.so"}) {
      std::ofstream(root_ / name) << "x";
    }
  }
  ~PluginChoiceTest() override { fs::remove_all(root_); }

  ParsedFlags Parse(const std::vector<std::string>& arguments) {
    static const auto* table = new FlagTable{.command = "test", .flags = PluginFlags()};
    ParsedFlags flags = ParseFlags(*table, arguments, {});
    EXPECT_TRUE(flags.ok()) << flags.errors[0].message;
    return flags;
  }
  absl::StatusOr<PluginChoice> Choose(const std::string& file, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--pjrt_plugin=" + (root_ / file).string());
    return ChoosePlugin(Parse(arguments), "", {});
  }
  std::string ErrorOf(const std::string& file, std::vector<std::string> arguments) {
    const auto choice = Choose(file, std::move(arguments));
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(choice.status().message());
  }

  fs::path root_;
};

TEST_F(PluginChoiceTest, KindsByFileOrByFlag) {
  EXPECT_EQ(Choose("xla_cuda_plugin.so", {})->kind, pjrt::PluginKind::kGpu);
  EXPECT_EQ(Choose("libtpu.so", {})->kind, pjrt::PluginKind::kTpu);
  EXPECT_EQ(Choose("pjrt_c_api_cpu_plugin.so", {})->kind, pjrt::PluginKind::kCpu);
  EXPECT_EQ(Choose("plugin.so", {})->kind, pjrt::PluginKind::kOther);
  EXPECT_EQ(Choose("plugin.so", {"--pjrt_plugin_kind=gpu"})->kind, pjrt::PluginKind::kGpu);
  EXPECT_THAT(ErrorOf("plugin.so", {"--pjrt_plugin_kind=cuda"}),
              HasSubstr("--pjrt_plugin_kind=cuda: must be cpu, gpu, tpu or other"));
  EXPECT_EQ(Choose("nowhere.so", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PluginChoiceTest, Options) {
  const auto choice = Choose("xla_cuda_plugin.so", {"--pjrt_option=memory_fraction=1; visible_devices=0,2",
                                                    "--pjrt_option", "x:string=5"});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->options, ElementsAre(pjrt::Option{"memory_fraction", 1.0f},
                                           pjrt::Option{"visible_devices", std::vector<int64_t>{0, 2}},
                                           pjrt::Option{"x", std::string("5")}));
  EXPECT_THAT(Choose("xla_cuda_plugin.so", {})->options, IsEmpty());
}

TEST_F(PluginChoiceTest, OptionsThatAreRefused) {
  EXPECT_THAT(ErrorOf("xla_cuda_plugin.so", {"--pjrt_option=memory_fraction=much"}),
              HasSubstr("--pjrt_option: 'memory_fraction=much': must be a number"));
  EXPECT_THAT(ErrorOf("xla_cuda_plugin.so", {"--pjrt_option=node_id=1"}),
              AllOf(HasSubstr("--pjrt_option=node_id=1"), HasSubstr("the place of the worker")));
  EXPECT_THAT(ErrorOf("pjrt_c_api_cpu_plugin.so", {"--pjrt_option=process_id=1"}), HasSubstr("process_id"));
}

TEST_F(PluginChoiceTest, TheFlagsOfAChoiceMakeTheSameChoice) {
  const ParsedFlags flags =
      Parse({"--pjrt_plugin=" + (root_ / "plugin.so").string(), "--pjrt_plugin_kind=gpu",
             "--pjrt_option=preallocate=true;a=1,2", "--pjrt_option=b:float=1"});
  const auto choice = ChoosePlugin(flags, "", {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  const auto again =
      ChoosePlugin(Parse(FlagsOf(flags, *choice)), "", {{"HELMWAY_PJRT_PLUGIN", "/elsewhere"}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->path, choice->path);
  EXPECT_EQ(again->kind, choice->kind);
  EXPECT_EQ(again->options, choice->options);
  EXPECT_EQ(again->options.size(), 3u);
}

TEST_F(PluginChoiceTest, NumbersOfDevices) {
  EXPECT_TRUE(CheckDevicesFlag(true, {.kind = pjrt::PluginKind::kCpu}).ok());
  EXPECT_TRUE(CheckDevicesFlag(true, {.kind = pjrt::PluginKind::kGpu}).ok());
  EXPECT_TRUE(CheckDevicesFlag(false, {.kind = pjrt::PluginKind::kTpu}).ok());
  EXPECT_THAT(
      std::string(
          CheckDevicesFlag(true, {.path = "x.so", .kind = pjrt::PluginKind::kOther}).status().message()),
      AllOf(HasSubstr("--devices: x.so"), HasSubstr("--pjrt_plugin_kind=cpu")));
}

TEST(TpuEnvironmentTest, MustFitThePlace) {
  EXPECT_TRUE(CheckTpuEnvironment({}, 1, 4).ok());
  EXPECT_TRUE(CheckTpuEnvironment({{"TPU_WORKER_ID", "1"}, {"TPU_WORKER_HOSTNAMES", "a,b,c,d"}}, 1, 4).ok());
  const absl::Status other = CheckTpuEnvironment({{"TPU_WORKER_ID", "2"}}, 1, 4);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("TPU_WORKER_ID=2"), HasSubstr("host 1")));
  EXPECT_FALSE(CheckTpuEnvironment({{"CLOUD_TPU_TASK_ID", "x"}}, 1, 4).ok());
  EXPECT_THAT(std::string(CheckTpuEnvironment({{"TPU_WORKER_HOSTNAMES", "a,b"}}, 1, 4).message()),
              AllOf(HasSubstr("names 2 host(s)"), HasSubstr("has 4")));
}

}  // namespace
}  // namespace helmway::apps
