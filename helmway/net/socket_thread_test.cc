#include "helmway/net/socket_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "helmway/base/little_endian.h"
#include "helmway/base/mutex.h"

namespace helmway::net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

grpc::ByteBuffer Frame(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// Keeps what it is told. Releases its socket when nothing more comes.
class User final : public SocketUser {
 public:
  void OnConnected(absl::StatusOr<std::shared_ptr<Socket>> socket) override {
    base::MutexLock lock(&mu_);
    connected_ = true;
    status_ = socket.status();
    if (socket.ok()) socket_ = *std::move(socket);
  }
  void OnFrame(grpc::ByteBuffer& frame) override {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(frame.Dump(&slices).ok());
    const auto expected = std::exchange(expected_rest_, nullptr);
    EXPECT_TRUE(expected == nullptr || slices.back().begin() == reinterpret_cast<uint8_t*>(expected->data()));
    base::MutexLock lock(&mu_);
    std::string& text = frames_.emplace_back();
    for (const grpc::Slice& slice : slices) text.append(slice.begin(), slice.end());
  }
  // A frame that begins with "+" and three digits has memory of the user's from that byte on.
  std::optional<FrameRest> OnFrameBegin(absl::Span<const uint8_t> begin, size_t size) override {
    EXPECT_EQ(expected_rest_, nullptr);
    if (begin[0] != '+') return std::nullopt;
    const auto offset = static_cast<size_t>(std::stoi(std::string(begin.begin() + 1, begin.begin() + 4)));
    expected_rest_ = std::make_shared<std::string>(size - offset, '\0');
    return FrameRest{offset, expected_rest_, reinterpret_cast<uint8_t*>(expected_rest_->data())};
  }
  void OnFlushed() override {
    base::MutexLock lock(&mu_);
    ++flushed_;
  }
  void OnPeerEnd() override { End("peer's end"); }
  void OnLost(const absl::Status& status) override { End(std::string(status.message())); }
  void OnReleased() override {
    base::MutexLock lock(&mu_);
    EXPECT_FALSE(released_);
    released_ = true;
  }

  absl::StatusOr<std::shared_ptr<Socket>> WaitForSocket() {
    Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return connected_; });
    base::MutexLock lock(&mu_);
    if (socket_ == nullptr) return status_;
    return socket_;
  }
  std::vector<std::string> WaitForFrames(size_t count) {
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return frames_.size() >= count; });
    base::MutexLock lock(&mu_);
    return frames_;
  }
  // Writes a frame to the last byte.
  void Write(Socket& socket, const std::string& text) {
    int before;
    {
      base::MutexLock lock(&mu_);
      before = flushed_;
    }
    const Socket::Written written = socket.Write(Frame(text));
    EXPECT_NE(written, Socket::Written::kLost);
    if (written != Socket::Written::kPending) return;
    Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return flushed_ > before; });
  }
  // How it ended.
  std::string WaitForRelease() {
    Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return released_; });
    base::MutexLock lock(&mu_);
    return end_;
  }

 private:
  template <typename Condition>
  void Wait(Condition condition) {
    base::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&condition));
  }
  void End(std::string end) {
    base::MutexLock lock(&mu_);
    EXPECT_EQ(end_, "");
    end_ = std::move(end);
    socket_->Release();
  }

  std::shared_ptr<std::string> expected_rest_;  // of the thread of sockets
  base::Mutex mu_;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Socket> socket_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> frames_ ABSL_GUARDED_BY(mu_);
  int flushed_ ABSL_GUARDED_BY(mu_) = 0;
  std::string end_ ABSL_GUARDED_BY(mu_);
  bool released_ ABSL_GUARDED_BY(mu_) = false;
};

// gRPC's name of a peer that is not on this host, as far as anyone can tell: it gets TCP. It is asked at the
// loopback interface.
constexpr char kFarPeer[] = "ipv4:192.0.2.1:4711";
constexpr char kNearPeer[] = "ipv4:127.0.0.1:4711";

// Over TCP (true), and over a Unix socket.
class SocketThreadTest : public ::testing::TestWithParam<bool> {
 protected:
  std::string Invite(const std::shared_ptr<User>& user) {
    const absl::StatusOr<std::string> invitation = inviter_.Invite(GetParam() ? kFarPeer : kNearPeer, user);
    EXPECT_TRUE(invitation.ok()) << invitation.status();
    EXPECT_THAT(*invitation, StartsWith(GetParam() ? "tcp:" : "unix:"));
    return *invitation;
  }
  std::shared_ptr<Socket> Connect(const std::string& invitation, const std::shared_ptr<User>& user) {
    guest_.Connect(kNearPeer, invitation, absl::Seconds(60), user);
    const auto socket = user->WaitForSocket();
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *socket;
  }
  // A connection that speaks for itself.
  static int ConnectByHand(const std::string& invitation) {
    const int fd = ::socket(GetParam() ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
    sockaddr_storage address;
    const socklen_t size = AddressOf(invitation, &address);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    return fd;
  }
  static socklen_t AddressOf(const std::string& invitation, sockaddr_storage* address) {
    const std::vector<std::string> parts = absl::StrSplit(invitation, ':');
    *address = {};
    if (GetParam()) {
      auto* tcp = reinterpret_cast<sockaddr_in*>(address);
      tcp->sin_family = AF_INET;
      tcp->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      tcp->sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
      return sizeof(*tcp);
    }
    auto* local = reinterpret_cast<sockaddr_un*>(address);
    local->sun_family = AF_UNIX;
    std::memcpy(local->sun_path + 1, parts[1].data(), parts[1].size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + parts[1].size());
  }
  int TakeUpByHand(const std::string& invitation) {
    const int fd = ConnectByHand(invitation);
    const std::string token = invitation.substr(invitation.rfind(':') + 1);
    // It may come in pieces.
    EXPECT_EQ(::send(fd, token.data(), 10, 0), 10);
    EXPECT_EQ(::send(fd, token.data() + 10, token.size() - 10, 0), static_cast<ssize_t>(token.size()) - 10);
    char welcome = 0;
    EXPECT_EQ(::recv(fd, &welcome, 1, 0), 1);
    return fd;
  }
  // True if the other end closes the connection, having said nothing.
  static bool IsClosed(int fd) {
    char one;
    const ssize_t got = ::recv(fd, &one, 1, 0);
    ::close(fd);
    return got <= 0;
  }

  SocketThread inviter_;
  SocketThread guest_;
  std::shared_ptr<User> inviting_ = std::make_shared<User>();
  std::shared_ptr<User> invited_ = std::make_shared<User>();
};

TEST_P(SocketThreadTest, FramesGoBothWaysInOrder) {
  const auto there = Connect(Invite(inviting_), invited_);
  const auto here = *inviting_->WaitForSocket();
  std::vector<std::string> sent;
  for (int i = 0; i < 300; ++i) {
    sent.push_back(absl::StrCat(std::string(static_cast<size_t>(i), '.'), i));
    invited_->Write(*there, sent.back());
    inviting_->Write(*here, sent.back());
  }
  EXPECT_EQ(inviting_->WaitForFrames(300), sent);
  EXPECT_EQ(invited_->WaitForFrames(300), sent);
  there->EndWrites();
  EXPECT_EQ(inviting_->WaitForRelease(), "peer's end");
  EXPECT_EQ(invited_->WaitForRelease(), "peer's end");
  EXPECT_EQ(there->Write(Frame("late")), Socket::Written::kLost);
}

TEST_P(SocketThreadTest, LargeFramesComeWholeAfterTheKernelHasTakenWhatItCould) {
  const auto there = Connect(Invite(inviting_), invited_);
  std::string large(50 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761U >> 24);
  invited_->Write(*there, large);
  invited_->Write(*there, "");
  there->EndWrites();
  EXPECT_EQ(inviting_->WaitForRelease(), "peer's end");
  const auto frames = inviting_->WaitForFrames(2);
  EXPECT_TRUE(frames[0] == large);
  EXPECT_EQ(frames[1], "");
  invited_->WaitForRelease();
}

TEST_P(SocketThreadTest, RestsOfLargeFramesComeWhereTheUserWantsThem) {
  const int fd = TakeUpByHand(Invite(inviting_));
  std::vector<std::string> frames;
  std::string bytes;
  auto add = [&](size_t size, const std::string& begin) {
    std::string& frame = frames.emplace_back(size, '\0');
    for (size_t i = 0; i < size; ++i) frame[i] = static_cast<char>(i * 2654435761U >> 24);
    frame.replace(0, begin.size(), begin);
    const size_t header = bytes.size();
    bytes.resize(header + 4);
    base::StoreLittleEndian(size, 4, reinterpret_cast<uint8_t*>(&bytes[header]));
    bytes += frame;
  };
  for (const char* begin : {"+004", "+017", "+255", "+256", "", "+100", "+000"}) {
    for (const size_t size : {size_t{64} << 10, size_t{1} << 20, (size_t{3} << 20) + 1}) {
      add(size, begin);
      add(7, "");  // behind it, at once
    }
  }
  add((64 << 10) - 1, "+not asked");
  size_t written = 0;
  // Cut anywhere, also within what begins a frame, and in between so that many frames are read together.
  for (size_t i = 0; written < bytes.size(); ++i) {
    const size_t step = i % 3 == 0 ? 1 + i % 300 : i % 3 == 1 ? 60'000 : 300'000;
    const ssize_t sent = ::send(fd, bytes.data() + written, std::min(step, bytes.size() - written), 0);
    ASSERT_GT(sent, 0);
    written += static_cast<size_t>(sent);
  }
  const auto got = inviting_->WaitForFrames(frames.size());
  ASSERT_EQ(got.size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) EXPECT_TRUE(got[i] == frames[i]) << i;
  ::close(fd);
  EXPECT_EQ(inviting_->WaitForRelease(), "peer's end");
}

TEST_P(SocketThreadTest, AConnectionMayBeLostWithinTheRestOfAFrame) {
  const int fd = TakeUpByHand(Invite(inviting_));
  std::string bytes = absl::StrCat(std::string("\0\0\x10\0", 4), "+004", std::string(100'000, 'x'));
  ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  EXPECT_THAT(inviting_->WaitForRelease(), HasSubstr("within a message"));
}

// The kernel throws away what a peer has not read yet when a socket is closed and the peer sends more.
TEST_P(SocketThreadTest, WhatIsWrittenArrivesAfterAReleaseInOrder) {
  const int fd = TakeUpByHand(Invite(inviting_));
  const auto here = *inviting_->WaitForSocket();
  inviting_->Write(*here, "the last words");
  here->ReleaseInOrder();
  inviting_->WaitForRelease();
  EXPECT_EQ(here->Write(Frame("late")), Socket::Written::kLost);
  const std::string unread(100 << 10, 'x');
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(::send(fd, unread.data(), unread.size(), 0), static_cast<ssize_t>(unread.size()));
  }
  char text[64];
  EXPECT_EQ(::recv(fd, text, sizeof(text), 0), 18);
  EXPECT_EQ(std::string(text + 4, 14), "the last words");
  EXPECT_TRUE(IsClosed(fd));
}

TEST_P(SocketThreadTest, AnInvitationIsGoodForOneConnection) {
  const std::string invitation = Invite(inviting_);
  Connect(invitation, invited_);
  auto second = std::make_shared<User>();
  guest_.Connect(kNearPeer, invitation, absl::Seconds(60), second);
  EXPECT_EQ(second->WaitForSocket().status().code(), absl::StatusCode::kUnavailable);

  auto third = std::make_shared<User>();
  const std::string withdrawn = Invite(third);
  inviter_.Withdraw(withdrawn);
  EXPECT_EQ(third.use_count(), 1);
  auto fourth = std::make_shared<User>();
  guest_.Connect(kNearPeer, withdrawn, absl::Seconds(60), fourth);
  EXPECT_EQ(fourth->WaitForSocket().status().code(), absl::StatusCode::kUnavailable);

  (*inviting_->WaitForSocket())->Release();
  inviting_->WaitForRelease();
  EXPECT_EQ(invited_->WaitForRelease(), "peer's end");
}

TEST_P(SocketThreadTest, StrangersAreTurnedAwayAndDisturbNobody) {
  const std::string invitation = Invite(inviting_);
  const int wrong = ConnectByHand(invitation);
  ASSERT_EQ(::send(wrong, std::string(32, '0').data(), 32, 0), 32);
  EXPECT_TRUE(IsClosed(wrong));
  // More of them than are heard, and none says anything: the first ones go.
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(ConnectByHand(invitation));
  EXPECT_TRUE(IsClosed(silent.front()));
  const auto there = Connect(invitation, invited_);
  ASSERT_EQ(there->Write(Frame("a")), Socket::Written::kAll);
  EXPECT_THAT(inviting_->WaitForFrames(1), ElementsAre("a"));
  for (size_t i = 1; i < silent.size(); ++i) ::close(silent[i]);
  there->Release();
  invited_->WaitForRelease();
  inviting_->WaitForRelease();
}

TEST_P(SocketThreadTest, ConnectionsWaitWhileThereIsNoFileDescriptorForThem) {
  const std::string invitation = Invite(inviting_);
  const std::string token = invitation.substr(invitation.rfind(':') + 1);
  sockaddr_storage address;
  const socklen_t size = AddressOf(invitation, &address);
  const int fd = ::socket(GetParam() ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
  const timeval a_moment{.tv_sec = 0, .tv_usec = 50'000};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &a_moment, sizeof(a_moment)), 0);
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit full = limit;
  full.rlim_cur = static_cast<rlim_t>(fd) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  // Nothing but calls of the kernel until there are some again: UBSan, for one, needs some too.
  char welcome = 0;
  const int connected = ::connect(fd, reinterpret_cast<sockaddr*>(&address), size);
  const ssize_t sent = ::send(fd, token.data(), token.size(), 0);
  const ssize_t early = ::recv(fd, &welcome, 1, 0);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(sent, static_cast<ssize_t>(token.size()));
  EXPECT_EQ(early, -1);
  const timeval forever{};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever)), 0);
  EXPECT_EQ(::recv(fd, &welcome, 1, 0), 1);
  ::close(fd);
  EXPECT_EQ(inviting_->WaitForRelease(), "peer's end");
}

TEST_P(SocketThreadTest, APeerThatBreaksTheRulesOrOffLosesTheConnection) {
  for (const auto& [bytes, end] : std::vector<std::pair<std::string, std::string>>{
           {std::string("\x05\0\0\0ab", 6), "the connection has ended within a message"},
           {std::string("\x05\0", 2), "the connection has ended within a message"},
           {std::string("\xff\xff\xff\xff", 4), "a frame of more than 2 GiB"}}) {
    auto user = std::make_shared<User>();
    const int fd = TakeUpByHand(Invite(user));
    ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ::shutdown(fd, SHUT_WR);
    EXPECT_EQ(user->WaitForRelease(), end);
    ::close(fd);
  }
}

// A peer whose kernel takes the connection, and that says nothing.
TEST_P(SocketThreadTest, APeerThatDoesNotAnswerIsGivenUp) {
  if (!GetParam()) GTEST_SKIP() << "once is enough";
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  guest_.Connect(kNearPeer, absl::StrCat("tcp:", ntohs(address.sin_port), ":", std::string(32, '0')),
                 absl::Milliseconds(50), invited_);
  EXPECT_EQ(invited_->WaitForSocket().status().code(), absl::StatusCode::kDeadlineExceeded);
  ::close(listener);
}

// Asks on its thread for something when idle, which asks again.
class AsksAgain final : public SocketUser {
 public:
  explicit AsksAgain(SocketThread* thread) : thread_(thread) {}
  void OnConnected(absl::StatusOr<std::shared_ptr<Socket>> /*socket*/) override {
    absl::AnyInvocable<void()> first = [this] {
      absl::AnyInvocable<void()> second = [this] { done_.Notify(); };
      EXPECT_TRUE(thread_->WhenIdle(second));
    };
    EXPECT_TRUE(thread_->WhenIdle(first));
  }
  void OnFrame(grpc::ByteBuffer& /*frame*/) override {}
  void OnFlushed() override {}
  void OnPeerEnd() override {}
  void OnLost(const absl::Status& /*status*/) override {}
  void OnReleased() override {}
  void Wait() { done_.WaitForNotification(); }

 private:
  SocketThread* const thread_;
  base::Notification done_;
};

TEST_P(SocketThreadTest, WhatIsDoneWhenIdleMayAskForMore) {
  absl::AnyInvocable<void()> elsewhere = [] {};
  EXPECT_FALSE(guest_.WhenIdle(elsewhere));
  auto user = std::make_shared<AsksAgain>(&guest_);
  guest_.Connect(kNearPeer, "none", absl::Seconds(60), user);
  user->Wait();
}

TEST_P(SocketThreadTest, InvitationsThatAreNoneAreErrors) {
  for (const char* text :
       {"", "tcp", "tcp:1", "tcp:70000:0", "tcp:x:0", "unix:nobody:0", "pigeon:1:0", ":::"}) {
    auto user = std::make_shared<User>();
    guest_.Connect(kNearPeer, text, absl::Seconds(60), user);
    EXPECT_EQ(user->WaitForSocket().status().code(), absl::StatusCode::kUnavailable) << text;
  }
}

TEST(SocketThreadPortTest, OtherHostsConnectToThePortThatWasGiven) {
  int port = 0;
  {
    SocketThread any;
    ASSERT_TRUE(any.ListenForHosts().ok());
    const auto invitation = any.Invite(kFarPeer, std::make_shared<User>());
    ASSERT_TRUE(invitation.ok());
    const std::vector<std::string> parts = absl::StrSplit(*invitation, ':');
    port = std::stoi(parts[1]);
    SocketThread second(static_cast<uint16_t>(port));
    EXPECT_THAT(std::string(second.ListenForHosts().message()), HasSubstr(absl::StrCat("port ", port)));
    EXPECT_FALSE(second.Invite(kFarPeer, std::make_shared<User>()).ok());
  }
  SocketThread given(static_cast<uint16_t>(port));
  EXPECT_TRUE(given.ListenForHosts().ok());
  EXPECT_TRUE(given.ListenForHosts().ok());
  const auto invitation = given.Invite(kFarPeer, std::make_shared<User>());
  ASSERT_TRUE(invitation.ok());
  EXPECT_THAT(*invitation, StartsWith(absl::StrCat("tcp:", port, ":")));
}

INSTANTIATE_TEST_SUITE_P(Ways, SocketThreadTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Tcp" : "Unix"; });

}  // namespace
}  // namespace helmway::net
