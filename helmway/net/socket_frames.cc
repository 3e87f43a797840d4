#include "helmway/net/socket_frames.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "helmway/base/little_endian.h"
#include "helmway/net/frame.h"

namespace helmway::net {
namespace {

// Memory for a large frame is taken as it comes: its length alone must cost nothing.
constexpr size_t kBlockBytes = (1 << 20) + 4096;
// Read at once after the rest of a large frame. What begins the next one is copied, so not much.
constexpr size_t kReadBehindBytes = 4096;

// Moves bytes from the front of `come` to `target`, which has room for so many. Their number.
size_t MoveFront(absl::Span<const uint8_t>& come, uint8_t* target, size_t room) {
  const size_t part = std::min(come.size(), room);
  std::memcpy(target, come.data(), part);
  come.remove_prefix(part);
  return part;
}

}  // namespace

OutgoingFrame::OutgoingFrame(const grpc::ByteBuffer& frame) {
  if (!frame.Dump(&slices_).ok()) slices_.clear();
  for (const grpc::Slice& slice : slices_) size_ += slice.size();
  base::StoreLittleEndian(size_, kFrameHeaderBytes, header_);
  size_ += kFrameHeaderBytes;
}

int OutgoingFrame::Next(iovec* pieces) const {
  int count = 0;
  size_t skip = written_;
  auto add = [&](const uint8_t* data, size_t bytes) {
    if (skip >= bytes) {
      skip -= bytes;
      return;
    }
    pieces[count++] = {const_cast<uint8_t*>(data) + skip, bytes - skip};
    skip = 0;
  };
  add(header_, kFrameHeaderBytes);
  for (const grpc::Slice& slice : slices_) {
    if (count == kMaxPieces) break;
    add(slice.begin(), slice.size());
  }
  return count;
}

int IncomingFrames::Next(iovec* pieces, uint8_t* more, size_t more_bytes) {
  int count = 0;
  if (in_body_ && !asks_) {
    uint8_t* const rest = Rest();
    pieces[count++] = {rest, RestBytes()};
    if (missing_ >= kLargeFrameBytes) more_bytes = std::min(more_bytes, kReadBehindBytes);
  }
  pieces[count++] = {more, more_bytes};
  return count;
}

absl::Status IncomingFrames::Add(const uint8_t* more, size_t bytes, Place place, Take take) {
  if (in_body_ && !asks_) {
    const size_t direct = std::min(bytes, RestBytes());
    filled_ += direct;
    missing_ -= direct;
    bytes -= direct;
    if (missing_ == 0 && !Finish(take)) return absl::OkStatus();
  }
  absl::Span<const uint8_t> come(more, bytes);
  while (!come.empty()) {
    if (!in_body_) {
      header_bytes_ += MoveFront(come, header_ + header_bytes_, kFrameHeaderBytes - header_bytes_);
      if (header_bytes_ < kFrameHeaderBytes) return absl::OkStatus();
      header_bytes_ = 0;
      const size_t size = base::LoadLittleEndian(header_, kFrameHeaderBytes);
      if (size > INT_MAX) return absl::InvalidArgumentError("a frame of more than 2 GiB");
      in_body_ = true;
      missing_ = size;
      if (size <= come.size()) {  // all here, as most are
        if (size > 0) blocks_.emplace_back(come.data(), size);
        come.remove_prefix(size);
        missing_ = 0;
        if (!Finish(take)) return absl::OkStatus();
        continue;
      }
      asks_ = size >= kLargeFrameBytes;
    }
    if (asks_) {
      begin_bytes_ += MoveFront(come, begin_ + begin_bytes_, kFrameBeginBytes - begin_bytes_);
      if (begin_bytes_ < kFrameBeginBytes) return absl::OkStatus();
      asks_ = false;
      Begin(place(absl::MakeConstSpan(begin_, std::exchange(begin_bytes_, 0)), missing_));
    }
    while (!come.empty() && missing_ > 0) {
      uint8_t* const rest = Rest();
      const size_t part = MoveFront(come, rest, RestBytes());
      filled_ += part;
      missing_ -= part;
    }
    if (missing_ == 0 && !Finish(take)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// The first kFrameBeginBytes of a large frame have come.
void IncomingFrames::Begin(const std::optional<FrameRest>& rest) {
  size_t left = kFrameBeginBytes;
  if (rest && rest->offset <= kFrameBeginBytes) {
    left -= rest->offset;
    blocks_.emplace_back(begin_, rest->offset);
    blocks_.push_back(ShareBytes({rest->owner, rest->data, static_cast<int64_t>(missing_ - rest->offset)}));
    filled_ = 0;
  }
  std::memcpy(Rest(), begin_ + kFrameBeginBytes - left, left);
  filled_ += left;
  missing_ -= kFrameBeginBytes;
}

// Room for the next bytes of the frame.
uint8_t* IncomingFrames::Rest() {
  if (blocks_.empty() || filled_ == blocks_.back().size()) {
    blocks_.emplace_back(std::min(missing_, kBlockBytes));
    filled_ = 0;
  }
  return const_cast<uint8_t*>(blocks_.back().begin()) + filled_;
}

bool IncomingFrames::Finish(Take take) {
  if (blocks_.empty()) blocks_.emplace_back();
  grpc::ByteBuffer frame(blocks_.data(), blocks_.size());
  blocks_.clear();
  filled_ = 0;
  in_body_ = false;
  return take(frame);
}

}  // namespace helmway::net
