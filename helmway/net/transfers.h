#ifndef HELMWAY_NET_TRANSFERS_H_
#define HELMWAY_NET_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/net/frame.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/socket_frames.h"

namespace helmway::net {

// Bytes up to here travel with the message that announces them; more goes over the bulk stream, so that
// commands do not wait behind it.
inline constexpr int64_t kMaxInlineBytes = 256 << 10;
// Piece of a transfer. Small enough that other transfers of the stream get their turn.
inline constexpr int64_t kPieceBytes = 1 << 20;

// A frame of the Bulk stream.
grpc::ByteBuffer MakeBulkPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece);

// Both halves of a bulk stream: bytes of up to any size in pieces, each transfer named by its sender. Any
// thread.
class Transfers {
 public:
  using Receive = absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)>;

  // Puts a piece into a message of the stream.
  using MakePiece = grpc::ByteBuffer (*)(uint64_t transfer, int64_t size, const base::HostBytes& piece);

  Transfers(std::shared_ptr<base::HostMemoryPool> memory, MakePiece make_piece)
      : memory_(std::move(memory)), make_piece_(make_piece) {}

  // Before this, Send keeps what it is given. The stream's own first message must have gone out.
  void SetStream(std::shared_ptr<MessageStream> stream);

  // Queues the bytes and returns the name of their transfer, never 0.
  uint64_t Send(base::HostBytes bytes);

  // The name of a transfer whose pieces the caller sends, in order.
  uint64_t Name();

  // The first bytes of a piece have come, in a frame of `frame_size` bytes, raw ones from `offset` on. Where
  // those belong; none if that can't be told.
  std::optional<FrameRest> OnPieceBegin(uint64_t transfer, int64_t size, size_t offset, size_t frame_size);

  // A piece has come. INVALID_ARGUMENT: the peer breaks the rules, and the stream should end.
  absl::Status OnPiece(uint64_t transfer, int64_t size, const FrameReader& piece);
  absl::Status OnPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece);

  // Calls `receive` once the transfer has all come, maybe at once; RESOURCE_EXHAUSTED if there was no memory
  // for it.
  void Await(uint64_t transfer, Receive receive);

  // Every transfer that is awaited, now or later, fails with `status`.
  void Fail(const absl::Status& status);

 private:
  struct Incoming {
    absl::StatusOr<base::HostBlock> block = absl::UnknownError("nothing has come");
    int64_t size = -1;
    int64_t received = 0;
    Receive receive;
  };
  // Adds a transfer to those that come, or finds it there. Null if the piece does not fit in.
  Incoming* Find(uint64_t transfer, int64_t size, int64_t piece_size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnPiece(uint64_t transfer, int64_t size, int64_t piece_size,
                       absl::FunctionRef<void(uint8_t*)> copy);
  void SendPieces(const std::shared_ptr<MessageStream>& stream, uint64_t transfer,
                  const base::HostBytes& bytes);
  static absl::StatusOr<base::HostBytes> Take(Incoming incoming);

  const std::shared_ptr<base::HostMemoryPool> memory_;
  const MakePiece make_piece_;
  base::Mutex mu_;
  std::shared_ptr<MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<uint64_t, base::HostBytes>> unsent_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Incoming> incoming_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

// OnPieceBegin for a frame that MakeBulkPiece made.
std::optional<FrameRest> PlaceBulkPiece(Transfers& transfers, absl::Span<const uint8_t> begin, size_t size);

// The raw bytes behind a message (`what`, for errors) that announces `size` of them: those of its frame
// (null: none), or of a transfer, if its number is not 0. `receive` may be called later, on another thread.
// INVALID_ARGUMENT: the message announces others; `receive` is not called then.
absl::Status ReceiveBytes(absl::string_view what, int64_t size, uint64_t transfer, const FrameReader* frame,
                          Transfers& transfers, base::HostMemoryPool& memory, Transfers::Receive receive);

}  // namespace helmway::net

#endif  // HELMWAY_NET_TRANSFERS_H_
