#ifndef HELMWAY_PROXY_PROXY_H_
#define HELMWAY_PROXY_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "helmway/async/outstanding.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/callback_service.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/program/compile_options.h"
#include "helmway/proxy/host_buffers.h"

namespace helmway::proxy {

class Session;

struct ProxyOptions {
  bool allow_remote_clients = false;
  // Where clients put large buffers that they do not send; empty = such transfers are refused.
  std::string large_transfer_directory;
  std::shared_ptr<base::HostMemoryPool> host_memory;
  // Clients may have compiles dumped (xla_dump_to) below this, and nowhere else; empty: not at all.
  std::string scratch_location;
  // For every program, where its client asks for nothing else.
  program::XlaOptions xla_options;
  // The most bytes that host buffers of all sessions may hold on their way. 0: half of the machine's memory.
  int64_t max_host_buffer_bytes = 0;
  // How long a request may wait for a host buffer whose upload has not begun.
  absl::Duration host_buffer_patience = absl::Minutes(5);
  // How long the answer to the first run of a program with callbacks waits for their return.
  absl::Duration callback_patience = absl::Seconds(1);
  // Runs of one session that are under way; beyond it the client's stream is not read.
  int64_t max_launches_under_way = 2000;
};

// What Proxy::NegotiateVersion answers: PERMISSION_DENIED for a client of another host that is not admitted,
// else the version that both speak.
absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
    bool allow_remote_clients, const xla::ifrt::proxy::GrpcGetVersionRequest& request,
    const std::string& peer);

// Takes client sessions and turns their requests into commands for the worker. Any thread.
class Proxy final : public net::SessionManager, public net::CallbackStreamManager {
 public:
  // `worker` must outlive the proxy.
  Proxy(cluster::WorkerLink* worker, ProxyOptions options);
  // All streams must have ended. Waits for what their sessions have commanded, since it calls them back.
  ~Proxy() override;

  absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
      const xla::ifrt::proxy::GrpcGetVersionRequest& request, const std::string& peer) override;
  absl::StatusOr<std::shared_ptr<net::SessionHandler>> OpenSession(
      const xla::ifrt::proxy::GrpcIfrtSessionMetadata& metadata, const std::string& peer,
      std::shared_ptr<net::SessionStream> stream) override;
  std::shared_ptr<net::SessionHandler> FindSession(uint64_t session_id, const std::string& peer) override;
  absl::StatusOr<std::shared_ptr<net::CallbackStreamHandler>> OpenCallbackStream(
      const callbacks::Hello& hello, const std::string& peer,
      std::shared_ptr<net::CallbackStream> stream) override;
  bool RunBlocking(absl::AnyInvocable<void()> task) override { return blocking_.Post(std::move(task)); }

  // ---- For its sessions ----
  async::Outstanding& live_sessions() { return live_sessions_; }
  cluster::WorkerLink& worker() { return *worker_; }
  const ProxyOptions& options() const { return options_; }
  // `count` buffer names that nobody has had.
  cluster::BufferId NewBuffers(uint32_t count) { return next_buffer_.fetch_add(count); }
  cluster::ExecutableId NewExecutable() { return next_executable_.fetch_add(1); }
  cluster::LaunchId NewLaunch();
  void Forget(uint64_t session_id);
  // A session has begun a wait that is to end after that long: for a host buffer or for callbacks.
  void WatchSessions(absl::Duration patience);

 private:
  void Watch();

  cluster::WorkerLink* const worker_;
  ProxyOptions options_;
  const std::shared_ptr<HostBufferBudget> budget_;
  std::atomic<cluster::BufferId> next_buffer_{1};
  std::atomic<cluster::ExecutableId> next_executable_{1};
  std::atomic<uint32_t> next_launch_{1};
  async::Outstanding live_sessions_;
  base::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mu_);
  // The shortest wait that is watched, or infinite.
  absl::Duration watched_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  async::ThreadPool blocking_;
  std::thread watcher_;
};

}  // namespace helmway::proxy

#endif  // HELMWAY_PROXY_PROXY_H_
