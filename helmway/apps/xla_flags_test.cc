#include "helmway/apps/xla_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace helmway::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> All(const std::string& variable, const std::vector<std::string>& given = {}) {
  std::ostringstream err;
  std::vector<std::string> flags = AllXlaFlags({{"XLA_FLAGS", variable}}, given, err);
  EXPECT_EQ(err.str(), "");
  return flags;
}

TEST(AllXlaFlagsTest, SplitsTheVariableAndPutsFlagsOfTheCommandLast) {
  EXPECT_THAT(All(" --xla_a=1\t --xla_b \n"), ElementsAre("--xla_a=1", "--xla_b"));
  EXPECT_THAT(All("--xla_a='x y'  --xla_b=\"\" --xla_c=a\"b c\"d", {"--xla_z"}),
              ElementsAre("--xla_a=x y", "--xla_b=", "--xla_c=ab cd", "--xla_z"));
  EXPECT_THAT(All(""), IsEmpty());
  std::ostringstream err;
  EXPECT_THAT(AllXlaFlags({}, {"--xla_z"}, err), ElementsAre("--xla_z"));
}

TEST(AllXlaFlagsTest, ReadsAFile) {
  const std::string path = testing::TempDir() + "/helmway-xla-flags";
  std::ofstream(path) << "--xla_a=1\n--xla_b=2\n";
  EXPECT_THAT(All(path), ElementsAre("--xla_a=1", "--xla_b=2"));
  std::remove(path.c_str());
  std::ostringstream err;
  EXPECT_THAT(AllXlaFlags({{"XLA_FLAGS", path}}, {}, err), IsEmpty());
  EXPECT_THAT(err.str(), HasSubstr(path));
}

// A compiler that knows xla_bool, xla_int and xla_text, and not xla_bool with xla_int above 9.
class Compiler {
 public:
  absl::Status Try(const program::XlaOptions& options) {
    ++tries;
    for (const auto& [name, option] : options) {
      const bool is_bool = option.value_case() == xla::OptionOverrideProto::kBoolField;
      int number = 0;
      if (name == "xla_bool" && !is_bool) return absl::InvalidArgumentError("not a valid bool value");
      if (name == "xla_int" && !absl::SimpleAtoi(option.string_field(), &number)) {
        return absl::InvalidArgumentError("not a valid int32 value");
      }
      if (name == "xla_text" && is_bool) return absl::InvalidArgumentError("not a text");
      if (name != "xla_bool" && name != "xla_int" && name != "xla_text") {
        return absl::InvalidArgumentError(absl::StrCat("No such compile option: '", name, "'"));
      }
      if (number > 9 && options.count("xla_bool") > 0) return absl::InternalError("too much");
    }
    return absl::OkStatus();
  }
  XlaFlagsOutcome Accept(const std::vector<std::string>& flags) {
    return AcceptXlaFlags(flags, [this](const program::XlaOptions& options) { return Try(options); });
  }
  int tries = 0;
};

TEST(AcceptXlaFlagsTest, CompilesOnceForFlagsWithoutAFault) {
  Compiler compiler;
  const XlaFlagsOutcome outcome =
      compiler.Accept({"--xla_bool=True", "--xla_int=3", "--xla_int=4", "--xla_text=a=b"});
  EXPECT_EQ(compiler.tries, 1);
  EXPECT_THAT(outcome.warnings, IsEmpty());
  EXPECT_EQ(outcome.options.at("xla_bool").bool_field(), true);
  EXPECT_EQ(outcome.options.at("xla_int").string_field(), "4");
  EXPECT_EQ(outcome.options.at("xla_text").string_field(), "a=b");
}

TEST(AcceptXlaFlagsTest, FindsTheTypeOfAValue) {
  Compiler compiler;
  const XlaFlagsOutcome outcome = compiler.Accept({"--xla_bool=0", "--xla_int=1", "--xla_text=true"});
  EXPECT_THAT(outcome.warnings, IsEmpty());
  EXPECT_EQ(outcome.options.at("xla_bool").value_case(), xla::OptionOverrideProto::kBoolField);
  EXPECT_EQ(outcome.options.at("xla_bool").bool_field(), false);
  EXPECT_EQ(outcome.options.at("xla_int").string_field(), "1");
  EXPECT_EQ(outcome.options.at("xla_text").string_field(), "true");
}

TEST(AcceptXlaFlagsTest, NamesWhatThePluginRefusesAndKeepsTheRest) {
  Compiler compiler;
  const XlaFlagsOutcome outcome = compiler.Accept({"--xla_int=two", "--xla_bool", "--xla_nonsense=3", "-x"});
  EXPECT_THAT(outcome.warnings,
              ElementsAre("-x: not applied: No such compile option: 'x'",
                          "--xla_int=two: not applied: not a valid int32 value",
                          "--xla_nonsense=3: not applied: No such compile option: 'xla_nonsense'"));
  ASSERT_EQ(outcome.options.size(), 1U);
  EXPECT_EQ(outcome.options.at("xla_bool").bool_field(), true);
}

TEST(AcceptXlaFlagsTest, DropsFlagsThatContradictEachOther) {
  Compiler compiler;
  const XlaFlagsOutcome outcome = compiler.Accept({"--xla_int=10", "--xla_bool=true"});
  EXPECT_THAT(outcome.options, IsEmpty());
  EXPECT_THAT(
      outcome.warnings,
      ElementsAre("--xla_bool=true --xla_int=10: not applied, since they don't go together: too much"));
}

TEST(AcceptXlaFlagsTest, SaysWhatBelongsToTheProcess) {
  Compiler compiler;
  const XlaFlagsOutcome outcome = compiler.Accept({"--xla_force_host_platform_device_count=8"});
  EXPECT_EQ(compiler.tries, 0);
  EXPECT_THAT(outcome.warnings, ElementsAre(HasSubstr("--devices")));
}

}  // namespace
}  // namespace helmway::apps
