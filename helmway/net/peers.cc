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
  Peer(std::string address, const std::shared_ptr<base::HostMemoryPool>& memory)
      : address_(std::move(address)), transfers_(memory, MakePeerPiece) {}

  void SetStream(std::shared_ptr<MessageStream> stream) {
    transfers_.SetStream(stream);
    base::MutexLock lock(&mu_);
    if (!ended_) stream_ = std::move(stream);
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
      message.mutable_arrival()->mutable_fill()->set_transfer(transfers_.Send(std::move(bytes)));
      bytes = {};
    }
    return stream->Send(MakeFrame(message, bytes));
  }

  // Nothing comes on this stream.
  void OnMessage(grpc::ByteBuffer& /*message*/) override {}
  void OnEnd(const absl::Status& status) override {
    LOG_IF(WARNING, !status.ok()) << "the way to the worker at " << address_ << " is closed: " << status;
    transfers_.Fail(absl::UnavailableError("the stream has ended"));
    base::MutexLock lock(&mu_);
    ended_ = true;
    stream_ = nullptr;
  }

 private:
  const std::string address_;
  Transfers transfers_;
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
    base::MutexLock lock(&mu_);
    std::shared_ptr<Peer>& peer = peers_[{to.address, to.incarnation}];
    if (peer != nullptr && peer->Send(message, bytes)) return;
    peer = Open(to);
    peer->Send(message, std::move(bytes));
  }

 private:
  std::shared_ptr<Peer> Open(const cluster::PeerAddress& to) const {
    auto peer = std::make_shared<Peer>(to.address, options_.host_memory);
    auto stream = options_.streams->Open(OpenChannel(to.address), kPeerMethod, peer);
    proto::PeerMessage message;
    message.mutable_hello()->set_protocol(cluster::kWorkerProtocol);
    message.mutable_hello()->set_software(options_.software);
    message.mutable_hello()->set_incarnation(to.incarnation);
    stream->Send(MakeFrame(message));
    peer->SetStream(std::move(stream));
    return peer;
  }

  const PeersOptions options_;
  base::Mutex mu_;
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<cluster::PeerSender> MakePeerSender(PeersOptions options) {
  return std::make_unique<PeerSenderImpl>(std::move(options));
}

}  // namespace helmway::net
