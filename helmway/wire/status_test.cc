#include "helmway/wire/status.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"

namespace helmway::wire {
namespace {

TEST(StatusTest, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const tensorflow::StatusProto proto = StatusToProto(status);
    EXPECT_EQ(static_cast<int>(proto.code()), code);
    EXPECT_EQ(tensorflow::error::Code_Name(proto.code()), absl::StatusCodeToString(status.code()));
    EXPECT_EQ(StatusFromProto(proto), status);
  }
}

TEST(StatusTest, OkIsTheEmptyMessage) {
  EXPECT_EQ(StatusToProto(absl::OkStatus()).ByteSizeLong(), 0u);
  EXPECT_TRUE(StatusFromProto(tensorflow::StatusProto()).ok());
  tensorflow::StatusProto with_text;
  with_text.set_message("ignored");
  EXPECT_TRUE(StatusFromProto(with_text).ok());
}

TEST(StatusTest, PayloadsTravelBothWays) {
  absl::Status status = absl::DataLossError("gone");
  status.SetPayload(kUserContextPayload, absl::Cord("1234"));
  status.SetPayload("other", absl::Cord(absl::string_view("\0\xff", 2)));
  const tensorflow::StatusProto proto = StatusToProto(status);
  ASSERT_EQ(proto.payload_size(), 2);
  EXPECT_EQ(proto.payload().at(std::string(kUserContextPayload)), "1234");
  EXPECT_EQ(proto.payload().at("other"), std::string("\0\xff", 2));
  EXPECT_EQ(StatusFromProto(proto), status);
}

TEST(StatusTest, TheFirstUserContextStays) {
  const auto context = [](const absl::Status& status) {
    return std::string(status.GetPayload(kUserContextPayload).value_or(absl::Cord("none")));
  };
  const absl::Status error = absl::DataLossError("gone");
  EXPECT_EQ(context(WithUserContext(error, 0)), "none");
  const absl::Status first = WithUserContext(error, 0xffff'ffff'ffff'ffffu);
  EXPECT_EQ(context(first), "18446744073709551615");
  EXPECT_EQ(WithUserContext(first, 7), first);
  EXPECT_EQ(WithoutUserContext(first), error);
  EXPECT_TRUE(WithUserContext(absl::OkStatus(), 7).ok());
}

TEST(StatusTest, CodesOutsideTheSetBecomeUnknown) {
  for (int code : {-1, 17, 20, 1000}) {
    tensorflow::StatusProto proto;
    proto.set_code(static_cast<tensorflow::error::Code>(code));
    proto.set_message("odd");
    const absl::Status status = StatusFromProto(proto);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown) << code;
    EXPECT_EQ(status.message(), "odd");
  }
  const absl::Status odd(static_cast<absl::StatusCode>(55), "odd");
  EXPECT_EQ(StatusToProto(odd).code(), tensorflow::error::UNKNOWN);
}

TEST(StatusTest, InvalidTextStillMakesAMessageThatParses) {
  absl::Status status = absl::InternalError("file \xff\xfe name");
  status.SetPayload("bad\xc0", absl::Cord("x"));
  std::string bytes;
  ASSERT_TRUE(StatusToProto(status).SerializeToString(&bytes));
  tensorflow::StatusProto parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  EXPECT_EQ(parsed.message(), "file ?? name");
  EXPECT_EQ(parsed.payload().count("bad?"), 1u);
}

TEST(ToValidUtf8Test, KeepsCharactersAndReplacesOtherBytes) {
  struct Case {
    absl::string_view in, want;
  };
  const Case cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
      {"\xc3", "?"},                             // cut off
      {"\xe2\x82", "??"},                        // cut off
      {"a\x80z", "a?z"},                         // lone continuation
      {"\xc0\x80", "??"},                        // overlong
      {"\xe0\x80\x80", "???"},                   // overlong
      {"\xed\xa0\x80", "???"},                   // surrogate
      {"\xf4\x90\x80\x80", "????"},              // above U+10FFFF
      {"\xf0\x80\x80\x80", "????"},              // overlong
      {"\xe2\x28\xa1", "?(?"},                   // wrong second byte
      {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},  // U+10FFFF
      {absl::string_view("a\0b", 3), absl::string_view("a\0b", 3)},
  };
  for (const Case& c : cases) EXPECT_EQ(ToValidUtf8(c.in), c.want) << c.in;
}

}  // namespace
}  // namespace helmway::wire
