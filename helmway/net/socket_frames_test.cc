#include "helmway/net/socket_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "helmway/base/little_endian.h"

namespace helmway::net {
namespace {

std::string Noise(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761U >> 24);
  return text;
}

// A frame as it is on the wire.
std::string Wire(const std::string& frame) {
  std::string wire(kFrameHeaderBytes, '\0');
  base::StoreLittleEndian(frame.size(), kFrameHeaderBytes, reinterpret_cast<uint8_t*>(wire.data()));
  return wire + frame;
}

// Reads a wire in steps, as from a socket, and keeps the frames.
class Reader {
 public:
  // At most `step` bytes at once, into a buffer of `room`.
  absl::Status Read(const std::string& wire, size_t step, size_t room) {
    std::vector<uint8_t> more(room);
    size_t at = 0;
    while (at < wire.size() && wants_more_) {
      iovec pieces[2];
      const int count = frames_.Next(pieces, more.data(), more.size());
      size_t got = 0;
      for (int i = 0; i < count; ++i) {
        const size_t part = std::min({pieces[i].iov_len, step - got, wire.size() - at});
        std::memcpy(pieces[i].iov_base, wire.data() + at, part);
        at += part;
        got += part;
        if (part < pieces[i].iov_len) break;
      }
      const absl::Status status = frames_.Add(
          more.data(), got,
          [this](absl::Span<const uint8_t> begin, size_t size) { return Place(begin, size); },
          [this](grpc::ByteBuffer& frame) { return Take(frame); });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::optional<size_t> place_from;  // where large frames have memory of ours from; none: nowhere
  size_t stop_after = SIZE_MAX;      // so many frames
  std::vector<std::string> frames;
  size_t asked = 0;
  IncomingFrames frames_;

 private:
  std::optional<FrameRest> Place(absl::Span<const uint8_t> begin, size_t size) {
    ++asked;
    EXPECT_EQ(begin.size(), kFrameBeginBytes);
    begin_.assign(begin.begin(), begin.end());
    if (!place_from) return std::nullopt;
    memory_ = std::make_shared<std::vector<uint8_t>>(size - *place_from);
    return FrameRest{*place_from, memory_, memory_->data()};
  }
  bool Take(grpc::ByteBuffer& frame) {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(frame.Dump(&slices).ok());
    std::string& text = frames.emplace_back();
    for (const grpc::Slice& slice : slices) text.append(slice.begin(), slice.end());
    if (!begin_.empty()) {
      EXPECT_EQ(text.substr(0, begin_.size()), begin_);
      begin_.clear();
    }
    if (memory_ != nullptr) {
      EXPECT_EQ(slices.back().begin(), memory_->data());
      memory_ = nullptr;
    }
    wants_more_ = frames.size() < stop_after;
    return wants_more_;
  }

  std::string begin_;
  std::shared_ptr<std::vector<uint8_t>> memory_;
  bool wants_more_ = true;
};

TEST(SocketFramesTest, FramesAreWholeHoweverTheyAreCut) {
  const std::vector<std::string> sent = {"",         "a",
                                         Noise(300), Noise(kLargeFrameBytes - 1),
                                         "b",        Noise(kLargeFrameBytes),
                                         "",         Noise(3 << 20),
                                         "c",        Noise(kLargeFrameBytes + 1)};
  std::string wire;
  for (const std::string& frame : sent) wire += Wire(frame);
  for (const std::optional<size_t> place_from : {std::optional<size_t>(), std::optional<size_t>(0),
                                                 std::optional<size_t>(17), std::optional<size_t>(256)}) {
    for (const size_t step : {7, 255, 256, 4096, 100'000, 10'000'000}) {
      for (const size_t room : {300, 256 << 10}) {
        Reader reader;
        reader.place_from = place_from;
        ASSERT_TRUE(reader.Read(wire, step, room).ok());
        EXPECT_TRUE(reader.frames == sent) << step << " " << room;
        EXPECT_TRUE(reader.frames_.between_frames());
        // One that is all there with its header has come already, and needs no place.
        if (room == 300) {
          EXPECT_EQ(reader.asked, 3u);
        }
      }
    }
  }
}

TEST(SocketFramesTest, LittleIsReadBehindTheRestOfALargeFrame) {
  Reader reader;
  ASSERT_TRUE(reader.Read(Wire(Noise(1 << 20)).substr(0, 1000), 1000, 4096).ok());
  std::vector<uint8_t> more(256 << 10);
  iovec pieces[2];
  ASSERT_EQ(reader.frames_.Next(pieces, more.data(), more.size()), 2);
  EXPECT_EQ(pieces[0].iov_len, (1 << 20) + kFrameHeaderBytes - 1000);
  EXPECT_LE(pieces[1].iov_len, 4096u);
  EXPECT_FALSE(reader.frames_.between_frames());
}

TEST(SocketFramesTest, NothingIsTakenAfterTheReaderHasEnough) {
  Reader reader;
  reader.stop_after = 2;
  ASSERT_TRUE(reader.Read(Wire("a") + Wire("b") + Wire("c"), 1000, 4096).ok());
  EXPECT_EQ(reader.frames, (std::vector<std::string>{"a", "b"}));
}

TEST(SocketFramesTest, AFrameThatIsTooLargeIsAnErrorAndALongOneCostsNothingYet) {
  Reader reader;
  EXPECT_TRUE(absl::IsInvalidArgument(reader.Read(std::string("\0\0\0\x80", 4), 100, 4096)));
  Reader patient;
  ASSERT_TRUE(patient.Read(std::string("\xff\xff\xff\x7f", 4) + Noise(1000), 100, 4096).ok());
  std::vector<uint8_t> more(4096);
  iovec pieces[2];
  ASSERT_EQ(patient.frames_.Next(pieces, more.data(), more.size()), 2);
  EXPECT_LE(pieces[0].iov_len, size_t{2} << 20);
}

TEST(SocketFramesTest, AFrameGoesOutInPieces) {
  std::string text;
  std::vector<grpc::Slice> slices;
  for (int i = 0; i < 3 * OutgoingFrame::kMaxPieces; ++i) {
    slices.emplace_back(std::string(static_cast<size_t>(i), static_cast<char>('a' + i % 26)));
    text += std::string(static_cast<size_t>(i), static_cast<char>('a' + i % 26));
  }
  for (const size_t step : {1, 3, 1000, 1 << 20}) {
    OutgoingFrame frame(grpc::ByteBuffer(slices.data(), slices.size()));
    std::string wire;
    while (!frame.done()) {
      iovec pieces[OutgoingFrame::kMaxPieces];
      const int count = frame.Next(pieces);
      ASSERT_GT(count, 0);
      ASSERT_LE(count, OutgoingFrame::kMaxPieces);
      size_t written = 0;
      for (int i = 0; i < count; ++i) {
        const size_t part = std::min(pieces[i].iov_len, step - written);
        wire.append(static_cast<const char*>(pieces[i].iov_base), part);
        written += part;
      }
      frame.Written(written);
    }
    EXPECT_TRUE(wire == Wire(text)) << step;
  }
  EXPECT_FALSE(OutgoingFrame(grpc::ByteBuffer()).done());  // there is the header
}

}  // namespace
}  // namespace helmway::net
