// Yardstick for latency and bandwidth: a bare gRPC server and client over the loopback interface.
//
//   grpc_echo server          serves on a free port, prints "port N", ends when stdin is closed
//   grpc_echo client PORT     reads commands from stdin, one a line, answers with one line each:
//     unary BYTES COUNT       COUNT blocking round trips; prints COUNT durations in ns
//     upload BYTES            one stream of 1 MiB chunks to the server; prints its duration in ns
//     download BYTES          the same in the other direction, received into one buffer of BYTES
//     memcpy BYTES            one copy of BYTES between two buffers that exist already; duration in ns
//
// The server uses the callback API and the client the blocking one, as a server and a waiting caller would.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/echo.grpc.pb.h"
#include "bench/echo.pb.h"
#include "bench/serve.h"

namespace helmway::bench {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class UploadReactor : public grpc::ServerReadReactor<Chunk> {
 public:
  explicit UploadReactor(Count* reply) : reply_(reply) { StartRead(&chunk_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      reply_->set_bytes(bytes_);
      Finish(grpc::Status::OK);
      return;
    }
    bytes_ += static_cast<int64_t>(chunk_.data().size());
    StartRead(&chunk_);
  }
  void OnDone() override { delete this; }

 private:
  Count* const reply_;
  Chunk chunk_;
  int64_t bytes_ = 0;
};

class DownloadReactor : public grpc::ServerWriteReactor<Chunk> {
 public:
  explicit DownloadReactor(int64_t bytes) : left_(bytes) { Next(); }

  void OnWriteDone(bool ok) override {
    if (ok) {
      Next();
    } else {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    }
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (left_ <= 0) {
      Finish(grpc::Status::OK);
      return;
    }
    const int64_t size = std::min(left_, kChunkBytes);
    left_ -= size;
    if (static_cast<int64_t>(chunk_.data().size()) != size) chunk_.mutable_data()->assign(size, 'x');
    StartWrite(&chunk_);
  }

  int64_t left_;
  Chunk chunk_;
};

class EchoService : public Echo::CallbackService {
 public:
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const Chunk* request,
                                  Chunk* reply) override {
    reply->set_data(request->data());
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerReadReactor<Chunk>* Upload(grpc::CallbackServerContext*, Count* reply) override {
    return new UploadReactor(reply);
  }
  grpc::ServerWriteReactor<Chunk>* Download(grpc::CallbackServerContext*, const Count* request) override {
    return new DownloadReactor(request->bytes());
  }
};

int Serve() {
  EchoService service;
  return ServeUntilStdinCloses("grpc_echo", service,
                               [](int port) { std::cout << "port " << port << std::endl; });
}

class Client {
 public:
  explicit Client(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = Echo::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  }

  // One command line -> one line of durations in ns.
  grpc::Status Run(const std::string& line, std::ostream& out) {
    std::istringstream words(line);
    std::string name;
    int64_t bytes = 0;
    words >> name >> bytes;
    if (!words || bytes < 0) return Bad(line);
    if (name == "unary") {
      int64_t count = 0;
      words >> count;
      if (!words) return Bad(line);
      return Unary(bytes, count, out);
    }
    if (name == "upload") return Upload(bytes, out);
    if (name == "download") return Download(bytes, out);
    if (name == "memcpy") return Copy(bytes, out);
    return Bad(line);
  }

 private:
  static grpc::Status Bad(const std::string& line) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a command: " + line);
  }

  grpc::Status Unary(int64_t bytes, int64_t count, std::ostream& out) {
    Chunk request, reply;
    request.mutable_data()->assign(bytes, 'x');
    std::vector<int64_t> durations;
    for (int64_t i = 0; i < count; ++i) {
      grpc::ClientContext context;
      const int64_t start = NowNs();
      grpc::Status status = stub_->Unary(&context, request, &reply);
      durations.push_back(NowNs() - start);
      if (!status.ok()) return status;
    }
    for (int64_t duration : durations) out << duration << ' ';
    return grpc::Status::OK;
  }

  grpc::Status Upload(int64_t bytes, std::ostream& out) {
    // The data lies in memory before the clock starts; cutting it into messages is part of the job.
    Reserve(bytes);
    grpc::ClientContext context;
    Count reply;
    const int64_t start = NowNs();
    auto writer = stub_->Upload(&context, &reply);
    Chunk chunk;
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      chunk.set_data(source_.data() + at, std::min(kChunkBytes, bytes - at));
      if (!writer->Write(chunk)) break;
    }
    writer->WritesDone();
    grpc::Status status = writer->Finish();
    const int64_t duration = NowNs() - start;
    if (!status.ok()) return status;
    if (reply.bytes() != bytes) return grpc::Status(grpc::StatusCode::DATA_LOSS, "upload fell short");
    out << duration;
    return grpc::Status::OK;
  }

  grpc::Status Download(int64_t bytes, std::ostream& out) {
    Reserve(bytes);
    grpc::ClientContext context;
    Count request;
    request.set_bytes(bytes);
    Chunk chunk;
    int64_t at = 0;
    const int64_t start = NowNs();
    auto reader = stub_->Download(&context, request);
    while (reader->Read(&chunk)) {
      const int64_t size = static_cast<int64_t>(chunk.data().size());
      if (size > bytes - at) break;
      std::memcpy(target_.data() + at, chunk.data().data(), size);
      at += size;
    }
    grpc::Status status = reader->Finish();
    const int64_t duration = NowNs() - start;
    if (!status.ok()) return status;
    if (at != bytes) return grpc::Status(grpc::StatusCode::DATA_LOSS, "download fell short");
    out << duration;
    return grpc::Status::OK;
  }

  grpc::Status Copy(int64_t bytes, std::ostream& out) {
    Reserve(bytes);
    const int64_t start = NowNs();
    std::memcpy(target_.data(), source_.data(), bytes);
    out << NowNs() - start;
    return grpc::Status::OK;
  }

  // Grows both buffers and touches their pages, so that page faults are not measured.
  void Reserve(int64_t bytes) {
    if (static_cast<int64_t>(source_.size()) < bytes) {
      source_.assign(bytes, 'x');
      target_.assign(bytes, 'y');
    }
  }

  std::unique_ptr<Echo::Stub> stub_;
  std::vector<char> source_, target_;
};

int RunClient(const std::string& port) {
  Client client("127.0.0.1:" + port);
  std::string line;
  while (std::getline(std::cin, line)) {
    grpc::Status status = client.Run(line, std::cout);
    if (!status.ok()) {
      std::cerr << "grpc_echo: " << status.error_message() << std::endl;
      return 1;
    }
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace helmway::bench

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "server" && argc == 2) return helmway::bench::Serve();
  if (mode == "client" && argc == 3) return helmway::bench::RunClient(argv[2]);
  std::cerr << "use: grpc_echo server | grpc_echo client PORT" << std::endl;
  return 2;
}
