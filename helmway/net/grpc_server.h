#ifndef HELMWAY_NET_GRPC_SERVER_H_
#define HELMWAY_NET_GRPC_SERVER_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace helmway::net {

// A service whose calls are taken from the server's completion queue. One thread serves it for all services;
// it also moves bulk data between gRPC's memory and ours. (Measured: a second thread, or gRPC's callback API
// with its own threads, makes threads pass a connection's events to each other, which costs more than the
// events.)
class PolledService {
 public:
  virtual ~PolledService() = default;
  // The server runs. `queue` outlives Stop.
  virtual void Start(grpc::ServerCompletionQueue* queue) = 0;
  // The server has shut down: all calls are cancelled. Returns when all have ended.
  virtual void Stop() = 0;
};

// A listening gRPC server with plain-text credentials, no message size limits below protobuf's own, the
// standard health service, and windows and frames sized for bulk data. Thread-safe.
class GrpcServer {
 public:
  // Serves `services` (not owned; they must outlive the server) on `address` ("127.0.0.1:0", "[::]:29000").
  // Those that are PolledServices too are started and stopped with it. Port 0 takes a free one. UNAVAILABLE
  // if the address can't be bound, naming it and the likely reason.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& address,
                                                           const std::vector<grpc::Service*>& services);
  // Cancels running calls, waits for their reactors to end.
  ~GrpcServer();

  int port() const { return port_; }
  void Shutdown();

 private:
  GrpcServer() = default;
  void Poll();

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // null without polled services
  std::unique_ptr<grpc::Server> server_;                // null after Shutdown
  std::vector<PolledService*> polled_;
  std::thread poller_;
  int port_ = 0;
};

absl::Status FromGrpcStatus(const grpc::Status& status);
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace helmway::net

#endif  // HELMWAY_NET_GRPC_SERVER_H_
