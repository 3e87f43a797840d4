#ifndef HELMWAY_NET_MANAGER_SERVICE_H_
#define HELMWAY_NET_MANAGER_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "helmway/cluster/manager.pb.h"
#include "helmway/net/typed_stream.h"

namespace helmway::net {

using WorkerStream = TypedStream<cluster::proto::ManagerToWorker>;
using WorkerHandler = TypedHandler<cluster::proto::WorkerMessage>;
using ProxyStream = TypedStream<cluster::proto::ManagerToProxy>;
using ProxyHandler = TypedHandler<cluster::proto::ProxyMessage>;

// A call of the key-value store. Any thread.
class KeyValueCall {
 public:
  virtual ~KeyValueCall() = default;
  // The first answer counts; harmless after the end.
  virtual void Answer(absl::StatusOr<cluster::proto::KeyValueAnswer> answer) = 0;
};

// Who answers the calls of the manager's service. Called on gRPC's threads, must not block.
class ManagerCalls {
 public:
  virtual ~ManagerCalls() = default;
  // A new call. The stream may be used from now on, but its messages come only after the return.
  virtual std::shared_ptr<WorkerHandler> OnWorker(std::shared_ptr<WorkerStream> stream) = 0;
  virtual std::shared_ptr<ProxyHandler> OnProxy(std::shared_ptr<ProxyStream> stream) = 0;
  // Returns what is called if the caller goes before it is answered, once.
  virtual absl::AnyInvocable<void()> OnKeyValue(std::shared_ptr<KeyValueCall> call,
                                                const cluster::proto::KeyValueRequest& request) = 0;
};

// The service of manager.proto. `calls` must outlive the server that serves it.
std::unique_ptr<grpc::Service> MakeManagerService(ManagerCalls* calls);

}  // namespace helmway::net

#endif  // HELMWAY_NET_MANAGER_SERVICE_H_
