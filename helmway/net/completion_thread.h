#ifndef HELMWAY_NET_COMPLETION_THREAD_H_
#define HELMWAY_NET_COMPLETION_THREAD_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "helmway/base/mutex.h"
#include "helmway/net/socket_thread.h"

namespace helmway::net {

// The thread of a process that takes from gRPC what its calls bring, those of its server and those to other
// processes. One for all: each thread that waits in gRPC takes the events of all connections in turn with the
// others, and hands them on to the thread that they are for, which costs more than the events (measured: a
// third of the rate of arrays of some MiB, a quarter of the CPU time of short runs). So do gRPC's callback
// API and its own health service, which have such threads.
//
// What it calls must not block, nor wait for anything that another call brings. While it is busy with one
// call for long all the same, another thread keeps the connections alive, so that peers do not take this
// process for lost; what they bring waits.
class CompletionThread {
 public:
  // `message_port`: the sockets' TCP port; 0: any.
  explicit CompletionThread(uint16_t message_port = 0);
  // All calls have ended, and their server has shut down.
  ~CompletionThread();
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  // What comes back on it is a Tag (cluster/completion_tag.h).
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }

  // The thread of what the process's streams between roles bring, which have connections of their own beside
  // their calls.
  SocketThread& sockets() { return sockets_; }

  // Called on this thread, or that of the sockets: runs `task` on it, once, before it waits for more, and
  // after a few dozen calls at the latest. So what these have to say to others goes together. False on other
  // threads, and nothing is done.
  bool WhenIdle(absl::AnyInvocable<void()> task);

 private:
  void Run();
  void RunIdleTasks();
  void StandIn();

  friend class GrpcServer;
  SocketThread sockets_;
  // gRPC makes the queues of a server with its builder. Null once the server has taken it: there is one.
  std::unique_ptr<grpc::ServerBuilder> builder_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  // Of the thread.
  std::vector<absl::AnyInvocable<void()>> idle_tasks_;
  int calls_since_idle_ = 0;
  // Odd while the thread is busy, and another number each time.
  std::atomic<uint64_t> turn_{0};
  std::thread thread_;

  base::Mutex mu_;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread stand_in_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_COMPLETION_THREAD_H_
