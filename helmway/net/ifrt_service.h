#ifndef HELMWAY_NET_IFRT_SERVICE_H_
#define HELMWAY_NET_IFRT_SERVICE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/wire/ifrt_service.pb.h"
#include "helmway/wire/ifrt_session.pb.h"

namespace helmway::net {

// The answering half of one session stream. Any thread.
class SessionStream {
 public:
  virtual ~SessionStream() = default;
  // Queues a response. Order is kept. After the stream has ended responses are dropped.
  // Nobody waits for a `patient` response: it goes out with the next one that somebody waits for, with others
  // of its kind, or after a millisecond. That saves both sides most of the cost of a message.
  virtual void Send(const xla::ifrt::proxy::IfrtResponse& response, bool patient) = 0;
  // While paused no further request is taken off the stream, so that the client feels back-pressure.
  // Pauses do not nest.
  virtual void SetPaused(bool paused) = 0;
  // Ends the stream with a status.
  virtual void Close(const absl::Status& status) = 0;
};

// Receives the bytes of one HostBufferStore call. Used by one thread at a time.
class HostBufferWriter {
 public:
  virtual ~HostBufferWriter() = default;
  // Where the next bytes go: `size` bytes follow what was reserved before. Null if more comes than was
  // announced.
  virtual uint8_t* Reserve(int64_t size) = 0;
  // The stream has ended in good order. DATA_LOSS if bytes are missing. Without it (the client died, or sent
  // nonsense) destruction gives the buffer up.
  virtual absl::Status Finish() = 0;
};

// One client session, as the proxy sees it. OnRequest is called by one thread at a time in stream order and
// OnClosed once, after the last OnRequest; the rest by any thread.
class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  // Must not block. The request may be taken apart (swapped out of).
  virtual void OnRequest(xla::ifrt::proxy::IfrtRequest& request) = 0;
  virtual void OnClosed() = 0;

  virtual absl::StatusOr<std::unique_ptr<HostBufferWriter>> StoreHostBuffer(uint64_t handle,
                                                                            int64_t size) = 0;
  virtual absl::StatusOr<base::HostBytes> LookupHostBuffer(uint64_t handle) = 0;
  virtual absl::Status DeleteHostBuffer(uint64_t handle) = 0;
  // The client has put the buffer's bytes into the shared directory. Blocks while it reads the file.
  virtual absl::Status ReadHostBufferFromDisk(uint64_t handle, int64_t size) = 0;
};

// What the service needs from the proxy. Any thread.
class SessionManager {
 public:
  virtual ~SessionManager() = default;
  // `peer` is gRPC's name of the client's address.
  virtual absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
      const xla::ifrt::proxy::GrpcGetVersionRequest& request, const std::string& peer) = 0;
  virtual absl::StatusOr<std::shared_ptr<SessionHandler>> OpenSession(
      const xla::ifrt::proxy::GrpcIfrtSessionMetadata& metadata, const std::string& peer,
      std::shared_ptr<SessionStream> stream) = 0;
  // Null if there is no such session, or the peer may not use it.
  virtual std::shared_ptr<SessionHandler> FindSession(uint64_t session_id, const std::string& peer) = 0;
  // Runs a task that may block for long. False if too many wait.
  virtual bool RunBlocking(absl::AnyInvocable<void()> task) = 0;
};

// The gRPC face of the IFRT proxy protocol (wire.proto service xla.ifrt.proxy.GrpcIfrtService): framing, flow
// and bulk data. Knows nothing of arrays or programs. `manager` must outlive the service's server.
std::unique_ptr<grpc::Service> MakeIfrtService(SessionManager* manager);

}  // namespace helmway::net

#endif  // HELMWAY_NET_IFRT_SERVICE_H_
