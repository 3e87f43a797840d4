#include "helmway/net/transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/worker.pb.h"

namespace helmway::net {

grpc::ByteBuffer MakeBulkPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece) {
  cluster::proto::Piece message;
  message.set_transfer(transfer);
  message.set_size(size);
  return MakeFrame(message, piece);
}

void Transfers::SetStream(std::shared_ptr<MessageStream> stream) {
  decltype(unsent_) unsent;
  {
    base::MutexLock lock(&mu_);
    stream_ = stream;
    unsent.swap(unsent_);
  }
  for (const auto& [transfer, bytes] : unsent) SendPieces(stream, transfer, bytes);
}

uint64_t Transfers::Send(base::HostBytes bytes) {
  std::shared_ptr<MessageStream> stream;
  uint64_t transfer;
  {
    base::MutexLock lock(&mu_);
    transfer = next_++;
    if (stream_ == nullptr) {
      if (failed_.ok()) unsent_.emplace_back(transfer, std::move(bytes));
      return transfer;
    }
    stream = stream_;
  }
  SendPieces(stream, transfer, bytes);
  return transfer;
}

void Transfers::SendPieces(const std::shared_ptr<MessageStream>& stream, uint64_t transfer,
                           const base::HostBytes& bytes) {
  int64_t offset = 0;
  do {
    base::HostBytes piece = bytes;
    piece.data += offset;
    piece.size = std::min(kPieceBytes, bytes.size - offset);
    if (!stream->Send(make_piece_(transfer, bytes.size, piece))) return;
    offset += piece.size;
  } while (offset < bytes.size);
}

uint64_t Transfers::Name() {
  base::MutexLock lock(&mu_);
  return next_++;
}

absl::Status Transfers::OnPiece(uint64_t transfer, int64_t size, const FrameReader& piece) {
  return OnPiece(transfer, size, piece.size(), [&](uint8_t* target) { piece.CopyTo(target); });
}

absl::Status Transfers::OnPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece) {
  return OnPiece(transfer, size, piece.size,
                 [&](uint8_t* target) { std::memcpy(target, piece.data, static_cast<size_t>(piece.size)); });
}

Transfers::Incoming* Transfers::Find(uint64_t transfer, int64_t size, int64_t piece_size) {
  Incoming& incoming = incoming_[transfer];
  if (incoming.size < 0) {
    if (transfer == 0 || size < 0) return nullptr;
    incoming.size = size;
    incoming.block = memory_->Allocate(size);
  }
  const bool fits = size == incoming.size && piece_size <= incoming.size - incoming.received;
  return fits ? &incoming : nullptr;
}

std::optional<FrameRest> Transfers::OnPieceBegin(uint64_t transfer, int64_t size, size_t offset,
                                                 size_t frame_size) {
  base::MutexLock lock(&mu_);
  if (!failed_.ok()) return std::nullopt;
  const Incoming* incoming = Find(transfer, size, static_cast<int64_t>(frame_size - offset));
  if (incoming == nullptr || !incoming->block.ok()) return std::nullopt;
  return FrameRest{offset, incoming->block->owner, incoming->block->data + incoming->received};
}

absl::Status Transfers::OnPiece(uint64_t transfer, int64_t size, int64_t piece_size,
                                absl::FunctionRef<void(uint8_t*)> copy) {
  Receive receive;
  Incoming done;
  {
    base::MutexLock lock(&mu_);
    if (!failed_.ok()) return absl::OkStatus();
    Incoming* const found = Find(transfer, size, piece_size);
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("a piece of ", piece_size, " bytes of transfer ",
                                                     transfer, ", of ", size,
                                                     " bytes, which has no name or announced other bytes"));
    }
    Incoming& incoming = *found;
    // Only this stream's thread writes to the block, and nobody reads it before it is complete.
    if (incoming.block.ok()) copy(incoming.block->data + incoming.received);
    incoming.received += piece_size;
    if (incoming.received < incoming.size || !incoming.receive) return absl::OkStatus();
    done = std::move(incoming);
    incoming_.erase(transfer);
  }
  receive = std::move(done.receive);
  receive(Take(std::move(done)));
  return absl::OkStatus();
}

void Transfers::Await(uint64_t transfer, Receive receive) {
  Incoming done;
  {
    base::MutexLock lock(&mu_);
    if (!failed_.ok()) {
      done.block = failed_;
    } else {
      Incoming& incoming = incoming_[transfer];
      if (incoming.size < 0 || incoming.received < incoming.size) {
        incoming.receive = std::move(receive);
        return;
      }
      done = std::move(incoming);
      incoming_.erase(transfer);
    }
  }
  receive(Take(std::move(done)));
}

absl::StatusOr<base::HostBytes> Transfers::Take(Incoming incoming) {
  if (!incoming.block.ok()) return incoming.block.status();
  return (*std::move(incoming.block)).Finish();
}

void Transfers::Fail(const absl::Status& status) {
  decltype(incoming_) failed;
  {
    base::MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    failed_ = status;
    unsent_.clear();
    stream_ = nullptr;
    failed.swap(incoming_);
  }
  for (auto& [transfer, incoming] : failed) {
    if (incoming.receive) incoming.receive(status);
  }
}

std::optional<FrameRest> PlaceBulkPiece(Transfers& transfers, absl::Span<const uint8_t> begin, size_t size) {
  cluster::proto::Piece piece;
  const std::optional<size_t> offset = FrameReader::OpenBegin(begin, &piece);
  if (!offset) return std::nullopt;
  return transfers.OnPieceBegin(piece.transfer(), piece.size(), *offset, size);
}

absl::Status ReceiveBytes(absl::string_view what, int64_t size, uint64_t transfer, const FrameReader* frame,
                          Transfers& transfers, base::HostMemoryPool& memory, Transfers::Receive receive) {
  if (transfer != 0) {
    transfers.Await(transfer, std::move(receive));
    return absl::OkStatus();
  }
  if (size != (frame == nullptr ? 0 : frame->size())) {
    return absl::InvalidArgumentError(absl::StrCat(what, " announces other bytes than follow it"));
  }
  absl::StatusOr<base::HostBlock> block = memory.Allocate(size);
  if (!block.ok()) {
    receive(block.status());
    return absl::OkStatus();
  }
  if (frame != nullptr) frame->CopyTo(block->data);
  receive((*std::move(block)).Finish());
  return absl::OkStatus();
}

}  // namespace helmway::net
