#include "helmway/array/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace helmway::array {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class Sink : public ReleaseSink {
 public:
  void Release(cluster::BufferId first, uint32_t count) override {
    for (uint32_t i = 0; i < count; ++i) released.push_back(first + i);
    ++calls;
  }
  std::vector<cluster::BufferId> released;
  int calls = 0;
};

std::vector<cluster::BufferId> All(const Shards& shards) {
  std::vector<cluster::BufferId> all;
  const cluster::BufferNames names = shards.Names();
  for (size_t i = 0; i < names.size(); ++i) {
    all.push_back(names.at(i));
    EXPECT_EQ(shards.at(i), names.at(i));
  }
  return all;
}

TEST(Shards, AWholeArrayIsOneRangeReleasedInOneCall) {
  Sink sink;
  {
    Shards a = Shards::Fresh(100, 2048, &sink);
    EXPECT_TRUE(a.Names().list.empty());
    Shards b = a.Share();
    a.Reset();
    EXPECT_THAT(sink.released, IsEmpty());
    EXPECT_EQ(b.size(), 2048u);
  }
  EXPECT_EQ(sink.calls, 1);
  EXPECT_EQ(sink.released.size(), 2048u);
}

TEST(Shards, APartKeepsOnlyItsOwnBuffer) {
  Sink sink;
  Shards whole = Shards::Fresh(10, 3, &sink);
  Shards part = whole.ShareOne(1);
  EXPECT_THAT(All(part), ElementsAre(11));
  whole.Reset();
  EXPECT_THAT(sink.released, UnorderedElementsAre(10, 12));
  part.Reset();
  EXPECT_THAT(sink.released, UnorderedElementsAre(10, 11, 12));
}

TEST(Shards, PartsMayGoBeforeTheWhole) {
  Sink sink;
  Shards whole = Shards::Fresh(10, 2, &sink);
  { Shards part = whole.ShareOne(0); }
  EXPECT_THAT(sink.released, IsEmpty());
  whole.Reset();
  EXPECT_THAT(sink.released, UnorderedElementsAre(10, 11));
}

TEST(Shards, JoinsInOrderAndShares) {
  Sink sink;
  Shards a = Shards::Fresh(1, 2, &sink);
  Shards b = Shards::Fresh(7, 1, &sink);
  Shards a1 = a.ShareOne(1);
  Shards joined = Shards::Join({&b, &a1});
  EXPECT_THAT(All(joined), ElementsAre(7, 2));
  EXPECT_THAT(All(joined.ShareOne(1)), ElementsAre(2));
  a.Reset();
  b.Reset();
  a1.Reset();
  EXPECT_THAT(sink.released, ElementsAre(1));
  Shards moved = std::move(joined);
  EXPECT_THAT(All(moved), ElementsAre(7, 2));
  moved.Reset();
  EXPECT_THAT(sink.released, UnorderedElementsAre(1, 2, 7));
}

TEST(Shards, NoneIsNothing) {
  Sink sink;
  Shards none = Shards::Fresh(5, 0, &sink);
  EXPECT_TRUE(none.empty());
  EXPECT_THAT(All(none), IsEmpty());
  none.Reset();
  EXPECT_EQ(sink.calls, 0);
}

}  // namespace
}  // namespace helmway::array
