#include "helmway/net/socket_thread.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "helmway/base/local_addresses.h"
#include "helmway/base/mutex.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/net/socket_frames.h"

namespace helmway::net {
namespace {

constexpr size_t kTokenBytes = 32;
// What the inviting end answers to the right token.
constexpr char kWelcome = 'W';
// Read at once: many small frames, or what begins and ends large ones.
constexpr size_t kReadBytes = 256 << 10;
// What a Unix socket and the kernel's limit allow of it; TCP finds its own.
constexpr int kUnixBufferBytes = 4 << 20;
// Connections that have not said who they are. More than that are no peers of ours.
constexpr size_t kMaxStrangers = 256;
constexpr absl::Duration kListeningPause = absl::Milliseconds(100);
constexpr int kMaxEvents = 32;

absl::Status Lost(absl::string_view what) { return absl::UnavailableError(what); }

absl::Status LostByErrno(absl::string_view what) {
  return Lost(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::string NewToken() {
  return absl::StrCat(absl::Hex(base::UnguessableId(), absl::kZeroPad16),
                      absl::Hex(base::UnguessableId(), absl::kZeroPad16));
}

// The address of an abstract Unix socket.
socklen_t UnixAddress(absl::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

void SetUp(int fd, int family) {
  const int one = 1;
  if (family == AF_UNIX) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixBufferBytes, sizeof(kUnixBufferBytes));
    return;
  }
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  // A network that is gone ends the connection, if nothing else does.
  const int idle_s = 10;
  const int between_s = 5;
  const int probes = 3;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof(between_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

}  // namespace

class SocketThread::Loop {
 public:
  explicit Loop(uint16_t tcp_port)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        tcp_port_(tcp_port) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWake;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  }

  ~Loop() {
    if (thread_.joinable()) {
      ends_.store(true);
      Wake();
      thread_.join();
    }
    for (const int fd : {unix_listener_.load(), tcp_listener_.load(), wake_, epoll_}) {
      if (fd >= 0) ::close(fd);
    }
  }

  absl::StatusOr<std::string> Invite(absl::string_view peer, std::shared_ptr<SocketUser> user);
  absl::Status ListenForHosts();
  void Withdraw(const std::string& invitation);
  void Connect(absl::string_view peer, absl::string_view invitation, absl::Duration timeout,
               std::shared_ptr<SocketUser> user);
  bool WhenIdle(absl::AnyInvocable<void()>& task) {
    if (std::this_thread::get_id() != thread_id_.load(std::memory_order_relaxed)) return false;
    idle_tasks_.push_back(std::move(task));
    return true;
  }

 private:
  class Connection;
  // What epoll's events are about: these, or the number of a connection.
  enum : uint64_t { kWake, kUnixListener, kTcpListener, kFirstConnection };

  void Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
  }
  void Post(absl::AnyInvocable<void()> task) {
    {
      base::MutexLock lock(&mu_);
      tasks_.push_back(std::move(task));
    }
    Wake();
  }
  absl::StatusOr<std::string> ListenUnix() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::string> ListenTcp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Listen(int fd, uint64_t name);

  // ---- On the thread ----
  void Run();
  void AcceptAll(int listener, int family);
  void PauseListening();
  void ResumeListening();
  void Add(const std::shared_ptr<Connection>& connection);
  void Remove(uint64_t number) { connections_.erase(number); }
  int TimeoutMs();
  void DropLate();
  std::shared_ptr<SocketUser> Invited(const std::string& token);

  const int epoll_;
  const int wake_;
  std::atomic<bool> ends_{false};
  std::atomic<std::thread::id> thread_id_{};

  base::Mutex mu_;
  std::thread thread_;  // begins with the first invitation or connection; guarded by mu_ until the end
  std::vector<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<SocketUser>> invited_ ABSL_GUARDED_BY(mu_);  // by token
  std::atomic<int> unix_listener_{-1};  // set under mu_
  std::atomic<int> tcp_listener_{-1};
  std::string unix_name_ ABSL_GUARDED_BY(mu_);
  uint16_t tcp_port_ ABSL_GUARDED_BY(mu_);  // 0: any, as long as nothing listens

  // Of the thread.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Connection>> connections_;
  std::deque<std::weak_ptr<Connection>> hurried_;  // those with a deadline, and some that had one
  std::vector<absl::AnyInvocable<void()>> idle_tasks_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kReadBytes);
  uint64_t next_number_ = kFirstConnection;
  absl::Time listens_again_ = absl::InfiniteFuture();  // it does, if infinite
};

class SocketThread::Loop::Connection final : public Socket, public std::enable_shared_from_this<Connection> {
 public:
  // Those before kOpen have a deadline.
  enum class State { kConnecting, kAwaitsWelcome, kAwaitsToken, kLingers, kOpen, kReadEnded };

  // `token`: what to say to the peer, if this end connects. `user`: null until the peer has said who it is.
  Connection(Loop* loop, int fd, State state, std::string token, std::shared_ptr<SocketUser> user,
             absl::Time deadline)
      : loop_(loop),
        fd_(fd),
        deadline_(deadline),
        state_(state),
        token_(std::move(token)),
        user_(std::move(user)) {
    want_write_ = state == State::kConnecting;
  }
  ~Connection() override {
    if (!closed_) ::close(fd_);
  }

  // ---- Socket ----

  Written Write(const grpc::ByteBuffer& frame) override {
    base::MutexLock lock(&mu_);
    if (lost_ || closed_) return Written::kLost;
    pending_.emplace(frame);
    const Written written = Flush();
    if (written == Written::kPending) {
      want_write_ = true;
      UpdateInterest();
    }
    return written;
  }

  void EndWrites() override {
    base::MutexLock lock(&mu_);
    if (!closed_) ::shutdown(fd_, SHUT_WR);
  }

  void Release() override {
    if (!released_.exchange(true)) loop_->Post([self = shared_from_this()] { self->Close(); });
  }

  void ReleaseInOrder() override {
    if (!released_.exchange(true)) loop_->Post([self = shared_from_this()] { self->Linger(); });
  }

  // ---- On the thread ----

  State state() const { return state_; }
  absl::Time deadline() const { return deadline_; }
  // It has a deadline.
  bool hurries() const { return state_ < State::kOpen; }
  void set_number(uint64_t number) { number_ = number; }

  void Watch() {
    base::MutexLock lock(&mu_);
    UpdateInterest();
  }

  void OnEvents(uint32_t events) {
    if (state_ == State::kLingers) return Discard();
    if (released_.load()) return;
    if (state_ == State::kConnecting) {
      OnConnectOver();
      return;
    }
    if ((events & EPOLLOUT) != 0) {
      Written written = Written::kPending;
      {
        base::MutexLock lock(&mu_);
        if (want_write_) {
          written = Flush();
          if (written != Written::kPending) {
            want_write_ = false;
            UpdateInterest();
          }
        }
      }
      if (written == Written::kAll) user_->OnFlushed();
      if (written == Written::kLost) return Lose(Lost("the connection is lost"));
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) Read();
  }

  // The handshake fails.
  void Fail(const absl::Status& status) {
    const std::shared_ptr<SocketUser> user = std::move(user_);
    released_.store(true);
    Close();
    if (user != nullptr) user->OnConnected(status);
  }

 private:
  void OnConnectOver() {
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Fail(Lost(std::strerror(error)));
    if (::send(fd_, token_.data(), token_.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(token_.size())) {
      return Fail(LostByErrno("send"));
    }
    state_ = State::kAwaitsWelcome;
    base::MutexLock lock(&mu_);
    want_write_ = false;
    UpdateInterest();
  }

  void Read() {
    switch (state_) {
      case State::kAwaitsWelcome:
        return ReadWelcome();
      case State::kAwaitsToken:
        return ReadToken();
      case State::kOpen:
        return ReadFrames();
      case State::kConnecting:
      case State::kLingers:
      case State::kReadEnded:
        return;
    }
  }

  void ReadWelcome() {
    char welcome = 0;
    const ssize_t got = ::recv(fd_, &welcome, 1, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got != 1 || welcome != kWelcome) return Fail(Lost("the peer does not know the invitation"));
    Open();
  }

  void ReadToken() {
    char text[kTokenBytes];
    const ssize_t got = ::recv(fd_, text, kTokenBytes - token_.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Fail(Lost("the peer has gone"));
    token_.append(text, static_cast<size_t>(got));
    if (token_.size() < kTokenBytes) return;
    user_ = loop_->Invited(token_);
    if (user_ == nullptr) return Fail(Lost("a stranger"));
    // Its place in the buffer of a new connection is sure; if not, the peer is gone, which the next read
    // tells.
    [[maybe_unused]] const ssize_t sent = ::send(fd_, &kWelcome, 1, MSG_NOSIGNAL);
    Open();
  }

  void Open() {
    state_ = State::kOpen;
    user_->OnConnected(std::shared_ptr<Socket>(shared_from_this()));
  }

  void ReadFrames() {
    iovec pieces[2];
    const int count = incoming_.Next(pieces, loop_->buffer_.data(), loop_->buffer_.size());
    const ssize_t got = ::readv(fd_, pieces, count);
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      return Lose(LostByErrno("the connection is lost"));
    }
    if (got == 0) {
      if (!incoming_.between_frames()) return Lose(Lost("the connection has ended within a message"));
      EndReads();
      return user_->OnPeerEnd();
    }
    const absl::Status status = incoming_.Add(
        loop_->buffer_.data(), static_cast<size_t>(got),
        [this](absl::Span<const uint8_t> begin, size_t size) { return user_->OnFrameBegin(begin, size); },
        [this](grpc::ByteBuffer& frame) {
          user_->OnFrame(frame);
          return !released_.load();
        });
    if (!status.ok()) Lose(status);
  }

  void EndReads() {
    state_ = State::kReadEnded;
    base::MutexLock lock(&mu_);
    want_read_ = false;
    UpdateInterest();
  }

  void Lose(const absl::Status& status) {
    state_ = State::kReadEnded;
    {
      base::MutexLock lock(&mu_);
      lost_ = true;
      want_read_ = want_write_ = false;
      UpdateInterest();
    }
    user_->OnLost(status);
  }

  void Linger() {
    if (state_ != State::kOpen) return Close();
    {
      base::MutexLock lock(&mu_);
      lost_ = true;  // for whoever writes
      pending_.reset();
      want_write_ = false;
      UpdateInterest();
      ::shutdown(fd_, SHUT_WR);
    }
    state_ = State::kLingers;
    deadline_ = absl::Now() + kHandshake;
    loop_->hurried_.push_back(weak_from_this());
    const std::shared_ptr<SocketUser> user = std::move(user_);
    user->OnReleased();
  }

  void Discard() {
    const ssize_t got = ::recv(fd_, loop_->buffer_.data(), loop_->buffer_.size(), 0);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
    Close();
  }

  void Close() {
    {
      base::MutexLock lock(&mu_);
      if (closed_) return;
      want_read_ = want_write_ = false;
      UpdateInterest();
      closed_ = true;
      pending_.reset();
      ::close(fd_);
    }
    state_ = State::kReadEnded;
    loop_->Remove(number_);
    if (const std::shared_ptr<SocketUser> user = std::move(user_)) user->OnReleased();
  }

  // ---- Under mu_ ----

  // Writes what is pending.
  Written Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!pending_->done()) {
      iovec pieces[OutgoingFrame::kMaxPieces];
      msghdr message{};
      message.msg_iov = pieces;
      message.msg_iovlen = static_cast<size_t>(pending_->Next(pieces));
      const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return Written::kPending;
        lost_ = true;
        pending_.reset();
        return Written::kLost;
      }
      pending_->Written(static_cast<size_t>(sent));
    }
    pending_.reset();
    return Written::kAll;
  }

  void UpdateInterest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (closed_) return;
    epoll_event event{};
    event.events =
        (want_read_ ? uint32_t{EPOLLIN} | uint32_t{EPOLLRDHUP} : 0) | (want_write_ ? uint32_t{EPOLLOUT} : 0);
    event.data.u64 = number_;
    if (event.events == interest_) return;
    // One that waits for nothing is taken out: else the kernel tells of its end again and again.
    const int change = event.events == 0 ? EPOLL_CTL_DEL : interest_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    ::epoll_ctl(loop_->epoll_, change, fd_, &event);
    interest_ = event.events;
  }

  Loop* const loop_;
  const int fd_;
  absl::Time deadline_;  // of what has one; of the thread
  uint64_t number_ = 0;
  std::atomic<bool> released_{false};

  // Of the thread.
  State state_;
  std::string token_;
  std::shared_ptr<SocketUser> user_;
  IncomingFrames incoming_;

  base::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  bool want_read_ ABSL_GUARDED_BY(mu_) = true;
  bool want_write_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t interest_ ABSL_GUARDED_BY(mu_) = 0;  // what epoll has been told
  std::optional<OutgoingFrame> pending_ ABSL_GUARDED_BY(mu_);
};

// ---- Invitations -----------------------------------------------------------------------------------------
//
// "unix:NAME:TOKEN" (an abstract name) or "tcp:PORT:TOKEN". The peer connects, sends the token, and may send
// frames once it is welcome.

absl::StatusOr<std::string> SocketThread::Loop::Invite(absl::string_view peer,
                                                       std::shared_ptr<SocketUser> user) {
  base::MutexLock lock(&mu_);
  absl::StatusOr<std::string> address = base::IsLocalPeer(peer) ? ListenUnix() : ListenTcp();
  if (!address.ok()) return address.status();
  std::string token = NewToken();
  std::string invitation = absl::StrCat(*address, ":", token);
  invited_.emplace(std::move(token), std::move(user));
  Begin();
  return invitation;
}

absl::Status SocketThread::Loop::ListenForHosts() {
  base::MutexLock lock(&mu_);
  HELMWAY_RETURN_IF_ERROR(ListenTcp().status());
  Begin();
  return absl::OkStatus();
}

void SocketThread::Loop::Withdraw(const std::string& invitation) {
  std::shared_ptr<SocketUser> dropped;  // after the lock
  base::MutexLock lock(&mu_);
  const auto found = invited_.find(invitation.substr(invitation.rfind(':') + 1));
  if (found == invited_.end()) return;
  dropped = std::move(found->second);
  invited_.erase(found);
}

std::shared_ptr<SocketUser> SocketThread::Loop::Invited(const std::string& token) {
  base::MutexLock lock(&mu_);
  const auto found = invited_.find(token);
  if (found == invited_.end()) return nullptr;
  std::shared_ptr<SocketUser> user = std::move(found->second);
  invited_.erase(found);
  return user;
}

absl::StatusOr<std::string> SocketThread::Loop::ListenUnix() {
  if (unix_listener_ < 0) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return LostByErrno("a Unix socket");
    unix_name_ = absl::StrCat("helmway-", absl::Hex(base::UnguessableId(), absl::kZeroPad16));
    sockaddr_un address;
    const socklen_t size = UnixAddress(unix_name_, &address);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, SOMAXCONN) != 0) {
      const absl::Status status = LostByErrno("a Unix socket");
      ::close(fd);
      return status;
    }
    unix_listener_ = fd;
    Listen(fd, kUnixListener);
  }
  return absl::StrCat("unix:", unix_name_);
}

absl::StatusOr<std::string> SocketThread::Loop::ListenTcp() {
  if (tcp_listener_ < 0) {
    // Zeros, but for the port: all interfaces.
    sockaddr_storage address{};
    socklen_t size;
    int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
      const int zero = 0;
      ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
      address.ss_family = AF_INET6;
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(tcp_port_);
      size = sizeof(sockaddr_in6);
    } else {  // a host without IPv6
      fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (fd < 0) return LostByErrno("a TCP socket");
      address.ss_family = AF_INET;
      reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(tcp_port_);
      size = sizeof(sockaddr_in);
    }
    // Connections of a process that has gone keep no port from the next one.
    const int one = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      const absl::Status status = LostByErrno(absl::StrCat("listening on TCP port ", tcp_port_));
      ::close(fd);
      return status;
    }
    tcp_port_ = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    tcp_listener_ = fd;
    Listen(fd, kTcpListener);
  }
  return absl::StrCat("tcp:", tcp_port_);
}

void SocketThread::Loop::Listen(int fd, uint64_t name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = name;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void SocketThread::Loop::Connect(absl::string_view peer, absl::string_view invitation, absl::Duration timeout,
                                 std::shared_ptr<SocketUser> user) {
  sockaddr_storage address{};
  socklen_t size = 0;
  const std::vector<std::string> parts = absl::StrSplit(invitation, ':');
  uint32_t port = 0;
  if (parts.size() == 3 && parts[0] == "unix") {
    size = UnixAddress(parts[1], reinterpret_cast<sockaddr_un*>(&address));
  } else if (parts.size() == 3 && parts[0] == "tcp" && absl::SimpleAtoi(parts[1], &port) && port <= 65535) {
    size = base::SocketAddressOfPeer(peer, static_cast<uint16_t>(port), &address);
  }
  absl::Status status;
  int fd = -1;
  if (size == 0) {
    status = Lost(absl::StrCat("no way to ", peer, " by this invitation"));
  } else {
    fd = ::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) status = LostByErrno("a socket");
  }
  if (status.ok()) {
    SetUp(fd, address.ss_family);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 && errno != EINPROGRESS) {
      status = LostByErrno("connect");
      ::close(fd);
    }
  }
  const absl::Time deadline = absl::Now() + timeout;
  {
    base::MutexLock lock(&mu_);
    Begin();
  }
  if (!status.ok()) {
    Post([user = std::move(user), status] { user->OnConnected(status); });
    return;
  }
  auto connection = std::make_shared<Connection>(this, fd, Connection::State::kConnecting, parts[2],
                                                 std::move(user), deadline);
  Post([this, connection = std::move(connection)] { Add(connection); });
}

// ---- The thread ------------------------------------------------------------------------------------------

void SocketThread::Loop::Add(const std::shared_ptr<Connection>& connection) {
  connection->set_number(next_number_);
  connections_.emplace(next_number_++, connection);
  hurried_.push_back(connection);
  connection->Watch();
}

void SocketThread::Loop::AcceptAll(int listener, int family) {
  while (true) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of file descriptors, say. The kernel would tell of the connection again and again.
      if (errno != EAGAIN) PauseListening();
      return;
    }
    SetUp(fd, family);
    Add(std::make_shared<Connection>(this, fd, Connection::State::kAwaitsToken, "", nullptr,
                                     absl::Now() + kHandshake));
    size_t strangers = 0;
    for (auto i = hurried_.rbegin(); i != hurried_.rend(); ++i) {
      const auto connection = i->lock();
      if (connection == nullptr || connection->state() != Connection::State::kAwaitsToken) continue;
      if (++strangers > kMaxStrangers) connection->Fail(Lost("too many strangers"));
    }
  }
}

void SocketThread::Loop::PauseListening() {
  listens_again_ = absl::Now() + kListeningPause;
  for (const int listener : {unix_listener_.load(), tcp_listener_.load()}) {
    if (listener >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, listener, nullptr);
  }
}

void SocketThread::Loop::ResumeListening() {
  if (listens_again_ == absl::InfiniteFuture() || absl::Now() < listens_again_) return;
  listens_again_ = absl::InfiniteFuture();
  if (const int listener = unix_listener_.load(); listener >= 0) Listen(listener, kUnixListener);
  if (const int listener = tcp_listener_.load(); listener >= 0) Listen(listener, kTcpListener);
}

int SocketThread::Loop::TimeoutMs() {
  absl::Time first = listens_again_;
  for (size_t i = hurried_.size(); i > 0; --i) {
    const auto connection = std::move(hurried_.front()).lock();
    hurried_.pop_front();
    if (connection == nullptr || !connection->hurries()) continue;
    first = std::min(first, connection->deadline());
    hurried_.push_back(connection);
  }
  if (first == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(first - absl::Now(), absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void SocketThread::Loop::DropLate() {
  if (hurried_.empty()) return;
  const absl::Time now = absl::Now();
  for (const std::weak_ptr<Connection>& one : std::deque(hurried_)) {
    const auto connection = one.lock();
    if (connection != nullptr && connection->hurries() && connection->deadline() <= now) {
      connection->Fail(absl::DeadlineExceededError("the peer does not answer"));
    }
  }
}

void SocketThread::Loop::Run() {
  pthread_setname_np(pthread_self(), "sockets");
  thread_id_.store(std::this_thread::get_id());
  epoll_event events[kMaxEvents];
  while (!ends_.load()) {
    // An idle task may have asked for another.
    const int timeout_ms = idle_tasks_.empty() ? TimeoutMs() : 0;
    const int count = ::epoll_wait(epoll_, events, kMaxEvents, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const uint64_t name = events[i].data.u64;
      if (name == kWake) {
        uint64_t times;
        [[maybe_unused]] const ssize_t got = ::read(wake_, &times, sizeof(times));
      } else if (name == kUnixListener) {
        AcceptAll(unix_listener_, AF_UNIX);
      } else if (name == kTcpListener) {
        AcceptAll(tcp_listener_, AF_INET);
      } else {
        const auto found = connections_.find(name);
        if (found == connections_.end()) continue;
        const std::shared_ptr<Connection> connection = found->second;
        connection->OnEvents(events[i].events);
      }
    }
    DropLate();
    ResumeListening();
    decltype(tasks_) tasks;
    {
      base::MutexLock lock(&mu_);
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
    tasks.clear();
    tasks.swap(idle_tasks_);
    for (auto& task : tasks) task();
  }
}

SocketThread::SocketThread(uint16_t tcp_port) : loop_(std::make_unique<Loop>(tcp_port)) {}
SocketThread::~SocketThread() = default;

absl::Status SocketThread::ListenForHosts() { return loop_->ListenForHosts(); }

absl::StatusOr<std::string> SocketThread::Invite(absl::string_view peer, std::shared_ptr<SocketUser> user) {
  return loop_->Invite(peer, std::move(user));
}

void SocketThread::Withdraw(const std::string& invitation) { loop_->Withdraw(invitation); }

void SocketThread::Connect(absl::string_view peer, absl::string_view invitation, absl::Duration timeout,
                           std::shared_ptr<SocketUser> user) {
  loop_->Connect(peer, invitation, timeout, std::move(user));
}

bool SocketThread::WhenIdle(absl::AnyInvocable<void()>& task) { return loop_->WhenIdle(task); }

}  // namespace helmway::net
