#include "helmway/cluster/registration_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/clock.h"
#include "helmway/base/random.h"
#include "helmway/cluster/manager.grpc.pb.h"
#include "helmway/cluster/stream_client.h"
#include "helmway/cluster/versions.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::cluster {
namespace {

using Client = StreamClient<proto::WorkerMessage, proto::ManagerToWorker>;

class RegistrationClientImpl final : public RegistrationClient, public Client::Delegate {
 public:
  RegistrationClientImpl(RegistrationOptions options, RegistrationObserver* observer)
      : options_(std::move(options)),
        incarnation_(options_.incarnation != 0 ? options_.incarnation : base::UnguessableId()),
        observer_(observer),
        client_(
            {.peer = "the resource manager",
             .address = options_.manager_address,
             .queue = options_.queue,
             .backoff = options_.backoff,
             .thread_name = "registration"},
            [](const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
               grpc::CompletionQueue* queue) {
              return proto::Manager::NewStub(channel)->PrepareAsyncRegister(context, queue);
            },
            this) {}

  uint64_t incarnation() const override { return incarnation_; }

  void Drain(absl::Duration remaining) override {
    client_.Post([this, deadline = base::SteadyNow() + remaining] {
      drain_deadline_ = deadline;
      if (registered_) SendDraining();
    });
  }

 private:
  proto::WorkerMessage Hello() override {
    registered_ = false;
    proto::WorkerMessage message;
    proto::WorkerHello* hello = message.mutable_hello();
    hello->mutable_version()->set_protocol(kProtocolVersion);
    hello->mutable_version()->set_software(std::string(SoftwareVersion()));
    hello->set_incarnation(incarnation_);
    hello->set_host(options_.host);
    hello->set_pod(options_.pod);
    hello->set_port(options_.port);
    hello->set_advertise_address(options_.advertise_address);
    if (options_.slice.has_value()) hello->set_slice(*options_.slice);
    if (options_.task.has_value()) hello->set_task(*options_.task);
    if (options_.linear.has_value()) hello->set_linear(*options_.linear);
    if (placement_.has_value()) {
      proto::Place* held = hello->mutable_held();
      held->set_slice(placement_->slice);
      held->set_task(placement_->task);
      held->set_worker(placement_->worker);
      held->set_instance_type(placement_->instance_type);
      hello->set_generation(observer_->slice_generation());
    }
    return message;
  }

  absl::Status OnMessage(proto::ManagerToWorker message) override {
    if (message.has_assigned()) return OnAssigned(message.assigned());
    if (message.has_registered() && placement_.has_value()) OnRegistered();
    if (message.has_slice_restarted() && placement_.has_value()) {
      observer_->OnSliceRestarted(absl::AbortedError(message.slice_restarted().reason()));
    }
    return absl::OkStatus();
  }

  absl::Status OnAssigned(const proto::Assigned& assigned) {
    AssignedPlace placement;
    placement.slice = assigned.place().slice();
    placement.task = assigned.place().task();
    placement.worker = assigned.place().worker();
    placement.instance_type = assigned.place().instance_type();
    placement.hosts = assigned.hosts();
    placement.devices_per_host = assigned.devices_per_host();
    placement.slices = assigned.slices();
    placement.workers = assigned.workers();
    placement.address = assigned.address();
    placement.manager_incarnation =
        placement_.has_value() ? placement_->manager_incarnation : assigned.manager_incarnation();
    if (!placement_.has_value()) {
      auto info = observer_->OnPlaced(placement);
      if (!info.ok()) {
        client_.Halt();
        observer_->OnFailed(info.status());
        return info.status();
      }
      info_ = WorkerInfoToProto(*info);
    } else if (placement.worker != placement_->worker || placement.slice != placement_->slice ||
               placement.task != placement_->task) {
      return absl::FailedPreconditionError(absl::StrCat("the resource manager gives this worker slice ",
                                                        placement.slice, ", host ", placement.task,
                                                        ", but it has slice ", placement_->slice, ", host ",
                                                        placement_->task, " for its life; restart it"));
    }
    placement_ = placement;
    proto::WorkerMessage ready;
    *ready.mutable_ready()->mutable_info() = info_;
    ready.mutable_ready()->set_cpu_standin(options_.cpu_standin);
    ready.mutable_ready()->set_generation(observer_->slice_generation());
    client_.Send(std::move(ready));
    return absl::OkStatus();
  }

  void OnRegistered() {
    client_.ResetBackoff();
    registered_ = true;
    if (drain_deadline_.has_value()) SendDraining();
    LOG(INFO) << "registered with the resource manager at " << options_.manager_address << " as slice "
              << placement_->slice << ", host " << placement_->task << ": devices "
              << FirstDeviceId(placement_->worker) << " to "
              << FirstDeviceId(placement_->worker) + info_.devices_size() - 1;
    observer_->OnRegistered(*placement_);
  }

  void OnLost(const absl::Status& status) override {
    registered_ = false;
    if (!client_.halted()) observer_->OnLost(status);
  }

  void SendDraining() {
    proto::WorkerMessage message;
    message.mutable_draining()->set_deadline_ms(
        absl::ToInt64Milliseconds(std::max(absl::ZeroDuration(), *drain_deadline_ - base::SteadyNow())));
    client_.Send(std::move(message));
  }

  const RegistrationOptions options_;
  const uint64_t incarnation_;
  RegistrationObserver* const observer_;
  // Of the client's thread.
  std::optional<AssignedPlace> placement_;
  proto::WorkerInfo info_;
  bool registered_ = false;
  std::optional<absl::Time> drain_deadline_;

  Client client_;  // last: it ends first
};

}  // namespace

std::unique_ptr<RegistrationClient> RegistrationClient::Start(RegistrationOptions options,
                                                              RegistrationObserver* observer) {
  return std::make_unique<RegistrationClientImpl>(std::move(options), observer);
}

}  // namespace helmway::cluster
