#include "helmway/program/layout.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "helmway/wire/serialized.h"

namespace helmway::program {
namespace {

using ::testing::ElementsAre;

TEST(Layout, TextAndProtoRoundTrips) {
  for (const char* text :
       {"{}", "{0}", "{1,0}", "{0,1}", "{2,0,1}", "{1,0:T(8,128)}", "{1,0:T(8,128)(2,1)}", "{3,2,1,0:T(*,8)}",
        "{1,0:E(4)}", "{1,0:S(5)}", "{:S(5)}", "{1,0:T(8,128)L(16)E(4)S(1)M(64)}", "{0:T()}"}) {
    SCOPED_TRACE(text);
    const absl::StatusOr<Layout> layout = Layout::ParseText(text);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->ToText(), text);
    const absl::StatusOr<Layout> from_xla = Layout::FromXlaProto(layout->ToXlaProto());
    ASSERT_TRUE(from_xla.ok()) << from_xla.status();
    EXPECT_EQ(*from_xla, *layout);
    const absl::StatusOr<Layout> from_ifrt = Layout::FromIfrtProto(layout->ToIfrtProto());
    ASSERT_TRUE(from_ifrt.ok()) << from_ifrt.status();
    EXPECT_EQ(*from_ifrt, *layout);
  }
}

TEST(Layout, TextParts) {
  const Layout layout = *Layout::ParseText("{0,1:T(8,128)(2,1)E(4)S(5)}");
  EXPECT_THAT(layout.minor_to_major(), ElementsAre(0, 1));
  EXPECT_THAT(layout.tiles(), ElementsAre(ElementsAre(8, 128), ElementsAre(2, 1)));
  EXPECT_EQ(layout.element_size_in_bits(), 4);
  EXPECT_EQ(layout.memory_space(), 5);
  EXPECT_FALSE(layout.IsDescending());
  EXPECT_NE(layout, *Layout::ParseText("{0,1:T(8,128)E(4)S(5)}"));
}

TEST(Layout, Defaults) {
  EXPECT_EQ(Layout().ToText(), "{}");
  EXPECT_EQ(Layout::Default(3).ToText(), "{2,1,0}");
  EXPECT_TRUE(Layout().IsDefault());
  EXPECT_TRUE(Layout::Default(3).IsDefault());
  EXPECT_FALSE(Layout::ParseText("{0,1}")->IsDefault());
  const Layout tiled = *Layout::ParseText("{1,0:T(8,128)}");
  EXPECT_TRUE(tiled.IsDescending());
  EXPECT_FALSE(tiled.IsDefault());
  // 0 and 1 both mean "no tail padding".
  EXPECT_EQ(*Layout::ParseText("{0:L(0)}"), *Layout::ParseText("{0:L(1)}"));
  xla::LayoutProto without_padding;
  without_padding.add_minor_to_major(0);
  EXPECT_TRUE(Layout::FromXlaProto(without_padding)->IsDefault());
}

TEST(Layout, Places) {
  const auto alike = [](const char* a, const char* b, std::vector<int64_t> dims) {
    const bool result = Layout::ParseText(a)->PlacesLike(*Layout::ParseText(b), dims);
    EXPECT_EQ(result, Layout::ParseText(b)->PlacesLike(*Layout::ParseText(a), dims));
    return result;
  };
  EXPECT_TRUE(alike("{}", "{}", {}));
  EXPECT_TRUE(alike("{1,0}", "{1,0}", {2, 3}));
  EXPECT_FALSE(alike("{1,0}", "{0,1}", {2, 3}));
  // What is in one byte or none has no order.
  EXPECT_TRUE(alike("{1,0}", "{0,1}", {1, 3}));
  EXPECT_TRUE(alike("{1,0}", "{0,1}", {2, 0}));
  EXPECT_TRUE(alike("{2,1,0}", "{1,0,2}", {2, 3, 1}));
  EXPECT_TRUE(alike("{2,1,0}", "{0,1,2}", {1, 1, 1}));
  EXPECT_FALSE(alike("{2,1,0}", "{1,0,2}", {2, 1, 3}));
  EXPECT_FALSE(alike("{2,1,0}", "{0,1,2}", {2, 1, 3}));
  // The size of the elements goes without saying; tiles do not.
  EXPECT_TRUE(alike("{1,0:E(4)}", "{1,0}", {2, 3}));
  EXPECT_FALSE(alike("{1,0:T(8,128)}", "{1,0}", {2, 3}));
  EXPECT_FALSE(alike("{1,0:T(8,128)}", "{0,1:T(8,128)}", {1, 3}));
  EXPECT_FALSE(alike("{1,0}", "{0}", {2, 3}));
  EXPECT_FALSE(alike("{1,0}", "{1,0}", {2}));
}

TEST(Layout, BadText) {
  struct Case {
    const char* text;
    absl::StatusCode code;
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const Case cases[] = {
      {"", kInvalid},
      {"{", kInvalid},
      {"1,0", kInvalid},
      {"{1,1}", kInvalid},
      {"{2,0}", kInvalid},
      {"{-1,0}", kInvalid},
      {"{a}", kInvalid},
      {"{1,0,}", kInvalid},
      {"{1,0:}", kInvalid},
      {"{1,0:T}", kInvalid},
      {"{1,0:T(8}", kInvalid},
      {"{1,0:T(-8)}", kInvalid},
      {"{0:E(4)E(4)}", kInvalid},
      {"{0:E()}", kInvalid},
      {"{0:X(1)}", kInvalid},
      {"{99999999999999999999}", kInvalid},
      {"{0:D(C)}", kUnimplemented},
      {"{0:SC(0:1)}", kUnimplemented},
      {"{0:#(u32)}", kUnimplemented},
      {"{0:P(f32[2]{0})}", kUnimplemented},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(Layout::ParseText(c.text).status().code(), c.code);
  }
}

TEST(Layout, BadProtos) {
  const auto code = [](auto change) {
    xla::LayoutProto proto = Layout::Default(2).ToXlaProto();
    change(proto);
    return Layout::FromXlaProto(proto).status().code();
  };
  EXPECT_EQ(code([](auto&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& p) { p.set_minor_to_major(0, 0); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& p) { p.set_minor_to_major(0, INT64_MAX); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& p) { p.add_tiles()->add_dimensions(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& p) { p.set_memory_space(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& p) { p.set_element_size_in_bits(-1); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& p) { p.add_dim_level_types(xla::DIM_DENSE); }), absl::StatusCode::kOk);
  EXPECT_EQ(code([](auto& p) { p.add_dim_level_types(xla::DIM_COMPRESSED); }),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code([](auto& p) { p.mutable_physical_shape(); }), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code([](auto& p) { p.add_split_configs(); }), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code([](auto& p) { p.set_index_primitive_type(xla::U32); }), absl::StatusCode::kUnimplemented);
}

TEST(Layout, Compact) {
  xla::ifrt::CompactLayoutProto payload;
  for (int dim : {2, 0, 1}) payload.add_major_to_minor(dim);
  xla::ifrt::LayoutProto proto;
  *proto.mutable_serialized_layout() = wire::MakeSerialized(payload, wire::kCompactLayout);
  EXPECT_EQ(Layout::FromIfrtProto(proto)->ToText(), "{1,0,2}");

  payload.set_version_number(1);
  *proto.mutable_serialized_layout() = wire::MakeSerialized(payload, wire::kCompactLayout);
  EXPECT_EQ(Layout::FromIfrtProto(proto).status().code(), absl::StatusCode::kUnimplemented);
  payload.set_version_number(0);
  payload.add_major_to_minor(7);
  *proto.mutable_serialized_layout() = wire::MakeSerialized(payload, wire::kCompactLayout);
  EXPECT_EQ(Layout::FromIfrtProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Layout, UnknownTypes) {
  xla::ifrt::LayoutProto proto;
  EXPECT_EQ(Layout::FromIfrtProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
  proto.mutable_serialized_layout()->set_type_name("xla::ifrt::SomeLayout");
  const absl::Status status = Layout::FromIfrtProto(proto).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("SomeLayout"));
}

}  // namespace
}  // namespace helmway::program
