#include "helmway/net/completion_thread.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "helmway/base/mutex.h"
#include "helmway/cluster/completion_tag.h"
#include "helmway/net/grpc_server.h"

namespace helmway::net {
namespace {

// Runs a function on the thread, as the end of an operation.
class Operation {
 public:
  Operation(CompletionThread& thread, std::function<void()> over) : over_(std::move(over)) {
    alarm_.Set(thread.queue(), std::chrono::system_clock::now(), cluster::Arm(&tag_));
  }

 private:
  void OnOver(bool ok) {
    EXPECT_TRUE(ok);
    over_();
  }
  const std::function<void()> over_;
  cluster::Tag tag_ = cluster::MakeTag<&Operation::OnOver>(this);
  grpc::Alarm alarm_;
};

TEST(CompletionThread, TasksRunOnItWhenItIsIdle) {
  std::vector<std::string> order;
  base::Notification done;
  std::thread::id inside;
  CompletionThread thread;
  const Operation operation(thread, [&] {
    inside = std::this_thread::get_id();
    EXPECT_TRUE(thread.WhenIdle([&] {
      EXPECT_EQ(std::this_thread::get_id(), inside);
      order.push_back("task");
      EXPECT_TRUE(thread.WhenIdle([&] {
        order.push_back("task of a task");
        done.Notify();
      }));
    }));
    EXPECT_TRUE(thread.WhenIdle([&] { order.push_back("second task"); }));
    order.push_back("call");
  });
  done.WaitForNotification();
  EXPECT_EQ(order, (std::vector<std::string>{"call", "task", "second task", "task of a task"}));
  EXPECT_NE(inside, std::this_thread::get_id());
}

TEST(CompletionThread, OtherThreadsAreTurnedAway) {
  CompletionThread thread;
  EXPECT_FALSE(thread.WhenIdle([] { ADD_FAILURE(); }));
}

TEST(CompletionThread, CallsThatNeverEndDoNotKeepTasksWaiting) {
  base::Notification done;
  bool has_run = false;
  int calls = 0;
  std::vector<std::unique_ptr<Operation>> operations;  // of the thread
  CompletionThread thread;
  std::function<void()> go_on = [&] {
    if (has_run) return done.Notify();
    if (++calls == 1) {
      thread.WhenIdle([&] { has_run = true; });
    }
    operations.push_back(std::make_unique<Operation>(thread, go_on));
  };
  const Operation first(thread, go_on);
  done.WaitForNotification();
}

TEST(CompletionThread, ItsEndLeavesNoTask) {
  bool has_run = false;
  {
    base::Notification called;
    CompletionThread thread;
    const Operation operation(thread, [&] {
      thread.WhenIdle([&] { has_run = true; });
      called.Notify();
    });
    called.WaitForNotification();
  }
  EXPECT_TRUE(has_run);
}

// A connection to a server of this process that is no gRPC channel of it.
class Http2Client {
 public:
  explicit Http2Client(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    Write(Frame(/*type=*/4 /* SETTINGS */, ""));
  }
  ~Http2Client() { close(fd_); }

  // Blocks until the answer to a ping with these eight bytes is there. False: the connection is lost.
  bool Ping(const std::string& bytes) {
    Write(Frame(/*type=*/6 /* PING */, bytes));
    const std::string answer = Frame(6, bytes, /*flags=*/1 /* ACK */);
    std::string heard;
    while (heard.find(answer) == std::string::npos) {
      char buffer[4096];
      const ssize_t size = read(fd_, buffer, sizeof(buffer));
      if (size <= 0) return false;
      heard.append(buffer, static_cast<size_t>(size));
    }
    return true;
  }

 private:
  // RFC 9113, 4.1: length, type, flags, stream 0, payload.
  static std::string Frame(char type, const std::string& payload, char flags = 0) {
    std::string frame{0, 0, static_cast<char>(payload.size()), type, flags, 0, 0, 0, 0};
    return frame + payload;
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  const int fd_;
};

TEST(CompletionThread, PeersAreAnsweredWhileACallTakesLong) {
  base::Notification begun, end;
  CompletionThread thread;
  auto server = GrpcServer::Start("127.0.0.1:0", {}, {}, &thread);
  ASSERT_TRUE(server.ok()) << server.status();
  Http2Client peer((*server)->port());
  EXPECT_TRUE(peer.Ping("before.."));
  const Operation operation(thread, [&] {
    begun.Notify();
    end.WaitForNotification();
  });
  begun.WaitForNotification();
  EXPECT_TRUE(peer.Ping("meanwhil"));
  end.Notify();
  EXPECT_TRUE(peer.Ping("after..."));
}

}  // namespace
}  // namespace helmway::net
