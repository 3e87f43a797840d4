#include "helmway/apps/instance_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace helmway::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Shape {
  std::string text;
  std::string type;
  int hosts;
  int devices_per_host;
};

TEST(InstanceTypeTest, KnowsHostsAndDevices) {
  const std::vector<Shape> shapes = {
      {"tpuv6e:1x1", "tpuv6e", 1, 1},
      {"tpuv6e:2x2", "tpuv6e", 1, 4},
      {"tpuv6e:2x4", "tpuv6e", 2, 4},
      {"tpuv6e1t:2x4", "tpuv6e", 1, 8},
      {"tpuv5e1t:2x4", "tpuv5e", 1, 8},
      {"tpuv5e:4x4", "tpuv5e", 4, 4},
      {"tpuv5e:4x8", "tpuv5e", 8, 4},
      {"tpuv5e:8x8", "tpuv5e", 16, 4},
      {"tpuv5e:8x16", "tpuv5e", 32, 4},
      {"tpuv5e:16x16", "tpuv5e", 64, 4},
      {"tpuv5:2x2x1", "tpuv5", 1, 4},
      {"tpuv5:2x2x2", "tpuv5", 2, 4},
      {"tpuv4:2x2x4", "tpuv4", 4, 4},
      {"tpuv4:2x4x4", "tpuv4", 8, 4},
      {"tpuv4:4x4x4", "tpuv4", 16, 4},
      {"tpuv5:4x4x8", "tpuv5", 32, 4},
      {"tpuv5:4x4x8_untwisted", "tpuv5", 32, 4},
      {"tpuv5:4x8x8", "tpuv5", 64, 4},
      {"tpuv5:8x8x8", "tpuv5", 128, 4},
      {"tpuv5:4x4x16", "tpuv5", 64, 4},
      {"tpu7x:1x1x1", "tpu7x", 1, 2},
      {"tpu7x:2x2x1", "tpu7x", 1, 8},
      {"tpu7:4x4x8", "tpu7x", 32, 8},
      {"tpuv5lite:2x2", "tpuv5e", 1, 4},
      {"tpuv5litepod:4x4", "tpuv5e", 4, 4},
      {"tpuv6lite:2x2", "tpuv6e", 1, 4},
      {"cpu:8", "cpu", 1, 8},
      {"cpu:2x4", "cpu", 2, 4},
      {"cpu:3x5", "cpu", 3, 5},
      {"gpu:2x8", "gpu", 2, 8},
  };
  for (const Shape& shape : shapes) {
    const auto parsed = ParseInstanceType(shape.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->type, shape.type) << shape.text;
    EXPECT_EQ(parsed->hosts, shape.hosts) << shape.text;
    EXPECT_EQ(parsed->devices_per_host, shape.devices_per_host) << shape.text;
  }
}

TEST(InstanceTypeTest, KeepsTheTopologyAndItsMarks) {
  const auto untwisted = ParseInstanceType("tpuv5:4x4x8_untwisted");
  ASSERT_TRUE(untwisted.ok());
  EXPECT_THAT(untwisted->topology, ElementsAre(4, 4, 8));
  EXPECT_TRUE(untwisted->untwisted);
  EXPECT_FALSE(untwisted->single_host);
  EXPECT_TRUE(ParseInstanceType("tpuv6e1t:2x4")->single_host);
}

struct Refusal {
  std::string text;
  std::string reason;
};

TEST(InstanceTypeTest, RefusesWhatNoMachineIs) {
  const std::vector<Refusal> refusals = {
      {"", "must be TYPE:TOPOLOGY"},
      {"tpuv5e", "must be TYPE:TOPOLOGY"},
      {"tpuv9:2x2", "unknown type; known are tpuv4, tpuv5, tpuv5e"},
      {":2x2", "unknown type"},
      {"1t:2x4", "unknown type"},
      {"tpuv5e:", "whole numbers"},
      {"tpuv5e:2", "has 2 factors"},
      {"tpuv5e:2x2x1", "has 2 factors"},
      {"tpuv5:4x4", "has 3 factors"},
      {"tpuv5:4x4x4x4", "at most three"},
      {"tpuv5e:2x", "whole numbers"},
      {"tpuv5e:x2", "whole numbers"},
      {"tpuv5e:0x4", "whole numbers"},
      {"tpuv5e:-2x4", "whole numbers"},
      {"tpuv5e:+2x4", "whole numbers"},
      {"tpuv5e: 2x4", "whole numbers"},
      {"tpuv5e:2X4", "whole numbers"},
      {"tpuv5e:99999999999x4", "whole numbers"},
      {"cpu:65536x65536", "too large"},
      {"tpuv5:65536x65536x65536", "too large"},
      {"tpuv5e:3x5", "must be even"},
      {"tpuv5e:1x4", "must be even"},
      {"tpuv5e:1x1", "must be even"},
      {"tpuv5:1x1x1", "multiples of 4"},
      {"tpuv5:2x2x8", "multiples of 4"},
      {"tpuv5:4x4x6", "multiples of 4"},
      {"tpuv5e1t:4x4", "topology 2x4"},
      {"tpuv51t:2x2x1", "no '1t' machines"},
      {"tpuv5e:4x4_twisted", "whole numbers"},
      {"cpu:1x2x3", "cpu:HOSTSxDEVICES"},
      {"cpu1t:2x4", "TPU types only"},
      {"gpu:2x4_untwisted", "TPU types only"},
  };
  for (const Refusal& refusal : refusals) {
    const auto parsed = ParseInstanceType(refusal.text);
    ASSERT_FALSE(parsed.ok()) << refusal.text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(refusal.reason)) << refusal.text;
  }
}

TEST(InstanceTypeTest, ReadsLists) {
  const auto two = ParseInstanceTypes("tpuv6e:2x2, cpu:2x4");
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[1].type, "cpu");
  EXPECT_FALSE(ParseInstanceTypes("").ok());
  EXPECT_FALSE(ParseInstanceTypes("cpu:2,").ok());
  EXPECT_FALSE(ParseInstanceTypes("cpu:2,,cpu:2").ok());
}

TEST(InstanceTypeTest, EqualShapesHaveEqualTexts) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"cpu:4", "cpu:1x4"},
      {"cpu:2x4", "cpu:2x4"},
      {"gpu:8", "gpu:1x8"},
      {"tpuv5lite:4x4", "tpuv5e:4x4"},
      {"tpuv6e1t:2x4", "tpuv6e1t:2x4"},
      {"tpuv5:4x4x8_untwisted", "tpuv5:4x4x8_untwisted"},
      {"tpu7:2x2x1", "tpu7x:2x2x1"}};
  for (const auto& [text, canonical] : texts) {
    EXPECT_EQ(CanonicalText(*ParseInstanceType(text)), canonical);
    EXPECT_EQ(CanonicalText(*ParseInstanceType(canonical)), canonical);
  }
  EXPECT_EQ(PlatformOf(*ParseInstanceType("tpuv5e:4x4")), "tpu");
  EXPECT_EQ(PlatformOf(*ParseInstanceType("cpu:4")), "cpu");
}

TEST(InstanceTypeTest, EveryDeviceOfATpuSliceHasAPlaceOfItsOwn) {
  EXPECT_FALSE(PositionOf(*ParseInstanceType("cpu:2x4"), 0, 0).has_value());
  for (const char* text : {"tpuv6e:1x1", "tpuv5e:2x2", "tpuv5e:4x8", "tpuv6e1t:2x4", "tpuv5:2x2x1",
                           "tpuv4:2x4x4", "tpu7x:2x2x2", "tpu7x:1x1x1"}) {
    const InstanceType instance = *ParseInstanceType(text);
    std::vector<int> chips = instance.topology;
    chips.resize(3, 1);
    std::set<std::vector<int64_t>> seen;
    for (int host = 0; host < instance.hosts; ++host) {
      for (int device = 0; device < instance.devices_per_host; ++device) {
        const auto position = PositionOf(instance, host, device);
        ASSERT_TRUE(position.has_value());
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_GE(position->coords[i], 0);
          EXPECT_LT(position->coords[i], chips[i]) << text;
        }
        std::vector<int64_t> place = position->coords;
        place.push_back(position->core_on_chip);
        EXPECT_TRUE(seen.insert(place).second) << text;
      }
    }
  }
  EXPECT_THAT(PositionOf(*ParseInstanceType("tpuv5e:4x8"), 1, 3)->coords, ElementsAre(3, 1, 0));
  EXPECT_EQ(PositionOf(*ParseInstanceType("tpu7x:2x2x1"), 0, 3)->core_on_chip, 1);
}

}  // namespace
}  // namespace helmway::apps
