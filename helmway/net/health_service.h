#ifndef HELMWAY_NET_HEALTH_SERVICE_H_
#define HELMWAY_NET_HEALTH_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "helmway/async/outstanding.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/health.grpc.pb.h"
#include "helmway/net/polled_call.h"

namespace helmway::net {

// The standard health service (health.proto): the server as a whole, the service "", serves; it knows no
// other. The one of the gRPC library has threads of its own: completion_thread.h says what they cost.
class HealthService final : public grpc::health::v1::Health::AsyncService, public PolledService {
 public:
  void Start(CompletionThread& thread) override;
  void Stop() override { live_.WaitForNone(); }

 private:
  async::Outstanding live_;
};

}  // namespace helmway::net

#endif  // HELMWAY_NET_HEALTH_SERVICE_H_
