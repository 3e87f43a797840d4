// Python functions of the client as programs (colocated Python): compiling, running and forgetting them.
#include <functional>
#include <string>
#include <vector>

#include "helmway/cluster/worker_info.h"
#include "helmway/proxy/session_testing.h"
#include "helmway/wire/serialized.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::xla::ifrt::CustomCallProgramProto;
using ::xla::ifrt::proxy::CompileRequest;
using ::xla::ifrt::proxy::LoadedExecutableDestructRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataRequest;

class PythonProgramTest : public VersionedSessionTest {
 protected:
  // Devices numbered as the CPU plugin does: two of each of two processes.
  PythonProgramTest() {
    cluster::WorkerInfo& info = worker_.mutable_info();
    for (size_t i = 0; i < info.devices.size(); ++i) {
      info.devices[i].id = cluster::FirstDeviceId(static_cast<int32_t>(i / 2)) + static_cast<int32_t>(i % 2);
      cluster::SetPlace(static_cast<int64_t>(i / 2), 0, &info.devices[i]);
    }
    info.platform_name = "cpu";
  }

  // Takes and returns eight numbers that are split over the devices.
  static CustomCallProgramProto Function(const std::vector<int32_t>& devices) {
    CustomCallProgramProto program;
    program.set_type("jax_colocated_python_v0.0.1");
    program.set_name("f");
    program.set_serialized_program_text("pickle \xff");
    program.mutable_devices()->mutable_device_ids()->Add(devices.begin(), devices.end());
    *program.add_input_specs() = Spec({8}, Split(devices));
    *program.add_output_specs() = Spec({8}, Split(devices));
    return program;
  }
  static CompileRequest Request(const CustomCallProgramProto& program) {
    CompileRequest request;
    *request.mutable_program() = wire::MakeSerialized(program, wire::kCustomCallProgram);
    request.mutable_compile_options()->set_type_name(std::string(wire::kCustomCallCompileOptions));
    return request;
  }
  uint64_t LoadFunction(const CustomCallProgramProto& program) {
    const uint64_t op_id = client().Send(Request(program));
    client().link->AnswerCompile(client().link->compiling().back(), cluster::CompiledProgram());
    return client().AnswerTo(op_id).response.compile_response().loaded_executable_handle();
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, PythonProgramTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(PythonProgramTest, WorkerGetsTheFunctionAndTheHosts) {
  const CustomCallProgramProto program = Function({2048, 1});
  const uint64_t op_id = client().Send(Request(program));
  EXPECT_THAT(client().Commands(), ElementsAre("compile 1"));
  const cluster::CompileProgram command = client().link->compile(1);
  EXPECT_EQ(command.code, program.SerializeAsString());
  EXPECT_THAT(command.devices, ElementsAre(2048, 1));
  ASSERT_TRUE(command.python.has_value());
  EXPECT_THAT(command.python->hosts,
              ElementsAre(cluster::PythonHost{0, 2, 0, 0}, cluster::PythonHost{1, 2, 1, 0}));
  EXPECT_FALSE(client().Answered(op_id));
  client().link->AnswerCompile(1, cluster::CompiledProgram());
  const auto response = client().AnswerTo(op_id).response.compile_response();
  EXPECT_EQ(response.name(), "f");
  EXPECT_THAT(response.addressable_device_ids(), ElementsAre(2048, 1));

  LoadedExecutableMetadataRequest ask;
  ask.set_loaded_executable_handle(response.loaded_executable_handle());
  const auto metadata = client().Ask(ask).response.loaded_executable_metadata_response();
  EXPECT_TRUE(metadata.has_output_layouts_error());
  EXPECT_EQ(metadata.output_memory_kinds().memory_kind_lists(0).memory_kinds_size(), 1);
}

TEST_P(PythonProgramTest, UnpicklersErrorIsTheClients) {
  const uint64_t op_id = client().Send(Request(Function({0})));
  client().link->AnswerCompile(1, absl::InvalidArgumentError("ModuleNotFoundError: No module named 'x'"));
  EXPECT_THAT(client().AnswerTo(op_id).status, FailsWith(kInvalid, "No module named 'x'"));
}

TEST_P(PythonProgramTest, RefusedBeforeTheWorker) {
  struct Case {
    absl::StatusCode code;
    const char* text;
    std::function<void(CustomCallProgramProto&)> spoil;
  };
  const std::vector<Case> cases = {
      {kUnimplemented, "\"another_type\"", [](auto& p) { p.set_type("another_type"); }},
      {kUnimplemented, "version 3", [](auto& p) { p.set_version_number(3); }},
      {kInvalid, "no devices", [](auto& p) { p.clear_devices(); }},
      {kInvalid, "no device 7", [](auto& p) { p.mutable_devices()->set_device_ids(0, 7); }},
      {kInvalid, "argument 0 of the Python program f is on devices [0]",
       [](auto& p) { *p.mutable_input_specs(0) = Spec({8}, OneDevice(0)); }},
      {kInvalid, "output 0 of the Python program f is on devices [0,2048]",
       [](auto& p) {
         *p.mutable_output_specs(0) = Spec({8}, Split({0, 2048}));
       }},
      {kUnimplemented, "layout",
       [](auto& p) {
         *p.mutable_input_specs(0) = Spec({8, 2}, Split({0, 1}, 2));
         p.mutable_input_specs(0)->set_layout("{0,1}");
       }},
  };
  for (const Case& c : cases) {
    CustomCallProgramProto program = Function({0, 1});
    c.spoil(program);
    EXPECT_THAT(client().Status(Request(program)), FailsWith(c.code, c.text));
  }
  CompileRequest request = Request(Function({0, 1}));
  request.mutable_compile_options()->set_type_name(std::string(wire::kXlaCompileOptions));
  EXPECT_THAT(client().Status(request), FailsWith(kInvalid, "CustomCallCompileOptions"));
  request = Request(Function({0, 1}));
  request.mutable_program()->set_data("\xff\xff");
  EXPECT_THAT(client().Status(request), FailsWith(kInvalid, "do not parse"));
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(PythonProgramTest, PlatformsWithoutCpuDevicesAreNamed) {
  worker_.mutable_info().platform_name = "tpu";
  EXPECT_THAT(client().Status(Request(Function({0}))), FailsWith(kUnimplemented, "platform tpu"));
}

// The client knows what the first run returns before it has run.
TEST_P(PythonProgramTest, FirstRunIsAnsweredAtOnce) {
  const uint64_t f = LoadFunction(Function({0, 1}));
  client().MakeSplitArray(1, 4, {0, 1});
  client().Commands();
  const Answer answer = client().Ask(Execute({.executable = f, .arguments = {1}}));
  ASSERT_THAT(answer.status, IsOk());
  ASSERT_EQ(answer.response.loaded_executable_execute_response().outputs_size(), 1);
  const auto& output = answer.response.loaded_executable_execute_response().outputs(0);
  EXPECT_THAT(output.shape().dims(), ElementsAre(8));
  EXPECT_EQ(client().link->launches_under_way().size(), 1u);
  client().link->FinishLaunch(client().link->launches_under_way()[0]);
}

TEST_P(PythonProgramTest, ArgumentsMustBeWhatTheFunctionTakes) {
  const uint64_t f = LoadFunction(Function({0, 1}));
  client().MakeSplitArray(1, 4, {0, 2048});
  client().MakeArray(2, {8}, OneDevice(0));
  client().MakeSplitArray(3, 3, {0, 1});
  client().MakeSplitArray(4, 4, {1, 0});
  for (const uint64_t argument : {1, 2, 3, 4}) {
    EXPECT_THAT(
        client().Status(Execute({.executable = f, .arguments = {argument}, .results = {90 + argument}})),
        FailsWith(kInvalid, "argument 0 of the Python program f is "));
  }
  EXPECT_THAT(client().Status(Execute({.executable = f, .results = {80}})),
              FailsWith(kInvalid, "takes 1 arguments"));
}

// Buffers are named in the order of the program's devices, whatever that of an array is.
TEST_P(PythonProgramTest, ArraysMayHaveTheirOwnOrderOfDevices) {
  CustomCallProgramProto program = Function({0, 1});
  *program.mutable_input_specs(0) = Spec({8}, Split({1, 0}));
  *program.add_output_specs() = Spec({8}, Split({1, 0}));
  const uint64_t f = LoadFunction(program);
  const cluster::BufferId argument = client().MakeSplitArray(1, 4, {1, 0});
  client().Commands();
  ASSERT_THAT(client().Status(Execute({.executable = f, .arguments = {1}, .results = {2, 3}})), IsOk());
  const cluster::BufferId result = argument + 2;
  EXPECT_THAT(client().Commands(), testing::Contains(absl::StrCat("execute #2 program 1 (", argument + 1, ",",
                                                                  argument, ") -> (", result, ",", result + 1,
                                                                  "; ", result + 3, ",", result + 2, ")")));
  client().link->FinishLaunch(client().link->launches_under_way()[0]);
}

TEST_P(PythonProgramTest, ForgottenInTheOrderOfAStream) {
  const uint64_t f = LoadFunction(Function({0, 1}));
  const uint64_t g = LoadFunction(Function({0, 1}));
  client().Commands();
  LoadedExecutableDestructRequest destruct;
  destruct.set_loaded_executable_handle(f);
  destruct.mutable_delete_options()->set_deletion_stream_id(-5);
  EXPECT_THAT(client().Status(destruct), IsOk());
  destruct.Clear();
  destruct.set_loaded_executable_handle(g);
  EXPECT_THAT(client().Status(destruct), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("unload 1 stream -5", "unload 2"));
}

}  // namespace
}  // namespace helmway::proxy
