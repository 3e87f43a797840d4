#include "helmway/cluster/membership_client.h"

#include <glog/logging.h>

#include <utility>

#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/cluster/manager.grpc.pb.h"
#include "helmway/cluster/stream_client.h"
#include "helmway/cluster/versions.h"

namespace helmway::cluster {
namespace {

// How long the end of a client waits for the manager to take the lease back.
constexpr absl::Duration kGoodbyeTime = absl::Seconds(2);

using Client = StreamClient<proto::ProxyMessage, proto::ManagerToProxy>;

class MembershipClientImpl final : public MembershipClient, public Client::Delegate {
 public:
  MembershipClientImpl(MembershipClientOptions options, MembershipObserver* observer)
      : options_(std::move(options)),
        incarnation_(options_.incarnation != 0 ? options_.incarnation : base::UnguessableId()),
        observer_(observer),
        client_(
            {.peer = "the resource manager",
             .address = options_.manager_address,
             .queue = options_.queue,
             .backoff = options_.backoff,
             .tick = options_.heartbeat,
             .thread_name = "membership"},
            [](const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context,
               grpc::CompletionQueue* queue) {
              return proto::Manager::NewStub(channel)->PrepareAsyncWatch(context, queue);
            },
            this) {}

  ~MembershipClientImpl() override {
    client_.Post([this] {
      client_.Halt();
      if (!connected_) {
        left_.Notify();
        return;
      }
      proto::ProxyMessage message;
      message.mutable_goodbye();
      client_.Send(std::move(message));
    });
    left_.WaitForNotificationWithTimeout(kGoodbyeTime);
  }

  uint64_t incarnation() const override { return incarnation_; }

 private:
  proto::ProxyMessage Hello() override {
    proto::ProxyMessage message;
    proto::ProxyHello* hello = message.mutable_hello();
    hello->mutable_version()->set_protocol(kProtocolVersion);
    hello->mutable_version()->set_software(std::string(SoftwareVersion()));
    hello->set_incarnation(incarnation_);
    hello->set_name(options_.name);
    if (options_.lease.has_value()) {
      hello->mutable_lease()->set_all(options_.lease->all);
      hello->mutable_lease()->set_may_be_missing(options_.lease->may_be_missing);
      for (const std::string& type : options_.lease->instance_types) {
        hello->mutable_lease()->add_instance_types(type);
      }
      if (lease_.has_value() && lease_->granted) {
        hello->mutable_held_slices()->Assign(lease_->slices.begin(), lease_->slices.end());
        hello->set_held_lease(lease_->number);
      }
    }
    return message;
  }

  absl::Status OnMessage(proto::ManagerToProxy message) override {
    if (message.has_snapshot()) {
      HELMWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> changed, view_.Apply(message.snapshot()));
      connected_ = true;
      client_.ResetBackoff();
      LOG(INFO) << "watching the resource manager at " << options_.manager_address << ": "
                << view_.membership().slices.size() << " slice(s), " << view_.membership().workers.size()
                << " worker(s)";
      observer_->OnMembership(view_.membership(), changed);
    } else if (message.has_changes()) {
      HELMWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> changed, view_.Apply(message.changes()));
      if (!changed.empty()) observer_->OnMembership(view_.membership(), changed);
    } else if (message.has_lease()) {
      Lease lease;
      lease.granted = message.lease().state() == proto::Lease::GRANTED;
      lease.slices.assign(message.lease().slices().begin(), message.lease().slices().end());
      lease.waits_for = message.lease().waits_for();
      lease.number = message.lease().number();
      for (const int32_t slice : lease.slices) {
        if (slice < 0 || static_cast<size_t>(slice) >= view_.membership().slices.size()) {
          return absl::InvalidArgumentError("the lease has a slice that there is not");
        }
      }
      if (lease_ == lease) return absl::OkStatus();
      lease_ = lease;
      observer_->OnLease(*lease_);
    }
    return absl::OkStatus();
  }

  void OnLost(const absl::Status& status) override {
    connected_ = false;
    if (client_.halted()) {
      if (!left_.HasBeenNotified()) left_.Notify();
      return;
    }
    observer_->OnManagerLost(status);
  }

  void OnTick() override {
    if (!connected_) return;
    proto::ProxyMessage message;
    message.mutable_heartbeat();
    client_.Send(std::move(message));
  }

  const MembershipClientOptions options_;
  const uint64_t incarnation_;
  MembershipObserver* const observer_;
  base::Notification left_;
  // Of the client's thread.
  MembershipView view_;
  std::optional<Lease> lease_;
  bool connected_ = false;

  Client client_;  // last: it ends first
};

}  // namespace

std::unique_ptr<MembershipClient> MembershipClient::Start(MembershipClientOptions options,
                                                          MembershipObserver* observer) {
  return std::make_unique<MembershipClientImpl>(std::move(options), observer);
}

}  // namespace helmway::cluster
