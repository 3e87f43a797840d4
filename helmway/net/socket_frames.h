#ifndef HELMWAY_NET_SOCKET_FRAMES_H_
#define HELMWAY_NET_SOCKET_FRAMES_H_

// Frames on a stream socket: each is its length (32 bits, little-endian) and its bytes. One thread at a time.

#include <grpcpp/support/byte_buffer.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace helmway::net {

inline constexpr size_t kFrameHeaderBytes = 4;
// The reader of a frame from here on is asked where its rest belongs, once this much has come.
inline constexpr size_t kLargeFrameBytes = 64 << 10;
inline constexpr size_t kFrameBeginBytes = 256;

// Memory for what a frame holds from byte `offset` on, however much that is. At most kFrameBeginBytes.
struct FrameRest {
  size_t offset = 0;
  std::shared_ptr<void> owner;
  uint8_t* data = nullptr;
};

// A frame that is being written.
class OutgoingFrame {
 public:
  static constexpr int kMaxPieces = 64;

  explicit OutgoingFrame(const grpc::ByteBuffer& frame);
  // The next bytes to write, in at most kMaxPieces pieces. Their number; 0: all are written.
  int Next(iovec* pieces) const;
  void Written(size_t bytes) { written_ += bytes; }
  bool done() const { return written_ == size_; }

 private:
  uint8_t header_[kFrameHeaderBytes];
  std::vector<grpc::Slice> slices_;
  size_t size_ = 0;  // with the header
  size_t written_ = 0;
};

// Cuts what comes into frames.
class IncomingFrames {
 public:
  // Where the rest of a frame of `size` bytes belongs, which `begin` has the start of, if that is known.
  using Place = absl::FunctionRef<std::optional<FrameRest>(absl::Span<const uint8_t> begin, size_t size)>;
  // Takes a frame that is whole. False: no more are wanted.
  using Take = absl::FunctionRef<bool(grpc::ByteBuffer& frame)>;

  // Where the next bytes should go: the rest of a frame that has begun, then the buffer `more`. The number of
  // pieces, at most 2.
  int Next(iovec* pieces, uint8_t* more, size_t more_bytes);
  // So many bytes have come where Next said. INVALID_ARGUMENT: this is no frame.
  absl::Status Add(const uint8_t* more, size_t bytes, Place place, Take take);
  bool between_frames() const { return !in_body_ && header_bytes_ == 0; }

 private:
  void Begin(const std::optional<FrameRest>& rest);
  uint8_t* Rest();
  size_t RestBytes() const { return blocks_.back().size() - filled_; }
  bool Finish(Take take);

  uint8_t header_[kFrameHeaderBytes];
  size_t header_bytes_ = 0;
  bool in_body_ = false;
  bool asks_ = false;  // in a body whose first bytes are not all here; what has come of them is in begin_
  uint8_t begin_[kFrameBeginBytes];
  size_t begin_bytes_ = 0;
  size_t missing_ = 0;  // of the frame; not 0 between calls while in a body
  std::vector<grpc::Slice> blocks_;
  size_t filled_ = 0;  // of the last block
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_SOCKET_FRAMES_H_
