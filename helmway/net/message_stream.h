#ifndef HELMWAY_NET_MESSAGE_STREAM_H_
#define HELMWAY_NET_MESSAGE_STREAM_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/socket_frames.h"

namespace helmway::net {

// One end of a stream of messages in both directions between two roles: a gRPC call of our own protocol
// (helmway/cluster), whose messages are bytes here.
//
// The call begins and ends the stream and tells whether the peer lives. Its messages take a connection of
// their own (socket_thread.h), where one costs a fraction of one in the call: the accepting end invites the
// other to one in the call's initial metadata. Where that connection can't be had, say because a port is
// closed to the peer, they go through the call.

// The sending half. Any thread.
class MessageStream {
 public:
  virtual ~MessageStream() = default;
  // Queues a message; order is kept. False, and nothing is done, once the stream has ended.
  virtual bool Send(grpc::ByteBuffer message) = 0;
  // Bytes that wait for the transport. Whoever sends without limit looks here.
  virtual int64_t queued_bytes() const = 0;
  // Ends the stream once what is queued has gone out. The peer sees `status` if this end accepted the call,
  // and the plain end of the stream otherwise.
  virtual void Close(const absl::Status& status) = 0;
  // Ends the stream now; what is queued is dropped.
  virtual void Cancel() = 0;
};

// The receiving half. One thread at a time, in order, with no lock of the stream held; must not block.
class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;
  virtual void OnMessage(grpc::ByteBuffer& message) = 0;
  // The first bytes of a large message of `size` bytes have come over a socket. Where its rest belongs, which
  // `begin` has the start of, if that is known; the message then comes with its last slice there.
  virtual std::optional<FrameRest> OnMessageBegin(absl::Span<const uint8_t> /*begin*/, size_t /*size*/) {
    return std::nullopt;
  }
  // The stream has ended, and nothing comes after this. OK: the peer ended it in good order. UNAVAILABLE: the
  // connection was lost or never made. Comes once.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Serves streams of one method. The receiver of each new stream comes from `accept`, which gets the stream's
// sending half and gRPC's name of the peer's address; it is called on the service's thread and must not
// block.
class MessageStreamService : public PolledService {
 public:
  using Accept = std::function<std::shared_ptr<MessageReceiver>(std::shared_ptr<MessageStream> stream,
                                                                const std::string& peer)>;
  struct Method {
    std::string path;  // "/helmway.cluster.WorkerService/Commands"
    Accept accept;
  };

  // A service for all methods that no other service of the server has; streams of other methods are refused
  // with UNIMPLEMENTED. Streams that end because the server does end with CANCELLED here, those whose peer
  // has gone with UNAVAILABLE.
  //
  // `invites`: peers may send messages over sockets; else all goes through gRPC.
  static std::unique_ptr<MessageStreamService> Create(std::vector<Method> methods, bool invites = true);
};

// Opens streams to peers. Streams may outlive it: they end with CANCELLED.
class MessageStreamClient {
 public:
  // `thread` calls the receivers. It outlives this, and must not be the one that ends it.
  explicit MessageStreamClient(CompletionThread* thread);
  ~MessageStreamClient();
  MessageStreamClient(const MessageStreamClient&) = delete;
  MessageStreamClient& operator=(const MessageStreamClient&) = delete;

  // `receiver` is kept until its OnEnd has returned. A peer that is not there ends the stream with
  // UNAVAILABLE.
  std::shared_ptr<MessageStream> Open(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                                      std::shared_ptr<MessageReceiver> receiver);
  CompletionThread& thread() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A channel for bulk data between roles: plain text, no message size limits, large frames. A peer whose
// process gives no sign of life for `timeout` while a stream is open ends its streams with UNAVAILABLE, and
// so does one that does not take the connection in that time; what it computes meanwhile does not matter.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           absl::Duration timeout = absl::InfiniteDuration());

}  // namespace helmway::net

#endif  // HELMWAY_NET_MESSAGE_STREAM_H_
