#include <cstddef>
#include <cstdint>

#include "helmway/program/untrusted_input_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  helmway::program::TryExecutableSpec(bytes, /*with_config=*/false);
  helmway::program::TryExecutableSpec(bytes, /*with_config=*/true);
  return 0;
}
