#include "helmway/wire/string_array.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "helmway/wire/ifrt_array.pb.h"

namespace helmway::wire {
namespace {

absl::StatusOr<int64_t> Count(const std::string& bytes) {
  return CountStrings(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

std::string Contents(const std::vector<std::string>& strings) {
  xla::ifrt::proto::StringArrayContents contents;
  for (const std::string& s : strings) contents.add_strings(s);
  return contents.SerializeAsString();
}

TEST(CountStrings, Counts) {
  EXPECT_EQ(*Count(""), 0);
  EXPECT_EQ(*Count(Contents({""})), 1);
  EXPECT_EQ(*Count(Contents({"a", "", std::string(1 << 20, 'x'), std::string("\0\xff", 2)})), 4);
}

TEST(CountStrings, SkipsWhatItDoesNotKnow) {
  // Fields 2 to 5: a number, eight bytes, text, four bytes.
  const std::string unknown(
      "\x10\xff\x01\x19"
      "12345678"
      "\x22\x02hi\x2d"
      "1234",
      21);
  EXPECT_EQ(*Count(Contents({"a"}) + unknown + Contents({"b"})), 2);
}

TEST(CountStrings, RefusesOtherBytes) {
  for (const std::string& bytes : {std::string("\x0a"),
                                   std::string("\x0a\x05"
                                               "abc"),
                                   std::string("\x0b"), std::string("\x00\x00", 2), std::string(12, '\xff'),
                                   Contents({"abc"}) + "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"}) {
    EXPECT_EQ(Count(bytes).status().code(), absl::StatusCode::kInvalidArgument)
        << testing::PrintToString(bytes);
  }
}

// Where both take the bytes the count is the same, and nothing makes us read past the end.
TEST(CountStrings, AgreesWithProtobuf) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int compared = 0;
  const std::string valid = Contents({"one", "", "three", std::string(200, 'y')});
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = valid;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % 4 == 0 ? random() % bytes.size() : bytes.size());
    xla::ifrt::proto::StringArrayContents parsed;
    const bool valid_there = parsed.ParseFromString(bytes);
    const absl::StatusOr<int64_t> count = Count(bytes);
    if (!valid_there || !count.ok()) continue;
    EXPECT_EQ(*count, parsed.strings_size()) << testing::PrintToString(bytes);
    ++compared;
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace helmway::wire
