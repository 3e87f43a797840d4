#include "helmway/storage/gcs_lifecycle.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace helmway::storage {
namespace {

// Keeps the order of members.
using Json = nlohmann::ordered_json;

const Json* Find(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

bool Deletes(const Json& rule) {
  const Json* action = Find(rule, "action");
  const Json* type = action == nullptr ? nullptr : Find(*action, "type");
  return type != nullptr && type->is_string() && type->get<std::string>() == "Delete";
}

// The age of a rule that has no conditions but an age and maybe prefixes, else -1.
int64_t PlainAge(const Json& rule) {
  const Json* condition = Find(rule, "condition");
  if (condition == nullptr || !condition->is_object()) return -1;
  for (const auto& [name, value] : condition->items()) {
    if (name != "age" && name != "matchesPrefix") return -1;
  }
  const Json* age = Find(*condition, "age");
  return age != nullptr && age->is_number_integer() ? age->get<int64_t>() : -1;
}

// "/helmway-cache/" of "jobs/helmway-cache/".
std::string LastPart(absl::string_view prefix) {
  const absl::string_view bare = absl::StripSuffix(prefix, "/");
  const size_t slash = bare.rfind('/');
  return absl::StrCat("/", slash == absl::string_view::npos ? bare : bare.substr(slash + 1), "/");
}

}  // namespace

absl::StatusOr<LifecyclePlan> PlanLifecycle(absl::string_view lifecycle, absl::string_view prefix, int days) {
  const auto odd = [] {
    return absl::FailedPreconditionError("the bucket's lifecycle is not of the form that its API describes");
  };
  Json value = Json::object();
  if (!lifecycle.empty()) value = Json::parse(lifecycle, nullptr, /*allow_exceptions=*/false);
  if (value.is_null()) value = Json::object();
  if (!value.is_object()) return odd();
  Json& rules = value["rule"];
  if (rules.is_null()) rules = Json::array();
  if (!rules.is_array()) return odd();

  int prefixes = 0;
  size_t ours = SIZE_MAX;
  std::vector<size_t> outdated;  // rules of ours with another age for this prefix
  for (size_t r = 0; r < rules.size(); ++r) {
    const Json& rule = rules[r];
    if (!rule.is_object()) return odd();
    const Json* condition = Find(rule, "condition");
    const Json* matches = condition == nullptr ? nullptr : Find(*condition, "matchesPrefix");
    if (matches != nullptr && !matches->is_array()) return odd();
    bool all_like_ours = matches != nullptr && !matches->empty();
    bool covers = matches == nullptr || matches->empty();
    bool has_prefix = false;
    if (matches != nullptr) {
      for (size_t i = 0; i < matches->size(); ++i) {
        if (!(*matches)[i].is_string()) return odd();
        const std::string text = (*matches)[i].get<std::string>();
        ++prefixes;
        covers = covers || absl::StartsWith(prefix, text);
        has_prefix = has_prefix || text == prefix;
        all_like_ours = all_like_ours && absl::EndsWith(absl::StrCat("/", text), LastPart(prefix));
      }
    }
    const int64_t age = Deletes(rule) ? PlainAge(rule) : -1;
    if (age < 0) continue;
    if (age == days && all_like_ours) ours = r;
    if (age <= days && covers && !(all_like_ours && age != days)) return LifecyclePlan{};
    if (age != days && all_like_ours && has_prefix) outdated.push_back(r);
  }

  std::vector<bool> drop(rules.size());
  for (const size_t r : outdated) {
    Json& matches = rules[r]["condition"]["matchesPrefix"];
    Json others = Json::array();
    for (const Json& text : matches) {
      if (text.get<std::string>() != prefix) others.push_back(text);
    }
    prefixes -= static_cast<int>(matches.size() - others.size());
    matches = std::move(others);
    // A rule without a prefix would delete everything.
    drop[r] = matches.empty();
  }
  if (prefixes + 1 > kMaxLifecyclePrefixes) return LifecyclePlan{LifecyclePlan::Action::kFull, ""};
  if (ours != SIZE_MAX) rules[ours]["condition"]["matchesPrefix"].push_back(std::string(prefix));
  Json kept = Json::array();
  for (size_t r = 0; r < rules.size(); ++r) {
    if (!drop[r]) kept.push_back(std::move(rules[r]));
  }
  if (ours == SIZE_MAX) {
    if (kept.size() + 1 > kMaxLifecycleRules) return LifecyclePlan{LifecyclePlan::Action::kFull, ""};
    Json rule;
    rule["action"]["type"] = "Delete";
    rule["condition"]["age"] = days;
    rule["condition"]["matchesPrefix"] = Json::array({std::string(prefix)});
    kept.push_back(std::move(rule));
  }
  rules = std::move(kept);
  return LifecyclePlan{LifecyclePlan::Action::kUpdate,
                       value.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace helmway::storage
