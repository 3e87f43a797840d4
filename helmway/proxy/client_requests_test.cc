// Requests that are about the client and the server as a whole, and those that nobody handles.
#include <initializer_list>
#include <map>
#include <string>
#include <variant>

#include "helmway/proxy/session_testing.h"
#include "helmway/wire/xla_data.pb.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using ::xla::ifrt::proxy::GetDefaultDeviceAssignmentRequest;
using ::xla::ifrt::proxy::GetDefaultLayoutRequest;
using ::xla::ifrt::proxy::IfrtRequest;
using ::xla::ifrt::proxy::InitRequest;
using ::xla::ifrt::proxy::InitResponse;

class ClientRequestsTest : public VersionedSessionTest {};
INSTANTIATE_TEST_SUITE_P(Versions, ClientRequestsTest, ::testing::ValuesIn(kVersions), VersionName);

// ---- Init ------------------------------------------------------------------------------------------------

TEST_P(ClientRequestsTest, InitDescribesTheWorker) {
  cluster::DeviceInfo& first = worker_.mutable_info().devices[0];
  first.kind = "a kind";
  first.platform_name = "another platform";
  first.attributes["slice_index"] = {int64_t{3}};
  first.attributes["name"] = {std::string("bytes \xff")};
  first.attributes["on"] = {true};
  first.attributes["coords"] = {std::vector<int64_t>{1, 2}};
  first.attributes["speed"] = {1.5f};
  worker_.mutable_info().devices[1].default_memory.reset();

  const Answer answer = client().Ask(InitRequest());
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  const InitResponse& init = answer.response.init_response();
  EXPECT_EQ(init.platform_name(), "cpu");
  EXPECT_EQ(init.platform_version(), "a fake");
  EXPECT_NE(init.platform_id(), 0u);
  EXPECT_EQ(init.process_index(), 0u);
  EXPECT_EQ(init.runtime_type(), "pathways");
  EXPECT_TRUE(init.has_client_attributes());
  EXPECT_TRUE(init.client_attributes().attributes().at("serialize_with_sdy").bool_value());
  EXPECT_FALSE(init.client_attributes().attributes().at("supports_executable_serialization").bool_value());
  EXPECT_EQ(proxy().FindSession(init.session_id(), TestClient::kPeer), client().session);
  EXPECT_THAT(init.addressable_device_ids(), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(init.primary_device_ids(), ElementsAre(10, 11, 12, 13));

  ASSERT_EQ(init.all_devices_size(), 4);
  const InitResponse::Device& device = init.all_devices(0);
  EXPECT_EQ(device.id(), 10);
  EXPECT_EQ(device.local_hardware_id(), 0);
  EXPECT_EQ(device.local_device_id(), 0);
  EXPECT_EQ(device.device_kind(), "a kind");
  // Read from protocol 22 on, unknown and skipped before.
  EXPECT_EQ(device.platform_name(), "another platform");
  EXPECT_EQ(device.debug_string(), "Device 10");
  EXPECT_EQ(device.to_string(), "Device(id=10)");
  EXPECT_EQ(device.default_memory_id(), 0);
  EXPECT_THAT(device.memory_ids(), ElementsAre(0, 1));
  const auto& attributes = device.attributes().attributes();
  EXPECT_EQ(attributes.size(), 6u);
  EXPECT_EQ(attributes.at("helmway_callback_key").string_value().size(), 32u);
  EXPECT_EQ(attributes.at("slice_index").int64_value(), 3);
  EXPECT_EQ(attributes.at("name").string_value(), "bytes \xff");
  EXPECT_TRUE(attributes.at("on").bool_value());
  EXPECT_THAT(attributes.at("coords").int64_list_value().elements(), ElementsAre(1, 2));
  EXPECT_EQ(attributes.at("speed").float_value(), 1.5f);
  EXPECT_EQ(init.all_devices(3).id(), 13);
  EXPECT_EQ(init.all_devices(3).local_device_id(), 3);
  EXPECT_FALSE(init.all_devices(1).has_default_memory_id());
  EXPECT_TRUE(init.all_devices(1).has_attributes());

  ASSERT_EQ(init.memories_size(), 8);
  const InitResponse::Memory& memory = init.memories(3);
  EXPECT_EQ(memory.id(), 3);
  EXPECT_EQ(memory.memory_space_kind(), "pinned_host");
  EXPECT_EQ(memory.kind_id(), 1);
  EXPECT_EQ(memory.debug_string(), "Memory 3");
  EXPECT_EQ(memory.to_string(), "Memory(pinned_host 3)");
  EXPECT_THAT(memory.device_ids(), ElementsAre(11));
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(ClientRequestsTest, PlatformsHaveNumbersOfTheirOwn) {
  const uint64_t cpu = client().Ask(InitRequest()).response.init_response().platform_id();
  worker_.mutable_info().platform_name = "tpu";
  EXPECT_NE(client().Ask(InitRequest()).response.init_response().platform_id(), cpu);
}

// ---- CheckFuture -----------------------------------------------------------------------------------------

TEST_P(ClientRequestsTest, CheckFutureOfWhatIsDone) {
  client().MakeArray(1);
  const uint64_t future = client().Ask(Delete({1})).response.delete_array_response().deletion_future_handle();
  const Answer answer = client().Ask(CheckFuture(future));
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  EXPECT_THAT(client().Status(CheckFuture(future)), FailsWith(kNotFound, absl::StrCat(future)));
}

TEST_P(ClientRequestsTest, CheckFutureWaitsAndHoldsNobodyUp) {
  const uint64_t program = client().Load({.outputs = {{{4}}}});
  const uint64_t status_handle = 100;
  ASSERT_THAT(client().Status(Execute({program, {}, {1}, true, status_handle})), IsOk());
  const uint64_t op_id = client().Send(CheckFuture(status_handle));
  EXPECT_THAT(client().Status(IsDeleted(1)), IsOk());
  EXPECT_FALSE(client().Answered(op_id));
  // It is consumed already.
  EXPECT_THAT(client().Status(CheckFuture(status_handle)), FailsWith(kNotFound, "100"));

  client().link->FinishLaunch(client().link->launches_under_way()[0], absl::DataLossError("the device died"));
  EXPECT_EQ(client().AnswerTo(op_id).status, absl::DataLossError("the device died"));
}

TEST_P(ClientRequestsTest, CheckFutureOfUnknownHandles) {
  for (const uint64_t handle : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 48, ~uint64_t{0}}) {
    EXPECT_THAT(client().Status(CheckFuture(handle)), FailsWith(kNotFound, absl::StrCat(handle)));
  }
}

// ---- GetDefaultDeviceAssignment --------------------------------------------------------------------------

GetDefaultDeviceAssignmentRequest Assignment(uint64_t replicas, uint64_t partitions) {
  GetDefaultDeviceAssignmentRequest request;
  request.set_num_replicas(replicas);
  request.set_num_partitions(partitions);
  return request;
}

TEST_P(ClientRequestsTest, DefaultAssignmentIsListedByPartition) {
  const Answer answer = client().Ask(Assignment(2, 2));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  const xla::DeviceAssignmentProto& assignment =
      answer.response.get_default_device_assignment_response().device_assignment();
  EXPECT_EQ(assignment.replica_count(), 2);
  EXPECT_EQ(assignment.computation_count(), 2);
  ASSERT_EQ(assignment.computation_devices_size(), 2);
  // The worker lists replica by replica.
  EXPECT_THAT(assignment.computation_devices(0).replica_device_ids(), ElementsAre(10, 12));
  EXPECT_THAT(assignment.computation_devices(1).replica_device_ids(), ElementsAre(11, 13));
}

TEST_P(ClientRequestsTest, DefaultAssignmentThatDoesNotFit) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  for (const auto& [replicas, partitions] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
           {0, 1}, {1, 0}, {0, 0}, {5, 1}, {1, 5}, {2, 3}, {kHalf, 2}, {2, kHalf}, {kHalf + 1, kHalf + 1}}) {
    EXPECT_THAT(client().Status(Assignment(replicas, partitions)), FailsWith(kInvalid, "do not fit"))
        << replicas << " x " << partitions;
  }
  worker_.default_assignment_error = absl::UnimplementedError("the plugin has none");
  EXPECT_EQ(client().Status(Assignment(1, 1)), worker_.default_assignment_error);
}

// ---- GetDefaultLayout ------------------------------------------------------------------------------------

GetDefaultLayoutRequest DefaultLayout(xla::ifrt::DTypeProto::Kind dtype, const std::vector<int64_t>& dims,
                                      int32_t device = 10) {
  GetDefaultLayoutRequest request;
  *request.mutable_dtype() = DType(dtype);
  request.mutable_dims()->Assign(dims.begin(), dims.end());
  request.set_device_id(device);
  return request;
}

TEST_P(ClientRequestsTest, DefaultLayoutIsTheWorkers) {
  worker_.default_layout = std::string("{1,0:T(8,128)}");
  const Answer answer = client().Ask(DefaultLayout(kF32, {2, 3}));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  EXPECT_EQ(answer.response.get_default_layout_response().serialized_pjrt_layout(), "{1,0:T(8,128)}");
  EXPECT_THAT(worker_.default_layout_asked, Pair(kF32, ElementsAre(2, 3)));

  worker_.default_layout = absl::UnimplementedError("no layouts");
  EXPECT_EQ(client().Status(DefaultLayout(kF32, {2})), worker_.default_layout.status());
}

TEST_P(ClientRequestsTest, NobodyWaitsForAWorkerThatIsAskedForALayout) {
  worker_.holds_default_layout = true;
  const uint64_t asked = client().Send(DefaultLayout(kF32, {2, 3}));
  EXPECT_THAT(client().Status(Assignment(1, 1)), IsOk());
  EXPECT_FALSE(client().Answered(asked));
  worker_.AnswerDefaultLayout();
  EXPECT_THAT(client().AnswerTo(asked).status, IsOk());
}

TEST_P(ClientRequestsTest, DefaultLayoutOfWhatCannotBe) {
  EXPECT_THAT(client().Status(DefaultLayout(kF32, {2}, 9)), FailsWith(kInvalid, "no device 9"));
  EXPECT_THAT(client().Status(DefaultLayout(kF32, {2, -1})), FailsWith(kInvalid, "-1"));
  EXPECT_THAT(client().Status(DefaultLayout(kF32, std::vector<int64_t>(65, 1))),
              FailsWith(kInvalid, "65 dimensions"));
  EXPECT_THAT(client().Status(DefaultLayout(xla::ifrt::DTypeProto::KIND_UNSPECIFIED, {})),
              FailsWith(kInvalid, ""));
  EXPECT_THAT(client().Status(DefaultLayout(static_cast<xla::ifrt::DTypeProto::Kind>(98), {})),
              FailsWith(kInvalid, "98"));
  EXPECT_THAT(worker_.default_layout_asked.second, IsEmpty());
}

// ---- What nobody handles ---------------------------------------------------------------------------------

TEST_P(ClientRequestsTest, UnsupportedRequestsAreNamed) {
  for (const char* name :
       {"LoadedExecutableDeleteRequest", "LoadedExecutableIsDeletedRequest", "LoadedHostCallbackPollRequest",
        "LoadedHostCallbackReturnRequest", "LoadedExecutableMpmdMetadataRequest",
        "LoadedExecutableMpmdCostAnalysisRequest"}) {
    const google::protobuf::Descriptor* type = IfrtRequest::descriptor()->file()->FindMessageTypeByName(name);
    ASSERT_NE(type, nullptr) << name;
    IfrtRequest request;
    request.GetReflection()->MutableMessage(&request, RequestMember(type));
    EXPECT_THAT(client().AnswerTo(client().SendWhole(request)).status, FailsWith(kUnimplemented, name));
  }
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(ClientRequestsTest, RequestWithoutAMember) {
  EXPECT_THAT(client().AnswerTo(client().SendWhole({})).status, FailsWith(kInvalid, "member"));
  // A member of a later protocol.
  IfrtRequest later;
  later.GetReflection()->MutableUnknownFields(&later)->AddLengthDelimited(99, "");
  EXPECT_THAT(client().AnswerTo(client().SendWhole(later)).status, FailsWith(kInvalid, "member"));
}

// Every member there is, with nothing in it: an answer to each, and nothing for the worker to do but to wait
// for no arrays.
TEST_P(ClientRequestsTest, EmptyRequestsAreAnswered) {
  const google::protobuf::OneofDescriptor& members = *IfrtRequest::descriptor()->FindOneofByName("request");
  for (int i = 0; i < members.field_count(); ++i) {
    SCOPED_TRACE(members.field(i)->name());
    IfrtRequest request;
    request.GetReflection()->MutableMessage(&request, members.field(i));
    const uint64_t op_id = client().SendWhole(request);
    if (request.has_check_value_ready_request()) client().link->AnswerAwait();
    EXPECT_TRUE(client().Answered(op_id));
  }
  EXPECT_THAT(client().Commands(), ElementsAre("await "));
}

}  // namespace
}  // namespace helmway::proxy
