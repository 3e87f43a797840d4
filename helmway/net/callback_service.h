#ifndef HELMWAY_NET_CALLBACK_SERVICE_H_
#define HELMWAY_NET_CALLBACK_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/net/python_callbacks.pb.h"

namespace helmway::net {

// The server's end of one stream of callbacks. Outlives the call. Any thread.
class CallbackStream {
 public:
  virtual ~CallbackStream() = default;
  // There is something to send: the handler's Next is asked, maybe inside the call, until it has no more.
  virtual void Wake() = 0;
  // Ends the stream with a status.
  virtual void Close(const absl::Status& status) = 0;
};

// What one stream of callbacks says and hears. No lock of the stream is held during these calls.
class CallbackStreamHandler {
 public:
  virtual ~CallbackStreamHandler() = default;
  // A message after the first one. By one thread at a time, in order. Must not block. An error ends the
  // stream.
  virtual absl::Status OnMessage(const callbacks::FromClient& message) = 0;
  // Fills `message` with the next one to send; false if there is none now. By one thread at a time, when the
  // transport has taken the one before.
  virtual bool Next(callbacks::FromServer& message) = 0;
  // The stream is over. Once, after all other calls.
  virtual void OnClosed() = 0;
};

// Any thread.
class CallbackStreamManager {
 public:
  virtual ~CallbackStreamManager() = default;
  // A client has opened a stream. `peer` is gRPC's name of its address. An error refuses it.
  virtual absl::StatusOr<std::shared_ptr<CallbackStreamHandler>> OpenCallbackStream(
      const callbacks::Hello& hello, const std::string& peer, std::shared_ptr<CallbackStream> stream) = 0;
};

// The gRPC service helmway.callbacks.PythonCallbacks (python_callbacks.proto): framing and flow. `manager`
// must outlive its server.
std::unique_ptr<grpc::Service> MakeCallbackService(CallbackStreamManager* manager);

}  // namespace helmway::net

#endif  // HELMWAY_NET_CALLBACK_SERVICE_H_
