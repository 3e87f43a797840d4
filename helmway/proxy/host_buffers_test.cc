#include "helmway/proxy/host_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace helmway::proxy {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBudget = 1000;
const absl::Time kNever = absl::InfinitePast();
const absl::Time kAlways = absl::InfiniteFuture();

class HostBuffersTest : public ::testing::Test {
 protected:
  using Bytes = absl::StatusOr<base::HostBytes>;

  static std::string Text(const base::HostBytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data), static_cast<size_t>(bytes.size));
  }
  static base::HostBytes FromText(const std::string& text) {
    auto owner = std::make_shared<std::string>(text);
    return {owner, reinterpret_cast<const uint8_t*>(owner->data()), static_cast<int64_t>(owner->size()),
            false};
  }
  absl::Status Store(uint64_t handle, const std::string& text) {
    auto writer = buffers_->Store(handle, static_cast<int64_t>(text.size()));
    if (!writer.ok()) return writer.status();
    uint8_t* target = (*writer)->Reserve(static_cast<int64_t>(text.size()));
    if (!text.empty()) std::memcpy(target, text.data(), text.size());
    return (*writer)->Finish();
  }
  // Empty as long as the bytes have not come.
  std::shared_ptr<std::optional<Bytes>> Take(uint64_t handle) {
    auto taken = std::make_shared<std::optional<Bytes>>();
    buffers_->Take(handle, [taken](Bytes bytes) {
      EXPECT_FALSE(taken->has_value());
      taken->emplace(std::move(bytes));
    });
    return taken;
  }

  const std::shared_ptr<HostBufferBudget> budget_ = std::make_shared<HostBufferBudget>(kBudget);
  std::shared_ptr<HostBuffers> buffers_ =
      std::make_shared<HostBuffers>(std::make_shared<base::HostMemoryPool>(0), budget_);
};

TEST_F(HostBuffersTest, TakenAfterItCame) {
  ASSERT_TRUE(Store(1, "hello").ok());
  EXPECT_EQ(budget_->used(), 5);
  auto taken = Take(1);
  ASSERT_TRUE(taken->has_value());
  ASSERT_TRUE((*taken)->ok());
  EXPECT_EQ(Text(***taken), "hello");
  EXPECT_TRUE((**taken)->exclusive);
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(HostBuffersTest, TakenBeforeItComes) {
  auto taken = Take(1);
  auto writer = buffers_->Store(1, 5);
  ASSERT_TRUE(writer.ok());
  std::memcpy((*writer)->Reserve(2), "he", 2);
  std::memcpy((*writer)->Reserve(3), "llo", 3);
  EXPECT_FALSE(taken->has_value());
  EXPECT_EQ((*writer)->Reserve(1), nullptr);
  EXPECT_TRUE((*writer)->Finish().ok());
  ASSERT_TRUE(taken->has_value() && (*taken)->ok());
  EXPECT_EQ(Text(***taken), "hello");
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(HostBuffersTest, TakenWhileItComes) {
  auto writer = buffers_->Store(1, 1);
  ASSERT_TRUE(writer.ok());
  auto taken = Take(1);
  *(*writer)->Reserve(1) = 'x';
  EXPECT_FALSE(taken->has_value());
  EXPECT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(Text(***taken), "x");
}

TEST_F(HostBuffersTest, Empty) {
  ASSERT_TRUE(Store(1, "").ok());
  auto taken = Take(1);
  ASSERT_TRUE(taken->has_value() && (*taken)->ok());
  EXPECT_EQ((**taken)->size, 0);
}

TEST_F(HostBuffersTest, AHandleIsUsedOnce) {
  ASSERT_TRUE(Store(1, "a").ok());
  EXPECT_EQ(Store(1, "b").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(buffers_->Put(1, FromText("c")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(budget_->used(), 1);
  auto first = Take(2);
  auto second = Take(2);
  ASSERT_TRUE(second->has_value());
  EXPECT_EQ((*second)->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(first->has_value());
  ASSERT_TRUE(Store(2, "d").ok());
  EXPECT_EQ(Text(***first), "d");
}

TEST_F(HostBuffersTest, AnUploadThatCannotBegin) {
  const absl::Status reason = absl::NotFoundError("no such file");
  auto before = Take(1);
  EXPECT_TRUE(buffers_->Fail(1, reason).ok());
  ASSERT_TRUE(before->has_value());
  EXPECT_EQ((*before)->status(), reason);
  EXPECT_TRUE(buffers_->Fail(2, reason).ok());
  EXPECT_EQ(Store(2, "late").code(), absl::StatusCode::kAlreadyExists);
  auto after = Take(2);
  ASSERT_TRUE(after->has_value());
  EXPECT_EQ((*after)->status(), reason);
  // Bytes that are here stay.
  ASSERT_TRUE(Store(3, "abc").ok());
  EXPECT_EQ(buffers_->Fail(3, reason).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Text(***Take(3)), "abc");
}

TEST_F(HostBuffersTest, TooFewBytes) {
  for (const bool taken_first : {true, false}) {
    SCOPED_TRACE(taken_first);
    std::shared_ptr<std::optional<Bytes>> taken;
    if (taken_first) taken = Take(1);
    auto writer = buffers_->Store(1, 5);
    ASSERT_TRUE(writer.ok());
    (*writer)->Reserve(2);
    EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(buffers_->Lookup(1).status().code(), absl::StatusCode::kNotFound);
    if (!taken_first) taken = Take(1);
    ASSERT_TRUE(taken->has_value());
    EXPECT_EQ((*taken)->status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(budget_->used(), 0);
  }
}

TEST_F(HostBuffersTest, AnUploadThatBreaksOff) {
  auto taken = Take(1);
  {
    auto writer = buffers_->Store(1, 5);
    ASSERT_TRUE(writer.ok());
    (*writer)->Reserve(2);
  }
  ASSERT_TRUE(taken->has_value());
  EXPECT_EQ((*taken)->status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string((*taken)->status().message()), HasSubstr("2 of 5"));
  EXPECT_EQ(budget_->used(), 0);
}

TEST_F(HostBuffersTest, SizesThatDoNotFit) {
  EXPECT_EQ(buffers_->Store(1, -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffers_->Store(1, kBudget + 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(buffers_->Store(1, std::numeric_limits<int64_t>::max()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget_->used(), 0);
  ASSERT_TRUE(Store(1, std::string(900, 'x')).ok());
  EXPECT_EQ(Store(2, std::string(101, 'x')).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Store(3, std::string(100, 'x')).ok());
  EXPECT_EQ(budget_->used(), kBudget);
  (void)Take(1);
  ASSERT_TRUE(Store(2, std::string(101, 'x')).ok());
}

TEST_F(HostBuffersTest, TheBudgetIsOneForAllSessions) {
  auto others = std::make_shared<HostBuffers>(std::make_shared<base::HostMemoryPool>(0), budget_);
  auto writer = others->Store(1, kBudget);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(Store(1, "x").code(), absl::StatusCode::kResourceExhausted);
  others->Close();
  EXPECT_TRUE(Store(1, "x").ok());
  // The writer of a closed session changes nothing any more.
  (*writer)->Reserve(kBudget);
  (void)(*writer)->Finish();
  EXPECT_EQ(budget_->used(), 1);
}

TEST_F(HostBuffersTest, LookedUpAndDeleted) {
  EXPECT_EQ(buffers_->Lookup(1).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(buffers_->Put(1, FromText("abc")).ok());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Text(*buffers_->Lookup(1)), "abc");
  const auto held = buffers_->Lookup(1);
  EXPECT_TRUE(buffers_->Delete(1).ok());
  EXPECT_EQ(Text(*held), "abc");
  EXPECT_EQ(buffers_->Delete(1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(buffers_->Lookup(1).status().code(), absl::StatusCode::kNotFound);
  // Waiting for a handle does not make it a buffer.
  (void)Take(2);
  EXPECT_EQ(buffers_->Lookup(2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(buffers_->Delete(2).code(), absl::StatusCode::kNotFound);
}

TEST_F(HostBuffersTest, WhatWasReadCanBeTaken) {
  auto taken = Take(1);
  ASSERT_TRUE(buffers_->Put(1, FromText("abc")).ok());
  EXPECT_EQ(Text(***taken), "abc");
}

TEST_F(HostBuffersTest, WaitsThatAreTooLong) {
  const absl::Status late = absl::FailedPreconditionError("never came");
  EXPECT_FALSE(buffers_->FailWaitsBefore(kAlways, late));
  auto waiting = Take(1);
  auto uploading = Take(2);
  auto writer = buffers_->Store(2, 1);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(buffers_->FailWaitsBefore(kNever, late));
  EXPECT_FALSE(waiting->has_value());
  EXPECT_FALSE(buffers_->FailWaitsBefore(kAlways, late));
  ASSERT_TRUE(waiting->has_value());
  EXPECT_EQ((*waiting)->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string((*waiting)->status().message()), HasSubstr("host buffer 1 never came"));
  // An upload that has begun may take its time.
  EXPECT_FALSE(uploading->has_value());
  *(*writer)->Reserve(1) = 'x';
  EXPECT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(Text(***uploading), "x");
}

TEST_F(HostBuffersTest, Closed) {
  auto waiting = Take(1);
  ASSERT_TRUE(Store(2, "abc").ok());
  auto writer = buffers_->Store(3, 10);
  ASSERT_TRUE(writer.ok());
  buffers_->Close();
  EXPECT_EQ(budget_->used(), 0);
  ASSERT_TRUE(waiting->has_value());
  EXPECT_EQ((*waiting)->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(buffers_->Lookup(2).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(buffers_->Delete(2).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Store(4, "x").code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(buffers_->Put(5, FromText("x")).code(), absl::StatusCode::kCancelled);
  auto late = Take(6);
  ASSERT_TRUE(late->has_value());
  EXPECT_EQ((*late)->status().code(), absl::StatusCode::kCancelled);
  writer->reset();
  EXPECT_EQ(budget_->used(), 0);
  buffers_->Close();
}

TEST_F(HostBuffersTest, CallbacksMayCallBack) {
  // A callback that takes another buffer, and one that drops the last reference, run without a lock.
  std::shared_ptr<std::optional<Bytes>> second;
  buffers_->Take(1, [this, &second](Bytes) { second = Take(2); });
  ASSERT_TRUE(Store(1, "a").ok());
  ASSERT_NE(second, nullptr);
  buffers_->Take(3, [this](Bytes) { buffers_.reset(); });
  auto writer = buffers_->Store(3, 0);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(buffers_, nullptr);
  ASSERT_TRUE(second->has_value());
  EXPECT_EQ((*second)->status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace helmway::proxy
