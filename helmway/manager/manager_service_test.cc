// The manager's service with its real clients, through gRPC.
#include "helmway/manager/manager_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/random.h"
#include "helmway/cluster/key_value_client.h"
#include "helmway/cluster/membership_client.h"
#include "helmway/cluster/registration_client.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/manager/manager_testing.h"
#include "helmway/net/grpc_server.h"

namespace helmway::manager {
namespace {

using cluster::WorkerState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr async::Backoff::Options kQuick = {.first = absl::Milliseconds(5),
                                            .longest = absl::Milliseconds(50)};

// Something that other threads change and a test waits for.
template <typename T>
class Watched {
 public:
  void Change(const std::function<void(T&)>& change) {
    base::MutexLock lock(&mu_);
    change(value_);
  }
  T Await(const std::function<bool(const T&)>& wanted) {
    base::MutexLock lock(&mu_);
    auto condition = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wanted(value_); };
    mu_.Await(absl::Condition(&condition));
    return value_;
  }
  T Now() {
    base::MutexLock lock(&mu_);
    return value_;
  }

 private:
  base::Mutex mu_;
  T value_ ABSL_GUARDED_BY(mu_);
};

// A server on a port where another can be started later: none of those that the system gives to connections.
std::unique_ptr<net::GrpcServer> StartOnLastingPort(const std::vector<grpc::Service*>& services) {
  while (true) {
    const auto port = 20000 + base::UnguessableId() % 10000;
    auto server = net::GrpcServer::Start(absl::StrCat("127.0.0.1:", port), services);
    if (server.ok()) return *std::move(server);
  }
}

class RunningManager {
 public:
  explicit RunningManager(ManagerSettings settings, int port = 0)
      : service_(std::move(settings),
                 [this](const std::string& line) {
                   lines.Change([&](std::vector<std::string>& all) { all.push_back(line); });
                 }),
        grpc_service_(net::MakeManagerService(&service_)) {
    if (port == 0) {
      server_ = StartOnLastingPort({grpc_service_.get()});
    } else {
      auto server = net::GrpcServer::Start(absl::StrCat("127.0.0.1:", port), {grpc_service_.get()});
      EXPECT_TRUE(server.ok()) << server.status();
      server_ = *std::move(server);
    }
  }
  int port() const { return server_->port(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }

  Watched<std::vector<std::string>> lines;

 private:
  ManagerService service_;
  std::unique_ptr<grpc::Service> grpc_service_;
  std::unique_ptr<net::GrpcServer> server_;
};

struct WorkerLog {
  int placed = 0;
  int registered = 0;
  int lost = 0;
  int met = 0;       // has told its peers of itself, or failed to
  int restarts = 0;  // of the slice
  cluster::AssignedPlace placement;
  absl::Status last_loss;
  absl::Status failure;
};

// A worker that has a health service, a registration, and devices that are only described.
class RunningWorker final : public cluster::RegistrationObserver {
 public:
  // `meets_peers`: tells the others of its slice of itself before it has devices, as plugins do, and waits
  // for all of them.
  explicit RunningWorker(const std::string& manager, absl::Status makes_devices = absl::OkStatus(),
                         bool meets_peers = false)
      : makes_devices_(std::move(makes_devices)),
        meets_peers_(meets_peers),
        manager_(manager),
        server_(StartOnLastingPort({})),
        port_(server_->port()) {
    client_ = cluster::RegistrationClient::Start({.manager_address = manager,
                                                  .queue = calls_.queue(),
                                                  .incarnation = incarnation_,
                                                  .host = "test",
                                                  .port = port_,
                                                  .backoff = kQuick},
                                                 this);
  }
  // As a process that is killed.
  ~RunningWorker() override {
    if (log.Now().met > 0) keys_->Cancel();
    StopServer();
    client_.reset();
  }

  void RestartServer() {
    auto server = net::GrpcServer::Start(absl::StrCat("127.0.0.1:", port_), {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StopServer() { server_.reset(); }
  int port() const { return port_; }
  cluster::RegistrationClient& client() { return *client_; }

  absl::StatusOr<cluster::WorkerInfo> OnPlaced(const cluster::AssignedPlace& placement) override {
    log.Change([&](WorkerLog& l) {
      ++l.placed;
      l.placement = placement;
    });
    if (!makes_devices_.ok()) return makes_devices_;
    if (meets_peers_) {
      if (absl::Status met = MeetPeers(placement); !met.ok()) return met;
    }
    return *cluster::WorkerInfoFromProto(TestDevices(placement.worker, placement.devices_per_host));
  }
  void OnFailed(const absl::Status& status) override {
    log.Change([&](WorkerLog& l) { l.failure = status; });
  }
  void OnRegistered(const cluster::AssignedPlace& placement) override {
    log.Change([&](WorkerLog& l) {
      ++l.registered;
      EXPECT_EQ(l.placement.worker, placement.worker);
    });
  }
  void OnLost(const absl::Status& status) override {
    log.Change([&](WorkerLog& l) {
      ++l.lost;
      l.last_loss = status;
    });
  }

  uint64_t slice_generation() const override { return generation_; }
  void OnSliceRestarted(const absl::Status& why) override {
    log.Change([&](WorkerLog& l) {
      ++l.restarts;
      l.last_loss = why;
    });
  }

  // Once it is placed.
  cluster::KeyValueClient& keys() { return *keys_; }
  uint64_t generation() const { return generation_; }

  Watched<WorkerLog> log;

 private:
  absl::Status MeetPeers(const cluster::AssignedPlace& placement) {
    keys_ = cluster::KeyValueClient::Create({.manager_address = manager_,
                                             .incarnation = incarnation_,
                                             .manager_incarnation = placement.manager_incarnation});
    const absl::Status put = keys_->Put(absl::StrCat("host ", placement.task), "here");
    log.Change([](WorkerLog& l) { ++l.met; });
    if (!put.ok()) return put;
    for (int task = 0; task < placement.hosts; ++task) {
      const auto got = keys_->Get(absl::StrCat("host ", task), absl::Hours(1));
      if (!got.ok()) return got.status();
    }
    generation_ = keys_->SetFormed();
    return absl::OkStatus();
  }

  const absl::Status makes_devices_;
  const bool meets_peers_;
  const std::string manager_;
  const uint64_t incarnation_ = base::UnguessableId();
  std::unique_ptr<cluster::KeyValueClient> keys_;
  std::atomic<uint64_t> generation_{0};
  std::unique_ptr<net::GrpcServer> server_;
  const int port_;
  net::CompletionThread calls_;
  std::unique_ptr<cluster::RegistrationClient> client_;
};

struct ProxyLog {
  cluster::Membership membership;
  std::vector<cluster::Lease> leases;
  int lost = 0;
  absl::Status last_loss;
};

class RunningProxy final : public cluster::MembershipObserver {
 public:
  RunningProxy(const std::string& manager, std::optional<cluster::LeaseRequest> lease)
      : client_(cluster::MembershipClient::Start({.manager_address = manager,
                                                  .queue = calls_.queue(),
                                                  .name = "test",
                                                  .lease = std::move(lease),
                                                  .heartbeat = absl::Milliseconds(20),
                                                  .backoff = kQuick},
                                                 this)) {}
  ~RunningProxy() override { client_.reset(); }

  void OnMembership(const cluster::Membership& membership, const std::vector<int32_t>& /*changed*/) override {
    log.Change([&](ProxyLog& l) { l.membership = membership; });
  }
  void OnLease(const cluster::Lease& lease) override {
    log.Change([&](ProxyLog& l) { l.leases.push_back(lease); });
  }
  void OnManagerLost(const absl::Status& status) override {
    log.Change([&](ProxyLog& l) {
      ++l.lost;
      l.last_loss = status;
    });
  }

  cluster::WorkerView AwaitState(size_t worker, WorkerState state) {
    return log
        .Await([&](const ProxyLog& l) {
          return worker < l.membership.workers.size() && l.membership.workers[worker].state == state;
        })
        .membership.workers[worker];
  }
  cluster::Lease AwaitGrant() {
    return log.Await([](const ProxyLog& l) { return !l.leases.empty() && l.leases.back().granted; })
        .leases.back();
  }

  Watched<ProxyLog> log;

 private:
  net::CompletionThread calls_;
  std::unique_ptr<cluster::MembershipClient> client_;
};

const cluster::LeaseRequest kAll = {.all = true};

TEST(ManagerServiceTest, AWorkerRegistersAndIsSeenUntilItsEnd) {
  RunningManager manager(TestSettings(2, 1));
  RunningProxy proxy(manager.address(), kAll);
  auto worker = std::make_unique<RunningWorker>(manager.address());
  const cluster::WorkerView seen = proxy.AwaitState(0, WorkerState::kUp);
  EXPECT_EQ(seen.incarnation, worker->client().incarnation());
  EXPECT_EQ(seen.address, absl::StrCat("127.0.0.1:", worker->port()));
  ASSERT_NE(seen.info, nullptr);
  EXPECT_EQ(seen.info->devices.size(), 2u);
  EXPECT_THAT(proxy.AwaitGrant().slices, ElementsAre(0, 1));
  EXPECT_EQ(worker->log.Now().placement.instance_type, "cpu:1x2");
  manager.lines.Await([](const auto& lines) { return !lines.empty(); });
  EXPECT_THAT(manager.lines.Now(), ElementsAre("*** 1/2 Pathways Slices Now Ready ***"));

  worker.reset();
  EXPECT_THAT(proxy.AwaitState(0, WorkerState::kDown).reason, HasSubstr("connection"));
  RunningWorker second(manager.address());
  proxy.AwaitState(1, WorkerState::kUp);
}

TEST(ManagerServiceTest, ClientsMayComeBeforeTheManager) {
  auto reserved = std::make_unique<RunningManager>(TestSettings(1, 1));
  const std::string address = reserved->address();
  const int port = reserved->port();
  reserved.reset();
  RunningWorker worker(address);
  RunningProxy proxy(address, kAll);
  worker.log.Await([](const WorkerLog& l) { return l.lost >= 2; });
  proxy.log.Await([](const ProxyLog& l) { return l.lost >= 2; });
  RunningManager manager(TestSettings(1, 1), port);
  proxy.AwaitState(0, WorkerState::kUp);
  proxy.AwaitGrant();
}

TEST(ManagerServiceTest, AManagerThatRestartsIsRebuilt) {
  auto manager = std::make_unique<RunningManager>(TestSettings(2, 1));
  const int port = manager->port();
  RunningWorker first(manager->address());
  first.log.Await([](const WorkerLog& l) { return l.registered == 1; });
  RunningWorker second(manager->address());
  RunningProxy proxy(manager->address(), kAll);
  proxy.AwaitState(0, WorkerState::kUp);
  proxy.AwaitState(1, WorkerState::kUp);
  const cluster::Lease lease = proxy.AwaitGrant();
  const uint64_t before = proxy.log.Now().membership.manager_incarnation;

  manager.reset();
  proxy.log.Await([](const ProxyLog& l) { return l.lost > 0; });
  EXPECT_EQ(proxy.log.Now().membership.workers[1].state, WorkerState::kUp);
  manager = std::make_unique<RunningManager>(TestSettings(2, 1), port);
  proxy.log.Await([&](const ProxyLog& l) { return l.membership.manager_incarnation != before; });
  manager->lines.Await([](const auto& lines) {
    return std::find(lines.begin(), lines.end(), "*** 2/2 Pathways Slices Now Ready ***") != lines.end();
  });
  // Each has its place, and makes its devices once.
  EXPECT_EQ(first.log.Now().placed, 1);
  EXPECT_EQ(second.log.Now().placed, 1);
  EXPECT_EQ(first.log.Now().placement.worker, 0);
  EXPECT_EQ(second.log.Now().placement.worker, 1);
  // The lease was never lost.
  RunningProxy rival(manager->address(), kAll);
  rival.log.Await([](const ProxyLog& l) { return !l.leases.empty(); });
  EXPECT_FALSE(rival.log.Now().leases.back().granted);
  EXPECT_EQ(proxy.log.Now().leases.back(), lease);
}

TEST(ManagerServiceTest, AnEndingProxyGivesItsLeaseBackAtOnce) {
  ManagerSettings settings = TestSettings(1, 1);
  settings.lease_grace = absl::Hours(1);
  RunningManager manager(settings);
  RunningWorker worker(manager.address());
  auto first = std::make_unique<RunningProxy>(manager.address(), kAll);
  first->AwaitGrant();
  RunningProxy second(manager.address(), kAll);
  const auto waits = second.log.Await([](const ProxyLog& l) { return !l.leases.empty(); }).leases.front();
  EXPECT_FALSE(waits.granted);
  EXPECT_THAT(waits.waits_for, HasSubstr("the proxy test"));
  first.reset();
  second.AwaitGrant();
}

TEST(ManagerServiceTest, AWorkerThatDoesNotAnswerIsLostUntilItDoes) {
  ManagerSettings settings = TestSettings(1, 1);
  settings.health.period = absl::Milliseconds(10);
  settings.health.timeout = absl::Seconds(60);
  settings.health.failure_threshold = 2;
  RunningManager manager(settings);
  RunningProxy proxy(manager.address(), std::nullopt);
  RunningWorker worker(manager.address());
  proxy.AwaitState(0, WorkerState::kUp);
  const int port = worker.port();
  worker.StopServer();
  EXPECT_THAT(proxy.AwaitState(0, WorkerState::kDown).reason,
              HasSubstr(absl::StrCat("does not answer at 127.0.0.1:", port)));
  worker.RestartServer();
  proxy.AwaitState(0, WorkerState::kUp);
  EXPECT_EQ(worker.log.Now().lost, 0);
}

TEST(ManagerServiceTest, AWorkerTellsThatItDrains) {
  RunningManager manager(TestSettings(1, 1));
  RunningProxy proxy(manager.address(), std::nullopt);
  RunningWorker worker(manager.address());
  proxy.AwaitState(0, WorkerState::kUp);
  worker.client().Drain(absl::Seconds(20));
  proxy.AwaitState(0, WorkerState::kDraining);
}

TEST(ManagerServiceTest, ADrainIsSaidAgainToAManagerThatRestarts) {
  auto manager = std::make_unique<RunningManager>(TestSettings(1, 1));
  const int port = manager->port();
  RunningWorker worker(manager->address());
  worker.log.Await([](const WorkerLog& l) { return l.registered == 1; });
  manager.reset();
  worker.client().Drain(absl::Seconds(20));
  manager = std::make_unique<RunningManager>(TestSettings(1, 1), port);
  RunningProxy proxy(manager->address(), std::nullopt);
  proxy.AwaitState(0, WorkerState::kDraining);
}

TEST(ManagerServiceTest, AWorkerWithoutDevicesFailsAndLeavesItsPlace) {
  RunningManager manager(TestSettings(1, 1));
  RunningProxy proxy(manager.address(), std::nullopt);
  RunningWorker broken(manager.address(), absl::InternalError("the plugin is broken"));
  broken.log.Await([](const WorkerLog& l) { return !l.failure.ok(); });
  EXPECT_EQ(broken.log.Now().failure.message(), "the plugin is broken");
  RunningWorker good(manager.address());
  proxy.AwaitState(0, WorkerState::kUp);
  EXPECT_EQ(broken.log.Now().placed, 1);
  EXPECT_EQ(broken.log.Now().lost, 0);
}

TEST(ManagerServiceTest, ARefusedWorkerIsToldWhyAndComesAgain) {
  RunningManager manager(TestSettings(1, 1));
  auto first = std::make_unique<RunningWorker>(manager.address());
  first->log.Await([](const WorkerLog& l) { return l.registered == 1; });
  RunningWorker second(manager.address());
  const WorkerLog log = second.log.Await([](const WorkerLog& l) { return l.lost > 0; });
  EXPECT_EQ(log.last_loss.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(log.last_loss.message()), HasSubstr("one too many"));
  first.reset();
  second.log.Await([](const WorkerLog& l) { return l.registered == 1; });
}

TEST(ManagerServiceTest, AnImpossibleLeaseIsRefused) {
  RunningManager manager(TestSettings(1, 1));
  RunningProxy proxy(manager.address(), cluster::LeaseRequest{.instance_types = {"cpu:1x2", "cpu:1x2"}});
  const ProxyLog log = proxy.log.Await([](const ProxyLog& l) { return l.lost > 0; });
  EXPECT_EQ(log.last_loss.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(log.last_loss.message()), HasSubstr("--virtual_slices"));
}

// ---- What plugins tell each other ------------------------------------------------------------------------

std::unique_ptr<RunningWorker> WorkerWithPeers(const std::string& manager) {
  return std::make_unique<RunningWorker>(manager, absl::OkStatus(), /*meets_peers=*/true);
}

TEST(ManagerServiceTest, WorkersOfASliceMeet) {
  RunningManager manager(TestSettings(1, 2));
  auto first = WorkerWithPeers(manager.address());
  first->log.Await([](const WorkerLog& l) { return l.met == 1; });
  EXPECT_EQ(first->log.Now().registered, 0);
  auto second = WorkerWithPeers(manager.address());
  for (auto* worker : {first.get(), second.get()}) {
    worker->log.Await([](const WorkerLog& l) { return l.registered == 1; });
  }
  EXPECT_NE(first->generation(), 0u);
  EXPECT_EQ(first->generation(), second->generation());

  // Later, too.
  EXPECT_EQ(second->keys().GetIfThere("id").value(), std::nullopt);
  auto waits = std::async(std::launch::async,
                          [&] { return second->keys().Get("id", absl::InfiniteDuration()).value(); });
  EXPECT_TRUE(first->keys().Put("id", std::string("\0x", 2)).ok());
  EXPECT_EQ(waits.get(), std::string("\0x", 2));
  EXPECT_EQ(first->keys().GetIfThere("id").value(), std::string("\0x", 2));
  EXPECT_EQ(first->keys().Put("id", "y").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(first->keys().Get("nobody", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);

  // One that starts again restarts the slice.
  second.reset();
  auto third = WorkerWithPeers(manager.address());
  first->log.Await([](const WorkerLog& l) { return l.restarts > 0; });
  EXPECT_EQ(third->log.Now().registered, 0);
  first.reset();
  first = WorkerWithPeers(manager.address());
  third->log.Await([](const WorkerLog& l) { return l.registered == 1; });
  EXPECT_EQ(third->log.Now().restarts, 0);
}

TEST(ManagerServiceTest, AWorkerThatWaitsForItsPeersCanEnd) {
  RunningManager manager(TestSettings(1, 2));
  auto worker = WorkerWithPeers(manager.address());
  worker->log.Await([](const WorkerLog& l) { return l.met == 1; });
  worker->keys().Cancel();
  const WorkerLog log = worker->log.Await([](const WorkerLog& l) { return !l.failure.ok(); });
  EXPECT_EQ(log.failure.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(worker->keys().Put("a", "1").code(), absl::StatusCode::kCancelled);
}

TEST(ManagerServiceTest, AManagerThatRestartsWhileWorkersMeet) {
  auto manager = std::make_unique<RunningManager>(TestSettings(1, 2));
  const int port = manager->port();
  auto worker = WorkerWithPeers(manager->address());
  worker->log.Await([](const WorkerLog& l) { return l.met == 1; });
  manager.reset();
  manager = std::make_unique<RunningManager>(TestSettings(1, 2), port);
  const WorkerLog log = worker->log.Await([](const WorkerLog& l) { return !l.failure.ok(); });
  EXPECT_EQ(log.failure.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(log.failure.message()), HasSubstr("the resource manager has started again"));
}

TEST(ManagerServiceTest, AManagerThatRestartsAfterWorkersHaveMet) {
  auto manager = std::make_unique<RunningManager>(TestSettings(1, 2));
  const int port = manager->port();
  auto first = WorkerWithPeers(manager->address());
  auto second = WorkerWithPeers(manager->address());
  for (auto* worker : {first.get(), second.get()}) {
    worker->log.Await([](const WorkerLog& l) { return l.registered == 1; });
  }
  manager.reset();
  auto waits =
      std::async(std::launch::async, [&] { return second->keys().Get("id", absl::Hours(1)).value(); });
  manager = std::make_unique<RunningManager>(TestSettings(1, 2), port);
  EXPECT_TRUE(first->keys().Put("id", "1").ok());
  EXPECT_EQ(waits.get(), "1");
  for (auto* worker : {first.get(), second.get()}) {
    worker->log.Await([](const WorkerLog& l) { return l.registered == 2; });
    EXPECT_EQ(worker->log.Now().restarts, 0);
  }
}

}  // namespace
}  // namespace helmway::manager
