#ifndef HELMWAY_WORKER_CALLBACK_CLIENTS_H_
#define HELMWAY_WORKER_CALLBACK_CLIENTS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "helmway/async/growing_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/stream_lanes.h"

namespace helmway::worker {

// A PJRT client of its own for the programs of a session that call back. XLA's CPU client lets a program hold
// its device, or all devices, until the call is over, which may be never; there it stands in the way of other
// such programs of the session only. Its devices are those of the worker's client, by id, and buffers of one
// can be shared with the other. Any thread.
class CallbackClient {
 public:
  // `home` is the worker's client.
  CallbackClient(std::shared_ptr<pjrt::Client> client, std::shared_ptr<pjrt::Client> home,
                 async::GrowingPool* threads)
      : client_(std::move(client)),
        home_(std::move(home)),
        in_order_(std::make_shared<StreamLanes>(threads, /*max_running=*/1)) {}

  const std::shared_ptr<pjrt::Client>& client() const { return client_; }
  const std::shared_ptr<pjrt::Client>& home() const { return home_; }

  // Launches on several devices run one at a time: XLA would let them begin in different orders.
  void AwaitTurn();
  void EndTurn();

  // One lane, whatever the stream: for launches of programs that span workers, whose collectives wait for
  // each other, so that all workers must begin them in one order.
  StreamLanes& in_order() { return *in_order_; }

 private:
  const std::shared_ptr<pjrt::Client> client_;
  const std::shared_ptr<pjrt::Client> home_;
  const std::shared_ptr<StreamLanes> in_order_;
  base::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
};

// The callback clients of a worker. They are made when needed and kept for the next session, since making one
// takes time and threads. Any thread.
class CallbackClients {
 public:
  // `home`: the worker's client, which was made with this process id if it is one of XLA's CPU plugin.
  // `threads` must outlive all that is run.
  CallbackClients(std::shared_ptr<pjrt::Client> home, int process_id, async::GrowingPool* threads);

  // UNIMPLEMENTED on other platforms. One that nobody else has; if there are many already, one that is
  // shared. It comes back when its last holder lets go, on any thread, while this object still lives.
  absl::StatusOr<std::shared_ptr<CallbackClient>> Lease();

 private:
  const std::shared_ptr<pjrt::Client> home_;
  const int process_id_;
  async::GrowingPool* const threads_;
  base::Mutex mu_;
  struct Entry {
    std::unique_ptr<CallbackClient> client;
    int holders = 0;
  };
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_CALLBACK_CLIENTS_H_
