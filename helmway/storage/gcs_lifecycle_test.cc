#include "helmway/storage/gcs_lifecycle.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace helmway::storage {
namespace {

using Action = LifecyclePlan::Action;
using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "jobs/helmway-cache/";

LifecyclePlan Plan(const std::string& lifecycle, int days = 30, const std::string& prefix = kPrefix) {
  absl::StatusOr<LifecyclePlan> plan = PlanLifecycle(lifecycle, prefix, days);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(LifecyclePlan{});
}

std::string Rule(int age, const std::string& prefixes) {
  return absl::StrCat(R"({"action":{"type":"Delete"},"condition":{"age":)", age, R"(,"matchesPrefix":[)",
                      prefixes, "]}}");
}

std::string Rules(const std::string& rules) { return absl::StrCat(R"({"rule":[)", rules, "]}"); }

TEST(GcsLifecycleTest, AddsARuleToABucketWithoutAny) {
  for (const char* none : {"", "{}", R"({"rule":[]})", R"({"rule":null})", "null"}) {
    const LifecyclePlan plan = Plan(none);
    EXPECT_EQ(plan.action, Action::kUpdate) << none;
    EXPECT_EQ(plan.lifecycle, Rules(Rule(30, R"("jobs/helmway-cache/")"))) << none;
  }
}

TEST(GcsLifecycleTest, DoesNothingASecondTime) {
  EXPECT_EQ(Plan(Plan("").lifecycle).action, Action::kNothing);
}

TEST(GcsLifecycleTest, KeepsTheRulesOfOthersAsTheyAre) {
  const std::string others =
      R"({"action":{"type":"SetStorageClass","storageClass":"NEARLINE"},"condition":{"zzz":1,"age":3,"aaa":[{"x":1.5}]}},)"
      R"({"action":{"type":"Delete"},"condition":{"age":5,"isLive":false},"note":"ä"})";
  const LifecyclePlan plan = Plan(absl::StrCat(R"({"future":true,"rule":[)", others, "]}"));
  EXPECT_EQ(plan.action, Action::kUpdate);
  EXPECT_EQ(plan.lifecycle, absl::StrCat(R"({"future":true,"rule":[)", others, ",",
                                         Rule(30, R"("jobs/helmway-cache/")"), "]}"));
}

TEST(GcsLifecycleTest, IsContentWithARuleThatCoversThePrefix) {
  EXPECT_EQ(Plan(Rules(R"({"action":{"type":"Delete"},"condition":{"age":30}})")).action, Action::kNothing);
  EXPECT_EQ(Plan(Rules(R"({"action":{"type":"Delete"},"condition":{"age":7}})")).action, Action::kNothing);
  EXPECT_EQ(Plan(Rules(Rule(1, R"("jobs/")"))).action, Action::kNothing);
  EXPECT_EQ(Plan(Rules(Rule(31, R"("jobs/")"))).action, Action::kUpdate) << "too late";
  EXPECT_EQ(Plan(Rules(Rule(1, R"("jobs/helmway-cache/x")"))).action, Action::kUpdate) << "a part only";
  EXPECT_EQ(Plan(Rules(R"({"action":{"type":"Delete"},"condition":{"age":7,"isLive":false}})")).action,
            Action::kUpdate)
      << "more conditions";
  EXPECT_EQ(
      Plan(Rules(R"({"action":{"type":"AbortIncompleteMultipartUpload"},"condition":{"age":7}})")).action,
      Action::kUpdate)
      << "deletes nothing";
}

TEST(GcsLifecycleTest, SharesOneRuleAmongLocations) {
  const LifecyclePlan plan = Plan(Rules(Rule(30, R"("a/helmway-cache/","helmway-cache/")")));
  EXPECT_EQ(plan.lifecycle, Rules(Rule(30, R"("a/helmway-cache/","helmway-cache/","jobs/helmway-cache/")")));
  // Not into a rule that serves something else too, nor one of another age.
  EXPECT_EQ(Json::parse(Plan(Rules(Rule(30, R"("a/helmway-cache/","logs/")"))).lifecycle)["rule"].size(), 2U);
  EXPECT_EQ(Json::parse(Plan(Rules(Rule(20, R"("a/helmway-cache/")"))).lifecycle)["rule"].size(), 2U);
}

TEST(GcsLifecycleTest, AnotherAgeTakesThePlaceOfTheOldOne) {
  EXPECT_EQ(Plan(Rules(Rule(20, R"("jobs/helmway-cache/")"))).lifecycle,
            Rules(Rule(30, R"("jobs/helmway-cache/")")));
  EXPECT_EQ(
      Plan(Rules(Rule(60, R"("a/helmway-cache/","jobs/helmway-cache/")"))).lifecycle,
      Rules(absl::StrCat(Rule(60, R"("a/helmway-cache/")"), ",", Rule(30, R"("jobs/helmway-cache/")"))));
}

TEST(GcsLifecycleTest, StopsAtTheLimits) {
  std::string prefixes;
  for (int i = 0; i < kMaxLifecyclePrefixes; ++i)
    absl::StrAppend(&prefixes, i == 0 ? "" : ",", "\"p", i, "/\"");
  EXPECT_EQ(Plan(Rules(Rule(30, prefixes))).action, Action::kFull);
  prefixes.resize(prefixes.rfind(','));
  EXPECT_EQ(Plan(Rules(Rule(30, prefixes))).action, Action::kUpdate) << "room for one";
  std::string rules;
  for (int i = 0; i < kMaxLifecycleRules; ++i) {
    absl::StrAppend(&rules, i == 0 ? "" : ",", R"({"action":{"type":"Delete"},"condition":{"age":)", 100 + i,
                    "}}");
  }
  EXPECT_EQ(Plan(Rules(rules)).action, Action::kFull);
}

TEST(GcsLifecycleTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* odd : {"[", "[]", "3", R"({"rule":{}})", R"({"rule":[1]})",
                          R"({"rule":[{"condition":{"matchesPrefix":"x"}}]})",
                          R"({"rule":[{"condition":{"matchesPrefix":[1]}}]})"}) {
    EXPECT_EQ(PlanLifecycle(odd, kPrefix, 30).status().code(), absl::StatusCode::kFailedPrecondition) << odd;
  }
}

}  // namespace
}  // namespace helmway::storage
