#ifndef HELMWAY_NET_SOCKET_THREAD_H_
#define HELMWAY_NET_SOCKET_THREAD_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "helmway/net/socket_frames.h"

namespace helmway::net {

// Frames over a connection of the kernel's: a Unix domain socket on one host, TCP between hosts. A message
// costs a fraction of one over gRPC.

// One end of a connection. Any thread; every call but Write is harmless at any time.
class Socket {
 public:
  enum class Written {
    kAll,
    kPending,  // the rest goes out when the peer has taken some; then comes OnFlushed
    kLost,     // the connection is
  };
  virtual ~Socket() = default;
  // One at a time: the next one not before OnFlushed, if this one is kPending.
  virtual Written Write(const grpc::ByteBuffer& frame) = 0;
  // Nothing is written after this. Not while a frame is pending.
  virtual void EndWrites() = 0;
  // Closes the connection; what is pending is dropped. OnReleased comes.
  virtual void Release() = 0;
  // The same, but what has been written still reaches the peer: the kernel would drop it if the peer had sent
  // something that nobody reads. Waits for the peer's end behind the user's back, for kHandshake at most.
  virtual void ReleaseInOrder() = 0;
};

// What is told about one connection, on the thread of sockets, one call at a time, with no lock held. Must
// not block.
class SocketUser {
 public:
  virtual ~SocketUser() = default;
  // First, and last as well if it brings an error.
  virtual void OnConnected(absl::StatusOr<std::shared_ptr<Socket>> socket) = 0;
  virtual void OnFrame(grpc::ByteBuffer& frame) = 0;
  // The first bytes of a large frame of `size` bytes have come. Where its rest belongs, which `begin` has the
  // start of, if that is known; the frame then comes with its last slice there.
  virtual std::optional<FrameRest> OnFrameBegin(absl::Span<const uint8_t> /*begin*/, size_t /*size*/) {
    return std::nullopt;
  }
  // The frame that was kPending is written.
  virtual void OnFlushed() = 0;
  // The peer has ended its writes: no frame comes after this.
  virtual void OnPeerEnd() = 0;
  // The connection is lost: no frame comes, and none can be written. Once at most.
  virtual void OnLost(const absl::Status& status) = 0;
  // Last.
  virtual void OnReleased() = 0;
};

// The thread of a process that reads from its sockets, and writes what the kernel did not take at once. Any
// thread.
class SocketThread {
 public:
  // How long a peer has to take up an invitation once it has begun to, and to end what this end has.
  static constexpr absl::Duration kHandshake = absl::Seconds(10);

  // `tcp_port`: where peers on other hosts connect; 0: a port that is free.
  explicit SocketThread(uint16_t tcp_port = 0);
  // Every socket is released, and every invitation taken up or withdrawn.
  ~SocketThread();
  SocketThread(const SocketThread&) = delete;
  SocketThread& operator=(const SocketThread&) = delete;

  // A text by which `peer` (gRPC's name of its address), and nobody else, makes one connection to this
  // process; `user` gets it, never an error. The text holds a secret. The listening sockets are made when
  // they are first needed.
  absl::StatusOr<std::string> Invite(absl::string_view peer, std::shared_ptr<SocketUser> user);
  // Makes the one for other hosts now. UNAVAILABLE: the port can't be had.
  absl::Status ListenForHosts();
  // No connection comes by this invitation, unless one has come. `user` is dropped.
  void Withdraw(const std::string& invitation);

  // Takes up the invitation of the process at `peer`. An error after `timeout` at the latest.
  void Connect(absl::string_view peer, absl::string_view invitation, absl::Duration timeout,
               std::shared_ptr<SocketUser> user);

  // Called on this thread: runs `task` on it once the frames at hand are handled. False on other threads, and
  // nothing is done.
  bool WhenIdle(absl::AnyInvocable<void()>& task);

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_SOCKET_THREAD_H_
