#ifndef HELMWAY_NET_FRAME_H_
#define HELMWAY_NET_FRAME_H_

// One message of a stream between roles: the length of a protobuf message (32 bits, little-endian), that
// message, and raw bytes to the end.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "helmway/base/host_memory.h"

namespace helmway::net {

// The bytes are not copied: the frame shares their owner until the transport has sent them.
grpc::ByteBuffer MakeFrame(const google::protobuf::MessageLite& message, const base::HostBytes& bytes = {});

// The bytes as a slice that shares their owner.
grpc::Slice ShareBytes(const base::HostBytes& bytes);

// The raw bytes of a frame, whose message has been read.
class FrameReader {
 public:
  // Reads the message off the first bytes of a frame and returns where the raw bytes begin; none if more of
  // the frame is needed to tell, or if it is no such thing.
  static std::optional<size_t> OpenBegin(absl::Span<const uint8_t> begin,
                                         google::protobuf::MessageLite* message);
  // Reads the message off the front of `frame`. INVALID_ARGUMENT if the frame is no such thing.
  static absl::StatusOr<FrameReader> Open(const grpc::ByteBuffer& frame,
                                          google::protobuf::MessageLite* message);
  int64_t size() const { return size_; }
  // Copies the raw bytes to `target`, which has room for size(), but for those that lie there already.
  void CopyTo(uint8_t* target) const;

 private:
  std::vector<grpc::Slice> slices_;
  size_t offset_ = 0;
  int64_t size_ = 0;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_FRAME_H_
