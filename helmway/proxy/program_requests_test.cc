// Requests about programs before they are executables: compiling.
#include <functional>
#include <string>
#include <vector>

#include "helmway/proxy/session_testing.h"
#include "helmway/wire/serialized.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::xla::ifrt::proxy::CompileRequest;
using ::xla::ifrt::proxy::CompileResponse;
using ::xla::ifrt::proxy::LoadedExecutableMetadataRequest;

class CompileTest : public VersionedSessionTest {
 protected:
  // What a client gets that compiles a program for `devices` of which the worker says `program`.
  Answer CompileTo(const std::vector<int32_t>& devices, absl::StatusOr<cluster::CompiledProgram> program) {
    const uint64_t op_id = client().Send(CompileFor(devices));
    client().link->AnswerCompile(client().link->compiling().back(), std::move(program));
    return client().AnswerTo(op_id);
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, CompileTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(CompileTest, WorkerGetsCodeAndOptions) {
  const CompileRequest request = CompileFor({12, 10}, serdes());
  // The options carry a version number from serdes 4 on.
  xla::ifrt::XlaCompileOptionsProto sent;
  ASSERT_TRUE(sent.ParseFromString(request.compile_options().data()));
  EXPECT_EQ(sent.version_number(), serdes() >= 4 ? 4 : 0);
  const uint64_t op_id = client().Send(request);
  EXPECT_THAT(client().Commands(), ElementsAre("compile 1"));
  EXPECT_EQ(client().link->compile(1).code, "code");
  xla::CompileOptionsProto options;
  ASSERT_TRUE(options.ParseFromString(client().link->compile(1).options));
  const auto& build = options.executable_build_options();
  EXPECT_EQ(build.num_partitions(), 2);
  EXPECT_EQ(build.device_assignment().computation_devices(0).replica_device_ids(0), 12);
  EXPECT_FALSE(build.has_debug_options());
  EXPECT_FALSE(client().Answered(op_id));

  cluster::CompiledProgram program = Compiled({.outputs = {{{4}}}, .devices = {12, 10}});
  program.fingerprint = "print \xff";
  client().link->AnswerCompile(1, program);
  const Answer answer = client().AnswerTo(op_id);
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  const CompileResponse& response = answer.response.compile_response();
  EXPECT_GE(response.loaded_executable_handle(), uint64_t{1} << 48);
  EXPECT_EQ(response.name(), "form");
  EXPECT_EQ(response.num_devices(), 2);
  // Read from protocol 16 on; addressable ones always.
  EXPECT_THAT(response.device_ids(), ElementsAre(12, 10));
  EXPECT_THAT(response.addressable_device_ids(), ElementsAre(12, 10));
  EXPECT_EQ(response.fingerprint_value(), "print \xff");
  EXPECT_EQ(response.loaded_host_callback_handles_size(), 0);
  EXPECT_EQ(response.mpmd_addressable_devices_oneof_case(),
            CompileResponse::MPMD_ADDRESSABLE_DEVICES_ONEOF_NOT_SET);
  // Clients look at it once.
  EXPECT_THAT(client().Status(CheckFuture(response.ready_future_handle())), IsOk());
  EXPECT_THAT(client().Status(CheckFuture(response.ready_future_handle())), FailsWith(kNotFound, ""));
}

TEST_P(CompileTest, HoldsNobodyUp) {
  const uint64_t first = client().Send(CompileFor({10}));
  const uint64_t second = client().Send(CompileFor({11}));
  client().MakeArray(1);
  EXPECT_THAT(client().Use(1), IsOk());
  client().link->AnswerCompile(2, Compiled({.devices = {11}}));
  EXPECT_FALSE(client().Answered(first));
  const Answer two = client().AnswerTo(second);
  client().link->AnswerCompile(1, Compiled({}));
  const Answer one = client().AnswerTo(first);
  EXPECT_THAT(two.response.compile_response().device_ids(), ElementsAre(11));
  EXPECT_THAT(one.response.compile_response().device_ids(), ElementsAre(10));
  EXPECT_NE(one.response.compile_response().loaded_executable_handle(),
            two.response.compile_response().loaded_executable_handle());
  EXPECT_EQ(one.response.compile_response().fingerprint_case(), CompileResponse::FINGERPRINT_NOT_SET);
}

TEST_P(CompileTest, CompilersErrorIsTheClients) {
  const absl::Status error = absl::InvalidArgumentError("unknown op \"strange\" \xff");
  EXPECT_THAT(CompileTo({10}, error).status, FailsWith(kInvalid, "unknown op \"strange\" ?"));
  EXPECT_THAT(client().link->loaded(), IsEmpty());
}

TEST_P(CompileTest, RefusedBeforeTheCompiler) {
  const auto with_options = [](CompileRequest& request, const auto& change) {
    xla::ifrt::XlaCompileOptionsProto options;
    ASSERT_TRUE(options.ParseFromString(request.compile_options().data()));
    change(options);
    request.mutable_compile_options()->set_data(options.SerializeAsString());
  };
  using Options = xla::ifrt::XlaCompileOptionsProto;
  struct Case {
    absl::StatusCode code;
    const char* text;
    std::function<void(CompileRequest&)> spoil;
  };
  const std::vector<Case> cases = {
      {kUnimplemented, "strange", [](CompileRequest& r) { r.mutable_program()->set_type_name("strange"); }},
      {kUnimplemented, "programs of type \"\"", [](CompileRequest& r) { r.clear_program(); }},
      {kInvalid, "compile options of type \"\"", [](CompileRequest& r) { r.clear_compile_options(); }},
      {kInvalid, "PluginCompileOptions",
       [](CompileRequest& r) {
         r.mutable_compile_options()->set_type_name(std::string(wire::kPluginCompileOptions));
       }},
      {kInvalid, "parse", [](CompileRequest& r) { r.mutable_compile_options()->set_data("\xff\xff"); }},
      {kUnimplemented, "version 5",
       [&](CompileRequest& r) { with_options(r, [](Options& o) { o.set_version_number(5); }); }},
      {kUnimplemented, "portable",
       [&](CompileRequest& r) {
         with_options(r, [](Options& o) {
           o.mutable_compile_options()->mutable_executable_build_options()->clear_device_assignment();
         });
       }},
      {kUnimplemented, "portable",
       [&](CompileRequest& r) {
         with_options(r,
                      [](Options& o) { o.mutable_compile_options()->set_compile_portable_executable(true); });
       }},
      {kInvalid, "no device 9",
       [](CompileRequest& r) {
         r = CompileFor({10, 9});
       }},
      {kInvalid, "twice",
       [](CompileRequest& r) {
         r = CompileFor({10, 10});
       }},
      {kInvalid, "0 partitions", [](CompileRequest& r) { r = CompileFor({}); }},
      {kUnimplemented, "host callbacks", [](CompileRequest& r) { r.add_host_callbacks("anything"); }},
  };
  for (const Case& c : cases) {
    CompileRequest request = CompileFor({10});
    c.spoil(request);
    EXPECT_THAT(client().Status(request), FailsWith(c.code, c.text));
  }
  EXPECT_THAT(client().Commands(), IsEmpty());
}

// What the worker cannot describe is of no use to a client, and is not kept.
TEST_P(CompileTest, ProgramsThatCannotBeDescribedAreUnloaded) {
  const auto broken = [](const std::function<void(cluster::CompiledProgram&)>& spoil) {
    cluster::CompiledProgram program = Compiled({.outputs = {{{4}}}});
    spoil(program);
    return program;
  };
  EXPECT_THAT(CompileTo({10}, broken([](auto& p) { p.outline = "\xff"; })).status,
              FailsWith(kInvalid, "reading the compiled program"));
  EXPECT_THAT(CompileTo({10}, broken([](auto& p) { p.devices = {}; })).status,
              FailsWith(kInvalid, "0 devices"));
  EXPECT_THAT(CompileTo({10}, broken([](auto& p) { p.output_memory_kinds = {}; })).status,
              FailsWith(absl::StatusCode::kInternal, "0 memory kinds for 1 outputs"));
  EXPECT_THAT(client().Commands(),
              ElementsAre("compile 1", "unload 1", "compile 2", "unload 2", "compile 3", "unload 3"));
}

TEST_P(CompileTest, EndOfTheSessionEndsTheWait) {
  const uint64_t op_id = client().Send(CompileFor({10}));
  client().Close();
  EXPECT_EQ(client().AnswerTo(op_id).status.code(), kCancelled);
}

}  // namespace
}  // namespace helmway::proxy
