#include "helmway/net/peers.h"

#include <glog/logging.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_messages.h"
#include "helmway/net/transfers.h"

namespace helmway::net {
namespace {

namespace proto = cluster::proto;

constexpr char kPeerMethod[] = "/helmway.cluster.WorkerService/Peer";

grpc::ByteBuffer MakePeerPiece(uint64_t transfer, int64_t size, const base::HostBytes& piece) {
  proto::PeerMessage message;
  message.mutable_piece()->set_transfer(transfer);
  message.mutable_piece()->set_size(size);
  return MakeFrame(message, piece);
}

// The way to one life of one worker.
class Peer final : public MessageReceiver {
 public:
  Peer(cluster::PeerAddress address, const std::shared_ptr<base::HostMemoryPool>& memory,
       std::weak_ptr<cluster::CollectiveReceiver> receiver)
      : address_(std::move(address)), transfers_(memory, MakePeerPiece), receiver_(std::move(receiver)) {}

  void SetStream(std::shared_ptr<MessageStream> stream) {
    transfers_.SetStream(stream);
    base::MutexLock lock(&mu_);
    if (!ended_) stream_ = std::move(stream);
  }

  bool open() {
    base::MutexLock lock(&mu_);
    return stream_ != nullptr;
  }

  // False if the stream has ended.
  bool Send(proto::PeerMessage& message, base::HostBytes bytes) {
    std::shared_ptr<MessageStream> stream;
    {
      base::MutexLock lock(&mu_);
      stream = stream_;
    }
    if (stream == nullptr) return false;
    if (bytes.size > kMaxInlineBytes) {
      const uint64_t transfer = transfers_.Send(std::move(bytes));
      if (message.has_part()) {
        message.mutable_part()->set_transfer(transfer);
      } else {
        message.mutable_arrival()->mutable_fill()->set_transfer(transfer);
      }
      bytes = {};
    }
    return stream->Send(MakeFrame(message, bytes));
  }

  // Nothing comes on this stream.
  void OnMessage(grpc::ByteBuffer& /*message*/) override {}
  void OnEnd(const absl::Status& status) override {
    LOG_IF(WARNING, !status.ok()) << "the way to the worker at " << address_.address
                                  << " is closed: " << status;
    transfers_.Fail(absl::UnavailableError("the stream has ended"));
    {
      base::MutexLock lock(&mu_);
      ended_ = true;
      stream_ = nullptr;
    }
    if (const auto receiver = receiver_.lock()) receiver->PeerLost(address_, status);
  }

 private:
  const cluster::PeerAddress address_;
  Transfers transfers_;
  const std::weak_ptr<cluster::CollectiveReceiver> receiver_;
  base::Mutex mu_;
  std::shared_ptr<MessageStream> stream_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class PeerSenderImpl final : public cluster::PeerSender {
 public:
  explicit PeerSenderImpl(PeersOptions options) : options_(std::move(options)) {}

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
    if (peer != nullptr && peer->Send(message, bytes)) return;
    peer = Open(to);
    peer->Send(message, std::move(bytes));
  }

  std::shared_ptr<Peer> Open(const cluster::PeerAddress& to) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto peer = std::make_shared<Peer>(to, options_.host_memory, receiver_);
    auto stream = options_.streams->Open(OpenChannel(to.address, options_.timeout), kPeerMethod, peer);
    proto::PeerMessage message;
    message.mutable_hello()->set_protocol(cluster::kWorkerProtocol);
    message.mutable_hello()->set_software(options_.software);
    message.mutable_hello()->set_incarnation(to.incarnation);
    message.mutable_hello()->set_peer_address(options_.self.address);
    message.mutable_hello()->set_peer_incarnation(options_.self.incarnation);
    stream->Send(MakeFrame(message));
    peer->SetStream(std::move(stream));
    return peer;
  }

  const PeersOptions options_;
  mutable base::Mutex mu_;
  std::weak_ptr<cluster::CollectiveReceiver> receiver_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<cluster::PeerSender> MakePeerSender(PeersOptions options) {
  return std::make_unique<PeerSenderImpl>(std::move(options));
}

}  // namespace helmway::net
