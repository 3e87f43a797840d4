#include "helmway/net/frame.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "helmway/base/happens_before.h"
#include "helmway/base/little_endian.h"
#include "helmway/base/status.h"

namespace helmway::net {
namespace {

constexpr size_t kLengthBytes = 4;

// FrameReader::OpenBegin for `total` bytes, where the length and the message may lie across slices. Errors as
// of Open.
absl::StatusOr<size_t> OpenAcross(const std::vector<grpc::Slice>& slices, size_t total,
                                  google::protobuf::MessageLite* message) {
  auto copy = [&](size_t from, size_t count, uint8_t* target) {
    for (const grpc::Slice& slice : slices) {
      if (from >= slice.size()) {
        from -= slice.size();
        continue;
      }
      const size_t piece = std::min(count, slice.size() - from);
      std::memcpy(target, slice.begin() + from, piece);
      target += piece;
      count -= piece;
      from = 0;
      if (count == 0) return;
    }
  };
  if (total < kLengthBytes) return absl::InvalidArgumentError("a frame is too short");
  uint8_t length_bytes[kLengthBytes];
  copy(0, kLengthBytes, length_bytes);
  const size_t length = base::LoadLittleEndian(length_bytes, kLengthBytes);
  if (length > total - kLengthBytes) return absl::InvalidArgumentError("a frame is cut off");
  std::string joined(length, '\0');
  copy(kLengthBytes, length, reinterpret_cast<uint8_t*>(joined.data()));
  if (!message->ParseFromString(joined)) {
    return absl::InvalidArgumentError("a frame holds no message of its stream");
  }
  return kLengthBytes + length;
}

}  // namespace

grpc::ByteBuffer MakeFrame(const google::protobuf::MessageLite& message, const base::HostBytes& bytes) {
  const size_t length = message.ByteSizeLong();
  grpc::Slice slices[2] = {grpc::Slice(kLengthBytes + length), grpc::Slice()};
  auto* target = const_cast<uint8_t*>(slices[0].begin());
  base::StoreLittleEndian(length, kLengthBytes, target);
  message.SerializeWithCachedSizesToArray(target + kLengthBytes);
  if (bytes.size == 0) return grpc::ByteBuffer(slices, 1);
  slices[1] = ShareBytes(bytes);
  return grpc::ByteBuffer(slices, 2);
}

grpc::Slice ShareBytes(const base::HostBytes& bytes) {
  auto* owner = new std::shared_ptr<const void>(bytes.owner);
  base::HappensBefore(owner);
  return grpc::Slice(
      const_cast<uint8_t*>(bytes.data), static_cast<size_t>(bytes.size),
      [](void* dropped) {
        base::HappensAfter(dropped);
        delete static_cast<std::shared_ptr<const void>*>(dropped);
      },
      owner);
}

std::optional<size_t> FrameReader::OpenBegin(absl::Span<const uint8_t> begin,
                                             google::protobuf::MessageLite* message) {
  if (begin.size() < kLengthBytes) return std::nullopt;
  const size_t length = base::LoadLittleEndian(begin.data(), kLengthBytes);
  if (length > begin.size() - kLengthBytes) return std::nullopt;
  if (!message->ParseFromArray(begin.data() + kLengthBytes, static_cast<int>(length))) return std::nullopt;
  return kLengthBytes + length;
}

absl::StatusOr<FrameReader> FrameReader::Open(const grpc::ByteBuffer& frame,
                                              google::protobuf::MessageLite* message) {
  FrameReader reader;
  if (!frame.Dump(&reader.slices_).ok()) return absl::InvalidArgumentError("a frame can't be read");
  size_t total = 0;
  for (const grpc::Slice& slice : reader.slices_) total += slice.size();
  std::optional<size_t> offset;
  if (!reader.slices_.empty()) {
    const grpc::Slice& first = reader.slices_[0];
    offset = OpenBegin(absl::MakeConstSpan(first.begin(), first.size()), message);
  }
  if (!offset) {
    HELMWAY_ASSIGN_OR_RETURN(offset, OpenAcross(reader.slices_, total, message));
  }
  reader.offset_ = *offset;
  reader.size_ = static_cast<int64_t>(total - reader.offset_);
  return reader;
}

void FrameReader::CopyTo(uint8_t* target) const {
  size_t skip = offset_;
  for (const grpc::Slice& slice : slices_) {
    if (skip >= slice.size()) {
      skip -= slice.size();
      continue;
    }
    if (slice.begin() + skip != target) std::memcpy(target, slice.begin() + skip, slice.size() - skip);
    target += slice.size() - skip;
    skip = 0;
  }
}

}  // namespace helmway::net
