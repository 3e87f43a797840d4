#include "helmway/apps/worker_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace helmway::apps {
namespace {

using ::testing::HasSubstr;

WorkerIdentity Read(const Environment& environment, const WorkerOptions& options = {}) {
  auto identity = ReadWorkerIdentity(options, environment);
  EXPECT_TRUE(identity.ok()) << identity.status();
  return *identity;
}

TEST(WorkerIdentityTest, FollowsTheLauncher) {
  WorkerIdentity identity = Read({{"MEGASCALE_SLICE_ID", "1"}, {"JOB_COMPLETION_INDEX", "3"}});
  EXPECT_EQ(identity.slice, 1);
  EXPECT_EQ(identity.host, 3);
  EXPECT_FALSE(identity.linear.has_value());
  identity = Read({{"MEGASCALE_SLICE_ID", "0"}, {"MEGASCALE_NUM_SLICES", "2"}});
  EXPECT_EQ(identity.slice, 0);
  EXPECT_FALSE(identity.host.has_value());
  identity = Read({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_FALSE(identity.slice.has_value());
  EXPECT_EQ(identity.host, 2);
  identity = Read({{"LWS_WORKER_INDEX", "4"}, {"LWS_GROUP_SIZE", "5"}});
  EXPECT_EQ(identity.linear, 3);
  EXPECT_FALSE(identity.slice.has_value());
  identity = Read({{"SLURM_PROCID", "7"}});
  EXPECT_EQ(identity.linear, 7);
  EXPECT_EQ(identity.source, "SLURM_PROCID");
}

TEST(WorkerIdentityTest, TheNearestWord) {
  WorkerOptions options;
  options.slice = 5;
  const Environment all = {{"MEGASCALE_SLICE_ID", "1"},
                           {"JOB_COMPLETION_INDEX", "3"},
                           {"LWS_WORKER_INDEX", "4"},
                           {"SLURM_PROCID", "7"}};
  WorkerIdentity identity = Read(all, options);
  EXPECT_EQ(identity.slice, 5);
  EXPECT_FALSE(identity.host.has_value());
  identity = Read(all);
  EXPECT_EQ(identity.slice, 1);
  EXPECT_FALSE(identity.linear.has_value());
}

TEST(WorkerIdentityTest, NothingIsTold) {
  for (const Environment& environment :
       {Environment{}, Environment{{"LWS_WORKER_INDEX", "0"}}, Environment{{"MEGASCALE_SLICE_ID", ""}}}) {
    const WorkerIdentity identity = Read(environment);
    EXPECT_FALSE(identity.slice.has_value());
    EXPECT_FALSE(identity.host.has_value());
    EXPECT_FALSE(identity.linear.has_value());
    EXPECT_EQ(identity.source, "");
  }
}

TEST(WorkerIdentityTest, WhatIsNoNumberIsRefused) {
  for (const char* name :
       {"MEGASCALE_SLICE_ID", "JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX", "SLURM_PROCID"}) {
    for (const char* value : {"x", "-1", "1.5", "99999999999"}) {
      const auto identity = ReadWorkerIdentity({}, {{name, value}});
      EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(identity.status().message()), HasSubstr(std::string(name) + "=" + value));
    }
  }
}

TEST(AdvertisedAddressTest, GetsAPortIfItHasNone) {
  const auto advertised = [](const char* value) {
    return AdvertisedAddress({{"HELMWAY_ADVERTISE_ADDRESS", value}}, 29005);
  };
  EXPECT_EQ(AdvertisedAddress({}, 29005), "");
  EXPECT_EQ(advertised("worker-3"), "worker-3:29005");
  EXPECT_EQ(advertised("worker-3:99"), "worker-3:99");
  EXPECT_EQ(advertised("'10.0.0.1'"), "10.0.0.1:29005");
  EXPECT_EQ(advertised("2001:db8::1"), "[2001:db8::1]:29005");
  EXPECT_EQ(advertised("[2001:db8::1]"), "[2001:db8::1]:29005");
  EXPECT_EQ(advertised("[2001:db8::1]:99"), "[2001:db8::1]:99");
}

}  // namespace
}  // namespace helmway::apps
