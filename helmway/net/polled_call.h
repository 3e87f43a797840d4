#ifndef HELMWAY_NET_POLLED_CALL_H_
#define HELMWAY_NET_POLLED_CALL_H_

// How calls meet their service's completion queue. Inside this folder only.

#include <grpcpp/grpcpp.h>

#include "helmway/async/outstanding.h"

namespace helmway::net {

// A service whose completion queue, and the thread that polls it, serve others of the same server too.
// (Measured: threads of their own would pass a connection's events to each other, which costs more than the
// events.)
class QueueHost {
 public:
  virtual ~QueueHost() = default;
  // From the server's start on.
  virtual grpc::ServerCompletionQueue* queue() = 0;
  virtual async::Outstanding* live() = 0;
};

// A call, which counts as under way from its client's coming until it is deleted.
class PolledCall {
 protected:
  // A client has come (`ok`): counts its call and waits for the next one. Otherwise the server is going down,
  // nothing else of this call comes back, and it is deleted. `server` has a member `live`, and is what
  // Call::Expect takes.
  template <typename Call, typename Server>
  static bool Begin(Call* call, const Server& server, bool ok) {
    if (!ok) {
      delete call;
      return false;
    }
    call->under_way_ = server.live->Begin();
    Call::Expect(server);
    return true;
  }

 private:
  // Here, so that it is dropped after all else of the call: the queue may go at once.
  async::Outstanding::Token under_way_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_POLLED_CALL_H_
