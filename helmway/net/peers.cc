#include "helmway/net/peers.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_messages.h"
#include "helmway/net/shared_memory.h"
#include "helmway/net/transfers.h"

namespace helmway::net {
namespace {

namespace proto = cluster::proto;

constexpr char kPeerMethod[] = "/helmway.cluster.WorkerService/Peer";

// Below this a copy costs less than what it takes to share.
constexpr int64_t kMinSharedBytes = 64 << 10;
constexpr size_t kMaxQueuedCopies = 1 << 20;

grpc::ByteBuffer MakePeerPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece) {
  proto::PeerMessage message;
  message.mutable_piece()->set_transfer(transfer);
  message.mutable_piece()->set_size(size);
  return MakeFrame(message, piece);
}

// The way to one life of one worker.
class Peer final : public MessageReceiver, public std::enable_shared_from_this<Peer> {
 public:
  // `copies` copies to memory that is shared, and must outlive what is posted there. Never null.
  Peer(cluster::PeerAddress address, const std::shared_ptr<base::HostMemoryPool>& memory,
       std::weak_ptr<cluster::CollectiveReceiver> receiver, async::ThreadPool* copies)
      : address_(std::move(address)),
        transfers_(memory, MakePeerPiece),
        receiver_(std::move(receiver)),
        copies_(copies) {}

  void SetStream(std::shared_ptr<MessageStream> stream) {
    transfers_.SetStream(stream);
    base::MutexLock lock(&mu_);
    if (!ended_) stream_ = std::move(stream);
  }

  bool open() {
    base::MutexLock lock(&mu_);
    return stream_ != nullptr;
  }

  // Shares this memory from now on, unless it is that already. The stream is open.
  void Offer(const std::shared_ptr<SharedArena>& arena) {
    std::shared_ptr<LaneSender> dropped;  // after the lock
    base::MutexLock lock(&mu_);
    if (stream_ == nullptr || (lane_ != nullptr && lane_->arena() == arena)) return;
    absl::StatusOr<std::unique_ptr<LaneSender>> lane = LaneSender::Create(arena);
    if (!lane.ok()) return;
    dropped = std::exchange(lane_, *std::move(lane));
    const LaneOffer offer = lane_->offer();
    proto::PeerMessage message;
    message.mutable_lane()->set_process(offer.process);
    message.mutable_lane()->set_arena_fd(offer.arena_fd);
    message.mutable_lane()->set_arena_size(offer.arena_size);
    message.mutable_lane()->set_lane_fd(offer.lane_fd);
    message.mutable_lane()->set_token(offer.token);
    stream_->Send(MakeFrame(message));
  }

  // Whether the peer reads what is shared. What it has given back is free again.
  bool Shares() {
    base::MutexLock lock(&mu_);
    if (lane_ == nullptr || !lane_->accepted()) return false;
    lane_->Collect();
    return true;
  }

  // False if the stream has ended.
  bool Send(proto::PeerMessage& message, base::HostBytes bytes) {
    std::shared_ptr<MessageStream> stream;
    bool copies;
    {
      base::MutexLock lock(&mu_);
      if (stream_ == nullptr) return false;
      if (message.has_part() && bytes.size >= kMinSharedBytes && SendShared(message, bytes)) return true;
      stream = stream_;
      copies = lane_ != nullptr && lane_->accepted();
    }
    if (bytes.size > kMaxInlineBytes) {
      const uint64_t transfer = copies ? transfers_.Name() : transfers_.Send(bytes);
      if (message.has_part()) {
        message.mutable_part()->set_transfer(transfer);
      } else {
        message.mutable_arrival()->mutable_fill()->set_transfer(transfer);
      }
      if (!stream->Send(MakeFrame(message))) return false;
      if (copies) {
        copies_->PostOrRun(
            [self = shared_from_this(), transfer, bytes] { self->SendPieces(transfer, bytes); });
      }
      return true;
    }
    return stream->Send(MakeFrame(message, bytes));
  }

  // Nothing comes on this stream.
  void OnMessage(grpc::ByteBuffer& /*message*/) override {}
  void OnEnd(const absl::Status& status) override {
    LOG_IF(WARNING, !status.ok()) << "the way to the worker at " << address_.address
                                  << " is closed: " << status;
    transfers_.Fail(absl::UnavailableError("the stream has ended"));
    std::shared_ptr<LaneSender> dropped;  // after the lock
    {
      base::MutexLock lock(&mu_);
      ended_ = true;
      stream_ = nullptr;
      dropped = std::move(lane_);
    }
    if (const auto receiver = receiver_.lock()) receiver->PeerLost(address_, status);
  }

 private:
  // Sends a message whose bytes lie in the memory that is shared. False, and nothing is done, if they do not.
  // Under the lock, so that the receiver takes them for those of the lane that it was told of last.
  bool SendShared(proto::PeerMessage& message, const base::HostBytes& bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (lane_ == nullptr) return false;
    const std::optional<LaneBytes> shared = lane_->Share(bytes);
    if (!shared) return false;
    message.mutable_shared()->set_id(shared->id);
    message.mutable_shared()->set_offset(shared->offset);
    message.mutable_shared()->set_size(shared->size);
    stream_->Send(MakeFrame(message));
    return true;
  }

  // Pieces of a transfer, through shared memory as long as there is room: what there is none for goes over
  // the stream, which takes as long as the receiver needs to give some back.
  void SendPieces(uint64_t transfer, const base::HostBytes& bytes) {
    for (int64_t offset = 0; offset < bytes.size; offset += kPieceBytes) {
      base::HostBytes piece = bytes;
      piece.data += offset;
      piece.size = std::min(kPieceBytes, bytes.size - offset);
      std::shared_ptr<LaneSender> lane;
      {
        base::MutexLock lock(&mu_);
        if (stream_ == nullptr) return;
        lane = lane_;
      }
      std::optional<base::HostBlock> block;
      if (lane != nullptr) {
        lane->Collect();
        block = lane->arena()->Allocate(piece.size);
      }
      if (block) std::memcpy(block->data, piece.data, static_cast<size_t>(piece.size));
      base::MutexLock lock(&mu_);
      if (stream_ == nullptr) return;
      if (block) {
        proto::PeerMessage message;
        message.mutable_piece()->set_transfer(transfer);
        message.mutable_piece()->set_size(bytes.size);
        if (SendShared(message, std::move(*block).Finish())) continue;
      }
      stream_->Send(MakePeerPiece(transfer, bytes.size, piece));
    }
  }

  const cluster::PeerAddress address_;
  Transfers transfers_;
  const std::weak_ptr<cluster::CollectiveReceiver> receiver_;
  async::ThreadPool* const copies_;
  base::Mutex mu_;
  std::shared_ptr<LaneSender> lane_ ABSL_GUARDED_BY(mu_);  // null: none was offered, or the stream has ended
  std::shared_ptr<MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class PeerSenderImpl final : public cluster::PeerSender {
 public:
  explicit PeerSenderImpl(PeersOptions options)
      : options_(std::move(options)),
        copies_({.name = "peer copies", .threads = 1, .max_queued = kMaxQueuedCopies}) {}

  void Send(const cluster::PeerAddress& to, cluster::SessionId session, cluster::BufferId result,
            absl::StatusOr<cluster::HostContents> contents) override {
    proto::PeerMessage message;
    proto::Arrival& arrival = *message.mutable_arrival();
    arrival.set_session(session);
    arrival.set_buffer(result);
    base::HostBytes bytes;
    if (contents.ok()) {
      *arrival.mutable_fill() = cluster::ToProto(*contents);
      bytes = std::move(contents->bytes);
    } else {
      *arrival.mutable_status() = cluster::ToProto(contents.status());
    }
    SendMessage(to, message, std::move(bytes));
  }

  void SetReceiver(std::weak_ptr<cluster::CollectiveReceiver> receiver) override {
    base::MutexLock lock(&mu_);
    receiver_ = std::move(receiver);
  }

  void Connect(const cluster::PeerAddress& to) override {
    base::MutexLock lock(&mu_);
    std::shared_ptr<Peer>& peer = peers_[{to.address, to.incarnation}];
    if (peer == nullptr || !peer->open()) peer = Open(to);
  }

  absl::StatusOr<base::HostBlock> Allocate(const cluster::PeerAddress& to, int64_t bytes) override {
    if (bytes >= kMinSharedBytes) {
      std::shared_ptr<SharedArena> arena;
      {
        base::MutexLock lock(&mu_);
        const auto peer = peers_.find({to.address, to.incarnation});
        if (peer != peers_.end() && peer->second != nullptr && peer->second->Shares()) arena = Arena();
      }
      if (arena != nullptr) {
        if (std::optional<base::HostBlock> block = arena->Allocate(bytes)) return *std::move(block);
      }
    }
    return options_.host_memory->Allocate(bytes);
  }

  void SendPart(const cluster::PeerAddress& to, cluster::CollectivePart part) override {
    proto::PeerMessage message;
    *message.mutable_part() = cluster::ToProto(part);
    SendMessage(to, message, std::move(part.bytes));
  }

  void SendAbort(const cluster::PeerAddress& to, cluster::SessionId session, cluster::LaunchId launch,
                 const absl::Status& status) override {
    proto::PeerMessage message;
    message.mutable_abort()->set_session(session);
    message.mutable_abort()->set_launch(launch);
    *message.mutable_abort()->mutable_status() = cluster::ToProto(status);
    SendMessage(to, message, {});
  }

 private:
  void SendMessage(const cluster::PeerAddress& to, proto::PeerMessage& message, base::HostBytes bytes) {
    base::MutexLock lock(&mu_);
    std::shared_ptr<Peer>& peer = peers_[{to.address, to.incarnation}];
    if (peer != nullptr) {
      // The memory is another after a peer was lost that had some of it.
      if (const std::shared_ptr<SharedArena> arena = Arena()) peer->Offer(arena);
      if (peer->Send(message, bytes)) return;
    }
    peer = Open(to);
    peer->Send(message, std::move(bytes));
  }

  // The memory to share; null if there is none.
  std::shared_ptr<SharedArena> Arena() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (no_shared_memory_ || options_.shared_memory_bytes <= 0) return nullptr;
    absl::Status status;
    if (arena_ == nullptr || arena_->retired()) {
      absl::StatusOr<std::shared_ptr<SharedArena>> arena = SharedArena::Create(options_.shared_memory_bytes);
      if (arena.ok()) {
        arena_ = *std::move(arena);
      } else {
        status = arena.status();
      }
    } else {
      status = arena_->status();
    }
    if (status.ok()) return arena_;
    no_shared_memory_ = true;
    LOG(WARNING) << "bytes for other workers on this host go over the network's streams: " << status;
    return nullptr;
  }

  std::shared_ptr<Peer> Open(const cluster::PeerAddress& to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto peer = std::make_shared<Peer>(to, options_.host_memory, receiver_, &copies_);
    auto stream = options_.streams->Open(OpenChannel(to.address, options_.timeout), kPeerMethod, peer);
    proto::PeerMessage message;
    message.mutable_hello()->set_protocol(cluster::kWorkerProtocol);
    message.mutable_hello()->set_software(options_.software);
    message.mutable_hello()->set_incarnation(to.incarnation);
    message.mutable_hello()->set_peer_address(options_.self.address);
    message.mutable_hello()->set_peer_incarnation(options_.self.incarnation);
    stream->Send(MakeFrame(message));
    peer->SetStream(std::move(stream));
    if (const std::shared_ptr<SharedArena> arena = Arena()) peer->Offer(arena);
    return peer;
  }

  const PeersOptions options_;
  mutable base::Mutex mu_;
  std::weak_ptr<cluster::CollectiveReceiver> receiver_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SharedArena> arena_ ABSL_GUARDED_BY(mu_);  // null before the first peer
  bool no_shared_memory_ ABSL_GUARDED_BY(mu_) = false;
  async::ThreadPool copies_;  // ends first
};

}  // namespace

std::unique_ptr<cluster::PeerSender> MakePeerSender(PeersOptions options) {
  return std::make_unique<PeerSenderImpl>(std::move(options));
}

}  // namespace helmway::net
