#include "helmway/net/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/cluster/worker.pb.h"

namespace helmway::net {
namespace {

base::HostBytes Bytes(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  const auto* data = reinterpret_cast<const uint8_t*>(owner->data());
  return {owner, data, static_cast<int64_t>(text.size())};
}

std::string Text(const base::HostBytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data), static_cast<size_t>(bytes.size));
}

// A frame as a socket gives it: in memory of its own.
std::string Flat(const grpc::ByteBuffer& frame) {
  grpc::Slice slice;
  EXPECT_TRUE(frame.DumpToSingleSlice(&slice).ok());
  return std::string(slice.begin(), slice.end());
}

class TransfersTest : public ::testing::Test {
 protected:
  // A piece whose raw bytes are received where the transfers want them.
  absl::Status TakePlaced(uint64_t transfer, int64_t size, const std::string& piece) {
    const std::string frame = Flat(MakeBulkPiece(transfer, size, Bytes(piece)));
    const auto* data = reinterpret_cast<const uint8_t*>(frame.data());
    const size_t begin = std::min(frame.size(), size_t{64});
    const auto rest = PlaceBulkPiece(transfers_, absl::MakeConstSpan(data, begin), frame.size());
    if (!rest) return absl::NotFoundError("no place");
    std::copy(data + rest->offset, data + frame.size(), rest->data);
    const auto rest_bytes = static_cast<int64_t>(frame.size() - rest->offset);
    const std::vector<grpc::Slice> slices = {grpc::Slice(data, rest->offset),
                                             ShareBytes({rest->owner, rest->data, rest_bytes})};
    return Take(grpc::ByteBuffer(slices.data(), slices.size()));
  }
  absl::Status TakeCopied(uint64_t transfer, int64_t size, const std::string& piece) {
    return Take(MakeBulkPiece(transfer, size, Bytes(piece)));
  }
  absl::StatusOr<std::string> Await(uint64_t transfer) {
    absl::StatusOr<std::string> text = absl::NotFoundError("has not come");
    transfers_.Await(transfer, [&](absl::StatusOr<base::HostBytes> bytes) {
      if (bytes.ok()) {
        text = Text(*bytes);
      } else {
        text = bytes.status();
      }
    });
    return text;
  }

  std::shared_ptr<base::HostMemoryPool> memory_ = std::make_shared<base::HostMemoryPool>(1 << 20);
  Transfers transfers_{memory_, MakeBulkPiece};

 private:
  absl::Status Take(const grpc::ByteBuffer& frame) {
    cluster::proto::Piece piece;
    const auto reader = FrameReader::Open(frame, &piece);
    if (!reader.ok()) return reader.status();
    return transfers_.OnPiece(piece.transfer(), piece.size(), *reader);
  }
};

TEST_F(TransfersTest, PiecesThatLieWhereTheyBelongAndThoseThatDoNotMakeOneTransfer) {
  ASSERT_TRUE(TakePlaced(1, 9, "abc").ok());
  ASSERT_TRUE(TakeCopied(2, 3, "two").ok());
  ASSERT_TRUE(TakeCopied(1, 9, "def").ok());
  ASSERT_TRUE(TakePlaced(1, 9, "ghi").ok());
  EXPECT_EQ(*Await(1), "abcdefghi");
  EXPECT_EQ(*Await(2), "two");
}

TEST_F(TransfersTest, APieceBegunIsNotYetReceived) {
  const std::string frame = Flat(MakeBulkPiece(1, 3, Bytes("abc")));
  const auto begin = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  ASSERT_TRUE(PlaceBulkPiece(transfers_, begin, frame.size()).has_value());
  std::optional<std::string> received;
  transfers_.Await(1, [&](absl::StatusOr<base::HostBytes> bytes) { received = Text(*bytes); });
  EXPECT_FALSE(received);
  ASSERT_TRUE(TakePlaced(1, 3, "abc").ok());
  EXPECT_EQ(received, "abc");
}

TEST_F(TransfersTest, APieceThatBreaksTheRulesHasNoPlaceAndIsAnError) {
  ASSERT_TRUE(TakePlaced(1, 4, "abc").ok());
  for (const auto& [transfer, size, piece] :
       std::vector<std::tuple<uint64_t, int64_t, std::string>>{{1, 4, "de"},    // more than was announced
                                                               {1, 5, "d"},     // announced anew
                                                               {0, 4, "abc"},   // no name
                                                               {2, -1, "abc"},  // no size
                                                               {3, 2, "abc"}}) {
    EXPECT_TRUE(absl::IsNotFound(TakePlaced(transfer, size, piece))) << transfer << " " << size;
    EXPECT_TRUE(absl::IsInvalidArgument(TakeCopied(transfer, size, piece))) << transfer << " " << size;
  }
  ASSERT_TRUE(TakePlaced(1, 4, "d").ok());
  EXPECT_EQ(*Await(1), "abcd");
}

TEST_F(TransfersTest, APieceWhoseMessageIsNotAllThereHasNoPlace) {
  const std::string frame = Flat(MakeBulkPiece(1, 3, Bytes("abc")));
  const auto* data = reinterpret_cast<const uint8_t*>(frame.data());
  for (size_t have = 0; have < frame.size() - 3; ++have) {
    EXPECT_FALSE(PlaceBulkPiece(transfers_, absl::MakeConstSpan(data, have), frame.size())) << have;
  }
  EXPECT_TRUE(PlaceBulkPiece(transfers_, absl::MakeConstSpan(data, frame.size() - 3), frame.size()));
}

TEST_F(TransfersTest, MemoryOfAPieceBegunOutlivesTheFailureOfItsTransfer) {
  const std::string frame = Flat(MakeBulkPiece(1, 100'000, Bytes(std::string(100'000, 'x'))));
  const auto begin = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(frame.data()), 64);
  const auto rest = PlaceBulkPiece(transfers_, begin, frame.size());
  ASSERT_TRUE(rest.has_value());
  transfers_.Fail(absl::UnavailableError("the stream has ended"));
  std::fill_n(rest->data, 100'000, uint8_t{'x'});
  EXPECT_TRUE(absl::IsUnavailable(Await(1).status()));
  EXPECT_FALSE(PlaceBulkPiece(transfers_, begin, frame.size()));
}

TEST_F(TransfersTest, ATransferWithoutMemoryFailsAlone) {
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  EXPECT_TRUE(absl::IsNotFound(TakePlaced(1, kTooMuch, "abc")));
  EXPECT_TRUE(TakeCopied(1, kTooMuch, "abc").ok());
  ASSERT_TRUE(TakePlaced(2, 3, "abc").ok());
  EXPECT_EQ(*Await(2), "abc");
}

}  // namespace
}  // namespace helmway::net
