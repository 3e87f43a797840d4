#include "helmway/net/grpc_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "helmway/net/health_service.h"

namespace helmway::net {

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& address,
                                                              const std::vector<grpc::Service*>& services,
                                                              const std::vector<PolledService*>& polled,
                                                              CompletionThread* thread) {
  grpc::EnableDefaultHealthCheckService(false);  // ours is another
  auto result = std::unique_ptr<GrpcServer>(new GrpcServer());
  if (thread == nullptr) {
    result->own_thread_ = std::make_unique<CompletionThread>();
    thread = result->own_thread_.get();
  }
  const std::unique_ptr<grpc::ServerBuilder> taken = std::move(thread->builder_);
  if (taken == nullptr) return absl::FailedPreconditionError("a thread has the calls of one server");
  grpc::ServerBuilder& builder = *taken;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(INT_MAX);
  builder.SetMaxSendMessageSize(INT_MAX);
  // Two servers on one port would each get some of the connections; a busy port shall be an error.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Host buffers come in pieces of 1 MiB: let one piece be one frame, and let several be on their way.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 2 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  // Middleboxes drop idle connections and clients set no keepalive of their own.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A little less, since both sides measure.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingMilliseconds / 2);
  result->polled_ = polled;
  for (grpc::Service* service : services) {
    builder.RegisterService(service);
    if (auto* one = dynamic_cast<PolledService*>(service)) result->polled_.push_back(one);
  }
  builder.RegisterService(result->health_.get());
  result->polled_.push_back(result->health_.get());
  for (PolledService* service : result->polled_) service->Register(builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                               ": the port is already in use, or the address is not ours"));
  }
  result->server_ = std::move(server);
  result->port_ = port;
  for (PolledService* service : result->polled_) service->Start(*thread);
  return result;
}

GrpcServer::GrpcServer() : health_(std::make_unique<HealthService>()) {}

GrpcServer::~GrpcServer() { Shutdown(); }

void GrpcServer::Shutdown() {
  if (server_ == nullptr) return;
  for (PolledService* service : polled_) service->BeforeShutdown();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  for (PolledService* service : polled_) service->Stop();
  server_.reset();
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace helmway::net
