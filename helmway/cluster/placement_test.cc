#include "helmway/cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace helmway::cluster {
namespace {

using ::testing::ElementsAre;

TEST(Placement, RunsOfNeighbours) {
  const Placement placement({0, 0, 1, 1, 1, 0});
  ASSERT_EQ(placement.runs().size(), 3U);
  EXPECT_EQ(placement.size(), 6U);
  EXPECT_EQ(placement.at(0), 0U);
  EXPECT_EQ(placement.at(2), 1U);
  EXPECT_EQ(placement.at(4), 1U);
  EXPECT_EQ(placement.at(5), 0U);
  EXPECT_EQ(Placement({}).size(), 0U);

  const auto begins = [](absl::Span<const Placement::Run> runs) {
    std::vector<uint32_t> found;
    for (const Placement::Run& run : runs) found.push_back(run.begin);
    return found;
  };
  EXPECT_THAT(begins(placement.runs_of(0)), ElementsAre(0, 5));
  EXPECT_THAT(begins(placement.runs_of(1)), ElementsAre(2));
  EXPECT_THAT(begins(placement.runs_of(2)), ElementsAre());
  EXPECT_THAT(begins(placement.runs_from(0)), ElementsAre(0, 2, 5));
  EXPECT_THAT(begins(placement.runs_from(4)), ElementsAre(2, 5));
  EXPECT_THAT(begins(placement.runs_from(5)), ElementsAre(5));
}

TEST(AppendNames, StaysARangeWhileItCan) {
  BufferNames names;
  AppendNames(5, 2, &names);
  AppendNames(7, 1, &names);
  EXPECT_EQ(names.first, 5U);
  EXPECT_EQ(names.size(), 3U);
  EXPECT_TRUE(names.list.empty());
  AppendNames(20, 2, &names);
  EXPECT_THAT(names.list, ElementsAre(5, 6, 7, 20, 21));
  EXPECT_EQ(names.size(), 5U);
}

// Against one entry for each name, with random ranges, queries and removals.
TEST(BufferMap, IsAMapOfEveryName) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  auto below = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
  for (int round = 0; round < 50; ++round) {
    BufferMap map;
    std::map<BufferId, WorkerIndex> model;
    BufferId next = 1;
    for (int step = 0; step < 100; ++step) {
      BufferNames names;
      if (below(2) == 0) {
        names.first = below(static_cast<uint32_t>(next) + 4);
        names.count = below(12);
      } else {
        for (uint32_t i = below(5); i > 0; --i) names.list.push_back(below(static_cast<uint32_t>(next) + 4));
      }
      std::vector<std::tuple<BufferId, bool, WorkerIndex>> expected, seen;
      for (size_t i = 0; i < names.size(); ++i) {
        const auto it = model.find(names.at(i));
        expected.emplace_back(names.at(i), it != model.end(), it != model.end() ? it->second : 0);
      }
      auto visit = [&](BufferId first, uint32_t count, WorkerIndex worker) {
        EXPECT_GT(count, 0U);
        for (uint32_t i = 0; i < count; ++i) seen.emplace_back(first + i, true, worker);
      };
      auto unknown = [&](BufferId first, uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) seen.emplace_back(first + i, false, 0);
      };
      const bool distinct = names.list.empty();
      if (below(3) == 0 && distinct) {
        map.Remove(names, visit, unknown);
        for (size_t i = 0; i < names.size(); ++i) model.erase(names.at(i));
      } else {
        map.ForEach(names, visit, unknown);
      }
      EXPECT_EQ(seen, expected);

      std::vector<WorkerIndex> workers(1 + below(8));
      for (WorkerIndex& worker : workers) worker = below(3);
      map.Add(next, static_cast<uint32_t>(workers.size()), std::make_shared<const Placement>(workers));
      for (const WorkerIndex worker : workers) model[next++] = worker;
      next += below(2);
    }
    map.Remove(
        {0, static_cast<uint32_t>(next) + 1, {}}, [](BufferId, uint32_t, WorkerIndex) {},
        [](BufferId, uint32_t) {});
    EXPECT_EQ(map.num_ranges(), 0U);
  }
}

}  // namespace
}  // namespace helmway::cluster
