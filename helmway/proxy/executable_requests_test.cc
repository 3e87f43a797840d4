// Requests about loaded executables: what they are, running them, forgetting them.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "helmway/program/layout.h"
#include "helmway/program/sharding.h"
#include "helmway/proxy/session_testing.h"
#include "helmway/wire/status.h"
#include "helmway/wire/xla_hlo.pb.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::xla::ifrt::proxy::LoadedExecutableCostAnalysisRequest;
using ::xla::ifrt::proxy::LoadedExecutableDestructRequest;
using ::xla::ifrt::proxy::LoadedExecutableExecuteRequest;
using ::xla::ifrt::proxy::LoadedExecutableExecuteResponse;
using ::xla::ifrt::proxy::LoadedExecutableFetchExecuteResultRequest;
using ::xla::ifrt::proxy::LoadedExecutableHumanReadableProgramTextRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataRequest;
using ::xla::ifrt::proxy::LoadedExecutableMetadataResponse;

constexpr char kGone[] = "Array has been deleted or donated.";
constexpr uint64_t kFirstServerHandle = uint64_t{1} << 48;

template <typename Request>
Request About(uint64_t executable) {
  Request request;
  request.set_loaded_executable_handle(executable);
  return request;
}

LoadedExecutableFetchExecuteResultRequest Fetch(uint64_t status) {
  LoadedExecutableFetchExecuteResultRequest request;
  request.set_result_status_handle(status);
  return request;
}

class ExecutableRequestsTest : public VersionedSessionTest {
 protected:
  uint64_t LoadModule(const xla::HloModuleProto& module) {
    cluster::CompiledProgram program = Compiled({});
    program.optimized_hlo = module.SerializeAsString();
    const uint64_t op_id = client().Send(CompileFor({10}));
    link().AnswerCompile(link().compiling().back(), std::move(program));
    return client().AnswerTo(op_id).response.compile_response().loaded_executable_handle();
  }
  // One f32[4] in, one out, on the first device.
  uint64_t LoadOneToOne(std::vector<int32_t> donated = {}) {
    return client().Load({.parameters = {{{4}}}, .outputs = {{{4}}}, .donated = std::move(donated)});
  }
  FakeSessionLink& link() { return *client().link; }
  void FinishAll(const absl::Status& status = absl::OkStatus()) {
    for (const cluster::LaunchId launch : link().launches_under_way()) link().FinishLaunch(launch, status);
  }
};

// ---- LoadedExecutableMetadata ----------------------------------------------------------------------------

class MetadataTest : public ExecutableRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, MetadataTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(MetadataTest, OfAProgramOnOneDevice) {
  const uint64_t program = client().Load({.parameters = {{{2, 3}}, {{}}},
                                          .outputs = {{{3}}, {{}}},
                                          .donated = {1},
                                          .output_memory_kinds = {"device", "pinned_host"}});
  const Answer answer = client().Ask(About<LoadedExecutableMetadataRequest>(program));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  const LoadedExecutableMetadataResponse& metadata = answer.response.loaded_executable_metadata_response();
  EXPECT_FALSE(metadata.has_parameter_shardings());
  EXPECT_FALSE(metadata.has_output_shardings());
  ASSERT_EQ(metadata.parameter_layouts_list().layouts_size(), 2);
  EXPECT_THAT(metadata.parameter_layouts_list().layouts(0).minor_to_major(), ElementsAre(1, 0));
  EXPECT_THAT(metadata.parameter_layouts_list().layouts(1).minor_to_major(), IsEmpty());
  ASSERT_EQ(metadata.output_layouts_list().layouts_size(), 2);
  ASSERT_EQ(metadata.output_memory_kinds().memory_kind_lists_size(), 1);
  EXPECT_THAT(metadata.output_memory_kinds().memory_kind_lists(0).memory_kinds(),
              ElementsAre("device", "pinned_host"));
  EXPECT_THAT(metadata.donated_input_indices().donated_input_indices(), ElementsAre(1));
  EXPECT_EQ(metadata.compiled_memory_stats_error().code(), tensorflow::error::UNIMPLEMENTED);
  EXPECT_EQ(metadata.mpmd_compiled_memory_stats_oneof_case(),
            LoadedExecutableMetadataResponse::MPMD_COMPILED_MEMORY_STATS_ONEOF_NOT_SET);
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(MetadataTest, OfAProgramOnSeveralDevices) {
  const uint64_t program =
      client().Load({.parameters = {{{2}, true}, {{5}}}, .outputs = {{{4}, true}}, .devices = {11, 12}});
  const Answer answer = client().Ask(About<LoadedExecutableMetadataRequest>(program));
  ASSERT_THAT(answer.status, IsOk());
  const LoadedExecutableMetadataResponse& metadata = answer.response.loaded_executable_metadata_response();
  ASSERT_EQ(metadata.parameter_shardings().shardings_size(), 2);
  EXPECT_EQ(metadata.parameter_shardings().shardings(0).type(), xla::OpSharding::OTHER);
  EXPECT_THAT(metadata.parameter_shardings().shardings(0).tile_assignment_dimensions(), ElementsAre(2));
  EXPECT_EQ(metadata.parameter_shardings().shardings(1).type(), xla::OpSharding::REPLICATED);
  ASSERT_EQ(metadata.output_shardings().shardings_size(), 1);
  EXPECT_TRUE(metadata.has_donated_input_indices());
  EXPECT_THAT(metadata.donated_input_indices().donated_input_indices(), IsEmpty());
}

TEST_P(MetadataTest, MemoryStats) {
  const auto load = [&](absl::StatusOr<std::string> stats) {
    cluster::CompiledProgram program = Compiled({});
    program.memory_stats = std::move(stats);
    program.code_size_bytes = 77;
    const uint64_t op_id = client().Send(CompileFor({10}));
    link().AnswerCompile(link().compiling().back(), std::move(program));
    return client().AnswerTo(op_id).response.compile_response().loaded_executable_handle();
  };
  xla::CompiledMemoryStatsProto stats;
  stats.set_temp_size_in_bytes(5);
  const Answer good = client().Ask(About<LoadedExecutableMetadataRequest>(load(stats.SerializeAsString())));
  ASSERT_THAT(good.status, IsOk());
  const auto& metadata = good.response.loaded_executable_metadata_response();
  EXPECT_EQ(metadata.compiled_memory_stats().temp_size_in_bytes(), 5);
  EXPECT_EQ(metadata.size_of_generated_code_in_bytes(), 77);
  EXPECT_THAT(client().Status(About<LoadedExecutableMetadataRequest>(load("\xff"))),
              FailsWith(absl::StatusCode::kInternal, "memory statistics"));
}

TEST_P(MetadataTest, OfNoProgram) {
  client().MakeArray(1);
  for (const uint64_t handle : {uint64_t{0}, uint64_t{1}, kFirstServerHandle}) {
    EXPECT_THAT(client().Status(About<LoadedExecutableMetadataRequest>(handle)),
                FailsWith(kNotFound, absl::StrCat(handle)));
  }
}

// ---- LoadedExecutableExecute -----------------------------------------------------------------------------

class ExecuteTest : public ExecutableRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, ExecuteTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ExecuteTest, FirstRunDescribesItsOutputs) {
  const uint64_t program = client().Load({.parameters = {{{2}, true}},
                                          .outputs = {{{4}, true}, {{}}, {{3, 5}, true}},
                                          .devices = {11, 12},
                                          .output_memory_kinds = {"device", "device", "pinned_host"}});
  client().MakeSplitArray(1, 2, {11, 12});
  const Answer answer = client().Ask(Execute({program, {1}}));
  ASSERT_THAT(answer.status, IsOk());
  // The client waits for it.
  EXPECT_FALSE(answer.patient);
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 (1,2) -> (3,4; 5,6; 7,8)", "flush"));
  const LoadedExecutableExecuteResponse& response = answer.response.loaded_executable_execute_response();
  EXPECT_EQ(response.status_handle(), 0u);
  ASSERT_EQ(response.outputs_size(), 3);
  const auto check = [&](int i, const std::vector<int64_t>& dims, const char* kind) {
    const auto& output = response.outputs(i);
    EXPECT_EQ(output.dtype().kind(), kF32);
    EXPECT_THAT(output.shape().dims(), ::testing::ElementsAreArray(dims));
    EXPECT_GE(output.array_handle(), kFirstServerHandle);
    const auto sharding = program::Sharding::Parse(output.sharding());
    ASSERT_THAT(sharding.status(), IsOk());
    EXPECT_THAT((*sharding)->devices(), ElementsAre(11, 12));
    EXPECT_EQ((*sharding)->memory_kind().value_or(""), kind);
    EXPECT_THAT(client().Use(output.array_handle()), IsOk());
  };
  check(0, {8}, "");
  check(1, {}, "");
  check(2, {6, 5}, "pinned_host");
  // The client's own handles are others.
  EXPECT_THAT(client().Status(Destruct({response.outputs(0).array_handle()})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 3,4"));
}

TEST_P(ExecuteTest, FirstRunWithCallbacksIsAnsweredWhenTheyHaveReturned) {
  const uint64_t program = client().Load({.outputs = {{{4}}}, .python_callbacks = {5}});
  const uint64_t first = client().Send(Execute({program}));
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 () -> (1)", "flush"));
  EXPECT_FALSE(client().Answered(first));
  // Nobody else waits.
  client().MakeArray(77);
  FinishAll();
  const Answer answer = client().AnswerTo(first);
  ASSERT_THAT(answer.status, IsOk());
  ASSERT_EQ(answer.response.loaded_executable_execute_response().outputs_size(), 1);
  EXPECT_THAT(client().Use(answer.response.loaded_executable_execute_response().outputs(0).array_handle()),
              IsOk());
  // Later runs are answered at once.
  EXPECT_THAT(client().Ask(Execute({program, {}, {78}})).status, IsOk());
  FinishAll();
}

TEST_P(ExecuteTest, FirstRunWithCallbacksThatFail) {
  const uint64_t program = client().Load({.outputs = {{{4}}}, .python_callbacks = {5}});
  const uint64_t first = client().Send(Execute({.executable = program, .fill_status = true}));
  EXPECT_FALSE(client().Answered(first));
  FinishAll(absl::InternalError("ValueError: no"));
  EXPECT_THAT(client().AnswerTo(first).status, FailsWith(absl::StatusCode::kInternal, "ValueError: no"));
  // The client has not heard of the output nor of the status: they are gone.
  EXPECT_THAT(client().Commands(), ::testing::Contains(::testing::StartsWith("execute")));
  for (uint64_t handle = program + 2; handle < program + 10; ++handle) {  // the program has a future
    EXPECT_THAT(client().Status(Destruct({handle})), FailsWith(kNotFound, "handle"));
    EXPECT_THAT(client().Status(Fetch(handle)), FailsWith(kNotFound, "handle"));
  }
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

class ImpatientExecuteTest : public ExecuteTest {
 protected:
  ProxyOptions options() override {
    ProxyOptions options = ExecuteTest::options();
    options.callback_patience = absl::Milliseconds(1);
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ImpatientExecuteTest, ::testing::ValuesIn(kVersions), VersionName);

// A callback may wait for what its caller does next.
TEST_P(ImpatientExecuteTest, FirstRunWithCallbacksIsNotAwaitedForEver) {
  const uint64_t program = client().Load({.outputs = {{{4}}}, .python_callbacks = {5}});
  const uint64_t first = client().Send(Execute({program}));
  while (!client().Answered(first)) absl::SleepFor(absl::Milliseconds(1));
  const Answer answer = client().AnswerTo(first);
  ASSERT_THAT(answer.status, IsOk());
  FinishAll(absl::InternalError("ValueError: no"));
  // The output is there, and its user gets the error from the worker.
  EXPECT_THAT(client().Use(answer.response.loaded_executable_execute_response().outputs(0).array_handle()),
              IsOk());
}

TEST_P(ExecuteTest, OutputsOnOneDevice) {
  const uint64_t program = client().Load({.outputs = {{{4}}}, .devices = {13}});
  const Answer answer = client().Ask(Execute({program}));
  ASSERT_THAT(answer.status, IsOk());
  const auto sharding =
      program::Sharding::Parse(answer.response.loaded_executable_execute_response().outputs(0).sharding());
  ASSERT_THAT(sharding.status(), IsOk());
  EXPECT_EQ((*sharding)->kind(), program::Sharding::Kind::kSingleDevice);
  EXPECT_THAT((*sharding)->devices(), ElementsAre(13));
}

TEST_P(ExecuteTest, LaterRunsUseTheClientsHandles) {
  const uint64_t program = client().Load({.parameters = {{{4}}, {{4}}}, .outputs = {{{4}}, {{4}}}});
  client().MakeArray(1);
  client().MakeArray(2);
  const Answer answer = client().Ask(Execute({program, {2, 1}, {11, 12}}));
  ASSERT_THAT(answer.status, IsOk());
  // Nobody waits for it, and not for the launch either.
  EXPECT_TRUE(answer.patient);
  EXPECT_EQ(answer.response.loaded_executable_execute_response().outputs_size(), 0);
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 (2; 1) -> (3; 4)", "flush"));
  EXPECT_THAT(link().launches_under_way(), ElementsAre(2));
  // Its outputs are arrays like others: a chain of runs, a read and the end of all handles.
  ASSERT_THAT(client().Status(Execute({program, {11, 11}, {21, 22}})), IsOk());
  const uint64_t read = client().Send(ReadInto(100, 21));
  ASSERT_THAT(client().Status(Destruct({11, 12, 21, 22})), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("execute #3 program 1 (3; 3) -> (5; 6)", "flush", "read 5", "delete 3,4,5,6"));
  EXPECT_FALSE(client().Answered(read));
  FinishAll();
  link().AnswerRead(5, BytesOf("result"));
  EXPECT_THAT(client().AnswerTo(read).status, IsOk());
}

TEST_P(ExecuteTest, ReadOfAnUnfinishedRunHoldsNobodyUp) {
  const uint64_t program = LoadOneToOne();
  client().MakeArray(1);
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}})), IsOk());
  const uint64_t read = client().Send(ReadInto(100, 2));
  const uint64_t ready = client().Send(Ready({2}));
  ASSERT_THAT(client().Status(Execute({program, {1}, {3}})), IsOk());
  ASSERT_THAT(client().Status(ShardOf(3, 4)), IsOk());
  EXPECT_FALSE(client().Answered(read));
  EXPECT_FALSE(client().Answered(ready));
  link().AnswerAwait();
  link().AnswerRead(2, BytesOf("result"));
  EXPECT_THAT(client().AnswerTo(read).status, IsOk());
  EXPECT_THAT(client().AnswerTo(ready).status, IsOk());
}

TEST_P(ExecuteTest, FailureOfTheRunReachesItsReaders) {
  const uint64_t program = LoadOneToOne();
  client().MakeArray(1);
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}, true, 50})), IsOk());
  const uint64_t read = client().Send(ReadInto(100, 2));
  const absl::Status cause = absl::DataLossError("the device died");
  FinishAll(cause);
  link().AnswerRead(2, cause);
  EXPECT_EQ(client().AnswerTo(read).status, cause);
  EXPECT_EQ(client().Status(Fetch(50)), cause);
  // The handle is an array still: its use is up to the worker.
  EXPECT_THAT(client().Use(2), IsOk());
}

TEST_P(ExecuteTest, DonatedArgumentsAreGone) {
  const uint64_t program =
      client().Load({.parameters = {{{4}}, {{4}}, {{4}}}, .outputs = {}, .donated = {0, 2}});
  for (const uint64_t handle : {1, 2, 3}) client().MakeArray(handle);
  ASSERT_THAT(client().Status(Execute({program, {1, 2, 3}})), IsOk());
  // Freed after the launch that consumes them.
  EXPECT_THAT(client().Commands(),
              ElementsAre("execute #2 program 1 (1; 2; 3) -> () donates [0,2]", "delete 1,3", "flush"));
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  EXPECT_TRUE(client().Ask(IsDeleted(3)).response.is_array_deleted_response().deleted());
  EXPECT_FALSE(client().Ask(IsDeleted(2)).response.is_array_deleted_response().deleted());
  // Once, whatever is said of them afterwards.
  ASSERT_THAT(client().Status(Delete({1, 3})), IsOk());
  ASSERT_THAT(client().Status(Destruct({1, 3})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(ExecuteTest, ArgumentsThatMustSurvive) {
  const uint64_t program =
      client().Load({.parameters = {{{4}}, {{4}}, {{4}}}, .outputs = {}, .donated = {0, 2}});
  for (const uint64_t handle : {1, 2, 3}) client().MakeArray(handle);
  ASSERT_THAT(client().Status(Execute({program, {1, 2, 3}, {}, false, 0, {2, 1}})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 (1; 2; 3) -> () donates [0] keeps [2,1]",
                                               "delete 1", "flush"));
  EXPECT_THAT(client().Use(3), IsOk());
}

TEST_P(ExecuteTest, NonsenseAmongTheArgumentsThatMustSurvive) {
  const uint64_t program = LoadOneToOne({0});
  client().MakeArray(1);
  ExpectFails(Execute({program, {1}, {11}, false, 0, {1}}), {11}, kInvalid, "1");
  ExpectFails(Execute({program, {1}, {12}, false, 0, {-1}}), {12}, kInvalid, "-1");
  ExpectFails(Execute({program, {1}, {13}, false, 0, {0, INT32_MAX}}), {13}, kInvalid, "2147483647");
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_P(ExecuteTest, DonatedBuffersThatOthersShare) {
  const uint64_t program = LoadOneToOne({0});
  client().MakeArray(1);
  ASSERT_THAT(client().Status(ShardOf(1, 2)), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {1}, {3}})), IsOk());
  // The worker knows that the buffer is consumed; the name lives as long as somebody has it.
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 (1) -> (2) donates [0]", "flush"));
  client().Send(Ready({2}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 1"));
  ASSERT_THAT(client().Status(Destruct({2})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(ExecuteTest, OneArrayForSeveralArguments) {
  const uint64_t program = client().Load({.parameters = {{{4}}, {{4}}}, .outputs = {}, .donated = {0, 1}});
  client().MakeArray(1);
  ASSERT_THAT(client().Status(Execute({program, {1, 1}})), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("execute #2 program 1 (1; 1) -> () donates [0,1]", "delete 1", "flush"));
}

TEST_P(ExecuteTest, WhatDoesNotFit) {
  const uint64_t program =
      client().Load({.parameters = {{{4}}, {{2, 2}}}, .outputs = {{{4}}}, .donated = {0}});
  client().MakeArray(1);
  client().MakeArray(2, {2, 2}, OneDevice(10));
  client().MakeArray(3, {4}, OneDevice(11));
  client().MakeArray(4, {4}, Replicated({10, 11}));
  client().MakeArray(5, {}, OneDevice(10));
  ASSERT_THAT(client().Upload(6, std::string(16, 'x')), IsOk());
  auto integers = FromHost(6, {4}, OneDevice(10));
  *integers.mutable_dtype() = DType(kS32);
  ASSERT_THAT(client().Status(integers), IsOk());
  client().MakeArray(7);
  ASSERT_THAT(client().Status(Delete({7})), IsOk());
  const absl::Status cause = client().Status(ShardOf(99, 8));

  ExpectFails(Execute({program, {1}, {20}}), {20}, kInvalid, "takes 2 arguments, got 1");
  ExpectFails(Execute({program, {1, 2, 2}, {21}}), {21}, kInvalid, "takes 2 arguments, got 3");
  ExpectFails(Execute({program, {1, 2}, {22, 23}}), {22, 23}, kInvalid, "has 1 outputs");
  ExpectFails(Execute({program, {3, 2}, {24}}), {24}, kInvalid, "lies on devices [11]");
  ExpectFails(Execute({program, {4, 2}, {25}}), {25}, kInvalid, "lies on devices [10,11]");
  ExpectFails(Execute({program, {5, 2}, {26}}), {26}, kInvalid, "f32[]");
  ExpectFails(Execute({program, {2, 2}, {27}}), {27}, kInvalid, "f32[2,2]");
  ExpectFails(Execute({program, {6, 2}, {28}}), {28}, kInvalid, "s32[4]");
  ExpectFails(Execute({program, {1, 98}, {29}}), {29}, kNotFound, "98");
  ExpectFails(Execute({program, {7, 2}, {30}}), {30}, kInvalid, kGone);
  ExpectFails(Execute({program, {8, 7}, {31}}), {31}, kNotFound, "99");
  EXPECT_EQ(client().Use(31), cause);
  ExpectFails(Execute({program + 77, {1, 2}, {32}}), {32}, kNotFound, absl::StrCat(program + 77));
  ExpectFails(Execute({1, {1, 2}, {33}}), {33}, kNotFound, "1");
  LoadedExecutableExecuteRequest portable = Execute({program, {1, 2}, {34}});
  portable.add_device_ids(10);
  ExpectFails(portable, {34}, kUnimplemented, "device_ids");
  LoadedExecutableExecuteRequest optional = Execute({program, {1, 2}, {35}});
  (*optional.mutable_execute_options()->mutable_custom_options()->mutable_attributes())["strange"]
      .set_bool_value(true);
  ExpectFails(optional, {35}, kUnimplemented, "strange");
  // What depends on the failed ones fails with their cause.
  ExpectFails(Execute({program, {31, 2}, {40}}), {40}, kNotFound, "99");
  ExpectFails(ShardOf(40, 41), {41}, kNotFound, "99");
  ExpectFails(ReadInto(100, 41), {}, kNotFound, "99");
  // None of them donated anything.
  EXPECT_THAT(client().Use(1), IsOk());
  EXPECT_THAT(link().launches_under_way(), IsEmpty());
}

TEST_P(ExecuteTest, HandlesThatCannotBeBound) {
  const uint64_t program = client().Load({.parameters = {{{4}}}, .outputs = {{{4}}, {{4}}}, .donated = {0}});
  client().MakeArray(1);
  client().MakeArray(2);
  ExpectFails(Execute({program, {1}, {11, 2}}), {11}, kAlreadyExists, "2");
  ExpectFails(Execute({program, {1}, {12, 0}}), {12}, kInvalid, "0 is no array handle");
  ExpectFails(Execute({program, {1}, {13, 13}}), {13}, kAlreadyExists, "13");
  EXPECT_THAT(client().Use(1), IsOk());
  EXPECT_THAT(client().Use(2), IsOk());
}

// ---- The status of a run ---------------------------------------------------------------------------------

class VersionedExecuteTest : public VersionedSessionTest {
 protected:
  // How clients ask for the status of a run.
  uint64_t SendStatusRequest(uint64_t handle) {
    if (protocol() >= wire::kProtocolFetchExecuteResult) return client().Send(Fetch(handle));
    return client().Send(CheckFuture(handle));
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, VersionedExecuteTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(VersionedExecuteTest, StatusUnderTheClientsHandle) {
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  const Answer run = client().Ask(Execute({program, {}, {1}, true, 50}));
  ASSERT_THAT(run.status, IsOk());
  EXPECT_EQ(run.response.loaded_executable_execute_response().status_handle(), 0u);
  const uint64_t op_id = SendStatusRequest(50);
  ASSERT_THAT(client().Status(ShardOf(1, 2)), IsOk());
  EXPECT_FALSE(client().Answered(op_id));
  client().link->FinishLaunch(2);
  const Answer answer = client().AnswerTo(op_id);
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  // Consumed.
  EXPECT_THAT(client().AnswerTo(SendStatusRequest(50)).status, FailsWith(kNotFound, "50"));
}

TEST_P(VersionedExecuteTest, StatusUnderTheServersHandle) {
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  const Answer run = client().Ask(Execute({program, {}, {}, true}));
  ASSERT_THAT(run.status, IsOk());
  const uint64_t handle = run.response.loaded_executable_execute_response().status_handle();
  EXPECT_GE(handle, kFirstServerHandle);
  client().link->FinishLaunch(2, absl::DataLossError("the device died"));
  EXPECT_EQ(client().AnswerTo(SendStatusRequest(handle)).status, absl::DataLossError("the device died"));
}

// A client that asked for none aborts if it gets one.
TEST_P(VersionedExecuteTest, NoStatusUnlessItIsAskedFor) {
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  const Answer run = client().Ask(Execute({program, {}, {}, false}));
  EXPECT_EQ(run.response.loaded_executable_execute_response().status_handle(), 0u);
}

TEST_P(VersionedExecuteTest, StatusOfARunThatWasRefused) {
  const uint64_t program = client().Load({.parameters = {{{4}}}, .outputs = {{{4}}}});
  const absl::Status cause = client().Status(Execute({program, {99}, {1}, true, 50}));
  EXPECT_THAT(cause, FailsWith(kNotFound, "99"));
  EXPECT_EQ(client().AnswerTo(SendStatusRequest(50)).status, cause);
  EXPECT_EQ(client().Use(1), cause);
}

TEST_P(ExecuteTest, StatusHandleInUse) {
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  ASSERT_THAT(client().Status(Execute({program, {}, {1}, true, 50})), IsOk());
  client().Commands();
  ExpectFails(Execute({program, {}, {2}, true, 50}), {2}, kAlreadyExists, "50");
  FinishAll();
  EXPECT_THAT(client().Status(Fetch(50)), IsOk());
}

TEST_P(ExecuteTest, StatusOfNoRun) {
  for (const uint64_t handle : {uint64_t{0}, uint64_t{1}, kFirstServerHandle}) {
    EXPECT_THAT(client().Status(Fetch(handle)), FailsWith(kNotFound, absl::StrCat(handle)));
  }
}

// ---- Launches that wait for host bytes -------------------------------------------------------------------

class HeldLaunchTest : public ExecutableRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, HeldLaunchTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(HeldLaunchTest, HeldUntilTheBytesAreHere) {
  const uint64_t program = LoadOneToOne();
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Status(Execute({program, {1}, {2}})), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", "execute #2 program 1 (1) -> (2) held", "flush"));
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 1@10 f32[4] 16 bytes", "release #2"));
  // Later ones go at once.
  EXPECT_THAT(client().Status(Execute({program, {1}, {3}})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("execute #3 program 1 (1) -> (3)", "flush"));
}

TEST_P(HeldLaunchTest, EachLaunchKeepsItsPlace) {
  const uint64_t program = LoadOneToOne();
  client().MakeArray(10);
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(FromHost(2, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {1}, {11}})), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {10}, {12}})), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {2}, {13}})), IsOk());
  client().Commands();
  ASSERT_THAT(client().Upload(2, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 3@10 f32[4] 16 bytes"));
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("fill 2@10 f32[4] 16 bytes", "release #2", "release #3", "release #4"));
}

TEST_P(HeldLaunchTest, HeldByWhatIsMadeOfTheArray) {
  const uint64_t program = LoadOneToOne();
  const uint64_t wide = client().Load({.parameters = {{{4}, true}}, .outputs = {}, .devices = {10, 11}});
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  client().MakeArray(2, {4}, OneDevice(11));
  // A shard of an assembly of a copy.
  xla::ifrt::proxy::CopyArraysRequest copy;
  copy.add_array_handles(1);
  copy.add_result_handles(3);
  copy.set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  ASSERT_THAT(client().Status(copy), IsOk());
  xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest assemble;
  *assemble.mutable_shape() = Shape({8});
  *assemble.mutable_sharding() = Split({10, 11});
  assemble.add_single_device_array_handles(3);
  assemble.add_single_device_array_handles(2);
  assemble.set_result_handle(4);
  ASSERT_THAT(client().Status(assemble), IsOk());
  ASSERT_THAT(client().Status(Disassemble(4, {5, 6})), IsOk());
  ASSERT_THAT(client().Status(ShardOf(5, 7)), IsOk());
  client().Commands();
  ASSERT_THAT(client().Status(Execute({program, {7}, {8}})), IsOk());
  ASSERT_THAT(client().Status(Execute({wide, {4}})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("execute #2 program 1 (3) -> (4) held", "flush",
                                               "execute #3 program 2 (3,2) -> () held", "flush"));
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 1@10 f32[4] 16 bytes", "release #2", "release #3"));
}

// The results of a held launch are not held themselves: the worker orders what uses them.
TEST_P(HeldLaunchTest, ResultsOfAHeldLaunch) {
  const uint64_t program = LoadOneToOne();
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}})), IsOk());
  const uint64_t read = client().Send(ReadInto(100, 2));
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", "execute #2 program 1 (1) -> (2) held", "flush", "read 2"));
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 1@10 f32[4] 16 bytes", "release #2", "delete 1"));
  FinishAll();
  link().AnswerRead(2, BytesOf("result"));
  EXPECT_THAT(client().AnswerTo(read).status, IsOk());
}

TEST_P(HeldLaunchTest, ReleasedTooIfTheBytesNeverCome) {
  const uint64_t program = LoadOneToOne();
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}})), IsOk());
  client().Commands();
  { auto writer = client().session->StoreHostBuffer(1, 16); }
  EXPECT_THAT(client().Commands(),
              ElementsAre("fail 1@10 CANCELLED: the upload of host buffer 1 broke off after 0 of 16 bytes",
                          "release #2"));
}

TEST_P(HeldLaunchTest, EndOfTheSession) {
  const uint64_t program = LoadOneToOne();
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}, true, 50})), IsOk());
  const uint64_t status = client().Send(Fetch(50));
  client().Commands();
  client().Close();
  EXPECT_EQ(client().AnswerTo(status).status.code(), kCancelled);
  EXPECT_THAT(client().Commands(), ElementsAre("close"));
}

// ---- Back-pressure ---------------------------------------------------------------------------------------

class PausedSessionTest : public ExecutableRequestsTest {
 protected:
  ProxyOptions options() override {
    ProxyOptions options = ExecutableRequestsTest::options();
    options.max_launches_under_way = 4;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, PausedSessionTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(PausedSessionTest, AClientThatRunsAheadWaits) {
  const uint64_t program = client().Load({});
  for (int i = 0; i < 3; ++i) ASSERT_THAT(client().Status(Execute({program})), IsOk());
  EXPECT_FALSE(client().stream->paused());
  // What was read off the stream already is taken still.
  for (int i = 0; i < 3; ++i) ASSERT_THAT(client().Status(Execute({program})), IsOk());
  EXPECT_TRUE(client().stream->paused());
  for (const cluster::LaunchId launch : {2, 3, 4}) link().FinishLaunch(launch);
  EXPECT_TRUE(client().stream->paused());
  // Half of the limit, so that it does not change with every launch.
  link().FinishLaunch(5, absl::InternalError("failed launches count too"));
  EXPECT_FALSE(client().stream->paused());
  FinishAll();
  EXPECT_EQ(client().stream->num_pauses(), 2);
  // A refused run is none.
  for (int i = 0; i < 8; ++i) EXPECT_THAT(client().Status(Execute({program, {1}})), FailsWith(kInvalid, ""));
  EXPECT_FALSE(client().stream->paused());
}

// ---- LoadedExecutableCostAnalysis ------------------------------------------------------------------------

class CostAnalysisTest : public ExecutableRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, CostAnalysisTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(CostAnalysisTest, NumbersOfTheProgram) {
  const uint64_t program = LoadOneToOne();
  const uint64_t op_id = client().Send(About<LoadedExecutableCostAnalysisRequest>(program));
  EXPECT_THAT(client().Commands(), ElementsAre("cost 1"));
  EXPECT_FALSE(client().Answered(op_id));
  link().AnswerCostAnalysis(
      1, cluster::CostProperties{
             {"flops", {1.5f}}, {"bytes accessed", {int64_t{32}}}, {"name", {std::string("no number")}}});
  const Answer answer = client().AnswerTo(op_id);
  ASSERT_THAT(answer.status, IsOk());
  const auto& attributes =
      answer.response.loaded_executable_cost_analysis_response().attributes().attributes();
  EXPECT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes.at("flops").float_value(), 1.5f);
  EXPECT_EQ(attributes.at("bytes accessed").float_value(), 32);
}

TEST_P(CostAnalysisTest, NoNumbersAreAnAnswerToo) {
  const uint64_t program = LoadOneToOne();
  const uint64_t op_id = client().Send(About<LoadedExecutableCostAnalysisRequest>(program));
  link().AnswerCostAnalysis(1, cluster::CostProperties{});
  EXPECT_TRUE(client().AnswerTo(op_id).response.loaded_executable_cost_analysis_response().has_attributes());
}

TEST_P(CostAnalysisTest, AreCountedWhereThePluginHasNone) {
  xla::HloModuleProto module;
  module.set_entry_computation_id(1);
  xla::HloComputationProto& entry = *module.add_computations();
  entry.set_id(1);
  for (const char* opcode : {"parameter", "negate", "negate"}) {
    xla::HloInstructionProto& instruction = *entry.add_instructions();
    instruction.set_id(entry.instructions_size());
    instruction.set_opcode(opcode);
    if (entry.instructions_size() > 1) instruction.add_operand_ids(entry.instructions_size() - 1);
    instruction.mutable_shape()->set_element_type(xla::F32);
    instruction.mutable_shape()->add_dimensions(4);
  }
  const uint64_t op_id = client().Send(About<LoadedExecutableCostAnalysisRequest>(LoadModule(module)));
  link().AnswerCostAnalysis(1, absl::UnimplementedError("no costs"));
  const Answer answer = client().AnswerTo(op_id);
  const auto& attributes =
      answer.response.loaded_executable_cost_analysis_response().attributes().attributes();
  EXPECT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes.at("flops").float_value(), 8);
  EXPECT_EQ(attributes.at("bytes accessed").float_value(), 64);
}

// Errors are in the response: clients cannot read an error in its place.
TEST_P(CostAnalysisTest, ErrorsAreInsideTheResponse) {
  const uint64_t program = LoadOneToOne();
  uint64_t op_id = client().Send(About<LoadedExecutableCostAnalysisRequest>(program));
  link().AnswerCostAnalysis(1, absl::InternalError("no costs"));
  Answer answer = client().AnswerTo(op_id);
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_EQ(wire::StatusFromProto(answer.response.loaded_executable_cost_analysis_response().status()),
            absl::InternalError("no costs"));
  answer = client().Ask(About<LoadedExecutableCostAnalysisRequest>(99));
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_THAT(wire::StatusFromProto(answer.response.loaded_executable_cost_analysis_response().status()),
              FailsWith(kNotFound, "99"));
}

// ---- LoadedExecutableHumanReadableProgramText ------------------------------------------------------------

class ProgramTextTest : public ExecutableRequestsTest {
 protected:
  Answer Text(uint64_t program) {
    return client().Ask(About<LoadedExecutableHumanReadableProgramTextRequest>(program));
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ProgramTextTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ProgramTextTest, TextOfTheProgram) {
  xla::HloModuleProto module;
  ASSERT_TRUE(module.ParseFromString(Compiled({}).optimized_hlo));
  xla::HloComputationProto& entry = *module.add_computations();
  entry.set_id(1);
  entry.set_name("main");
  entry.set_root_id(2);
  *entry.mutable_program_shape() = module.host_program_shape();
  xla::HloInstructionProto& root = *entry.add_instructions();
  root.set_id(2);
  root.set_name("nothing");
  root.set_opcode("tuple");
  *root.mutable_shape() = module.host_program_shape().result();
  module.set_entry_computation_id(1);
  module.set_entry_computation_name("main");
  const Answer answer = Text(LoadModule(module));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  EXPECT_THAT(
      answer.response.loaded_executable_human_readable_program_text_response().human_readable_program_text(),
      HasSubstr("ROOT %nothing = () tuple()"));
}

TEST_P(ProgramTextTest, ErrorsAreInsideTheResponse) {
  xla::HloModuleProto module;
  ASSERT_TRUE(module.ParseFromString(Compiled({}).optimized_hlo));
  module.set_entry_computation_id(77);
  module.add_computations()->set_root_id(5);
  Answer answer = Text(LoadModule(module));
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_THAT(wire::StatusFromProto(
                  answer.response.loaded_executable_human_readable_program_text_response().status()),
              FailsWith(kInvalid, ""));
  answer = Text(99);
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_THAT(wire::StatusFromProto(
                  answer.response.loaded_executable_human_readable_program_text_response().status()),
              FailsWith(kNotFound, "99"));
}

// ---- LoadedExecutableDestruct ----------------------------------------------------------------------------

class DestructExecutableTest : public ExecutableRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, DestructExecutableTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(DestructExecutableTest, UnloadsAfterWhatWasStarted) {
  const uint64_t program = LoadOneToOne();
  client().MakeArray(1);
  ASSERT_THAT(client().Status(Execute({program, {1}, {2}})), IsOk());
  LoadedExecutableDestructRequest request = About<LoadedExecutableDestructRequest>(program);
  // Sent by newer clients, of use to colocated programs only.
  request.mutable_delete_options()->set_deletion_stream_id(-3);
  EXPECT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("execute #2 program 1 (1) -> (2)", "flush", "unload 1 stream -3"));
  ExpectFails(Execute({program, {1}, {3}}), {3}, kNotFound, absl::StrCat(program));
  EXPECT_THAT(client().Status(About<LoadedExecutableMetadataRequest>(program)), FailsWith(kNotFound, ""));
  // Its results live on.
  EXPECT_THAT(client().Use(2), IsOk());
  FinishAll();
}

TEST_P(DestructExecutableTest, OfNoProgram) {
  const uint64_t program = LoadOneToOne();
  EXPECT_THAT(client().Status(About<LoadedExecutableDestructRequest>(99)), FailsWith(kNotFound, "99"));
  EXPECT_THAT(client().Status(About<LoadedExecutableDestructRequest>(program)), IsOk());
  EXPECT_THAT(client().Status(About<LoadedExecutableDestructRequest>(program)),
              FailsWith(kNotFound, absl::StrCat(program)));
}

}  // namespace
}  // namespace helmway::proxy
