#include "helmway/apps/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace helmway::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const FlagTable& Table() {
  static const auto* table =
      new FlagTable{.command = "prog",
                    .usage = "prog [flags]",
                    .purpose = "Does things.",
                    .flags = {{.name = "port", .type = FlagType::kInt, .default_value = "7", .max = 65535},
                              {.name = "verbose", .type = FlagType::kBool, .help = "Talk more."},
                              {.name = "path"},
                              {.name = "manager", .type = FlagType::kAddress},
                              {.name = "wait", .type = FlagType::kDuration, .default_value = "1m"},
                              {.name = "pairs", .type = FlagType::kList, .separator = ";;;"},
                              {.name = "label", .no_effect = "labels are not used"}},
                    .foreign = {{"xla_", "not applied"}, {"tpu_", "no TPU"}, {"megascale_", "no TPU"}},
                    .retired = {{"old_port", "use --port"}}};
  return *table;
}

const FlagTable& CommandTable() {
  static const auto* table =
      new FlagTable{.command = "prog run", .flags = Table().flags, .takes_command = true};
  return *table;
}

ParsedFlags Parse(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  return ParseFlags(Table(), arguments, environment);
}

std::vector<std::string> Messages(const std::vector<FlagNote>& notes) {
  std::vector<std::string> messages;
  for (const FlagNote& note : notes) messages.push_back(note.message);
  return messages;
}

struct ValueCase {
  std::vector<std::string> arguments;
  int64_t port = 7;
  bool verbose = false;
  std::string path;
};

TEST(FlagsTest, TakesEveryFormOfAFlag) {
  const std::vector<ValueCase> cases = {
      {{}},
      {{"--port=1"}, 1},
      {{"-port=1"}, 1},
      {{"--port", "1"}, 1},
      {{"--port", "1", "--path", "x"}, 1, false, "x"},
      {{"--port=1", "--port=2"}, 2},
      {{"--port=0"}, 0},
      {{"--port="}},
      {{"--port=1", "--port="}},
      {{"--port", ""}},
      {{"--path", "-", "--verbose"}, 7, true, "-"},
      {{"--verbose"}, 7, true},
      {{"--verbose=TRUE"}, 7, true},
      {{"--verbose=1"}, 7, true},
      {{"--verbose=no"}, 7, false},
      {{"--verbose", "--noverbose"}, 7, false},
      {{"--verbose="}, 7, false},
      {{"", "--port=3", "", "  "}, 3},
      {{"--path='a b'"}, 7, false, "a b"},
      {{"--path=\"a\""}, 7, false, "a"},
      {{"--path='a"}, 7, false, "'a"},
      {{"--path='a' 'b'"}, 7, false, "'a' 'b'"},
      {{"--path=''"}},
      {{"--port='8'"}, 8},
      {{"--path", "'q'"}, 7, false, "q"},
      {{"--path=a b --port=2"}, 7, false, "a b --port=2"},
      {{"--path='x --port=2'"}, 7, false, "x --port=2"},
      {{"--path=a=b"}, 7, false, "a=b"},
      {{" --port=4\n"}, 4},
  };
  for (const ValueCase& each : cases) {
    SCOPED_TRACE(::testing::PrintToString(each.arguments));
    const ParsedFlags flags = Parse(each.arguments);
    EXPECT_THAT(Messages(flags.errors), IsEmpty());
    EXPECT_THAT(Messages(flags.warnings), IsEmpty());
    EXPECT_EQ(flags.Int("port"), each.port);
    EXPECT_EQ(flags.Bool("verbose"), each.verbose);
    EXPECT_EQ(flags.String("path"), each.path);
  }
}

TEST(FlagsTest, KnowsWhatWasGiven) {
  EXPECT_FALSE(Parse({}).Has("port"));
  EXPECT_FALSE(Parse({"--port="}).Has("port"));
  EXPECT_TRUE(Parse({"--port=7"}).Has("port"));
}

TEST(FlagsTest, ListsAddUp) {
  EXPECT_THAT(Parse({"--pairs=a=1;;;b=2", "--pairs=", "--pairs=c"}).List("pairs"),
              ElementsAre("a=1", "b=2", "c"));
  EXPECT_THAT(Parse({}).List("pairs"), IsEmpty());
}

TEST(FlagsTest, ReadsDurations) {
  EXPECT_EQ(Parse({}).Duration("wait"), absl::Minutes(1));
  EXPECT_EQ(Parse({"--wait=300s"}).Duration("wait"), absl::Seconds(300));
}

TEST(FlagsTest, SplitsSeveralFlagsInOneArgumentWithOneWarning) {
  const ParsedFlags flags = Parse({"--xla_a=true --xla_b=2  --port=9"});
  EXPECT_TRUE(flags.ok());
  EXPECT_THAT(flags.xla_flags, ElementsAre("--xla_a=true", "--xla_b=2"));
  EXPECT_EQ(flags.Int("port"), 9);
  EXPECT_THAT(Messages(flags.warnings),
              ElementsAre("one argument holds 3 flags and was split: '--xla_a=true --xla_b=2  --port=9'",
                          "--xla_a, --xla_b: not applied"));
}

TEST(FlagsTest, TakesForeignFlagsAndWarnsOncePerReason) {
  const ParsedFlags flags =
      Parse({"--xla_x", "--xla_y='1'", "--xla_x=2", "--noxla_z", "--tpu_a=1", "--megascale_b"});
  EXPECT_TRUE(flags.ok());
  EXPECT_THAT(flags.xla_flags, ElementsAre("--xla_x", "--xla_y=1", "--xla_x=2", "--xla_z=false"));
  EXPECT_THAT(Messages(flags.warnings),
              ElementsAre("--xla_x, --xla_y, --xla_z: not applied", "--tpu_a, --megascale_b: no TPU"));
  EXPECT_THAT(flags.warnings[0].flags, ElementsAre("xla_x", "xla_y", "xla_z"));
}

TEST(FlagsTest, WarnsOnceOfAFlagWithoutEffect) {
  EXPECT_THAT(Messages(Parse({"--label=a", "--label=b"}).warnings),
              ElementsAre("--label: labels are not used"));
}

struct ErrorCase {
  std::vector<std::string> arguments;
  std::string message;  // a part of the only error
};

TEST(FlagsTest, RefusesWhatItDoesNotKnow) {
  const std::vector<ErrorCase> cases = {
      {{"--prot=1"}, "unknown flag --prot; did you mean --port?"},
      {{"--manger=a:1"}, "did you mean --manager?"},
      {{"--completely_different"}, "unknown flag --completely_different; see prog --help"},
      {{"--noport"}, "unknown flag --noport"},
      {{"--old_port=1"}, "--old_port is a retired flag: use --port"},
      {{"--port=x"}, "--port=x: not a whole number"},
      {{"--port=65536"}, "--port=65536: must be at most 65535"},
      {{"--port=-1"}, "--port=-1: must be at least 0"},
      {{"--port=99999999999999999999"}, "not a whole number"},
      {{"--port"}, "--port needs a value"},
      {{"--port", "--verbose"}, "--port needs a value"},
      {{"--verbose=maybe"}, "--verbose=maybe: neither true nor false"},
      {{"--manager=http://a:1"}, "without a scheme"},
      {{"--manager=a"}, "must be host:port"},
      {{"--manager=:1"}, "must be host:port"},
      {{"--manager=a:0"}, "must be host:port"},
      {{"--wait=soon"}, "must be a duration"},
      {{"--wait=-1s"}, "must be a duration"},
      {{"word"}, "unexpected argument 'word'"},
      {{"--xla_a", "word"}, "if it belongs to --xla_a, write --xla_a=word"},
      {{"--", "word"}, "unexpected argument 'word'"},
      {{"-"}, "unexpected argument '-'"},
      {{"--=1"}, "unknown flag --"},
      {{"--path=$(OTHER)/x"}, "--path=$(OTHER)/x: nothing expanded $(OTHER); set the variable OTHER"},
      {{"--xla_dump_to=$(DIR)"}, "nothing expanded $(DIR)"},
      {{"--path=$(PATHWAYS_HEAD)"}, "nothing expanded $(PATHWAYS_HEAD)"},
  };
  for (const ErrorCase& each : cases) {
    SCOPED_TRACE(::testing::PrintToString(each.arguments));
    EXPECT_THAT(Messages(Parse(each.arguments, {{"OTHER", "1"}}).errors),
                ElementsAre(HasSubstr(each.message)));
  }
}

TEST(FlagsTest, ReportsEveryError) {
  const ParsedFlags flags = Parse({"--port=x", "--old_port=1", "--zzzzzz"});
  ASSERT_EQ(flags.errors.size(), 3u);
  EXPECT_THAT(flags.errors[1].flags, ElementsAre("old_port"));
}

TEST(FlagsTest, UndefokDropsUnknownFlagsWhereverItStands) {
  EXPECT_TRUE(Parse({"--strange=1", "--undefok=strange,odd", "--odd", "--noodd"}).ok());
  EXPECT_TRUE(Parse({"--undefok", "strange", "--strange"}).ok());
  EXPECT_FALSE(Parse({"--undefok=odd", "--strange"}).ok());
  EXPECT_FALSE(Parse({"--undefok=port", "--port=x"}).ok());
}

TEST(FlagsTest, ExpandsTheHead) {
  const ParsedFlags set = Parse({"--manager=$(PATHWAYS_HEAD):29001"}, {{"PATHWAYS_HEAD", "head.demo"}});
  EXPECT_EQ(set.String("manager"), "head.demo:29001");
  EXPECT_THAT(set.warnings, IsEmpty());

  const ParsedFlags unset = Parse({"--manager=$(PATHWAYS_HEAD):29001"});
  EXPECT_EQ(unset.String("manager"), "localhost:29001");
  EXPECT_THAT(Messages(unset.warnings),
              ElementsAre(HasSubstr("PATHWAYS_HEAD is not set here; using localhost")));

  // A value is expanded once: what comes from a variable is text.
  EXPECT_EQ(Parse({"--path=$(PATHWAYS_HEAD)"}, {{"PATHWAYS_HEAD", "$(X)"}}).String("path"), "$(X)");
}

TEST(FlagsTest, LeavesOtherDollarsAlone) {
  for (const char* value : {"a$b", "$(", "$()", "$(a b)", "^jit.*$(1)", "$HOME"}) {
    const ParsedFlags flags = Parse({std::string("--path=") + value});
    EXPECT_TRUE(flags.ok()) << value;
    EXPECT_EQ(flags.String("path"), value);
  }
}

TEST(FlagsTest, KeepsACommandWordForWord) {
  const ParsedFlags flags =
      ParseFlags(CommandTable(), {"--port=1", "--", "python", "", "--port=2", "--", "'x'"}, Environment());
  EXPECT_TRUE(flags.ok());
  EXPECT_EQ(flags.Int("port"), 1);
  EXPECT_THAT(flags.command, ElementsAre("python", "", "--port=2", "--", "'x'"));
  EXPECT_THAT(Messages(ParseFlags(CommandTable(), {"python"}, Environment()).errors),
              ElementsAre(HasSubstr("prog run -- python")));
}

TEST(FlagsTest, HelpNamesEveryFlag) {
  EXPECT_TRUE(Parse({"--help"}).help);
  EXPECT_TRUE(Parse({"-h"}).help);
  EXPECT_FALSE(Parse({}).help);
  const std::string help = HelpText(Table());
  for (const FlagSpec& spec : Table().flags) EXPECT_THAT(help, HasSubstr("\n  --" + spec.name));
  EXPECT_THAT(help, HasSubstr("--port=N  (default 7)\n"));
  EXPECT_THAT(help, HasSubstr("--verbose\n      Talk more.\n"));
  EXPECT_THAT(help, HasSubstr("--xla_*"));
}

TEST(FlagsTest, PrintsArgumentsOnOneLineEach) {
  std::ostringstream out;
  PrintArguments({"prog", "", "--a=b c", "x\ny"}, out);
  EXPECT_EQ(out.str(), "argv[0]: 'prog'\nargv[1]: ''\nargv[2]: '--a=b c'\nargv[3]: 'x\\x0ay'\n");
}

TEST(FlagsTest, PrintsNotes) {
  std::ostringstream out;
  PrintNotes(Table(), Parse({"--label=a", "--prot=1"}), out);
  EXPECT_EQ(out.str(),
            "prog: warning: --label: labels are not used\nprog: unknown flag --prot; did you mean --port?\n");
}

TEST(FlagsTest, LookupTakesEmptyAsUnset) {
  const Environment environment = {{"A", "1"}, {"B", ""}};
  EXPECT_EQ(Lookup(environment, "A"), "1");
  EXPECT_EQ(Lookup(environment, "B"), std::nullopt);
  EXPECT_EQ(Lookup(environment, "C"), std::nullopt);
}

}  // namespace
}  // namespace helmway::apps
