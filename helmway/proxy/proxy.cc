#include "helmway/proxy/proxy.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/clock.h"
#include "helmway/base/local_addresses.h"
#include "helmway/base/random.h"
#include "helmway/proxy/session.h"
#include "helmway/wire/versions.h"

namespace helmway::proxy {
namespace {

constexpr int kCallbackProtocolVersion = 1;

int64_t HalfOfMemory() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE) / 2; }

// The peer without its port: a client's two channels come from one address.
std::string Host(const std::string& peer) {
  if (peer.rfind("unix:", 0) == 0) return "unix:";
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace

Proxy::Proxy(cluster::WorkerLink* worker, ProxyOptions options)
    : worker_(worker),
      options_(std::move(options)),
      budget_(std::make_shared<HostBufferBudget>(
          options_.max_host_buffer_bytes > 0 ? options_.max_host_buffer_bytes : HalfOfMemory())),
      blocking_({.name = "shared-dir", .threads = 1, .max_queued = 1024}),
      watcher_([this] { Watch(); }) {}

Proxy::~Proxy() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  watcher_.join();
  live_sessions_.WaitForNone();
}

absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
    bool allow_remote_clients, const xla::ifrt::proxy::GrpcGetVersionRequest& request,
    const std::string& peer) {
  if (!allow_remote_clients && !base::IsLocalPeer(peer)) {
    LOG_FIRST_N(WARNING, 10) << "refused a client at " << peer << ": it is not on this host";
    return absl::PermissionDeniedError(
        absl::StrCat("this server takes clients of its own host only, and ", peer,
                     " is another; start it with --allow_remote_clients to open it to the network"));
  }
  return wire::ChooseVersion(request);
}

absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> Proxy::NegotiateVersion(
    const xla::ifrt::proxy::GrpcGetVersionRequest& request, const std::string& peer) {
  return proxy::NegotiateVersion(options_.allow_remote_clients, request, peer);
}

absl::StatusOr<std::shared_ptr<net::SessionHandler>> Proxy::OpenSession(
    const xla::ifrt::proxy::GrpcIfrtSessionMetadata& metadata, const std::string& peer,
    std::shared_ptr<net::SessionStream> stream) {
  if (!options_.allow_remote_clients && !base::IsLocalPeer(peer)) {
    return absl::PermissionDeniedError("this server takes clients of its own host only");
  }
  if (absl::Status status = wire::CheckVersion(metadata.version()); !status.ok()) return status;
  const auto said = [&](const char* key) -> std::string {
    const auto& attributes = metadata.initialization_data().attributes();
    const auto it = attributes.find(key);
    return it == attributes.end() ? "" : it->second.string_value();
  };
  auto session = std::make_shared<Session>(this, base::UnguessableId(), Host(peer), std::move(stream),
                                           std::make_shared<HostBuffers>(options_.host_memory, budget_),
                                           ClientVersions{said(kPythonVersionKey), said(kJaxVersionKey)});
  LOG(INFO) << "session from " << peer << " at protocol " << metadata.version().protocol_version()
            << ", serdes " << metadata.version().ifrt_serdes_version_number();
  base::MutexLock lock(&mu_);
  sessions_[session->id()] = session;
  return session;
}

std::shared_ptr<net::SessionHandler> Proxy::FindSession(uint64_t session_id, const std::string& peer) {
  base::MutexLock lock(&mu_);
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end() || it->second->peer_host() != Host(peer)) return nullptr;
  return it->second;
}

absl::StatusOr<std::shared_ptr<net::CallbackStreamHandler>> Proxy::OpenCallbackStream(
    const callbacks::Hello& hello, const std::string& peer, std::shared_ptr<net::CallbackStream> stream) {
  if (hello.version() != kCallbackProtocolVersion) {
    return absl::UnimplementedError(absl::StrCat("version ", hello.version(),
                                                 " of the protocol for callbacks; this server has version ",
                                                 kCallbackProtocolVersion));
  }
  std::shared_ptr<Session> session;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [id, candidate] : sessions_) {
      if (candidate->callbacks().key() == hello.session_key() && candidate->peer_host() == Host(peer)) {
        session = candidate;
      }
    }
  }
  if (session == nullptr) {
    return absl::NotFoundError("no session has this key (it has ended, or was never opened here)");
  }
  return session->callbacks().Open(hello.client(), std::move(stream));
}

cluster::LaunchId Proxy::NewLaunch() {
  // Positive, 31 bits, never 0: the plugin takes 0 for "none".
  return static_cast<cluster::LaunchId>(next_launch_.fetch_add(1) % 0x7fffffff) + 1;
}

void Proxy::Forget(uint64_t session_id) {
  std::shared_ptr<Session> dropped;
  base::MutexLock lock(&mu_);
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  dropped = std::move(it->second);
  sessions_.erase(it);
}

void Proxy::WatchSessions(absl::Duration patience) {
  base::MutexLock lock(&mu_);
  watched_ = std::min(watched_, patience);
}

void Proxy::Watch() {
  absl::Duration step;
  auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return watched_ < absl::InfiniteDuration() || stopping_;
  };
  const auto step_for = [](absl::Duration patience) {
    return std::clamp(patience / 4, absl::Milliseconds(10), absl::Seconds(10));
  };
  auto must_hurry = [&]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return step_for(watched_) < step || stopping_; };
  while (true) {
    std::vector<std::shared_ptr<Session>> sessions;
    {
      base::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      do {
        step = step_for(watched_);
      } while (mu_.AwaitWithTimeout(absl::Condition(&must_hurry), step) && !stopping_);
      if (stopping_) return;
      watched_ = absl::InfiniteDuration();
      for (const auto& [id, session] : sessions_) sessions.push_back(session);
    }
    const absl::Time now = base::SteadyNow();
    // FAILED_PRECONDITION: what a client must do is send the buffer; none of the codes that an elastic
    // trainer takes for a lost slice.
    const absl::Duration patience = options_.host_buffer_patience;
    const absl::Status late = absl::FailedPreconditionError(
        absl::StrCat("never came: its upload did not begin within ", absl::FormatDuration(patience)));
    bool buffers_remain = false;
    bool runs_remain = false;
    for (const auto& session : sessions) {
      buffers_remain |= session->host_buffers().FailWaitsBefore(now - patience, late);
      runs_remain |= session->AnswerRunsBefore(now - options_.callback_patience);
    }
    if (buffers_remain) WatchSessions(patience);
    if (runs_remain) WatchSessions(options_.callback_patience);
  }
}

}  // namespace helmway::proxy
