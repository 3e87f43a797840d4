#include "helmway/pjrt/client_options.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace helmway::pjrt {
namespace {

enum class Type { kInt, kFloat, kBool, kString, kInts };

struct TypeName {
  absl::string_view name;
  Type type;
  absl::string_view what;
};

constexpr TypeName kTypes[] = {
    {"int", Type::kInt, "a whole number"},
    {"float", Type::kFloat, "a number"},
    {"bool", Type::kBool, "true or false"},
    {"string", Type::kString, "text"},
    {"ints", Type::kInts, "whole numbers joined by commas"},
};

struct KnownOption {
  PluginKind kind;
  absl::string_view name;
  Type type;
  bool of_the_place = false;
};

// Source of the names: OpenXLA xla/pjrt/c/pjrt_c_api_{cpu,gpu}_internal.cc.
constexpr KnownOption kKnown[] = {
    {PluginKind::kCpu, "cpu_device_count", Type::kInt, true},
    {PluginKind::kCpu, "process_id", Type::kInt, true},
    {PluginKind::kCpu, "asynchronous", Type::kBool},
    {PluginKind::kGpu, "node_id", Type::kInt, true},
    {PluginKind::kGpu, "num_nodes", Type::kInt, true},
    {PluginKind::kGpu, "platform_name", Type::kString},
    {PluginKind::kGpu, "allocator", Type::kString},
    {PluginKind::kGpu, "memory_fraction", Type::kFloat},
    {PluginKind::kGpu, "preallocate", Type::kBool},
    {PluginKind::kGpu, "collective_memory_size", Type::kInt},
    {PluginKind::kGpu, "visible_devices", Type::kInts},
    {PluginKind::kGpu, "should_stage_host_to_device_transfers", Type::kBool},
    {PluginKind::kGpu, "abort_collectives_on_failure", Type::kBool},
    {PluginKind::kGpu, "use_tfrt_gpu_client", Type::kBool},
    {PluginKind::kGpu, "enable_mock_nccl", Type::kBool},
    {PluginKind::kGpu, "mock_gpu_topology", Type::kString},
    {PluginKind::kGpu, "partition_index", Type::kInt},
    {PluginKind::kGpu, "collective_backend", Type::kString},
};

const KnownOption* FindKnown(PluginKind kind, absl::string_view name) {
  const auto* it = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const KnownOption& option) {
    return option.kind == kind && option.name == name;
  });
  return it == std::end(kKnown) ? nullptr : it;
}

bool Parse(Type type, absl::string_view text, AttributeValue& value) {
  switch (type) {
    case Type::kInt: {
      int64_t number;
      if (!absl::SimpleAtoi(text, &number)) return false;
      value = number;
      return true;
    }
    case Type::kFloat: {
      float number;
      if (!absl::SimpleAtof(text, &number)) return false;
      value = number;
      return true;
    }
    case Type::kBool:
      if (text != "true" && text != "false") return false;
      value = text == "true";
      return true;
    case Type::kString:
      value = std::string(text);
      return true;
    case Type::kInts: {
      std::vector<int64_t> numbers;
      for (const absl::string_view piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
        if (!absl::SimpleAtoi(piece, &numbers.emplace_back())) return false;
      }
      value = std::move(numbers);
      return true;
    }
  }
  return false;
}

AttributeValue ParseUntyped(absl::string_view text) {
  AttributeValue value;
  for (const Type type : {Type::kBool, Type::kInt, Type::kFloat}) {
    if (Parse(type, text, value)) return value;
  }
  if (absl::StrContains(text, ",") && Parse(Type::kInts, text, value)) return value;
  return std::string(text);
}

}  // namespace

absl::string_view PluginKindName(PluginKind kind) {
  switch (kind) {
    case PluginKind::kCpu:
      return "cpu";
    case PluginKind::kGpu:
      return "gpu";
    case PluginKind::kTpu:
      return "tpu";
    case PluginKind::kOther:
      break;
  }
  return "other";
}

std::optional<PluginKind> ParsePluginKind(absl::string_view name) {
  for (const PluginKind kind : {PluginKind::kCpu, PluginKind::kGpu, PluginKind::kTpu, PluginKind::kOther}) {
    if (name == PluginKindName(kind)) return kind;
  }
  return std::nullopt;
}

PluginKind PluginKindOfFile(absl::string_view path) {
  const std::string file = absl::AsciiStrToLower(path.substr(path.rfind('/') + 1));
  const auto has = [&](absl::string_view part) { return absl::StrContains(file, part); };
  if (has("tpu")) return PluginKind::kTpu;
  if (has("gpu") || has("cuda") || has("rocm")) return PluginKind::kGpu;
  if (has("cpu")) return PluginKind::kCpu;
  return PluginKind::kOther;
}

absl::StatusOr<Option> ParseOption(PluginKind kind, absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not of the form NAME=VALUE"));
  }
  absl::string_view name = text.substr(0, equals);
  const absl::string_view value = text.substr(equals + 1);
  const TypeName* type = nullptr;
  if (const size_t colon = name.find(':'); colon != absl::string_view::npos) {
    const absl::string_view wanted = name.substr(colon + 1);
    name = name.substr(0, colon);
    type = std::find_if(std::begin(kTypes), std::end(kTypes),
                        [&](const TypeName& each) { return each.name == wanted; });
    if (type == std::end(kTypes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "': ", wanted, " is no type; known are int, float, bool, string and ints"));
    }
  } else if (const KnownOption* known = FindKnown(kind, name); known != nullptr) {
    type = std::find_if(std::begin(kTypes), std::end(kTypes),
                        [&](const TypeName& each) { return each.type == known->type; });
  }
  if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("'", text, "' has no name"));
  if (type == nullptr) return Option{std::string(name), ParseUntyped(value)};
  Option option{.name = std::string(name), .value = {}};
  if (!Parse(type->type, value, option.value)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': must be ", type->what));
  }
  return option;
}

bool OptionIsOfThePlace(PluginKind kind, absl::string_view name) {
  const KnownOption* known = FindKnown(kind, name);
  return known != nullptr && known->of_the_place;
}

std::vector<Option> OptionsFor(PluginKind kind, const ClientPlace& place, std::vector<Option> given) {
  std::vector<Option> options;
  if (kind == PluginKind::kCpu) {
    options.push_back({"cpu_device_count", int64_t{place.devices.value_or(1)}});
    options.push_back({"process_id", int64_t{place.number}});
  } else if (kind == PluginKind::kGpu) {
    if (place.devices.has_value()) {
      std::vector<int64_t> visible;
      for (int i = 0; i < *place.devices; ++i) visible.push_back(place.first_device + i);
      options.push_back({"visible_devices", std::move(visible)});
    }
    if (place.nodes > 1) {
      options.push_back({"node_id", int64_t{place.node}});
      options.push_back({"num_nodes", int64_t{place.nodes}});
    }
  }
  for (Option& option : given) {
    std::erase_if(options, [&](const Option& each) { return each.name == option.name; });
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace helmway::pjrt
