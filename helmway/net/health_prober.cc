#include "helmway/net/health_prober.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/happens_before.h"
#include "helmway/cluster/channel.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/health.grpc.pb.h"

namespace helmway::net {
namespace {

using ::grpc::health::v1::Health;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

}  // namespace

struct HealthProber::Target {
  explicit Target(const std::string& host_port)
      : address(host_port), stub(Health::NewStub(cluster::MakeChannel(host_port))) {}
  const std::string address;
  const std::unique_ptr<Health::Stub> stub;
};

struct HealthProber::Call {
  std::shared_ptr<Target> target;
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  absl::AnyInvocable<void(const absl::Status&)> done;
};

HealthProber::HealthProber() = default;

HealthProber::~HealthProber() {
  auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return calls_.empty(); };
  base::MutexLock lock(&mu_);
  for (Call* call : calls_) call->context.TryCancel();
  mu_.Await(absl::Condition(&none));
}

void HealthProber::Probe(int64_t key, const std::string& address, absl::Duration timeout,
                         absl::AnyInvocable<void(const absl::Status&)> done) {
  auto* call = new Call;
  call->done = std::move(done);
  call->context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  // Both end without the lock.
  std::vector<std::unique_ptr<Call>> over;
  std::shared_ptr<Target> before;
  {
    base::MutexLock lock(&mu_);
    over.swap(over_);
    std::shared_ptr<Target>& target = targets_[key];
    if (target == nullptr || target->address != address) {
      before = std::exchange(target, std::make_shared<Target>(address));
    }
    call->target = target;
    calls_.insert(call);
  }
  base::HappensBefore(call);
  call->target->stub->async()->Check(
      &call->context, &call->request, &call->response, [this, call](const grpc::Status& answer) {
        base::HappensAfter(call);
        absl::Status status = FromGrpcStatus(answer);
        if (status.ok() && call->response.status() != HealthCheckResponse::SERVING) {
          status = absl::UnavailableError(
              absl::StrCat("it says ", HealthCheckResponse::ServingStatus_Name(call->response.status())));
        }
        call->done(status);
        base::MutexLock lock(&mu_);
        calls_.erase(call);
        over_.emplace_back(call);
      });
}

void HealthProber::Forget(int64_t key) {
  std::shared_ptr<Target> forgotten;
  base::MutexLock lock(&mu_);
  if (const auto it = targets_.find(key); it != targets_.end()) {
    forgotten = std::move(it->second);
    targets_.erase(it);
  }
}

}  // namespace helmway::net
