#ifndef HELMWAY_NET_POLLED_CALL_H_
#define HELMWAY_NET_POLLED_CALL_H_

// How calls meet their service's completion queue. Inside this folder only.

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "helmway/base/mutex.h"

namespace helmway::net {

// Counts calls under way, so that the queue outlives them.
class LiveCalls {
 public:
  void Add() {
    base::MutexLock lock(&mu_);
    ++count_;
  }
  void Drop() {
    base::MutexLock lock(&mu_);
    --count_;
  }
  void WaitForNone() {
    auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return count_ == 0; };
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&none));
  }

 private:
  base::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// A service whose completion queue, and the thread that polls it, serve others of the same server too.
// (Measured: threads of their own would pass a connection's events to each other, which costs more than the
// events.)
class QueueHost {
 public:
  virtual ~QueueHost() = default;
  // From the server's start on.
  virtual grpc::ServerCompletionQueue* queue() = 0;
  virtual LiveCalls* live() = 0;
};

// A client has come (`ok`): counts its call and waits for the next one. Otherwise the server is going down,
// nothing else of this call comes back, and it is deleted. `server` has a member `live`, and is what
// Call::Expect takes.
template <typename Call, typename Server>
bool BeginCall(Call* call, const Server& server, bool ok) {
  if (!ok) {
    delete call;
    return false;
  }
  server.live->Add();
  Call::Expect(server);
  return true;
}

// Deletes a call that is over. `live` may let the queue go at once.
template <typename Call>
void EndCall(Call* call, LiveCalls* live) {
  delete call;
  live->Drop();
}

}  // namespace helmway::net

#endif  // HELMWAY_NET_POLLED_CALL_H_
