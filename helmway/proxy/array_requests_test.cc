// Requests about arrays: making, taking apart, copying, reading and forgetting them.
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "helmway/program/layout.h"
#include "helmway/proxy/session_testing.h"
#include "helmway/wire/serialized.h"

namespace helmway::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::xla::ifrt::DTypeProto;
using ::xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY;
using ::xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT;
using ::xla::ifrt::proxy::AssembleArrayFromSingleDeviceArraysRequest;
using ::xla::ifrt::proxy::CopyArraysRequest;
using ::xla::ifrt::proxy::CopyToHostBufferRequest;
using ::xla::ifrt::proxy::DisassembleIntoSingleDeviceArraysRequest;
using ::xla::ifrt::proxy::FullyReplicatedShardRequest;
using ::xla::ifrt::proxy::MakeArrayFromHostBufferRequest;
using ::xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest;
using ::xla::ifrt::proxy::MakeErrorArraysRequest;

constexpr char kGone[] = "Array has been deleted or donated.";
constexpr uint64_t kBound = 50;  // bound by the fixture

class ArrayRequestsTest : public VersionedSessionTest {
 protected:
  // A host buffer that nobody took is there; one that a request gave up is not.
  bool HasHostBuffer(uint64_t handle) { return client().session->LookupHostBuffer(handle).ok(); }
};

// ---- MakeArrayFromHostBuffer -----------------------------------------------------------------------------

class MakeArrayTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, MakeArrayTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(MakeArrayTest, BytesBeforeTheRequest) {
  ASSERT_THAT(client().Upload(1, "0123456789abcdef0123456789abcdef"), IsOk());
  const Answer answer = client().Ask(FromHost(1, {4, 2}, OneDevice(11)));
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_EQ(answer.response.make_array_from_host_buffer_response().array_handle(), 1u);
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@11", "fill 1@11 f32[4,2] 32 bytes"));
  EXPECT_EQ(client().link->contents(1), "0123456789abcdef0123456789abcdef");
  // Taken.
  EXPECT_FALSE(HasHostBuffer(1));
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_P(MakeArrayTest, BytesAfterTheRequest) {
  // Nobody waits for them.
  EXPECT_THAT(client().Status(FromHost(1, {2}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10"));
  EXPECT_THAT(client().Status(FromHost(2, {}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 2@10"));
  ASSERT_THAT(client().Upload(2, "abcd"), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 2@10 f32[] 4 bytes"));
  ASSERT_THAT(client().Upload(1, "01234567"), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("fill 1@10 f32[2] 8 bytes"));
}

TEST_P(MakeArrayTest, OneBufferForAllDevicesOfAReplicatedArray) {
  ASSERT_THAT(client().Upload(1, "01234567"), IsOk());
  ASSERT_THAT(client().Status(FromHost(1, {2}, Replicated({12, 10, 13}))), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@12 2@10 3@13", "fill 1@12 2@10 3@13 f32[2] 8 bytes"));
}

TEST_P(MakeArrayTest, ArrayHandleApartFromTheBuffers) {
  MakeArrayFromHostBufferRequest request = FromHost(1, {1}, OneDevice(10));
  request.set_array_handle(7);
  ASSERT_THAT(client().Upload(1, "abcd"), IsOk());
  EXPECT_EQ(client().Ask(request).response.make_array_from_host_buffer_response().array_handle(), 7u);
  EXPECT_THAT(client().Use(7), IsOk());
  EXPECT_THAT(client().Use(1), FailsWith(kNotFound, "1"));
  // Without one the buffer's serves.
  request.set_host_buffer_handle(2);
  request.clear_array_handle();
  ASSERT_THAT(client().Upload(2, "abcd"), IsOk());
  EXPECT_EQ(client().Ask(request).response.make_array_from_host_buffer_response().array_handle(), 2u);
  EXPECT_THAT(client().Use(2), IsOk());
}

TEST_P(MakeArrayTest, StridesAndMemoryKindReachTheWorker) {
  // A 4x4 part of an 8x8 array.
  MakeArrayFromHostBufferRequest request = FromHost(1, {4, 4}, OneDevice(10, "pinned_host"));
  *request.mutable_byte_strides() = Strides({32, 4});
  ASSERT_THAT(client().Upload(1, std::string(112, 'x')), IsOk());
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", "fill 1@10 f32[4,4] 112 bytes strides [32,4] kind pinned_host"));
  // A scalar has strides too.
  request = FromHost(2, {}, OneDevice(10));
  *request.mutable_byte_strides() = Strides({});
  ASSERT_THAT(client().Upload(2, "abcd"), IsOk());
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 2@10", "fill 2@10 f32[] 4 bytes strides []"));
}

TEST_P(MakeArrayTest, ArraysWithoutElements) {
  ASSERT_THAT(client().Upload(1, ""), IsOk());
  ASSERT_THAT(client().Status(FromHost(1, {0, 3}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10", "fill 1@10 f32[0,3] 0 bytes"));
}

TEST_P(MakeArrayTest, NarrowTypesTakeAByteForAnElement) {
  MakeArrayFromHostBufferRequest request = FromHost(1, {3}, OneDevice(10));
  *request.mutable_dtype() = DType(DTypeProto::KIND_S4);
  ASSERT_THAT(client().Upload(1, "abc"), IsOk());
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10", "fill 1@10 s4[3] 3 bytes"));
}

// A custom layout exists from protocol 23 on; what says the default is not a custom one.
TEST_P(MakeArrayTest, CustomLayouts) {
  MakeArrayFromHostBufferRequest request = FromHost(1, {2, 3}, OneDevice(10));
  xla::ifrt::CompactLayoutProto compact;
  compact.add_major_to_minor(1);
  compact.add_major_to_minor(0);
  *request.mutable_layout()->mutable_serialized_layout() =
      wire::MakeSerialized(compact, wire::kCompactLayout);
  ASSERT_THAT(client().Upload(1, std::string(24, 'x')), IsOk());
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10", "fill 1@10 f32[2,3] 24 bytes layout {0,1}"));

  request = FromHost(2, {2, 3}, OneDevice(10));
  *request.mutable_layout() = program::Layout::Default(2).ToIfrtProto();
  ASSERT_THAT(client().Upload(2, std::string(24, 'x')), IsOk());
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 2@10", "fill 2@10 f32[2,3] 24 bytes"));
}

struct BadArray {
  const char* name;
  absl::StatusCode code;
  const char* text;
  std::function<void(MakeArrayFromHostBufferRequest&)> spoil;
};
void PrintTo(const BadArray& bad, std::ostream* out) { *out << bad.name; }

class BadArrayTest : public SessionTest,
                     public ::testing::WithParamInterface<std::tuple<BadArray, std::pair<int, int>>> {
 protected:
  std::pair<int, int> version() const override { return std::get<1>(GetParam()); }
};

TEST_P(BadArrayTest, FailsEveryUse) {
  client().MakeArray(kBound);
  MakeArrayFromHostBufferRequest request = FromHost(1, {2, 3}, OneDevice(10));
  const BadArray& bad = std::get<0>(GetParam());
  bad.spoil(request);
  ExpectFails(request, {1}, bad.code, bad.text);
  // The bytes that are on their way are dropped when they come.
  EXPECT_THAT(client().Upload(1, std::string(24, 'x')), IsOk());
  EXPECT_FALSE(client().session->LookupHostBuffer(1).ok());
  EXPECT_THAT(client().Use(kBound), IsOk());
  EXPECT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

constexpr auto Dims = [](const std::vector<int64_t>& dims) {
  return [dims](MakeArrayFromHostBufferRequest& r) { *r.mutable_shape() = Shape(dims); };
};
constexpr auto Type = [](int kind) {
  return [kind](MakeArrayFromHostBufferRequest& r) {
    *r.mutable_dtype() = DType(static_cast<DTypeProto::Kind>(kind));
  };
};
constexpr auto On = [](const xla::ifrt::ShardingProto& sharding) {
  return [sharding](MakeArrayFromHostBufferRequest& r) { *r.mutable_sharding() = sharding; };
};
constexpr auto Strided = [](const std::vector<int64_t>& strides) {
  return [strides](MakeArrayFromHostBufferRequest& r) { *r.mutable_byte_strides() = Strides(strides); };
};
constexpr auto WithLayout = [](const program::Layout& layout) {
  return [layout](MakeArrayFromHostBufferRequest& r) { *r.mutable_layout() = layout.ToIfrtProto(); };
};

std::string BadArrayName(const ::testing::TestParamInfo<BadArrayTest::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param).name, VersionName({std::get<1>(info.param), 0}));
}
INSTANTIATE_TEST_SUITE_P(
    All, BadArrayTest,
    ::testing::Combine(
        ::testing::Values(BadArray{"NoType", kInvalid, "", Type(0)},
                          BadArray{"UnknownType", kInvalid, "98", Type(98)},
                          BadArray{"Opaque", kUnimplemented, "opaque", Type(DTypeProto::KIND_OPAQUE)},
                          BadArray{"Token", kInvalid, "a token with dimensions",
                                   Type(DTypeProto::KIND_TOKEN)},
                          BadArray{"NegativeDim", kInvalid, "-2", Dims({2, -2})},
                          BadArray{"SizeOverflows", kInvalid, "", Dims({int64_t{1} << 62, 4})},
                          BadArray{"BytesOverflow", kInvalid, "", Dims({int64_t{1} << 62})},
                          BadArray{"TooManyDims", kInvalid, "dimensions", Dims(std::vector<int64_t>(65, 1))},
                          BadArray{"TooManyDimsOfUnknownShards", kInvalid, "65 dimensions",
                                   [](MakeArrayFromHostBufferRequest& r) {
                                     *r.mutable_shape() = Shape(std::vector<int64_t>(65, 1));
                                     *r.mutable_sharding() = OpaqueOver({10});
                                   }},
                          BadArray{"NoSharding", kInvalid, "Sharding", On({})},
                          BadArray{"UnknownSharding", kUnimplemented, "strange",
                                   [](MakeArrayFromHostBufferRequest& r) {
                                     r.mutable_sharding()->mutable_serialized_sharding()->set_type_name(
                                         "strange");
                                   }},
                          BadArray{"UnknownDevice", kInvalid, "no device 9", On(OneDevice(9))},
                          BadArray{"UnknownDeviceAmongOthers", kInvalid, "no device 14",
                                   On(Replicated({10, 14}))},
                          BadArray{"DeviceTwice", kInvalid, "twice", On(Replicated({10, 10}))},
                          BadArray{"NoDevices", kInvalid, "no devices", On(Replicated({}))},
                          BadArray{"Split", kUnimplemented, "splits", On(Split({10, 11}, 2))},
                          BadArray{"UnknownShards", kUnimplemented, "splits", On(OpaqueOver({10, 11}))},
                          BadArray{"TooFewStrides", kInvalid, "", Strided({4})},
                          BadArray{"NoStrides", kInvalid, "", Strided({})},
                          BadArray{"ZeroStride", kUnimplemented, "", Strided({0, 4})},
                          BadArray{"NegativeStride", kUnimplemented, "", Strided({-12, 4})},
                          BadArray{"StridesOverflow", kInvalid, "",
                                   Strided({int64_t{1} << 62, int64_t{1} << 62})},
                          BadArray{"LayoutOfAnotherRank", kInvalid, "layout",
                                   WithLayout(program::Layout::Default(3))},
                          BadArray{"DescendingLayoutOfAnotherRank", kInvalid, "layout",
                                   WithLayout(program::Layout::Default(1))},
                          BadArray{"UnknownLayout", kUnimplemented, "",
                                   [](MakeArrayFromHostBufferRequest& r) {
                                     r.mutable_layout()->mutable_serialized_layout()->set_type_name(
                                         "strange");
                                   }}),
        ::testing::ValuesIn(kVersions)),
    BadArrayName);

TEST_P(MakeArrayTest, HandlesThatCannotBeBound) {
  EXPECT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  client().Commands();
  // The one that is there stays.
  EXPECT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Status(FromHost(1, {4}, OneDevice(11))), FailsWith(kAlreadyExists, "handle 1 "));
  EXPECT_FALSE(HasHostBuffer(1));
  EXPECT_THAT(client().Commands(), IsEmpty());
  EXPECT_THAT(client().Use(1), IsOk());

  MakeArrayFromHostBufferRequest request = FromHost(2, {4}, OneDevice(10));
  request.set_array_handle(0);
  EXPECT_THAT(client().Status(request), FailsWith(kInvalid, "0 is no array handle"));
  EXPECT_THAT(client().Use(0), FailsWith(kNotFound, "0"));
}

TEST_P(MakeArrayTest, BytesOfAnotherSize) {
  ASSERT_THAT(client().Upload(1, "0123"), IsOk());
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10",
                          "fail 1@10 INVALID_ARGUMENT: the host buffer has 4 bytes, its array needs 16"));
}

TEST_P(MakeArrayTest, UploadThatBreaksOff) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, Replicated({10, 11}))), IsOk());
  auto writer = client().session->StoreHostBuffer(1, 16);
  ASSERT_THAT(writer.status(), IsOk());
  (*writer)->Reserve(4);
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10 2@11"));
  writer->reset();
  EXPECT_THAT(
      client().Commands(),
      ElementsAre("fail 1@10 2@11 CANCELLED: the upload of host buffer 1 broke off after 4 of 16 bytes"));
}

TEST_P(MakeArrayTest, UploadWithoutAllItsBytes) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  auto writer = client().session->StoreHostBuffer(1, 16);
  ASSERT_THAT(writer.status(), IsOk());
  (*writer)->Reserve(12);
  const absl::Status status = (*writer)->Finish();
  EXPECT_EQ(status.code(), kDataLoss);
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", absl::StrCat("fail 1@10 DATA_LOSS: ", status.message())));
}

TEST_P(MakeArrayTest, UploadThatIsRefused) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  const absl::Status refused = client().session->StoreHostBuffer(1, max_host_buffer_bytes_ + 1).status();
  EXPECT_EQ(refused.code(), kResourceExhausted);
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10", absl::StrCat("fail 1@10 RESOURCE_EXHAUSTED: ", refused.message())));
}

TEST_P(MakeArrayTest, HostBufferThatTwoArraysName) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  MakeArrayFromHostBufferRequest again = FromHost(1, {4}, OneDevice(10));
  again.set_array_handle(2);
  ASSERT_THAT(client().Status(again), IsOk());
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10", "declare 2@10",
                                               "fail 2@10 INVALID_ARGUMENT: host buffer 1 is used twice",
                                               "fill 1@10 f32[4] 16 bytes"));
}

TEST_P(MakeArrayTest, ForgottenBeforeItsBytesCome) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(FromHost(2, {4}, OneDevice(10))), IsOk());
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  ASSERT_THAT(client().Status(Delete({2})), IsOk());
  // What is deleted goes at once; what is only forgotten still gets its bytes, since it was promised them.
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10", "declare 2@10", "delete 2"));
  ASSERT_THAT(client().Upload(1, std::string(16, 'x')), IsOk());
  ASSERT_THAT(client().Upload(2, "short"), IsOk());
  EXPECT_THAT(client().Commands(),
              ElementsAre("fill 1@10 f32[4] 16 bytes", "delete 1",
                          "fail 2@10 INVALID_ARGUMENT: the host buffer has 5 bytes, its array needs 16"));
}

class ImpatientSessionTest : public ArrayRequestsTest {
 protected:
  ProxyOptions options() override {
    ProxyOptions options = ArrayRequestsTest::options();
    options.host_buffer_patience = absl::Milliseconds(1);
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ImpatientSessionTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ImpatientSessionTest, BytesThatNeverCome) {
  ASSERT_THAT(client().Status(FromHost(1, {4}, OneDevice(10))), IsOk());
  client().link->AwaitCommand("fail");
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10",
                          "fail 1@10 FAILED_PRECONDITION: host buffer 1 never came: its upload did not begin "
                          "within 1ms"));
}

// ---- MakeArraysFromHostBufferShards ----------------------------------------------------------------------

class MakeShardsTest : public ArrayRequestsTest {
 protected:
  // A good array of two shards under handle 1, and another under 11.
  MakeArraysFromHostBufferShardsRequest Two() {
    MakeArraysFromHostBufferShardsRequest request;
    AddArray(request, 1, Spec({4}, Split({10, 11})), {{1, {2}, {0}}, {2, {2}, {1}}});
    AddArray(request, 11, Spec({4}, Split({12, 13})), {{11, {2}, {0}}, {12, {2}, {1}}});
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, MakeShardsTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(MakeShardsTest, EachShardFromItsBuffer) {
  ASSERT_THAT(client().Upload(2, "shard 1!"), IsOk());
  MakeArraysFromHostBufferShardsRequest request;
  // Dimension 0 is split in two, the tiles lie on two devices each: the buffers say which.
  xla::ifrt::HloShardingProto sharding;
  for (const int32_t device : {10, 11, 12, 13}) sharding.mutable_devices()->add_device_ids(device);
  auto& op = *sharding.mutable_xla_op_sharding();
  op.set_type(xla::OpSharding::OTHER);
  op.add_tile_assignment_dimensions(2);
  op.add_tile_assignment_dimensions(2);
  op.set_replicate_on_last_tile_dim(true);
  op.add_iota_reshape_dims(4);
  op.add_iota_transpose_perm(0);
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = wire::MakeSerialized(sharding, wire::kHloSharding);
  AddArray(request, 1, Spec({4}, proto), {{1, {2}, {1, 0}}, {2, {2}, {2, 3}}});
  const Answer answer = client().Ask(request);
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_THAT(answer.response.make_arrays_from_host_buffer_shards_response().array_handles(), ElementsAre(1));
  ASSERT_THAT(client().Upload(1, "shard 0!"), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 2@11 1@10 3@12 4@13", "fill 3@12 4@13 f32[2] 8 bytes",
                                               "fill 2@11 1@10 f32[2] 8 bytes"));
  EXPECT_EQ(client().link->contents(1), "shard 0!");
  EXPECT_EQ(client().link->contents(4), "shard 1!");
  // One of its buffers is enough for the array to be there.
  EXPECT_EQ(client().Send(Ready({1})), 2u);
  EXPECT_THAT(client().Commands(), ElementsAre("await 1,2,3,4"));
}

TEST_P(MakeShardsTest, SeveralArrays) {
  MakeArraysFromHostBufferShardsRequest request = Two();
  *request.mutable_specs(0)->mutable_host_buffers(1)->mutable_byte_strides() = Strides({8});
  request.mutable_specs(1)->mutable_array_spec()->set_layout("{0}");
  for (const uint64_t handle : {1, 11, 12}) ASSERT_THAT(client().Upload(handle, "01234567"), IsOk());
  ASSERT_THAT(client().Upload(2, "0123....4567"), IsOk());
  const Answer answer = client().Ask(request);
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_THAT(answer.response.make_arrays_from_host_buffer_shards_response().array_handles(),
              ElementsAre(1, 11));
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10 2@11 3@12 4@13", "fill 1@10 f32[2] 8 bytes",
                                               "fill 2@11 f32[2] 12 bytes strides [8]",
                                               "fill 3@12 f32[2] 8 bytes", "fill 4@13 f32[2] 8 bytes"));
}

TEST_P(MakeShardsTest, UnevenAndEmptyShards) {
  MakeArraysFromHostBufferShardsRequest request;
  AddArray(request, 1, Spec({3}, Split({10, 11, 12, 13})),
           {{1, {1}, {0}}, {2, {1}, {1}}, {3, {1}, {2}}, {4, {0}, {3}}});
  ASSERT_THAT(client().Status(request), IsOk());
  ASSERT_THAT(client().Upload(4, ""), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10 2@11 3@12 4@13", "fill 4@13 f32[0] 0 bytes"));
}

TEST_P(MakeShardsTest, ShardsOfWhichOnlyTheDevicesAreKnown) {
  MakeArraysFromHostBufferShardsRequest request;
  AddArray(request, 1, Spec({8}, OpaqueOver({10, 11})), {{1, {1}, {0}}, {2, {3, 2}, {1}}});
  ASSERT_THAT(client().Status(request), IsOk());
  ASSERT_THAT(client().Upload(2, std::string(24, 'x')), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("declare 1@10 2@11", "fill 2@11 f32[3,2] 24 bytes"));
}

TEST_P(MakeShardsTest, NoArrays) {
  EXPECT_THAT(client().Status(MakeArraysFromHostBufferShardsRequest()), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

// Whatever is wrong with the second array, the first fails with it.
TEST_P(MakeShardsTest, OneBadArrayFailsAll) {
  using Made = MakeArraysFromHostBufferShardsRequest::MakeArraysFromHostBufferShardsSpec;
  struct Case {
    absl::StatusCode code;
    const char* text;
    std::function<void(Made&)> spoil;
  };
  const std::vector<Case> cases = {
      {kInvalid, "no device 99",
       [](Made& m) {
         *m.mutable_array_spec() = Spec({4}, Split({10, 99}));
       }},
      {kInvalid, "", [](Made& m) { m.mutable_array_spec()->clear_dtype(); }},
      {kInvalid, "f64",
       [](Made& m) { *m.mutable_host_buffers(0)->mutable_dtype() = DType(DTypeProto::KIND_F64); }},
      {kInvalid, "2 host buffers for 1 lists",
       [](Made& m) { m.mutable_addressable_shard_indices()->RemoveLast(); }},
      {kInvalid, "shard 2 of 2", [](Made& m) { m.mutable_addressable_shard_indices(1)->set_indices(0, 2); }},
      {kInvalid, "shard -1 of 2",
       [](Made& m) { m.mutable_addressable_shard_indices(1)->set_indices(0, -1); }},
      {kInvalid, "given twice", [](Made& m) { m.mutable_addressable_shard_indices(1)->set_indices(0, 0); }},
      {kInvalid, "no host buffer", [](Made& m) { m.mutable_addressable_shard_indices(1)->clear_indices(); }},
      {kInvalid, "shape [3]", [](Made& m) { *m.mutable_host_buffers(1)->mutable_shape() = Shape({3}); }},
      {kInvalid, "-2", [](Made& m) { *m.mutable_host_buffers(1)->mutable_shape() = Shape({-2}); }},
      {kInvalid, "",
       [](Made& m) {
         *m.mutable_host_buffers(1)->mutable_byte_strides() = Strides({4, 4});
       }},
      {kUnimplemented, "",
       [](Made& m) { *m.mutable_host_buffers(1)->mutable_byte_strides() = Strides({0}); }},
      {kInvalid, "Layout", [](Made& m) { m.mutable_array_spec()->set_layout("{1"); }},
      {kInvalid, "layout", [](Made& m) { m.mutable_array_spec()->set_layout("{1,0}"); }},
  };
  uint64_t first = 0;
  for (const Case& c : cases) {
    MakeArraysFromHostBufferShardsRequest request = Two();
    first += 100;
    for (int i : {0, 1}) {
      request.set_array_handles(i, request.array_handles(i) + first);
      for (auto& buffer : *request.mutable_specs(i)->mutable_host_buffers()) {
        buffer.set_host_buffer_handle(buffer.host_buffer_handle() + first);
      }
    }
    c.spoil(*request.mutable_specs(1));
    // Some bytes are here, some come later; all are dropped.
    ASSERT_THAT(client().Upload(first + 1, "01234567"), IsOk());
    ExpectFails(request, {first + 1, first + 11}, c.code, c.text);
    ASSERT_THAT(client().Upload(first + 2, "01234567"), IsOk());
    ASSERT_THAT(client().Upload(first + 12, "01234567"), IsOk());
    for (const uint64_t buffer : {1, 2, 12}) EXPECT_FALSE(HasHostBuffer(first + buffer)) << c.text;
  }
}

TEST_P(MakeShardsTest, AsManyHandlesAsArrays) {
  MakeArraysFromHostBufferShardsRequest request = Two();
  request.add_array_handles(21);
  ExpectFails(request, {1, 11, 21}, kInvalid, "2 array specs for 3 array handles");
}

TEST_P(MakeShardsTest, HandlesThatCannotBeBound) {
  client().MakeArray(11);
  MakeArraysFromHostBufferShardsRequest request = Two();
  ExpectFails(request, {1}, kAlreadyExists, "11");
  EXPECT_THAT(client().Use(11), IsOk());
  request = Two();
  request.set_array_handles(0, 20);
  request.set_array_handles(1, 20);
  EXPECT_THAT(client().Status(request), FailsWith(kAlreadyExists, "20"));
  EXPECT_THAT(client().Use(20), FailsWith(kAlreadyExists, "20"));
}

// ---- AssembleArrayFromSingleDeviceArrays -----------------------------------------------------------------

class AssembleTest : public ArrayRequestsTest {
 protected:
  void SetUp() override {
    one_ = client().MakeArray(1, {2}, OneDevice(10));
    two_ = client().MakeArray(2, {2}, OneDevice(11));
  }
  cluster::BufferId one_ = 0;
  cluster::BufferId two_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Versions, AssembleTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(AssembleTest, SharesTheBuffersInTheOrderOfTheDevices) {
  const Answer answer = client().Ask(Assemble({2, 1}, 3, {4}, Split({11, 10})));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_EQ(answer.response.assemble_array_from_single_device_arrays_response().array_handle(), 3u);
  EXPECT_THAT(client().Commands(), IsEmpty());
  client().Send(Ready({3}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 2,1"));

  // The last share decides.
  ASSERT_THAT(client().Status(Destruct({1, 2})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  client().link->AnswerAwait();
  EXPECT_THAT(client().Use(3), IsOk());
  ASSERT_THAT(client().Status(Destruct({3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 2,1"));
}

TEST_P(AssembleTest, CopiesIfItMust) {
  ASSERT_THAT(client().Status(Assemble({1, 2}, 3, {4}, Split({10, 11}), ARRAY_COPY_SEMANTICS_ALWAYS_COPY)),
              IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1,2 -> 3,4 @10,11"));
  ASSERT_THAT(client().Status(Destruct({3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 3,4"));
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_P(AssembleTest, DonatedInputsAreGone) {
  ASSERT_THAT(client().Status(Assemble({1, 2}, 3, {4}, Split({10, 11}), ARRAY_COPY_SEMANTICS_DONATE_INPUT)),
              IsOk());
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  EXPECT_TRUE(client().Ask(IsDeleted(2)).response.is_array_deleted_response().deleted());
  EXPECT_THAT(client().Use(3), IsOk());
  ASSERT_THAT(client().Status(Destruct({1, 2})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  ASSERT_THAT(client().Status(Destruct({3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,2"));
}

TEST_P(AssembleTest, TokensAsEmptyArrays) {
  for (const uint64_t token : {5, 6}) {
    MakeArrayFromHostBufferRequest make = FromHost(token, {}, OneDevice(token == 5 ? 10 : 11));
    *make.mutable_dtype() = DType(DTypeProto::KIND_TOKEN);
    ASSERT_THAT(client().Upload(token, ""), IsOk());
    ASSERT_THAT(client().Status(make), IsOk());
  }
  client().Commands();
  AssembleArrayFromSingleDeviceArraysRequest request =
      Assemble({5, 6}, 7, {0}, Split({10, 11}), ARRAY_COPY_SEMANTICS_DONATE_INPUT);
  *request.mutable_dtype() = DType(kS32);
  EXPECT_THAT(client().Status(request), FailsWith(kInvalid, "type"));
  request.set_result_handle(8);
  *request.mutable_dtype() = DType(DTypeProto::KIND_TOKEN);
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Use(8), IsOk());
  EXPECT_THAT(client().Use(5), FailsWith(kInvalid, kGone));
  ASSERT_THAT(client().Status(Destruct({5, 6})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(AssembleTest, OneShardUnderAnotherSharding) {
  ASSERT_THAT(client().Status(Assemble({1}, 3, {2}, Replicated({10}))), IsOk());
  EXPECT_THAT(client().Use(3), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

TEST_P(AssembleTest, ShardsOfWhichOnlyTheDevicesAreKnown) {
  ASSERT_THAT(client().Status(Assemble({1, 2}, 3, {7}, OpaqueOver({10, 11}))), IsOk());
  // So nobody can say what its parts are.
  ExpectFails(Disassemble(3, {4, 5}), {4, 5}, kInvalid, "");
}

TEST_P(AssembleTest, WhatDoesNotFit) {
  client().MakeSplitArray(20, 2, {10, 11});
  client().MakeArray(22, {3}, OneDevice(11));
  MakeArrayFromHostBufferRequest integers = FromHost(23, {2}, OneDevice(11));
  *integers.mutable_dtype() = DType(kS32);
  ASSERT_THAT(client().Upload(23, "01234567"), IsOk());
  ASSERT_THAT(client().Status(integers), IsOk());
  AssembleArrayFromSingleDeviceArraysRequest other_type = Assemble({1, 2}, 30, {4}, Split({10, 11}));
  *other_type.mutable_dtype() = DType(kS32);
  struct Case {
    AssembleArrayFromSingleDeviceArraysRequest request;
    absl::StatusCode code;
    const char* text;
  };
  uint64_t result = 100;
  for (Case& c : std::vector<Case>{
           {Assemble({1}, 0, {4}, Split({10, 11})), kInvalid, "1 shards for a sharding over 2"},
           {Assemble({}, 0, {4}, Split({10, 11})), kInvalid, "0 shards for a sharding over 2"},
           {Assemble({1, 2}, 0, {2}, OneDevice(10)), kInvalid, "2 shards for a sharding over 1"},
           {Assemble({}, 0, {4}, Replicated({})), kInvalid, "no devices"},
           {Assemble({1, 2}, 0, {4}, Split({11, 10})), kInvalid, "device 10"},
           {Assemble({1, 1}, 0, {4}, Split({10, 11})), kInvalid, "device 10"},
           {Assemble({1, 2}, 0, {4}, Split({10, 99})), kInvalid, "no device 99"},
           {Assemble({1, 2}, 0, {5}, Split({10, 11})), kInvalid, "shape [2]"},
           {Assemble({1, 2}, 0, {-4}, Split({10, 11})), kInvalid, "-4"},
           {Assemble({1, 2}, 0, {2, 2}, Split({10, 11})), kInvalid, ""},
           {Assemble({20, 2}, 0, {4}, Split({10, 11})), kInvalid, "several devices"},
           {Assemble({1, 22}, 0, {4}, Split({10, 11})), kInvalid, "shard 1 has the shape [3]"},
           {Assemble({1, 23}, 0, {4}, Split({10, 11})), kInvalid, "several dtypes"},
           {other_type, kInvalid, "s32"},
           {Assemble({1, 77}, 0, {4}, Split({10, 11})), kNotFound, "77"},
           {Assemble({1, 0}, 0, {4}, Split({10, 11})), kNotFound, "0"}}) {
    c.request.set_result_handle(++result);
    ExpectFails(c.request, {result}, c.code, c.text);
  }
  EXPECT_THAT(client().Status(Assemble({1, 2}, 0, {4}, Split({10, 11}))), FailsWith(kInvalid, "0"));
  EXPECT_THAT(client().Status(Assemble({1, 2}, 20, {4}, Split({10, 11}))), FailsWith(kAlreadyExists, "20"));
  EXPECT_THAT(client().Use(20), IsOk());
  EXPECT_THAT(client().Use(1), IsOk());
}

// ---- DisassembleIntoSingleDeviceArrays -------------------------------------------------------------------

class DisassembleTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, DisassembleTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(DisassembleTest, PartsShareTheBuffers) {
  ASSERT_EQ(client().MakeSplitArray(1, 2, {12, 10, 11}), 1u);
  const Answer answer = client().Ask(Disassemble(1, {11, 12, 13}));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_THAT(answer.response.disassemble_into_single_device_arrays_response().array_handles(),
              ElementsAre(11, 12, 13));
  // Again, as JAX does with every look at the shards.
  ASSERT_THAT(client().Status(Disassemble(1, {21, 22, 23})), IsOk());
  client().Send(Ready({12, 11}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 2; 1"));
  client().link->AnswerAwait();

  // Each buffer goes with its own last share.
  ASSERT_THAT(client().Status(Destruct({1, 11, 12, 13, 22})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 2"));
  ASSERT_THAT(client().Status(Delete({23})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 3"));
  EXPECT_THAT(client().Use(21), IsOk());
  ASSERT_THAT(client().Status(Destruct({21})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(DisassembleTest, PartsHaveTheirShape) {
  // Three over four: the last is empty.
  MakeArraysFromHostBufferShardsRequest request;
  AddArray(request, 1, Spec({3}, Split({10, 11, 12, 13})),
           {{1, {1}, {0}}, {2, {1}, {1}}, {3, {1}, {2}}, {4, {0}, {3}}});
  ASSERT_THAT(client().Status(request), IsOk());
  ASSERT_THAT(client().Status(Disassemble(1, {11, 12, 13, 14})), IsOk());
  // They fit together again, and only so.
  EXPECT_THAT(client().Status(Assemble({11, 12, 13, 14}, 20, {3}, Split({10, 11, 12, 13}))), IsOk());
  EXPECT_THAT(client().Status(Assemble({14}, 21, {0}, OneDevice(13))), IsOk());
  EXPECT_THAT(client().Status(Assemble({14}, 22, {1}, OneDevice(13))), FailsWith(kInvalid, "shape [0]"));
  for (const uint64_t handle : {1, 2, 3}) ASSERT_THAT(client().Upload(handle, "abcd"), IsOk());
  ASSERT_THAT(client().Upload(4, ""), IsOk());
}

TEST_P(DisassembleTest, DonatedInputIsGone) {
  client().MakeSplitArray(1, 2, {10, 11});
  DisassembleIntoSingleDeviceArraysRequest request = Disassemble(1, {11, 12});
  request.set_copy_semantics(ARRAY_COPY_SEMANTICS_DONATE_INPUT);
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  EXPECT_THAT(client().Use(11), IsOk());
  ASSERT_THAT(client().Status(Destruct({1, 11})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(DisassembleTest, WhatDoesNotFit) {
  client().MakeSplitArray(1, 2, {10, 11});
  ExpectFails(Disassemble(1, {11}), {11}, kInvalid, "1 result handles for an array of 2");
  ExpectFails(Disassemble(1, {12, 13, 14}), {12, 13, 14}, kInvalid, "3 result handles for an array of 2");
  EXPECT_THAT(client().Status(Disassemble(1, {})), FailsWith(kInvalid, "0 result handles"));
  ExpectFails(Disassemble(99, {21, 22}), {21, 22}, kNotFound, "99");
  ExpectFails(Disassemble(1, {31, 0}), {31}, kInvalid, "0 is no array handle");
  ExpectFails(Disassemble(1, {41, 1}), {41}, kAlreadyExists, "1");
  ExpectFails(Disassemble(1, {51, 51}), {51}, kAlreadyExists, "51");
  EXPECT_THAT(client().Use(1), IsOk());
}

// ---- FullyReplicatedShard --------------------------------------------------------------------------------

class ShardTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, ShardTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ShardTest, IsTheOneOnTheFirstDevice) {
  client().MakeArray(1, {2}, Replicated({12, 10}));
  const Answer answer = client().Ask(ShardOf(1, 2));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_EQ(answer.response.fully_replicated_shard_response().array_handle(), 2u);
  // A single-device array on device 12.
  EXPECT_THAT(client().Status(Assemble({2}, 3, {2}, OneDevice(12))), IsOk());
  client().Send(Ready({2}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 1"));
  client().link->AnswerAwait();
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 2"));
  ASSERT_THAT(client().Status(Destruct({2, 3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(ShardTest, OfASingleDeviceArray) {
  client().MakeArray(1);
  ASSERT_THAT(client().Status(ShardOf(1, 2)), IsOk());
  ASSERT_THAT(client().Status(ShardOf(2, 3)), IsOk());
  ASSERT_THAT(client().Status(Destruct({1, 2})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  ASSERT_THAT(client().Status(Destruct({3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(ShardTest, DonatedInputIsGone) {
  client().MakeArray(1, {2}, Replicated({10, 11}));
  FullyReplicatedShardRequest request = ShardOf(1, 2);
  request.set_copy_semantics(ARRAY_COPY_SEMANTICS_DONATE_INPUT);
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 2"));
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  EXPECT_THAT(client().Use(2), IsOk());
}

TEST_P(ShardTest, WhatIsNotReplicatedHasNone) {
  client().MakeSplitArray(1, 2, {10, 11});
  ExpectFails(ShardOf(1, 10), {10}, kInvalid, "not fully replicated");
  ExpectFails(ShardOf(99, 11), {11}, kNotFound, "99");
  client().MakeArray(12);
  EXPECT_THAT(client().Status(ShardOf(12, 0)), FailsWith(kInvalid, "0"));
  EXPECT_THAT(client().Status(ShardOf(12, 1)), FailsWith(kAlreadyExists, "1"));
}

// ---- CopyArrays ------------------------------------------------------------------------------------------

class CopyArraysTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, CopyArraysTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(CopyArraysTest, ShardByShardToOtherDevices) {
  client().MakeSplitArray(1, 2, {10, 11});
  client().MakeSplitArray(5, 1, {10, 11});
  const Answer answer = client().Ask(Copy({1, 5}, {21, 22}, {13, 12}));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_THAT(answer.response.copy_arrays_response().array_handles(), ElementsAre(21, 22));
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1,2 -> 5,6 @13,12", "copy 3,4 -> 7,8 @13,12"));
  // The partitioning is kept.
  ASSERT_THAT(client().Status(Disassemble(21, {31, 32})), IsOk());
  EXPECT_THAT(client().Status(Assemble({31, 32}, 33, {4}, Split({13, 12}))), IsOk());
  // The inputs are for themselves.
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,2"));
  EXPECT_THAT(client().Use(21), IsOk());
}

TEST_P(CopyArraysTest, ToAnotherMemoryAndBack) {
  client().MakeArray(1);
  CopyArraysRequest request = Copy({1}, {2}, {});
  request.set_memory_kind("pinned_host");
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1 -> 2 @10 kind pinned_host"));
  // Neither devices nor kind: it stays where it is.
  ASSERT_THAT(client().Status(Copy({2}, {3}, {})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  // To a device: a client that names none of its memories means the default one.
  ASSERT_THAT(client().Status(Copy({2}, {4}, {11})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 2 -> 3 @11"));
  // An empty kind is the default, too.
  request = Copy({2}, {5}, {});
  request.set_memory_kind("");
  ASSERT_THAT(client().Status(request), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 2 -> 4 @10"));
}

TEST_P(CopyArraysTest, WhatStaysIsShared) {
  client().MakeArray(1);
  ASSERT_THAT(client().Status(Copy({1}, {2}, {10})), IsOk());
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  ASSERT_THAT(client().Status(Copy({2}, {3}, {10}, ARRAY_COPY_SEMANTICS_ALWAYS_COPY)), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1 -> 2 @10"));
  ASSERT_THAT(client().Status(Destruct({2, 3})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,2"));
}

TEST_P(CopyArraysTest, DonatedInputsAreGone) {
  client().MakeArray(1);
  client().MakeArray(2);
  ASSERT_THAT(client().Status(Copy({1, 2}, {11, 12}, {11}, ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  // Freed after the copies.
  EXPECT_THAT(client().Commands(), ElementsAre("copy 1 -> 3 @11", "copy 2 -> 4 @11", "delete 1,2"));
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  // What stays moves into the result.
  ASSERT_THAT(client().Status(Copy({11, 11}, {21, 22}, {11}, ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  EXPECT_THAT(client().Use(11), FailsWith(kInvalid, kGone));
  ASSERT_THAT(client().Status(Destruct({21})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  ASSERT_THAT(client().Status(Destruct({22})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 3"));
}

TEST_P(CopyArraysTest, NoArrays) { EXPECT_THAT(client().Status(Copy({}, {}, {10})), IsOk()); }

TEST_P(CopyArraysTest, WhatDoesNotFit) {
  client().MakeArray(1);
  client().MakeSplitArray(2, 2, {10, 11});
  ExpectFails(Copy({1}, {11, 12}, {10}), {11, 12}, kInvalid, "2 result handles for 1 arrays");
  ExpectFails(Copy({1}, {13}, {99}), {13}, kInvalid, "no device 99");
  ExpectFails(Copy({1}, {14}, {10, 11}), {14}, kInvalid, "");
  ExpectFails(Copy({2}, {15}, {10}), {15}, kInvalid, "");
  ExpectFails(Copy({2}, {16}, {10, 10}), {16}, kInvalid, "twice");
  ExpectFails(Copy({1, 99}, {17, 18}, {11}), {17, 18}, kNotFound, "99");
  EXPECT_THAT(client().Use(1), IsOk());
}

// Found when copies are on their way: they are taken back, and the inputs stay.
TEST_P(CopyArraysTest, HandlesThatCannotBeBound) {
  client().MakeArray(1);
  client().MakeArray(2);
  const absl::Status status = client().Status(Copy({1, 2}, {11, 2}, {11}, ARRAY_COPY_SEMANTICS_DONATE_INPUT));
  EXPECT_THAT(status, FailsWith(kAlreadyExists, "2"));
  EXPECT_EQ(client().Use(11), status);
  EXPECT_THAT(client().Use(1), IsOk());
  EXPECT_THAT(client().Use(2), IsOk());
  EXPECT_THAT(client().link->live_buffers(), ElementsAre(1, 2));
}

// ---- CopyToHostBuffer ------------------------------------------------------------------------------------

class ReadTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, ReadTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ReadTest, BytesAreThereWithTheAnswer) {
  client().MakeArray(1);
  const uint64_t op_id = client().Send(ReadInto(100, 1));
  EXPECT_THAT(client().Commands(), ElementsAre("read 1"));
  EXPECT_FALSE(client().Answered(op_id));
  EXPECT_THAT(client().session->LookupHostBuffer(100).status(), FailsWith(kNotFound, "100"));

  client().link->AnswerRead(1, BytesOf("0123456789abcdef"));
  const Answer answer = client().AnswerTo(op_id);
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  const auto bytes = client().session->LookupHostBuffer(100);
  ASSERT_THAT(bytes.status(), IsOk());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes->data), static_cast<size_t>(bytes->size)),
            "0123456789abcdef");
  EXPECT_THAT(client().session->DeleteHostBuffer(100), IsOk());
  EXPECT_THAT(client().session->LookupHostBuffer(100).status(), FailsWith(kNotFound, "100"));
}

TEST_P(ReadTest, HoldsNobodyUp) {
  client().MakeArray(1);
  const uint64_t first = client().Send(ReadInto(100, 1));
  // The client does not wait: what is read may be forgotten at once.
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("read 1", "delete 1"));
  client().MakeArray(2);
  const uint64_t second = client().Send(ReadInto(101, 2));
  client().link->AnswerRead(2, BytesOf("2"));
  EXPECT_TRUE(client().Answered(second));
  EXPECT_FALSE(client().Answered(first));
  client().link->AnswerRead(1, BytesOf("1"));
  EXPECT_THAT(client().AnswerTo(first).status, IsOk());
}

TEST_P(ReadTest, FailsWithTheArray) {
  client().MakeArray(1);
  const uint64_t op_id = client().Send(ReadInto(100, 1));
  client().link->AnswerRead(1, absl::DataLossError("the device died"));
  EXPECT_EQ(client().AnswerTo(op_id).status, absl::DataLossError("the device died"));
  EXPECT_FALSE(HasHostBuffer(100));
}

TEST_P(ReadTest, InTheLayoutThatIsAskedFor) {
  client().MakeArray(1, {2, 2}, Replicated({11, 12}));
  CopyToHostBufferRequest request = ReadInto(100, 1);
  *request.mutable_byte_strides() = Strides({4, 8});
  client().Send(request);
  EXPECT_THAT(client().Commands(), ElementsAre("read 1 strides [4,8]"));
}

TEST_P(ReadTest, WhatCannotBeRead) {
  client().MakeArray(1, {2, 2}, OneDevice(10));
  client().MakeSplitArray(2, 2, {10, 11});
  ExpectFails(ReadInto(100, 99), {}, kNotFound, "99");
  ExpectFails(ReadInto(100, 2), {}, kUnimplemented, "split over devices");
  const auto strided = [](const std::vector<int64_t>& strides) {
    CopyToHostBufferRequest request = ReadInto(100, 1);
    *request.mutable_byte_strides() = Strides(strides);
    return request;
  };
  ExpectFails(strided({4}), {}, kInvalid, "");
  ExpectFails(strided({4, 0}), {}, kUnimplemented, "");
  ExpectFails(strided({-8, 4}), {}, kUnimplemented, "");
  ExpectFails(strided({int64_t{1} << 62, int64_t{1} << 62}), {}, kInvalid, "");
  // Gaps so wide that they would take the machine's memory.
  ExpectFails(strided({max_host_buffer_bytes_, 4}), {}, kResourceExhausted, "");
}

TEST_P(ReadTest, HostBufferInUse) {
  client().MakeArray(1);
  ASSERT_THAT(client().Upload(100, "mine"), IsOk());
  const uint64_t op_id = client().Send(ReadInto(100, 1));
  client().link->AnswerRead(1, BytesOf("0123456789abcdef"));
  EXPECT_THAT(client().AnswerTo(op_id).status, FailsWith(kAlreadyExists, "100"));
}

// ---- CheckValueReady -------------------------------------------------------------------------------------

class ReadyTest : public ArrayRequestsTest {};
INSTANTIATE_TEST_SUITE_P(Versions, ReadyTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ReadyTest, WaitsForAllAndHoldsNobodyUp) {
  client().MakeArray(1);
  client().MakeSplitArray(2, 1, {10, 11});
  const uint64_t first = client().Send(Ready({1, 2, 1}));
  const uint64_t second = client().Send(Ready({2}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 1; 2,3; 1", "await 2,3"));
  EXPECT_FALSE(client().Answered(first));
  client().link->AnswerAwait(absl::DataLossError("the device died"));
  EXPECT_EQ(client().AnswerTo(first).status, absl::DataLossError("the device died"));
  EXPECT_FALSE(client().Answered(second));
  client().link->AnswerAwait();
  const Answer answer = client().AnswerTo(second);
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_FALSE(answer.patient);
  // Nothing is consumed.
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_P(ReadyTest, FirstErrorAmongTheHandles) {
  client().MakeArray(1);
  client().MakeArray(2);
  ASSERT_THAT(client().Status(Delete({2})), IsOk());
  EXPECT_THAT(client().Status(Ready({1, 2, 99})), FailsWith(kInvalid, kGone));
  EXPECT_THAT(client().Status(Ready({1, 99, 2})), FailsWith(kNotFound, "99"));
}

// ---- DeleteArray, DestructArray, IsArrayDeleted ----------------------------------------------------------

class ForgetTest : public ArrayRequestsTest {
 protected:
  absl::Status DeletionOutcome(const std::vector<uint64_t>& handles) {
    const Answer answer = client().Ask(Delete(handles));
    EXPECT_THAT(answer.status, IsOk());
    return client().Status(CheckFuture(answer.response.delete_array_response().deletion_future_handle()));
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ForgetTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ForgetTest, DeleteFreesAndKeepsTheHandle) {
  client().MakeArray(1);
  client().MakeArray(2);
  client().MakeArray(3);
  EXPECT_THAT(DeletionOutcome({1, 3}), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,3"));
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  ExpectFails(ReadInto(100, 1), {}, kInvalid, kGone);
  ExpectFails(ShardOf(1, 11), {11}, kInvalid, kGone);
  ExpectFails(ShardOf(11, 12), {12}, kInvalid, kGone);
  // Twice is no error, and nothing is freed twice.
  EXPECT_THAT(DeletionOutcome({1, 1}), IsOk());
  ASSERT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  EXPECT_THAT(client().Use(1), FailsWith(kNotFound, "1"));
  EXPECT_THAT(client().Use(2), IsOk());
}

TEST_P(ForgetTest, DeleteSaysWhatItDoesNotKnow) {
  client().MakeArray(1);
  EXPECT_THAT(DeletionOutcome({98, 1, 99}), FailsWith(kNotFound, "98"));
  EXPECT_THAT(client().Use(1), FailsWith(kInvalid, kGone));
  EXPECT_THAT(DeletionOutcome({}), IsOk());
}

TEST_P(ForgetTest, DestructForgetsTheHandle) {
  client().MakeArray(1);
  client().MakeArray(2);
  const Answer answer = client().Ask(Destruct({1, 2}));
  EXPECT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,2"));
  EXPECT_THAT(client().Use(1), FailsWith(kNotFound, "1"));
  // The handle is free again.
  EXPECT_EQ(client().MakeArray(1), 3u);
  EXPECT_THAT(client().Use(1), IsOk());
}

TEST_P(ForgetTest, DestructGoesOnAfterWhatItDoesNotKnow) {
  client().MakeArray(1);
  EXPECT_THAT(client().Status(Destruct({99, 1, 1, 98})), FailsWith(kNotFound, "99"));
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

TEST_P(ForgetTest, IsArrayDeleted) {
  const auto deleted = [&](uint64_t handle) {
    return client().Ask(IsDeleted(handle)).response.is_array_deleted_response().deleted();
  };
  client().MakeArray(1);
  EXPECT_FALSE(deleted(1));
  ASSERT_THAT(client().Status(Delete({1})), IsOk());
  EXPECT_TRUE(deleted(1));
  EXPECT_THAT(client().Status(IsDeleted(99)), FailsWith(kNotFound, "99"));
}

TEST_P(ForgetTest, FailedArraysKeepTheirCause) {
  const absl::Status cause = client().Status(ShardOf(99, 1));
  EXPECT_EQ(cause.code(), kNotFound);
  EXPECT_EQ(client().Status(IsDeleted(1)), cause);
  EXPECT_THAT(DeletionOutcome({1}), IsOk());
  EXPECT_EQ(client().Use(1), cause);
  EXPECT_THAT(client().Status(Destruct({1})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
}

// Buffers that many arrays share, and that none of them frees before the last.
TEST_P(ForgetTest, LongChainsFreeOnce) {
  client().MakeSplitArray(1, 2, {10, 11});
  ASSERT_THAT(client().Status(Disassemble(1, {11, 12})), IsOk());
  ASSERT_THAT(client().Status(ShardOf(11, 13)), IsOk());
  ASSERT_THAT(client().Status(Assemble({13, 12}, 14, {4}, Split({10, 11}))), IsOk());
  ASSERT_THAT(client().Status(Copy({14}, {15}, {10, 11}, ARRAY_COPY_SEMANTICS_DONATE_INPUT)), IsOk());
  ASSERT_THAT(client().Status(Disassemble(15, {16, 17})), IsOk());
  ASSERT_THAT(client().Status(Destruct({1, 11, 12, 13, 14, 15})), IsOk());
  EXPECT_THAT(client().Commands(), IsEmpty());
  client().Send(Ready({17, 16}));
  EXPECT_THAT(client().Commands(), ElementsAre("await 2; 1"));
  ASSERT_THAT(client().Status(Destruct({17})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 2"));
  ASSERT_THAT(client().Status(Destruct({16})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1"));
}

// ---- MakeErrorArrays -------------------------------------------------------------------------------------

class ErrorArraysTest : public ArrayRequestsTest {
 protected:
  // Arrays of that error, with handles from 1 on.
  static MakeErrorArraysRequest Failed(int code, const std::vector<xla::ifrt::ArraySpecProto>& specs) {
    MakeErrorArraysRequest request;
    request.mutable_error()->set_code(static_cast<tensorflow::error::Code>(code));
    request.mutable_error()->set_message("the loader has failed");
    for (size_t i = 0; i < specs.size(); ++i) {
      *request.add_array_specs() = specs[i];
      request.add_array_handles(1 + i);
    }
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, ErrorArraysTest, ::testing::ValuesIn(kVersions), VersionName);

TEST_P(ErrorArraysTest, AreBuffersThatFail) {
  const Answer answer = client().Ask(Failed(15, {Spec({4}, OneDevice(10)), Spec({4}, Replicated({11, 12}))}));
  ASSERT_THAT(answer.status, IsOk());
  EXPECT_TRUE(answer.patient);
  EXPECT_THAT(answer.response.make_error_arrays_response().array_handles(), ElementsAre(1, 2));
  EXPECT_THAT(client().Commands(),
              ElementsAre("declare 1@10 2@11 3@12", "fail 1@10 2@11 3@12 DATA_LOSS: the loader has failed"));
  ASSERT_THAT(client().Status(Destruct({1, 2})), IsOk());
  EXPECT_THAT(client().Commands(), ElementsAre("delete 1,2,3"));
}

TEST_P(ErrorArraysTest, NeedAnErrorAndASpecForEach) {
  ExpectFails(Failed(0, {Spec({4}, OneDevice(10))}), {1}, kInvalid, "without an error");
  MakeErrorArraysRequest request = Failed(15, {Spec({4}, OneDevice(10))});
  request.mutable_array_handles()->Set(0, 2);
  request.add_array_handles(3);
  ExpectFails(request, {2, 3}, kInvalid, "1 array specs for 2 array handles");
  request = Failed(15, {Spec({4}, OneDevice(99))});
  request.mutable_array_handles()->Set(0, 4);
  ExpectFails(request, {4}, kInvalid, "no device 99");
}

}  // namespace
}  // namespace helmway::proxy
