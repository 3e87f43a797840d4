#include "helmway/pjrt/compile_options.h"

#include "gtest/gtest.h"

namespace helmway::pjrt {
namespace {

// executable_build_options with the given bytes.
std::string Build(std::string_view bytes) {
  std::string result = "\x1a";
  result.push_back(static_cast<char>(bytes.size()));
  return result.append(bytes);
}

TEST(CompileOptionsTest, Accepts) {
  EXPECT_TRUE(CheckCompileOptions(DefaultCompileOptions()).ok());
  EXPECT_TRUE(CheckCompileOptions(Build("\x20\x02\x28\x03")).ok());
  // Other fields, of every wire type, are passed over.
  EXPECT_TRUE(CheckCompileOptions("\x08\x01" + Build(std::string_view("\x32\x01\x00\x20\x01\x28\x01", 7)) +
                                  std::string("\x29\0\0\0\0\0\0\0\0\x2d\0\0\0\0", 14))
                  .ok());
  // The last value counts.
  EXPECT_TRUE(CheckCompileOptions(Build(std::string_view("\x20\x00\x28\x01\x20\x01", 6))).ok());
}

TEST(CompileOptionsTest, RefusesCountsThatAbortPlugins) {
  for (const std::string& options :
       {std::string(), Build(""), Build("\x20\x01"), Build("\x28\x01"),
        Build(std::string_view("\x20\x00\x28\x01", 4)),
        Build("\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x28\x01"),  // -1 replicas
        Build("\x20\x80\x80\x80\x01\x28\x01"),                          // 2^21 replicas
        Build("\x20\x80\x10\x28\x80\x10"),                              // 2^11 each
        Build("\x20\x80\x80\x80\x80\x80\x80\x80\x80\x40\x28\x02")}) {   // overflow
    EXPECT_EQ(CheckCompileOptions(options).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CompileOptionsTest, RefusesWhatIsNoMessage) {
  for (std::string_view options : {"garbage", "\x1a\x05\x20", "\x1a", "\x20", "\x1b", "\x29\x01",
                                   "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    EXPECT_EQ(CheckCompileOptions(options).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace helmway::pjrt
