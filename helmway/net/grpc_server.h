#ifndef HELMWAY_NET_GRPC_SERVER_H_
#define HELMWAY_NET_GRPC_SERVER_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "helmway/net/completion_thread.h"

namespace helmway::net {

// A service whose calls come back on the process's completion queue.
class PolledService {
 public:
  virtual ~PolledService() = default;
  // For what is no grpc::Service.
  virtual void Register(grpc::ServerBuilder& /*builder*/) {}
  // The server runs. `thread` outlives it.
  virtual void Start(CompletionThread& thread) = 0;
  // The server is about to shut down.
  virtual void BeforeShutdown() {}
  // The server has shut down: all calls are cancelled. Returns when all have ended.
  virtual void Stop() = 0;
};

class HealthService;

// The least time between two questions of a peer whether this process lives.
inline constexpr int kMinPingMilliseconds = 100;

// A listening gRPC server with plain-text credentials, no message size limits below protobuf's own, the
// standard health service, and windows and frames sized for bulk data. Thread-safe.
class GrpcServer {
 public:
  // Serves `services` (not owned; they must outlive the server; may be none) on `address` ("127.0.0.1:0",
  // "[::]:29000").
  // Those that are PolledServices too are started and stopped with it. Port 0 takes a free one. UNAVAILABLE
  // if the address can't be bound, naming it and the likely reason.
  // `polled` are started and stopped likewise. `thread` is where the calls of PolledServices come back; it
  // outlives the server, and is that of no other. Null: one of its own.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& address,
                                                           const std::vector<grpc::Service*>& services,
                                                           const std::vector<PolledService*>& polled = {},
                                                           CompletionThread* thread = nullptr);
  // Cancels running calls, waits for their reactors to end.
  ~GrpcServer();

  int port() const { return port_; }
  void Shutdown();

 private:
  GrpcServer();
  std::unique_ptr<CompletionThread> own_thread_;
  const std::unique_ptr<HealthService> health_;
  std::unique_ptr<grpc::Server> server_;  // null after Shutdown
  std::vector<PolledService*> polled_;
  int port_ = 0;
};

absl::Status FromGrpcStatus(const grpc::Status& status);
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace helmway::net

#endif  // HELMWAY_NET_GRPC_SERVER_H_
