#include "helmway/apps/instance_type.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace helmway::apps {
namespace {

// No slice of any kind comes near; keeps every product below in range.
constexpr int kMaxFactor = 65536;
constexpr int64_t kMaxDevices = int64_t{1} << 20;

struct Accelerator {
  const char* name;
  std::vector<const char*> spellings;
  size_t factors;  // 0: hosts and devices, not a topology of chips
  bool has_single_host;
  bool has_single_chip;
  int devices_per_chip;
};

const std::vector<Accelerator>& Accelerators() {
  static const auto* table = new std::vector<Accelerator>{
      {"tpuv4", {}, 3, false, false, 1},
      {"tpuv5", {}, 3, false, false, 1},
      {"tpuv5e", {"tpuv5lite", "tpuv5litepod"}, 2, true, false, 1},
      {"tpuv6e", {"tpuv6lite"}, 2, true, true, 1},
      {"tpu7x", {"tpu7"}, 3, false, true, 2},
      {"cpu", {}, 0, false, false, 1},
      {"gpu", {}, 0, false, false, 1},
  };
  return *table;
}

const Accelerator* FindAccelerator(absl::string_view name) {
  for (const Accelerator& accelerator : Accelerators()) {
    if (name == accelerator.name) return &accelerator;
    for (const char* spelling : accelerator.spellings) {
      if (name == spelling) return &accelerator;
    }
  }
  return nullptr;
}

absl::Status Invalid(absl::string_view text, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", reason));
}

bool IsChipShape(const std::vector<int>& topology) {
  const auto multiple_of = [](int n) { return [n](int factor) { return factor % n == 0; }; };
  if (topology.size() == 2) return std::all_of(topology.begin(), topology.end(), multiple_of(2));
  if (std::all_of(topology.begin(), topology.end(), multiple_of(4))) return true;
  for (const std::vector<int>& small : {std::vector<int>{2, 2, 1}, std::vector<int>{2, 2, 2},
                                        std::vector<int>{2, 2, 4}, std::vector<int>{2, 4, 4}}) {
    if (topology == small) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<InstanceType> ParseInstanceType(absl::string_view text) {
  const size_t colon = text.find(':');
  if (colon == absl::string_view::npos)
    return Invalid(text, "must be TYPE:TOPOLOGY, such as tpuv5e:4x4 or cpu:2x4");
  InstanceType result;
  absl::string_view type = text.substr(0, colon);
  absl::string_view topology = text.substr(colon + 1);
  if (absl::EndsWith(topology, "_untwisted")) {
    topology.remove_suffix(absl::string_view("_untwisted").size());
    result.untwisted = true;
  }
  const Accelerator* accelerator = FindAccelerator(type);
  if (accelerator == nullptr && absl::EndsWith(type, "1t")) {
    type.remove_suffix(2);
    accelerator = FindAccelerator(type);
    result.single_host = true;
  }
  if (accelerator == nullptr) {
    std::string known;
    for (const Accelerator& each : Accelerators())
      absl::StrAppend(&known, known.empty() ? "" : ", ", each.name);
    return Invalid(text, absl::StrCat("unknown type; known are ", known));
  }
  result.type = accelerator->name;

  int64_t product = 1;
  for (const absl::string_view piece : absl::StrSplit(topology, 'x')) {
    int factor = 0;
    const bool digits = !piece.empty() && std::all_of(piece.begin(), piece.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(piece, &factor) || factor < 1 || factor > kMaxFactor) {
      return Invalid(text, "the topology must be whole numbers of at least 1 joined by x, such as 4x4");
    }
    result.topology.push_back(factor);
    if (result.topology.size() > 3) return Invalid(text, "a topology has at most three factors");
    product *= factor;
  }
  if (product > kMaxDevices) return Invalid(text, "the topology is too large");

  if (accelerator->factors == 0) {
    if (result.single_host || result.untwisted)
      return Invalid(text, "'1t' and '_untwisted' are for TPU types only");
    if (result.topology.size() > 2) {
      return Invalid(text,
                     absl::StrCat("must be ", result.type, ":HOSTSxDEVICES or ", result.type, ":DEVICES"));
    }
    result.hosts = result.topology.size() == 2 ? result.topology[0] : 1;
    result.devices_per_host = result.topology.back();
    return result;
  }

  if (result.topology.size() != accelerator->factors) {
    return Invalid(text,
                   absl::StrCat("a topology of ", result.type, " has ", accelerator->factors, " factors"));
  }
  if (result.single_host) {
    if (!accelerator->has_single_host)
      return Invalid(text, absl::StrCat(result.type, " has no '1t' machines"));
    if (result.topology != std::vector<int>{2, 4}) {
      return Invalid(text, "'1t' is one host with eight chips, topology 2x4");
    }
    result.hosts = 1;
    result.devices_per_host = 8 * accelerator->devices_per_chip;
    return result;
  }
  if (product == 1 && accelerator->has_single_chip) {
    result.hosts = 1;
    result.devices_per_host = accelerator->devices_per_chip;
    return result;
  }
  if (!IsChipShape(result.topology)) {
    return Invalid(text, accelerator->factors == 2
                             ? "hosts are 2x2 squares of chips, so both factors must be even"
                             : "must be 2x2x1, 2x2x2, 2x2x4, 2x4x4 or have factors that are multiples of 4");
  }
  constexpr int kChipsPerHost = 4;
  result.hosts = static_cast<int>(product / kChipsPerHost);
  result.devices_per_host = kChipsPerHost * accelerator->devices_per_chip;
  return result;
}

std::string CanonicalText(const InstanceType& instance) {
  if (instance.type == "cpu" || instance.type == "gpu") {
    return absl::StrCat(instance.type, ":", instance.hosts, "x", instance.devices_per_host);
  }
  return absl::StrCat(instance.type, instance.single_host ? "1t" : "", ":",
                      absl::StrJoin(instance.topology, "x"), instance.untwisted ? "_untwisted" : "");
}

std::string PlatformOf(const InstanceType& instance) {
  return absl::StartsWith(instance.type, "tpu") ? "tpu" : instance.type;
}

std::optional<ChipPosition> PositionOf(const InstanceType& instance, int host, int device) {
  if (PlatformOf(instance) != "tpu") return std::nullopt;
  const Accelerator* accelerator = FindAccelerator(instance.type);
  std::vector<int> chips = instance.topology;  // of the slice
  chips.resize(3, 1);
  // Of a host: a 2x2 square, unless the whole slice is on it.
  std::vector<int> tile = instance.hosts == 1 ? chips : std::vector<int>{2, 2, 1};
  const auto position = [](int index, const std::vector<int>& grid) {
    return std::vector<int>{index % grid[0], index / grid[0] % grid[1], index / grid[0] / grid[1]};
  };
  const std::vector<int> hosts = {chips[0] / tile[0], chips[1] / tile[1], chips[2] / tile[2]};
  const std::vector<int> corner = position(host, hosts);
  const std::vector<int> inside = position(device / accelerator->devices_per_chip, tile);
  ChipPosition result;
  for (size_t i = 0; i < 3; ++i) result.coords.push_back(int64_t{corner[i]} * tile[i] + inside[i]);
  result.core_on_chip = device % accelerator->devices_per_chip;
  return result;
}

absl::StatusOr<std::vector<InstanceType>> ParseInstanceTypes(absl::string_view text) {
  std::vector<InstanceType> types;
  for (absl::string_view piece : absl::StrSplit(text, ',')) {
    piece = absl::StripAsciiWhitespace(piece);
    auto parsed = ParseInstanceType(piece);
    if (!parsed.ok()) return parsed.status();
    types.push_back(*std::move(parsed));
  }
  return types;
}

}  // namespace helmway::apps
