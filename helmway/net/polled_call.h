#ifndef HELMWAY_NET_POLLED_CALL_H_
#define HELMWAY_NET_POLLED_CALL_H_

#include "helmway/async/outstanding.h"

namespace helmway::net {

// A call of a service whose calls come back on a completion queue. Inside this folder only. It counts as
// under way from waiting for a client until it is deleted.
class PolledCall {
 protected:
  explicit PolledCall(async::Outstanding* live) : under_way_(live->Begin()) {}

  // A client has come (`ok`): waits for the next one. Otherwise the server is going down, nothing else of
  // this call comes back, and it is deleted. `server` is what Call::Expect takes.
  template <typename Call, typename Server>
  static bool Begin(Call* call, const Server& server, bool ok) {
    if (!ok) {
      delete call;
      return false;
    }
    Call::Expect(server);
    return true;
  }

 private:
  // Here, so that it is dropped after all else of the call: the service may go at once.
  const async::Outstanding::Token under_way_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_POLLED_CALL_H_
