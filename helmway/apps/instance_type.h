// The shape of a slice as manifests write it: "tpuv5e:4x8", "tpuv6e1t:2x4", "tpuv5:4x4x8_untwisted",
// "cpu:2x4".
//
//   instance_type = type [ "1t" ] ":" topology [ "_untwisted" ]
//   topology      = int { "x" int }          one to three factors
//
// Types, other spellings, factors, chips per host, JAX devices per chip:
//   tpuv4                            3   4                    1
//   tpuv5                            3   4                    1
//   tpuv5e  tpuv5lite tpuv5litepod   2   4; 8 with 1t         1
//   tpuv6e  tpuv6lite                2   4; 8 with 1t; 1 for 1x1   1
//   tpu7x   tpu7                     3   4; 1 for 1x1x1       2
//   cpu, gpu                         "HxD" or "D": H hosts (one if absent) of D devices
//
// A host of a TPU holds a 2x2 square of chips (a 2x4 one with 1t), so both factors of a two-dimensional
// topology are even; in three dimensions the shapes are 2x2x1, 2x2x2, 2x2x4, 2x4x4 and multiples of 4 in each
// factor.
#ifndef HELMWAY_APPS_INSTANCE_TYPE_H_
#define HELMWAY_APPS_INSTANCE_TYPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace helmway::apps {

struct InstanceType {
  std::string type;           // first spelling of the table above, without "1t"
  bool single_host = false;   // "1t": all eight chips on one host
  bool untwisted = false;     // "_untwisted": the torus is not twisted; hosts and devices are the same
  std::vector<int> topology;  // factors as written
  int hosts = 0;              // at least 1
  int devices_per_host = 0;   // JAX devices, at least 1
};

// The one way of writing it: first spelling, hosts and devices both given. Equal shapes have equal texts.
std::string CanonicalText(const InstanceType& instance);

// What a PJRT plugin for it calls its platform: "cpu", "gpu", "tpu".
std::string PlatformOf(const InstanceType& instance);

// The chips of a TPU slice are a grid. Position of the JAX device `device` (0 on) of host `host`: its chip as
// x, y, z, and its number on that chip. Hosts are rectangles of chips, x fastest. Empty for CPU and GPU.
struct ChipPosition {
  std::vector<int64_t> coords;
  int64_t core_on_chip = 0;
};
std::optional<ChipPosition> PositionOf(const InstanceType& instance, int host, int device);

// INVALID_ARGUMENT with the reason for anything outside the grammar and the rules above.
absl::StatusOr<InstanceType> ParseInstanceType(absl::string_view text);

// A comma list, one instance type per slice. At least one.
absl::StatusOr<std::vector<InstanceType>> ParseInstanceTypes(absl::string_view text);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_INSTANCE_TYPE_H_
