#include <cstddef>
#include <cstdint>

#include "helmway/program/untrusted_input_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  helmway::program::TryCompileOptions(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
