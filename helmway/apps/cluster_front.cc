#include "helmway/apps/cluster_front.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/apps/command.h"
#include "helmway/apps/logging.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/cluster/absent_worker.h"
#include "helmway/cluster/membership.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/remote_worker.h"

namespace helmway::apps {
namespace {

constexpr absl::Duration kBetweenAttempts = absl::Seconds(1);
constexpr size_t kMaxReasons = 3;  // missing workers that a refusal names

// One worker of a lease, in one of its lives.
struct Member {
  int32_t worker = 0;
  int32_t slice = 0;
  int32_t task = 0;
  size_t position = 0;       // of the slice in the lease
  uint64_t incarnation = 0;  // 0: it is not there
  std::string name;          // "worker 1 of slice 0"
  std::string address;
  std::string pod;
  std::shared_ptr<const cluster::WorkerInfo> info;  // of the last one in its place; null: none was ever there
  std::string instance_type;                        // of its slice

  friend bool operator==(const Member& a, const Member& b) {
    return a.worker == b.worker && a.incarnation == b.incarnation && a.address == b.address &&
           a.position == b.position;
  }
};

// What the lease and the membership say, taken together.
struct Wanted {
  std::vector<Member> members;  // those that are usable
  std::vector<Member> absent;   // the others of the lease
  std::set<size_t> ready;       // positions whose workers are all usable
  size_t slices = 0;            // of the lease
  std::string missing;          // what is; empty: nothing, `members` are all of them
};

// What tells of a lost connection, which may outlive the front.
struct Signal {
  base::Mutex mu;
  bool changed ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;

  void Set() {
    base::MutexLock lock(&mu);
    changed = true;
  }
};

// A proxy for one set of connections. It goes when the last of its streams has.
struct Generation {
  std::vector<Member> members;  // by worker of the group; of the front's thread
  // Destroyed from the bottom up.
  std::unique_ptr<cluster::WorkerGroup> workers;
  std::unique_ptr<proxy::Proxy> proxy;
  std::vector<std::weak_ptr<net::SessionStream>> streams;  // of the front's lock
};

// Handlers that keep their generation.
class SessionOfGeneration final : public net::SessionHandler {
 public:
  SessionOfGeneration(std::shared_ptr<Generation> generation, std::shared_ptr<net::SessionHandler> session)
      : generation_(std::move(generation)), session_(std::move(session)) {}
  void OnRequest(xla::ifrt::proxy::IfrtRequest& request) override { session_->OnRequest(request); }
  void OnClosed() override { session_->OnClosed(); }
  absl::StatusOr<std::unique_ptr<net::HostBufferWriter>> StoreHostBuffer(uint64_t handle,
                                                                         int64_t size) override {
    return session_->StoreHostBuffer(handle, size);
  }
  absl::StatusOr<base::HostBytes> LookupHostBuffer(uint64_t handle) override {
    return session_->LookupHostBuffer(handle);
  }
  absl::Status DeleteHostBuffer(uint64_t handle) override { return session_->DeleteHostBuffer(handle); }
  absl::Status ReadHostBufferFromDisk(uint64_t handle, int64_t size) override {
    return session_->ReadHostBufferFromDisk(handle, size);
  }

 private:
  const std::shared_ptr<Generation> generation_;
  const std::shared_ptr<net::SessionHandler> session_;
};

class CallbacksOfGeneration final : public net::CallbackStreamHandler {
 public:
  CallbacksOfGeneration(std::shared_ptr<Generation> generation,
                        std::shared_ptr<net::CallbackStreamHandler> callbacks)
      : generation_(std::move(generation)), callbacks_(std::move(callbacks)) {}
  absl::Status OnMessage(const callbacks::FromClient& message) override {
    return callbacks_->OnMessage(message);
  }
  bool Next(callbacks::FromServer& message) override { return callbacks_->Next(message); }
  void OnClosed() override { callbacks_->OnClosed(); }

 private:
  const std::shared_ptr<Generation> generation_;
  const std::shared_ptr<net::CallbackStreamHandler> callbacks_;
};

class ClusterFrontImpl final : public ClusterFront, public cluster::MembershipObserver {
 public:
  explicit ClusterFrontImpl(const ClusterFrontOptions& options)
      : options_(options), blocking_({.name = "shared-dir", .threads = 1, .max_queued = 1024}) {
    thread_ = std::thread([this] { Run(); });
    client_ = cluster::MembershipClient::Start({.manager_address = options.manager_address,
                                                .queue = options.calls->queue(),
                                                .name = options.name,
                                                .lease = options.lease},
                                               this);
  }

  ~ClusterFrontImpl() override {
    blocking_.Stop();
    {
      base::MutexLock lock(&signal_->mu);
      signal_->stopping = true;
    }
    thread_.join();
    generations_.clear();
    // Nothing runs on the slices any more.
    client_.reset();
  }

  // ---- Of clients ----

  absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
      const xla::ifrt::proxy::GrpcGetVersionRequest& request, const std::string& peer) override {
    auto version = proxy::NegotiateVersion(options_.proxy.allow_remote_clients, request, peer);
    if (!version.ok()) return version;
    HELMWAY_RETURN_IF_ERROR(Current().status());
    return version;
  }

  absl::StatusOr<std::shared_ptr<net::SessionHandler>> OpenSession(
      const xla::ifrt::proxy::GrpcIfrtSessionMetadata& metadata, const std::string& peer,
      std::shared_ptr<net::SessionStream> stream) override {
    HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<Generation> generation, Current());
    HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<net::SessionHandler> session,
                             generation->proxy->OpenSession(metadata, peer, stream));
    {
      base::MutexLock lock(&mu_);
      std::erase_if(generation->streams, [](const auto& s) { return s.expired(); });
      generation->streams.push_back(stream);
    }
    return std::make_shared<SessionOfGeneration>(std::move(generation), std::move(session));
  }

  std::shared_ptr<net::SessionHandler> FindSession(uint64_t session_id, const std::string& peer) override {
    for (auto& generation : All()) {
      auto session = generation->proxy->FindSession(session_id, peer);
      if (session != nullptr) {
        return std::make_shared<SessionOfGeneration>(std::move(generation), std::move(session));
      }
    }
    return nullptr;
  }

  absl::StatusOr<std::shared_ptr<net::CallbackStreamHandler>> OpenCallbackStream(
      const callbacks::Hello& hello, const std::string& peer,
      std::shared_ptr<net::CallbackStream> stream) override {
    absl::Status refusal = absl::NotFoundError("there is no session, since the workers are not there yet");
    for (auto& generation : All()) {
      auto handler = generation->proxy->OpenCallbackStream(hello, peer, stream);
      if (handler.ok()) {
        return std::make_shared<CallbacksOfGeneration>(std::move(generation), *std::move(handler));
      }
      refusal = handler.status();
    }
    return refusal;
  }

  bool RunBlocking(absl::AnyInvocable<void()> task) override { return blocking_.Post(std::move(task)); }

  // ---- Of the manager ----

  void OnMembership(const cluster::Membership& membership, const std::vector<int32_t>& /*changed*/) override {
    {
      base::MutexLock lock(&mu_);
      membership_ = membership;
      manager_lost_ = absl::OkStatus();
    }
    signal_->Set();
  }
  void OnLease(const cluster::Lease& lease) override {
    if (!lease.granted) LOG(INFO) << "waits for a lease of slices: " << lease.waits_for;
    {
      base::MutexLock lock(&mu_);
      lease_ = lease;
    }
    signal_->Set();
  }
  void OnManagerLost(const absl::Status& status) override {
    {
      base::MutexLock lock(&mu_);
      manager_lost_ = status;
    }
    signal_->Set();
  }

 private:
  // The newest first.
  std::vector<std::shared_ptr<Generation>> All() {
    base::MutexLock lock(&mu_);
    return {generations_.rbegin(), generations_.rend()};
  }

  absl::StatusOr<std::shared_ptr<Generation>> Current() {
    base::MutexLock lock(&mu_);
    if (has_current_) return generations_.back();
    return absl::UnavailableError(absl::StrCat("this proxy server has no workers yet: ", missing_));
  }

  Wanted Want() {
    base::MutexLock lock(&mu_);
    Wanted wanted;
    if (membership_.manager_incarnation == 0) {
      wanted.missing =
          absl::StrCat("the resource manager at ", options_.manager_address, " is not reached",
                       manager_lost_.ok() ? "" : absl::StrCat(" (", manager_lost_.message(), ")"));
      return wanted;
    }
    std::vector<int32_t> slices = lease_.slices;
    if (!lease_.granted) {
      wanted.missing =
          absl::StrCat("it waits for slices", lease_.waits_for.empty() ? "" : ": ", lease_.waits_for);
      if (!options_.lease.all) return wanted;
      // Those that it will have: which of them are missing is the better answer.
      slices.resize(membership_.slices.size());
      std::iota(slices.begin(), slices.end(), 0);
    }
    std::vector<std::string> reasons;
    size_t missing = 0;
    for (size_t position = 0; position < slices.size(); ++position) {
      const int32_t slice = slices[position];
      bool ready = true;
      for (const cluster::WorkerView& worker : membership_.workers) {
        if (worker.slice != slice) continue;
        const std::string name = absl::StrCat("worker ", worker.task, " of slice ", slice);
        Member member{.worker = worker.worker,
                      .slice = slice,
                      .task = worker.task,
                      .position = position,
                      .incarnation = worker.incarnation,
                      .name = name,
                      .address = worker.address,
                      .pod = worker.pod.empty() ? worker.host : worker.pod,
                      .info = worker.info,
                      .instance_type = membership_.slices[static_cast<size_t>(slice)].instance_type};
        if (worker.usable() || IsKnown(worker)) {
          wanted.members.push_back(std::move(member));
          continue;
        }
        member.incarnation = 0;
        member.address.clear();
        wanted.absent.push_back(std::move(member));
        ready = false;
        if (++missing <= kMaxReasons) {
          reasons.push_back(absl::StrCat(name, " is ", cluster::WorkerStateName(worker.state),
                                         worker.reason.empty() ? "" : ": ", worker.reason));
        }
      }
      if (ready) wanted.ready.insert(position);
    }
    if (missing > kMaxReasons) reasons.push_back(absl::StrCat(missing - kMaxReasons, " more"));
    if (missing > 0) wanted.missing = absl::StrJoin(reasons, "; ");
    wanted.slices = slices.size();
    if (!lease_.granted) {
      wanted.members.clear();
      wanted.absent.clear();
      wanted.ready.clear();
    }
    return wanted;
  }

  // A manager that has restarted asks workers how they are before it calls them usable again. To one that is
  // connected that makes no difference.
  bool IsKnown(const cluster::WorkerView& worker) const {
    return worker.state == cluster::WorkerState::kStarting &&
           std::any_of(placed_.begin(), placed_.end(), [&](const Member& member) {
             return member.worker == worker.worker && member.incarnation == worker.incarnation;
           });
  }

  using Link = absl::StatusOr<std::unique_ptr<cluster::WorkerLink>>;

  // Blocks.
  std::vector<Link> ConnectTo(const std::vector<const Member*>& members) {
    if (Stopping()) {
      std::vector<Link> none;
      for (size_t i = 0; i < members.size(); ++i) none.emplace_back(absl::CancelledError("the server ends"));
      return none;
    }
    std::vector<net::RemoteWorkerOptions> workers;
    for (const Member* member : members) {
      workers.push_back({.address = member->address,
                         .name = member->name,
                         .incarnation = member->incarnation,
                         .timeout = options_.worker_timeout,
                         .software = Software(),
                         .on_lost =
                             [signal = signal_](const absl::Status& status) {
                               LOG(WARNING) << status.message();
                               signal->Set();
                             },
                         .streams = &streams_,
                         .host_memory = options_.proxy.host_memory});
    }
    return net::ConnectToWorkers(workers);
  }

  // A link for a worker that is not there yet.
  absl::StatusOr<std::unique_ptr<cluster::WorkerLink>> Expect(const Member& absent, const Wanted& wanted) {
    absl::Status loss = absl::DataLossError(
        absl::StrCat(absent.name, " is lost: it has not been there since the session began"));
    if (absent.info != nullptr) return cluster::MakeAbsentWorker(*absent.info, std::move(loss));
    absl::Status cause = absl::UnimplementedError("no slice of its type is there");
    for (const Member& member : wanted.members) {
      if (member.info == nullptr || member.instance_type != absent.instance_type) continue;
      auto info = cluster::ExpectWorker(*member.info, {member.worker, member.slice, member.task},
                                        {absent.worker, absent.slice, absent.task});
      if (info.ok()) return cluster::MakeAbsentWorker(*std::move(info), std::move(loss));
      cause = info.status();
    }
    return base::Annotate(cause, absl::StrCat("cannot know the devices of ", absent.name));
  }

  // Blocks.
  absl::StatusOr<std::shared_ptr<Generation>> Connect(const Wanted& wanted) {
    auto generation = std::make_shared<Generation>();
    generation->members = wanted.members;
    generation->members.insert(generation->members.end(), wanted.absent.begin(), wanted.absent.end());
    std::sort(generation->members.begin(), generation->members.end(), [](const Member& a, const Member& b) {
      return std::pair(a.position, a.worker) < std::pair(b.position, b.worker);
    });
    std::vector<const Member*> there;
    for (const Member& member : generation->members) {
      if (member.incarnation != 0) there.push_back(&member);
    }
    std::vector<Link> connected = ConnectTo(there);
    std::vector<std::unique_ptr<cluster::WorkerLink>> links;
    auto next = connected.begin();
    for (const Member& member : generation->members) {
      HELMWAY_ASSIGN_OR_RETURN(links.emplace_back(),
                               member.incarnation == 0 ? Expect(member, wanted) : std::move(*next++));
    }
    HELMWAY_ASSIGN_OR_RETURN(generation->workers, cluster::WorkerGroup::Create(std::move(links)));
    proxy::ProxyOptions options = options_.proxy;
    if (options_.xla_options) options.xla_options = options_.xla_options(*generation->workers);
    generation->proxy = std::make_unique<proxy::Proxy>(generation->workers.get(), std::move(options));
    return generation;
  }

  bool Stopping() {
    base::MutexLock lock(&signal_->mu);
    return signal_->stopping;
  }

  void Run() {
    absl::Duration wait = absl::InfiniteDuration();
    while (true) {
      {
        auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(signal_->mu) {
          return signal_->changed || signal_->stopping;
        };
        base::MutexLock lock(&signal_->mu);
        signal_->mu.AwaitWithTimeout(absl::Condition(&awake), wait);
        if (signal_->stopping) return;
        signal_->changed = false;
      }
      wait = Step() ? absl::InfiniteDuration() : kBetweenAttempts;
    }
  }

  // Gives sessions the workers that have come back. Blocks. OK if it has all of them that are wanted.
  absl::Status Mend(Generation& generation, const std::vector<Member>& wanted) {
    std::vector<const Member*> back;
    std::vector<size_t> numbers;  // of those among the members
    for (size_t i = 0; i < generation.members.size(); ++i) {
      const Member& member = generation.members[i];
      const auto now = std::find_if(wanted.begin(), wanted.end(), [&](const Member& other) {
        return other.worker == member.worker && other.position == member.position;
      });
      const auto index = static_cast<cluster::WorkerIndex>(i);
      if (now == wanted.end() || (*now == member && !generation.workers->IsLost(index))) continue;
      back.push_back(&*now);
      numbers.push_back(i);
    }
    std::vector<Link> links = ConnectTo(back);
    absl::Status outcome;
    for (size_t i = 0; i < back.size(); ++i) {
      absl::Status status = links[i].status();
      if (status.ok()) {
        status =
            generation.workers->Return(static_cast<cluster::WorkerIndex>(numbers[i]), *std::move(links[i]));
      }
      if (status.ok()) {
        generation.members[numbers[i]] = *back[i];
      } else {
        outcome.Update(status);
      }
    }
    return outcome;
  }

  // Whether the sessions of a generation may go on with these.
  static bool MayMend(const Generation& generation, const Wanted& wanted) {
    return !wanted.members.empty() &&
           (!wanted.missing.empty() || wanted.members.size() == generation.members.size()) &&
           std::all_of(wanted.members.begin(), wanted.members.end(), [&](const Member& member) {
             return std::any_of(generation.members.begin(), generation.members.end(),
                                [&](const Member& known) {
                                  return known.worker == member.worker && known.position == member.position;
                                });
           });
  }

  // False: again after a while, though nothing changes.
  bool Step() {
    EndSessionsWithoutLease();
    const Wanted wanted = Want();
    // A session may begin: all slices are there, or as many as must be.
    const bool complete = !wanted.members.empty() && !wanted.ready.empty() &&
                          wanted.ready.size() + static_cast<size_t>(options_.elastic_slices) >= wanted.slices;
    std::shared_ptr<Generation> last;
    {
      base::MutexLock lock(&mu_);
      if (!generations_.empty()) last = generations_.back();
      if (!complete) has_current_ = false;
      missing_ = wanted.missing.empty() ? "it connects to them" : wanted.missing;
    }
    TellUnplaced(wanted);
    absl::Status status;
    const bool mended = last != nullptr && MayMend(*last, wanted);
    if (mended) {
      {
        base::MutexLock lock(&mu_);
        has_current_ = has_current_ && (options_.elastic_slices > 0 || !SomeDiffer(*last, wanted));
      }
      status = Mend(*last, wanted.members);
      base::MutexLock lock(&mu_);
      if (status.ok() && complete) has_current_ = true;
    } else if (complete) {
      auto generation = Connect(wanted);
      status = generation.status();
      base::MutexLock lock(&mu_);
      has_current_ = generation.ok();
      if (generation.ok()) generations_.push_back(*std::move(generation));
    }
    last = nullptr;
    if (!status.ok()) {
      base::MutexLock lock(&mu_);
      if (missing_ != status.message()) LOG(WARNING) << status.message();
      missing_ = std::string(status.message());
    } else if (complete || mended) {
      std::vector<Member> placed = wanted.members;
      std::erase_if(placed, [&](const Member& member) { return wanted.ready.count(member.position) == 0; });
      TellPlaced(placed);
    }
    return DropUnused() && status.ok();
  }

  // Whether some of them are not those, or not connected.
  static bool SomeDiffer(const Generation& generation, const Wanted& wanted) {
    if (generation.members != wanted.members) return true;
    for (size_t i = 0; i < generation.members.size(); ++i) {
      if (generation.workers->IsLost(static_cast<cluster::WorkerIndex>(i))) return true;
    }
    return false;
  }

  // Slices whose workers are not those any more that were placed.
  void TellUnplaced(const Wanted& wanted) {
    std::set<size_t> gone;
    for (const Member& member : placed_) {
      const bool same =
          wanted.ready.count(member.position) > 0 &&
          std::find(wanted.members.begin(), wanted.members.end(), member) != wanted.members.end();
      if (!same) gone.insert(member.position);
    }
    for (const size_t position : gone) {
      LogForTools(absl::StrCat("Transition slice ", position, ": placed -> unplaced"));
    }
    std::erase_if(placed_, [&](const Member& member) { return gone.count(member.position) > 0; });
  }

  void TellPlaced(const std::vector<Member>& members) {
    if (placed_ == members) return;
    std::set<size_t> known;
    for (const Member& member : placed_) known.insert(member.position);
    for (size_t i = 0; i < members.size();) {
      const size_t position = members[i].position;
      std::vector<std::string> pods;
      for (; i < members.size() && members[i].position == position; ++i) pods.push_back(members[i].pod);
      if (known.count(position) > 0) continue;
      LogForTools(absl::StrCat("Transition slice ", position, ": unplaced -> placed on worker pods: [",
                               absl::StrJoin(pods, ", "), "]"));
    }
    LogForTools("component reconfiguration after placement changes");
    placed_ = members;
  }

  // Somebody else has the slices now, or will.
  void EndSessionsWithoutLease() {
    std::vector<std::shared_ptr<net::SessionStream>> streams;
    {
      base::MutexLock lock(&mu_);
      const uint64_t number = lease_.granted ? lease_.number : 0;
      const uint64_t before = std::exchange(lease_of_sessions_, number);
      if (before == 0 || before == number) return;
      has_current_ = false;
      for (const auto& generation : generations_) {
        for (const auto& weak : generation->streams) {
          if (auto stream = weak.lock()) streams.push_back(std::move(stream));
        }
      }
    }
    if (!streams.empty())
      LOG(ERROR) << "the lease of the slices is lost: " << streams.size() << " session(s) end";
    for (const auto& stream : streams) {
      stream->Close(
          absl::AbortedError("the proxy server has lost its lease of the slices: the resource manager did "
                             "not hear of it for too "
                             "long"));
    }
  }

  // False if some are still in use.
  bool DropUnused() {
    std::vector<std::shared_ptr<Generation>> unused;
    bool none_left;
    {
      base::MutexLock lock(&mu_);
      const std::shared_ptr<Generation> current = has_current_ ? generations_.back() : nullptr;
      // Handlers take references under this lock only, or from other handlers' own.
      for (auto& generation : generations_) {
        if (generation != current && generation.use_count() == 1) unused.push_back(std::move(generation));
      }
      std::erase(generations_, nullptr);
      none_left = generations_.size() == (current != nullptr ? 1u : 0u);
    }
    return none_left;
  }

  const ClusterFrontOptions options_;
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  net::MessageStreamClient streams_{options_.calls};  // outlives the generations
  base::Mutex mu_;
  cluster::Membership membership_ ABSL_GUARDED_BY(mu_);
  cluster::Lease lease_ ABSL_GUARDED_BY(mu_);
  absl::Status manager_lost_ ABSL_GUARDED_BY(mu_);
  // By age. Those before the last one are there for their streams only; so is that, while workers are
  // missing.
  std::vector<std::shared_ptr<Generation>> generations_ ABSL_GUARDED_BY(mu_);
  bool has_current_ ABSL_GUARDED_BY(mu_) = false;
  std::string missing_ ABSL_GUARDED_BY(mu_) = "it has just started";
  uint64_t lease_of_sessions_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Member> placed_;  // what tools were told; of the thread
  async::ThreadPool blocking_;
  std::thread thread_;
  std::unique_ptr<cluster::MembershipClient> client_;
};

}  // namespace

std::unique_ptr<ClusterFront> ClusterFront::Start(const ClusterFrontOptions& options) {
  return std::make_unique<ClusterFrontImpl>(options);
}

}  // namespace helmway::apps
