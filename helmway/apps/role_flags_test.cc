#include "helmway/apps/role_flags.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "helmway/apps/server_command.h"
#include "helmway/apps/worker_identity.h"

namespace helmway::apps {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Messages(const std::vector<FlagNote>& notes) {
  std::vector<std::string> messages;
  for (const FlagNote& note : notes) messages.push_back(note.message);
  return messages;
}

std::set<std::string> Names(const std::vector<FlagNote>& notes) {
  std::set<std::string> names;
  for (const FlagNote& note : notes) names.insert(note.flags.begin(), note.flags.end());
  return names;
}

// Flags of public manifests that the file does not expect a warning for and that have no effect yet.
bool MayWarn(const std::string& name) {
  return name == "enable_metrics_collection" || absl::StartsWith(name, "xla_");
}

class PublicLine {
 public:
  explicit PublicLine(const std::string& text) {
    const auto status = google::protobuf::util::JsonStringToMessage(text, &line_);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  std::string role() const { return Field("role")->string_value(); }
  std::vector<std::string> argv() const {
    std::vector<std::string> argv;
    for (const auto& word : Field("argv")->list_value().values()) argv.push_back(word.string_value());
    return argv;
  }
  Environment env() const {
    Environment env;
    for (const auto& [name, value] : Field("env")->struct_value().fields()) env[name] = value.string_value();
    return env;
  }
  bool has_expectations() const { return Field("expect") != nullptr; }
  // What the line expects under `name`; each expectation asked for counts as checked.
  const google::protobuf::Value* Expected(const std::string& name) {
    if (!has_expectations()) return nullptr;
    const auto& fields = Field("expect")->struct_value().fields();
    const auto it = fields.find(name);
    if (it == fields.end()) return nullptr;
    ++checked_;
    return &it->second;
  }
  bool all_checked() const {
    return !has_expectations() || checked_ == Field("expect")->struct_value().fields_size();
  }

 private:
  const google::protobuf::Value* Field(const std::string& name) const {
    const auto it = line_.fields().find(name);
    return it == line_.fields().end() ? nullptr : &it->second;
  }
  google::protobuf::Struct line_;
  int checked_ = 0;
};

void CheckNotes(PublicLine& line, const ParsedFlags& flags) {
  if (const auto* refuse = line.Expected("refuse")) {
    ASSERT_FALSE(flags.ok());
    EXPECT_THAT(flags.errors[0].flags, ElementsAre(refuse->string_value()));
    EXPECT_THAT(flags.errors[0].message, HasSubstr(refuse->string_value()));
    return;
  }
  EXPECT_THAT(Messages(flags.errors), IsEmpty());
  std::set<std::string> warned = Names(flags.warnings);
  if (const auto* warn = line.Expected("warn")) {
    for (const auto& name : warn->list_value().values()) {
      EXPECT_EQ(warned.erase(name.string_value()), 1u) << "no warning for " << name.string_value();
    }
  }
  for (const std::string& name : warned) EXPECT_TRUE(MayWarn(name)) << "needless warning for " << name;
}

void CheckNumber(PublicLine& line, const std::string& name, int64_t actual) {
  if (const auto* expected = line.Expected(name)) {
    EXPECT_EQ(actual, expected->number_value()) << name;
  }
}

void CheckLine(PublicLine& line) {
  const Environment env = line.env();
  if (line.role() == "resource_manager") {
    ParsedFlags flags = ParseFlags(ResourceManagerFlags(), line.argv(), env);
    const ResourceManagerOptions options = ReadResourceManagerFlags(flags);
    CheckNotes(line, flags);
    if (!flags.ok()) return;
    ASSERT_EQ(options.instances.size(), 1u);
    CheckNumber(line, "slices", options.slices);
    CheckNumber(line, "hosts_per_slice", options.instances[0].hosts);
    CheckNumber(line, "devices_per_host", options.instances[0].devices_per_host);
    const manager::ManagerSettings settings = ClusterSettings(options, env);
    EXPECT_EQ(settings.slices.size(), static_cast<size_t>(options.slices));
    EXPECT_TRUE(manager::CheckSettings(settings).ok());
    const auto name = env.find("HOST_ADDRESS");
    EXPECT_EQ(settings.advertised_host, name == env.end() ? "" : name->second);
  } else if (line.role() == "proxy") {
    ParsedFlags flags = ParseFlags(ProxyFlags(), line.argv(), env);
    const ProxyOptions options = ReadProxyFlags(flags);
    CheckNotes(line, flags);
    if (!flags.ok()) return;
    CheckNumber(line, "virtual_slices", static_cast<int64_t>(options.virtual_slices.size()));
    if (const auto* address = line.Expected("resource_manager_address")) {
      EXPECT_EQ(options.resource_manager_address, address->string_value());
    }
  } else if (line.role() == "worker") {
    ParsedFlags flags = ParseFlags(WorkerFlags(), line.argv(), env);
    const WorkerOptions options = ReadWorkerFlags(flags);
    CheckNotes(line, flags);
    if (!flags.ok()) return;
    EXPECT_THAT(options.resource_manager_address, HasSubstr(":"));
    const auto identity = ReadWorkerIdentity(options, env);
    ASSERT_TRUE(identity.ok()) << identity.status();
    const auto number = [&env](const char* variable) -> std::optional<int32_t> {
      const auto it = env.find(variable);
      return it == env.end() ? std::nullopt : std::optional<int32_t>(std::stoi(it->second));
    };
    EXPECT_EQ(identity->slice, number("MEGASCALE_SLICE_ID"));
    EXPECT_EQ(identity->host, number("JOB_COMPLETION_INDEX"));
    const std::optional<int32_t> index = number("LWS_WORKER_INDEX");
    EXPECT_EQ(identity->linear.has_value(), index.has_value());
    if (index.has_value()) {
      EXPECT_EQ(identity->linear, *index - 1);
    }
  } else {
    ASSERT_EQ(line.role(), "sidecar");
    EXPECT_THAT(line.argv(), IsEmpty());
    if (const auto* listen = line.Expected("listen")) {
      EXPECT_EQ(StripMatchingQuotes(env.at("GRPC_SERVER_ADDRESS")), listen->string_value());
    }
  }
}

TEST(RoleFlagsTest, TakesPublicCommandLines) {
  std::ifstream file(HELMWAY_TESTDATA "/argv.jsonl");
  ASSERT_TRUE(file.is_open());
  int lines = 0;
  for (std::string text; std::getline(file, text);) {
    SCOPED_TRACE(text);
    PublicLine line(text);
    CheckLine(line);
    EXPECT_TRUE(line.all_checked()) << "an expectation that this test does not know";
    ++lines;
  }
  EXPECT_EQ(lines, 44);
}

struct RefusedLine {
  const FlagTable& table;
  std::vector<std::string> arguments;
  std::string flag;
  std::string reason;
};

ParsedFlags ParseAndRead(const FlagTable& table, const std::vector<std::string>& arguments) {
  ParsedFlags flags = ParseFlags(table, arguments, Environment());
  if (&table == &ResourceManagerFlags()) {
    ReadResourceManagerFlags(flags);
  } else if (&table == &ProxyFlags()) {
    ReadProxyFlags(flags);
  } else {
    ReadWorkerFlags(flags);
  }
  return flags;
}

TEST(RoleFlagsTest, RefusesWhatCanNotBe) {
  const FlagTable& manager = ResourceManagerFlags();
  const FlagTable& proxy = ProxyFlags();
  const FlagTable& worker = WorkerFlags();
  const std::vector<RefusedLine> lines = {
      {manager, {}, "instance_type", "is missing"},
      {manager, {"--instance_type=cpu:1,cpu:2", "--instance_count=3"}, "instance_type", "2 shapes"},
      {manager,
       {"--instance_type=cpu:1", "--node_type=worker"},
       "node_type",
       "this role is resource_manager"},
      {manager, {"--instance_type=cpu:1", "--virtual_slices=cpu:1"}, "virtual_slices", "unknown flag"},
      {worker, {"--node_type=proxy"}, "node_type", "this role is worker"},
      {worker, {"--gcs_scratch_location=s3://b/d"}, "gcs_scratch_location", "must be gs://"},
      {worker, {"--gcs_location=s3://b/d"}, "gcs_location", "must be gs://"},
      {proxy, {"--sidecar_name=internal"}, "sidecar_name", "must be external"},
      {proxy, {"--virtual_slices=cpu:1x4,tpuv5e:3x5"}, "virtual_slices", "must be even"},
      {proxy, {"--server_port=65536"}, "server_port", "at most 65535"},
      {proxy, {"--devices=0"}, "devices", "at least 1"},
      {proxy,
       {"--virtual_slices=cpu:1",
        "--temporary_flags_for_debugging=temporary_flag_for_debugging_experimental_num_ok_missing_slices=2"},
       "temporary_flag_for_debugging_experimental_num_ok_missing_slices",
       "more than the 1 slices"},
      {proxy,
       {"--temporary_flags_for_debugging=temporary_flag_for_debugging_pipe_unreachable_timeout=soon"},
       "temporary_flag_for_debugging_pipe_unreachable_timeout",
       "duration"},
  };
  for (const RefusedLine& line : lines) {
    SCOPED_TRACE(::testing::PrintToString(line.arguments));
    const ParsedFlags flags = ParseAndRead(line.table, line.arguments);
    ASSERT_EQ(flags.errors.size(), 1u);
    EXPECT_THAT(flags.errors[0].flags, ElementsAre(line.flag));
    EXPECT_THAT(flags.errors[0].message, HasSubstr(line.reason));
  }
}

TEST(RoleFlagsTest, PrototypeNamesSayWhatReplacesThem) {
  const ParsedFlags flags = ParseAndRead(
      ProxyFlags(), {"--pathways_ifrt_proxy_server_port=38681", "--pathways_tmp_dir_pattern=gs://b", "--v=0",
                     "--pathways_plaque_network=gcp", "--pathways_ifrt_proxy_server_resource_manager=a:1"});
  EXPECT_THAT(Messages(flags.errors),
              ElementsAre(HasSubstr("use --server_port"), HasSubstr("use --gcs_scratch_location"),
                          HasSubstr("drop it"), HasSubstr("use --resource_manager_address")));
}

TEST(RoleFlagsTest, CountsSlicesOfAListOfShapes) {
  ParsedFlags flags = ParseFlags(ResourceManagerFlags(), {"--instance_type=cpu:1x2,cpu:2x2"}, Environment());
  const ResourceManagerOptions options = ReadResourceManagerFlags(flags);
  EXPECT_TRUE(flags.ok());
  EXPECT_EQ(options.slices, 2);
  EXPECT_EQ(options.port, 29001);
}

TEST(RoleFlagsTest, DebuggingFlagsThatMeanSomethingAreRead) {
  ParsedFlags flags = ParseFlags(
      ProxyFlags(),
      {"--temporary_flags_for_debugging=temporary_flag_for_debugging_pipe_unreachable_timeout=30m;;;"
       "temporary_flag_for_debugging_experimental_num_ok_missing_slices=4",
       "--temporary_flags_for_debugging=temporary_flag_for_debugging_enable_late_binding=true"},
      Environment());
  const ProxyOptions options = ReadProxyFlags(flags);
  EXPECT_TRUE(flags.ok());
  EXPECT_EQ(options.debugging.peer_unreachable_timeout, absl::Minutes(30));
  EXPECT_EQ(options.elastic_slices, 4);
  EXPECT_THAT(Names(flags.warnings), ElementsAre("temporary_flag_for_debugging_enable_late_binding"));

  ParsedFlags both = ParseFlags(
      ProxyFlags(),
      {"--num_elastic_slices=1",
       "--temporary_flags_for_debugging=temporary_flag_for_debugging_experimental_num_ok_missing_slices=4"},
      Environment());
  EXPECT_EQ(ReadProxyFlags(both).elastic_slices, 1);
}

TEST(RoleFlagsTest, OlderNameOfTheScratchLocation) {
  ParsedFlags flags = ParseFlags(WorkerFlags(), {"--gcs_location=gs://b/d"}, Environment());
  EXPECT_EQ(ReadWorkerFlags(flags).scratch_location, "gs://b/d");
  EXPECT_THAT(Names(flags.warnings), Contains("gcs_location"));
}

TEST(RoleFlagsTest, ScratchLocations) {
  for (const char* good : {"gs://bucket", "gs://bucket/a/b", "file:///scratch", "/scratch"}) {
    EXPECT_TRUE(CheckScratchLocation(good).ok()) << good;
  }
  for (const char* bad :
       {"", "gs://", "gs:///dir", "gs:/b", "file://host/dir", "s3://b", "scratch", "./scratch"}) {
    EXPECT_EQ(CheckScratchLocation(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace helmway::apps
