#include "helmway/worker/dumps.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "helmway/storage/local_store.h"
#include "helmway/wire/xla_compile_options.pb.h"

namespace helmway::worker {
namespace {

std::string Options(const std::map<std::string, std::string>& overrides) {
  xla::CompileOptionsProto proto;
  for (const auto& [name, value] : overrides)
    (*proto.mutable_env_option_overrides())[name].set_string_field(value);
  return proto.SerializeAsString();
}

std::map<std::string, std::string> Overrides(const std::string& options) {
  xla::CompileOptionsProto proto;
  EXPECT_TRUE(proto.ParseFromString(options));
  std::map<std::string, std::string> overrides;
  for (const auto& [name, value] : proto.env_option_overrides()) overrides[name] = value.string_field();
  return overrides;
}

using Map = std::map<std::string, std::string>;

TEST(DumpOptionsTest, AreNotForThePlugin) {
  std::string options =
      Options({{"xla_a", "1"}, {"xla_dump_to", "/d"}, {"xla_dump_hlo_module_re", "f"}, {"xla_dump_x", ""}});
  absl::StatusOr<std::optional<DumpRequest>> request = TakeDumpOptions(options);
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->has_value());
  EXPECT_EQ((*request)->location, "/d");
  EXPECT_EQ((*request)->module_re, "f");
  EXPECT_EQ(Overrides(options), (Map{{"xla_a", "1"}}));
}

TEST(DumpOptionsTest, OrOnlyWithADirectoryOfOurs) {
  std::string options = Options({{"xla_a", "1"}, {"xla_dump_to", "gs://b/d"}, {"xla_dump_x", "2"}});
  ASSERT_TRUE(TakeDumpOptions(options, "/tmp/x").ok());
  EXPECT_EQ(Overrides(options), (Map{{"xla_a", "1"}, {"xla_dump_to", "/tmp/x"}, {"xla_dump_x", "2"}}));
}

TEST(DumpOptionsTest, CompanionsAloneDumpNothing) {
  std::string options = Options({{"xla_dump_hlo_as_text", "1"}});
  const absl::StatusOr<std::optional<DumpRequest>> request = TakeDumpOptions(options);
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->has_value());
  EXPECT_EQ(Overrides(options), Map{});
}

TEST(DumpOptionsTest, WithoutThemNothingChanges) {
  const std::string before = Options({{"xla_a", "1"}});
  std::string options = before;
  EXPECT_FALSE(TakeDumpOptions(options).value().has_value());
  EXPECT_EQ(options, before);
}

TEST(DumpOptionsTest, RefusesWhatIsNoPlaceAndNoExpression) {
  for (const Map& bad : {Map{{"xla_dump_to", "s3://x"}}, Map{{"xla_dump_to", "relative"}},
                         Map{{"xla_dump_to", "/d"}, {"xla_dump_hlo_module_re", "("}}}) {
    std::string options = Options(bad);
    EXPECT_EQ(TakeDumpOptions(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(DumpOptionsTest, AnExpressionMatchesAPart) {
  EXPECT_TRUE(Matches({.location = "/d"}, "jit_f"));
  EXPECT_TRUE(Matches({.location = "/d", .module_re = "t_[a-g]"}, "jit_f"));
  EXPECT_FALSE(Matches({.location = "/d", .module_re = "^f"}, "jit_f"));
}

TEST(DumpsTest, WritesAFailedCompileToo) {
  std::string directory;
  {
    Dumps dumps("", {});
    absl::StatusOr<std::string> made = dumps.MakeDirectory();
    ASSERT_TRUE(made.ok()) << made.status();
    directory = *made;
    const std::string target = absl::StrCat(directory, "-target");
    ASSERT_TRUE(storage::LocalStore(directory).Put("some file", "x", storage::PutMode::kCreate).code() ==
                absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(storage::LocalStore(directory).Put("some.file", "x", storage::PutMode::kCreate).ok());
    Dumps::Compile compile;
    compile.request.location = target;
    compile.directory = directory;
    compile.code = "code";
    compile.options = Options({});
    compile.result = absl::InternalError("no such thing");
    dumps.Write(std::move(compile));
  }
  EXPECT_FALSE(std::filesystem::exists(directory)) << "what XLA wrote is removed";
  storage::LocalStore target(directory + "-target");
  const auto files = target.List("", 100);
  ASSERT_TRUE(files.ok());
  std::map<std::string, std::string> contents;
  for (const storage::ObjectInfo& file : *files) {
    contents[file.name.substr(file.name.find('/') + 1)] = target.Get(file.name).value_or("?");
  }
  EXPECT_EQ(contents["program.mlirbc"], "code");
  EXPECT_EQ(contents["error.txt"], "INTERNAL: no such thing");
  EXPECT_EQ(contents["xla/some.file"], "x");
  EXPECT_EQ(target.List("index/failed/", 10)->size(), 1U);
  std::filesystem::remove_all(directory + "-target");
}

}  // namespace
}  // namespace helmway::worker
