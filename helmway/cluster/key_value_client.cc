#include "helmway/cluster/key_value_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "helmway/async/backoff.h"
#include "helmway/base/mutex.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/cluster/channel.h"
#include "helmway/cluster/manager.grpc.pb.h"

namespace helmway::cluster {
namespace {

// How long a manager that is not reached is tried, where the caller says nothing.
constexpr absl::Duration kPatience = absl::Minutes(1);
// The manager says when the time is up; this is how long its word may take.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);
// Longer timeouts are as good as none, and clocks can add them.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

class KeyValueClientImpl final : public KeyValueClient {
 public:
  explicit KeyValueClientImpl(KeyValueClientOptions options) : options_(std::move(options)) {}
  ~KeyValueClientImpl() override { Cancel(); }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    timeout = std::clamp(timeout, absl::ZeroDuration(), kLongest);
    const absl::Time deadline = absl::Now() + timeout;
    proto::KeyValueRequest request;
    request.set_key(key);
    HELMWAY_ASSIGN_OR_RETURN(proto::KeyValueAnswer answer, Call(request, deadline, [&] {
                               request.set_get_within_ms(absl::ToInt64Milliseconds(
                                   std::max(absl::ZeroDuration(), deadline - absl::Now())));
                             }));
    if (!answer.has_value()) return absl::InternalError("the resource manager answers without a value");
    return std::move(*answer.mutable_value());
  }

  absl::StatusOr<std::optional<std::string>> GetIfThere(const std::string& key) override {
    proto::KeyValueRequest request;
    request.set_key(key);
    request.set_get_if_there(true);
    HELMWAY_ASSIGN_OR_RETURN(proto::KeyValueAnswer answer, Call(request, absl::Now() + kPatience, [] {}));
    if (!answer.has_value()) return std::nullopt;
    return std::move(*answer.mutable_value());
  }

  absl::Status Put(const std::string& key, const std::string& value) override {
    proto::KeyValueRequest request;
    request.set_key(key);
    request.set_put(value);
    return Call(request, absl::Now() + kPatience, [] {}).status();
  }

  uint64_t SetFormed() override {
    base::MutexLock lock(&mu_);
    formed_ = true;
    return generation_;
  }

  void Cancel() override {
    base::MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
  }

 private:
  // Asks until there is an answer other than that the manager is not there. `prepare` runs before each try.
  template <typename Prepare>
  absl::StatusOr<proto::KeyValueAnswer> Call(proto::KeyValueRequest& request, absl::Time deadline,
                                             Prepare prepare) {
    async::Backoff backoff({}, base::UnguessableId());
    request.set_incarnation(options_.incarnation);
    request.set_manager_incarnation(options_.manager_incarnation);
    while (true) {
      prepare();
      absl::StatusOr<proto::KeyValueAnswer> answer = Try(request, deadline + kAnswerTime);
      if (!absl::IsUnavailable(answer.status())) return answer;
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return answer;
      base::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&cancelled_), std::min(left, backoff.Next()))) {
        return Cancelled();
      }
    }
  }

  absl::StatusOr<proto::KeyValueAnswer> Try(proto::KeyValueRequest& request, absl::Time deadline) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    std::shared_ptr<grpc::Channel> channel;
    {
      base::MutexLock lock(&mu_);
      if (cancelled_) return Cancelled();
      request.set_generation(formed_ ? generation_ : 0);
      calls_.insert(&context);
      if (channel_ == nullptr) channel_ = MakeChannel(options_.manager_address);
      channel = channel_;
    }
    const std::unique_ptr<proto::Manager::Stub> stub = proto::Manager::NewStub(channel);
    proto::KeyValueAnswer answer;
    const grpc::Status status = stub->KeyValue(&context, request, &answer);
    base::MutexLock lock(&mu_);
    calls_.erase(&context);
    if (cancelled_) return Cancelled();
    // It was not we who have cancelled: the manager ends.
    const bool unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                             status.error_code() == grpc::StatusCode::CANCELLED;
    // What gRPC remembers of failed connections must not outlive them.
    if (unavailable && channel_ == channel) channel_.reset();
    if (!status.ok()) {
      return absl::Status(
          unavailable ? absl::StatusCode::kUnavailable : static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("the resource manager at ", options_.manager_address, ": ", status.error_message()));
    }
    generation_ = answer.generation();
    return answer;
  }

  static absl::Status Cancelled() { return absl::CancelledError("this worker ends"); }

  const KeyValueClientOptions options_;
  base::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool formed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);  // null: the next call makes one
};

}  // namespace

std::unique_ptr<KeyValueClient> KeyValueClient::Create(KeyValueClientOptions options) {
  return std::make_unique<KeyValueClientImpl>(std::move(options));
}

}  // namespace helmway::cluster
