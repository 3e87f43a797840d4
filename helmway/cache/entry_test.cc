#include "helmway/cache/entry.h"

#include <gtest/gtest.h>

#include <iostream>
#include <random>

namespace helmway::cache {
namespace {

constexpr char kKey[] = "0123";
constexpr char kPlugin[] = "plugin 1";

Entry SomeEntry() {
  Entry entry;
  entry.platform = "cpu";
  entry.executable = std::string("code\0code", 9);
  entry.program.name = "jit_f";
  entry.program.num_replicas = 2;
  entry.program.num_partitions = 4;
  entry.program.optimized_hlo_format = "hlo";
  entry.program.optimized_hlo = "HLO";
  entry.program.outline = "H";
  entry.program.output_memory_kinds = {"device", "pinned_host"};
  entry.program.fingerprint = "\xff";
  entry.program.memory_stats = "stats";
  entry.program.code_size_bytes = 77;
  entry.has_custom_calls = true;
  return entry;
}

void ExpectSame(const Entry& got, const Entry& wanted) {
  EXPECT_EQ(got.platform, wanted.platform);
  EXPECT_EQ(got.executable, wanted.executable);
  EXPECT_EQ(got.program.name, wanted.program.name);
  EXPECT_EQ(got.program.num_replicas, wanted.program.num_replicas);
  EXPECT_EQ(got.program.num_partitions, wanted.program.num_partitions);
  EXPECT_EQ(got.program.optimized_hlo_format, wanted.program.optimized_hlo_format);
  EXPECT_EQ(got.program.optimized_hlo, wanted.program.optimized_hlo);
  EXPECT_EQ(got.program.outline, wanted.program.outline);
  EXPECT_EQ(got.program.output_memory_kinds, wanted.program.output_memory_kinds);
  EXPECT_EQ(got.program.fingerprint, wanted.program.fingerprint);
  EXPECT_EQ(got.program.memory_stats, wanted.program.memory_stats);
  EXPECT_EQ(got.program.code_size_bytes, wanted.program.code_size_bytes);
  EXPECT_EQ(got.has_custom_calls, wanted.has_custom_calls);
}

TEST(EntryTest, ComesBackAsItWas) {
  Entry entry = SomeEntry();
  absl::StatusOr<Entry> got = DecodeEntry(EncodeEntry(kKey, kPlugin, entry), kKey, kPlugin);
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectSame(*got, entry);
  entry.program.memory_stats = absl::UnimplementedError("none");
  entry.has_custom_calls = false;
  got = DecodeEntry(EncodeEntry(kKey, kPlugin, entry), kKey, kPlugin);
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectSame(*got, entry);
}

TEST(EntryTest, TellsDamageFromForeignness) {
  const std::string bytes = EncodeEntry(kKey, kPlugin, SomeEntry());
  EXPECT_EQ(DecodeEntry(bytes, "other", kPlugin).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DecodeEntry(bytes, kKey, "plugin 2").status().code(), absl::StatusCode::kFailedPrecondition);
  for (const int change : {-1, 1}) {
    std::string other = bytes;
    other[8] = static_cast<char>(other[8] + change);
    EXPECT_EQ(DecodeEntry(other, kKey, kPlugin).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeEntry(bytes.substr(0, size), kKey, kPlugin).status().code(), absl::StatusCode::kDataLoss)
        << size;
  }
  EXPECT_EQ(DecodeEntry(bytes + "x", kKey, kPlugin).status().code(), absl::StatusCode::kDataLoss);
}

TEST(EntryTest, NoByteMayChange) {
  const std::string bytes = EncodeEntry(kKey, kPlugin, SomeEntry());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(DecodeEntry(changed, kKey, kPlugin).ok()) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(EntryTest, AHeaderNeedsOnlyTheFirstBytes) {
  Entry entry = SomeEntry();
  entry.program.name = std::string(100'000, 'n');
  entry.executable = std::string(100'000, 'x');
  const std::string bytes = EncodeEntry(kKey, kPlugin, entry);
  const absl::StatusOr<EntryHeader> header = DecodeHeader(bytes.substr(0, kHeaderBytes));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->key, kKey);
  EXPECT_EQ(header->plugin, kPlugin);
  EXPECT_EQ(header->platform, "cpu");
  EXPECT_EQ(header->devices, 8);
  EXPECT_EQ(header->name, std::string(1024, 'n'));
  EXPECT_EQ(DecodeHeader(bytes.substr(0, 60)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(EntryTest, TakesAnyBytes) {
  const int seed = GTEST_FLAG_GET(random_seed);
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(static_cast<uint32_t>(seed));
  const std::string bytes = EncodeEntry(kKey, kPlugin, SomeEntry());
  for (int round = 0; round < 5000; ++round) {
    std::string changed = bytes.substr(0, random() % (bytes.size() + 1));
    for (int i = 0; i < 3 && !changed.empty(); ++i)
      changed[random() % changed.size()] = static_cast<char>(random());
    if (changed == bytes) continue;
    EXPECT_FALSE(DecodeEntry(changed, kKey, kPlugin).ok());
    DecodeHeader(changed).IgnoreError();
  }
}

}  // namespace
}  // namespace helmway::cache
