#ifndef HELMWAY_NET_REMOTE_CALLBACKS_H_
#define HELMWAY_NET_REMOTE_CALLBACKS_H_

// Calls of a remote worker's programs to their client, on their way between worker and proxy. Inside this
// folder only.

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/python_callback.h"
#include "helmway/cluster/worker.pb.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/transfers.h"

namespace helmway::net {

// The worker's end: sends the calls of one session's programs to its proxy. Any thread.
class CallbackForwarder final : public cluster::CallbackSink {
 public:
  // Events go out by `stream`, large arguments by `transfers`, which must live until End.
  CallbackForwarder(std::shared_ptr<MessageStream> stream, Transfers* transfers,
                    std::shared_ptr<base::HostMemoryPool> memory)
      : memory_(std::move(memory)), stream_(std::move(stream)), transfers_(transfers) {}

  void Call(cluster::CallbackCall call) override;

  // The proxy has answered; `results` are the bytes of all results, if it has any.
  void OnAnswer(const cluster::proto::CallbackAnswer& answer, absl::StatusOr<base::HostBytes> results);

  // The session is over: all calls fail with CANCELLED, now and later.
  void End();

 private:
  const std::shared_ptr<base::HostMemoryPool> memory_;
  base::Mutex mu_;
  std::shared_ptr<MessageStream> stream_ ABSL_GUARDED_BY(mu_);  // null after End
  Transfers* transfers_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, cluster::CallbackCall> calls_ ABSL_GUARDED_BY(mu_);
};

// The proxy's end: gives a worker's call to `sink`. `answer` is called once, by any thread, maybe inside the
// call, with the answer and the bytes of the results; their size and transfer are left to it.
// INVALID_ARGUMENT: the call contradicts itself, and there is no answer.
absl::Status TakeCallback(const cluster::proto::Callback& message, base::HostBytes arguments,
                          base::HostMemoryPool& memory, cluster::CallbackSink& sink,
                          absl::AnyInvocable<void(cluster::proto::CallbackAnswer, base::HostBytes)> answer);

}  // namespace helmway::net

#endif  // HELMWAY_NET_REMOTE_CALLBACKS_H_
