// Workers, proxies and the manager itself die, stall, come back and quarrel, as a seed says. Whatever
// happens, some things must hold at every moment; and when it is over, all must be well again.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "helmway/base/random.h"
#include "helmway/cluster/membership.h"
#include "helmway/manager/manager.h"
#include "helmway/manager/manager_testing.h"

namespace helmway::manager {
namespace {

using cluster::WorkerState;

constexpr int kSlices = 3;
constexpr int kHosts = 2;
constexpr int kWorkers = kSlices * kHosts;
constexpr int kProxies = 3;
constexpr int kSteps = 300;
constexpr int kRounds = 60;

class World {
 public:
  explicit World(uint64_t seed) : random_(seed), harness_(TestSettings(kSlices, kHosts)) {
    // In some clusters workers are told their place, in some not. Two workers are too many.
    const int numbers = Pick(3);
    for (int i = 0; i < kWorkers + 2; ++i) {
      Worker worker;
      worker.fake.host = absl::StrCat("h", i);
      worker.fake.port = 1000 + i;
      if (numbers == 1) {
        worker.fake.slice = i % kWorkers / kHosts;
        worker.fake.task = i % kHosts;
      } else if (numbers == 2) {
        worker.fake.linear = i % kWorkers;
      }
      workers_.push_back(worker);
    }
    for (int i = 0; i < kProxies; ++i) {
      proxies_.push_back({.lease = i == 0 ? AllSlices() : SlicesOf({"cpu:2x2", "cpu:2x2"})});
      proxies_.back().incarnation = ++incarnations_;
    }
  }

  void Torment() {
    for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) {
      Step();
      Settle();
      Check();
    }
  }

  void HealAndCheck() {
    for (Worker& worker : workers_) worker.stopped = false;
    for (Proxy& proxy : proxies_) proxy.stopped = false;
    // The two that are too many leave, and everybody else is there.
    for (int i = kWorkers; i < kWorkers + 2; ++i) Kill(workers_[static_cast<size_t>(i)], /*loudly=*/true);
    for (int i = 0; i < 120; ++i) {
      for (int w = 0; w < kWorkers; ++w) {
        Worker& worker = workers_[static_cast<size_t>(w)];
        // A worker that has another's place for its life cannot have its own: people restart it.
        const bool misplaced = worker.refused && worker.fake.held.has_value();
        if (misplaced) Kill(worker, /*loudly=*/true);
        if (!worker.alive) Start(worker);
        if (worker.draining) {
          Kill(worker, /*loudly=*/true);
          Start(worker);
        }
        if (worker.connection == 0) Connect(worker);
      }
      for (Proxy& proxy : proxies_) {
        if (proxy.connection == 0) Connect(proxy);
        Beat(proxy);
      }
      Pass(absl::Seconds(1));
      Settle();
      Check();
    }
    EXPECT_EQ(harness_.manager->ready_slices(), kSlices) << Describe();
    EXPECT_TRUE(harness_.manager->settled());
    EXPECT_EQ(harness_.TakeLogs(LogLine::kForTools).back(), "*** 3/3 Pathways Slices Now Ready ***");
    for (const Proxy& proxy : proxies_) {
      const cluster::Membership& seen = proxy.view.membership();
      for (const Place& place : harness_.manager->places().places()) {
        const cluster::WorkerView& worker = seen.workers[static_cast<size_t>(place.worker)];
        EXPECT_EQ(worker.state, WorkerState::kUp);
        EXPECT_EQ(worker.incarnation, place.incarnation);
        EXPECT_EQ(worker.address, place.address);
        ASSERT_NE(worker.info, nullptr);
        EXPECT_EQ(worker.info->devices[0].id, cluster::FirstDeviceId(place.worker));
      }
    }
    // One after the other has its turn.
    std::set<uint64_t> served;
    while (served.size() < proxies_.size()) {
      Proxy* holder = nullptr;
      for (Proxy& proxy : proxies_) {
        if (proxy.granted) holder = &proxy;
      }
      ASSERT_NE(holder, nullptr) << "nobody has a lease, and " << proxies_.size() - served.size() << " wait";
      ASSERT_TRUE(served.insert(holder->incarnation).second);
      holder->granted = false;
      harness_.Goodbye(holder->connection);
      Settle();
      Check();
    }
  }

  std::string Describe() const {
    std::string text;
    for (const Place& place : harness_.manager->places().places()) {
      absl::StrAppend(&text, place.worker, ": ", cluster::WorkerStateName(place.state), " ", place.name, " ",
                      place.reason, "\n");
    }
    return text;
  }

 private:
  struct Worker {
    FakeWorker fake;
    bool alive = false;
    bool stopped = false;
    bool draining = false;
    bool refused = false;
    ConnectionId connection = 0;
    bool said_ready = false;
  };
  struct Proxy {
    cluster::proto::LeaseRequest lease;
    uint64_t incarnation = 0;
    ConnectionId connection = 0;
    bool stopped = false;
    // Was out of the manager's sight for a while, and may have lost its lease.
    bool tainted = false;
    bool granted = false;
    std::vector<int32_t> slices;
    uint64_t number = 0;
    cluster::MembershipView view;
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  void Step() {
    Worker& worker = workers_[static_cast<size_t>(Pick(static_cast<int>(workers_.size())))];
    Proxy& proxy = proxies_[static_cast<size_t>(Pick(kProxies))];
    switch (Pick(16)) {
      case 0:
      case 1:
      case 2:
        if (!worker.alive) Start(worker);
        [[fallthrough]];
      case 3:
        if (worker.alive && !worker.stopped && worker.connection == 0) Connect(worker);
        break;
      case 4:
        if (worker.alive) Kill(worker, /*loudly=*/true);
        break;
      case 5:
        // Its host vanishes: nobody closes the stream.
        if (worker.alive) Kill(worker, /*loudly=*/false);
        break;
      case 6:
        worker.stopped = worker.alive && !worker.stopped;
        break;
      case 7:
        // The network breaks; the worker lives on.
        if (worker.connection != 0) Break(worker);
        break;
      case 8:
        if (worker.alive && worker.connection != 0 && worker.said_ready) {
          worker.draining = true;
          harness_.Drain(worker.connection);
        }
        break;
      case 9:
        if (!proxy.stopped && proxy.connection == 0) Connect(proxy);
        break;
      case 10:
        if (proxy.connection != 0) {
          const ConnectionId broken = std::exchange(proxy.connection, 0);
          harness_.CloseProxy(broken);
          // Comes back at once, or is late.
          if (Pick(2) == 0) {
            Connect(proxy);
          } else {
            proxy.tainted = true;
          }
        }
        break;
      case 11:
        proxy.stopped = !proxy.stopped;
        proxy.tainted = true;
        Beat(proxy);
        break;
      case 12:
        if (proxy.connection != 0) {
          harness_.Goodbye(proxy.connection);
          proxy.connection = 0;
          proxy = {.lease = proxy.lease};
          proxy.incarnation = ++incarnations_;
        }
        break;
      case 13:
        if (Pick(4) == 0) RestartManager();
        break;
      default:
        Pass(absl::Milliseconds(Pick(6000)));
    }
  }

  void Start(Worker& worker) {
    worker.fake.incarnation = ++incarnations_;
    worker.fake.held.reset();
    worker.alive = true;
    worker.stopped = worker.draining = worker.refused = false;
    last_alive_[worker.fake.incarnation] = harness_.now;
  }

  void Kill(Worker& worker, bool loudly) {
    if (worker.alive) last_alive_[worker.fake.incarnation] = harness_.now;
    worker.alive = false;
    const ConnectionId connection = std::exchange(worker.connection, 0);
    worker.said_ready = false;
    if (loudly && connection != 0) harness_.CloseWorker(connection);
  }

  void Break(Worker& worker) {
    harness_.CloseWorker(std::exchange(worker.connection, 0));
    worker.said_ready = false;
  }

  void Connect(Worker& worker) {
    if (!worker.alive || worker.stopped) return;
    worker.connection = harness_.WorkerHello(worker.fake);
    worker.said_ready = false;
    worker.refused = false;
  }

  void Connect(Proxy& proxy) {
    proxy.connection = proxy.granted
                           ? harness_.ProxyHello(proxy.incarnation, proxy.lease, proxy.slices, proxy.number)
                           : harness_.ProxyHello(proxy.incarnation, proxy.lease);
  }

  void Beat(Proxy& proxy) {
    if (proxy.connection != 0 && !proxy.stopped) harness_.Heartbeat(proxy.connection);
  }

  void RestartManager() {
    // The wall clock, as far as this world has one.
    harness_.Restart(++incarnations_,
                     static_cast<uint64_t>(absl::ToUnixNanos(harness_.now) + restarts_++ * 1000));
    // Who is alive comes back first, in any order; the proxies after them.
    std::vector<Worker*> back;
    bool any = false;
    for (Worker& worker : workers_) {
      worker.connection = 0;
      worker.said_ready = false;
      if (worker.alive && !worker.stopped && worker.fake.held.has_value()) back.push_back(&worker);
    }
    std::shuffle(back.begin(), back.end(), random_);
    for (Worker* worker : back) {
      Connect(*worker);
      any = any || harness_.closed.count(worker->connection) == 0;
    }
    std::vector<Proxy*> returning;
    for (Proxy& proxy : proxies_) {
      proxy.connection = 0;
      // Without any worker from before, the manager cannot know that there were leases.
      if (!any || proxy.stopped) proxy.tainted = true;
      if (!proxy.stopped) returning.push_back(&proxy);
    }
    std::shuffle(returning.begin(), returning.end(), random_);
    for (Proxy* proxy : returning) Connect(*proxy);
  }

  // Time goes by; who can answer does.
  void Pass(absl::Duration duration) {
    const absl::Time end = harness_.now + duration;
    while (harness_.now < end) {
      harness_.Advance(std::min(absl::Seconds(1), end - harness_.now), [this] { AnswerProbes(); });
      for (Proxy& proxy : proxies_) Beat(proxy);
      for (const Worker& worker : workers_) {
        if (worker.alive && !worker.stopped) last_alive_[worker.fake.incarnation] = harness_.now;
      }
      Settle();
    }
  }

  void AnswerProbes() {
    const std::map<int32_t, StartProbe> probes = harness_.probes;
    for (const auto& [number, probe] : probes) {
      bool answers = false;
      for (const Worker& worker : workers_) {
        const std::string address = absl::StrCat(worker.fake.address, ":", worker.fake.port);
        answers = answers || (address == probe.address && worker.alive && !worker.stopped);
      }
      harness_.Answer(number, answers ? absl::OkStatus() : absl::DeadlineExceededError("no answer"));
    }
  }

  // Peers take what the manager has sent them.
  void Settle() {
    bool again = true;
    while (again) {
      again = false;
      for (Worker& worker : workers_) {
        if (worker.connection == 0 || worker.stopped) continue;
        if (const auto closed = harness_.closed.find(worker.connection); closed != harness_.closed.end()) {
          worker.refused = absl::IsAlreadyExists(closed->second);
          worker.connection = 0;
          worker.said_ready = false;
          continue;
        }
        if (worker.said_ready) continue;
        const auto given = harness_.Given(worker.connection);
        ASSERT_TRUE(given.has_value());
        if (worker.fake.held.has_value()) {
          EXPECT_EQ(given->worker(), worker.fake.held->worker()) << "a worker got another place in its life";
        }
        worker.fake.held = *given;
        worker.said_ready = true;
        harness_.Ready(worker.connection, TestDevices(given->worker(), 2));
        if (worker.draining) harness_.Drain(worker.connection);
        again = true;
      }
      for (Proxy& proxy : proxies_) {
        if (proxy.connection == 0) continue;
        if (harness_.closed.count(proxy.connection) > 0) {
          proxy.connection = 0;
          continue;
        }
        if (proxy.stopped) continue;
        auto messages = std::exchange(harness_.to_proxies[proxy.connection], {});
        for (const auto& message : messages) Take(proxy, message);
        if (!messages.empty()) {
          harness_.Sent(proxy.connection);
          again = true;
        }
      }
    }
  }

  void Take(Proxy& proxy, const cluster::proto::ManagerToProxy& message) {
    if (message.has_snapshot()) {
      EXPECT_TRUE(proxy.view.Apply(message.snapshot()).ok());
    } else if (message.has_changes()) {
      EXPECT_TRUE(proxy.view.Apply(message.changes()).ok());
    } else {
      const bool granted = message.lease().state() == cluster::proto::Lease::GRANTED;
      const std::vector<int32_t> slices(message.lease().slices().begin(), message.lease().slices().end());
      if (proxy.granted) {
        EXPECT_TRUE(proxy.tainted || (granted && slices == proxy.slices))
            << "a proxy that was always there lost its lease: " << message.ShortDebugString();
      }
      // A lease that it thinks it has may have been another's meanwhile; a new one is its own.
      const bool the_same = proxy.granted && granted && proxy.number == message.lease().number();
      proxy.tainted = proxy.tainted && the_same;
      proxy.granted = granted;
      proxy.slices = slices;
      proxy.number = message.lease().number();
    }
  }

  void Check() {
    std::set<uint64_t> incarnations;
    int ready = 0;
    for (int slice = 0; slice < kSlices; ++slice) {
      ready += harness_.manager->places().SliceIsReady(slice) ? 1 : 0;
    }
    EXPECT_EQ(harness_.manager->ready_slices(), ready);
    for (const Place& place : harness_.manager->places().places()) {
      if (place.incarnation != 0) {
        EXPECT_TRUE(incarnations.insert(place.incarnation).second) << "one worker in two places";
      }
      if (place.info != nullptr) {
        EXPECT_EQ(place.info->devices(0).id(), cluster::FirstDeviceId(place.worker));
      }
      const bool usable = place.state == WorkerState::kUp || place.state == WorkerState::kDraining;
      if (usable) {
        EXPECT_TRUE(place.connection != 0 || place.missing_until.has_value());
        ASSERT_NE(place.info, nullptr);
        // Four probes, one each three seconds.
        EXPECT_LE(harness_.now - last_alive_[place.incarnation], absl::Seconds(16)) << "a dead worker is up";
      }
      if (place.health.has_value()) {
        EXPECT_TRUE(place.connection != 0 || place.missing_until.has_value()) << "nobody is watched";
      }
      if (harness_.probes.count(place.worker) > 0) {
        EXPECT_TRUE(place.health.has_value()) << "a probe of nobody";
      }
    }
    // The manager's book and what proxies believe: who was never out of sight is right.
    std::map<int32_t, uint64_t> believed;
    for (const Proxy& proxy : proxies_) {
      if (!proxy.granted || proxy.tainted || proxy.stopped || proxy.connection == 0) continue;
      for (const int32_t slice : proxy.slices) {
        EXPECT_TRUE(believed.insert({slice, proxy.incarnation}).second)
            << "slice " << slice << " has two masters";
        EXPECT_EQ(harness_.manager->leases().holder(slice), proxy.incarnation);
      }
    }
    // Nothing that is due is left lying.
    EXPECT_GE(harness_.manager->next_deadline(), harness_.now - absl::Seconds(1));
  }

  std::mt19937_64 random_;
  ManagerHarness harness_;
  std::vector<Worker> workers_;
  std::vector<Proxy> proxies_;
  std::map<uint64_t, absl::Time> last_alive_;  // by incarnation
  uint64_t incarnations_ = 100;
  int64_t restarts_ = 0;
};

// HELMWAY_SEED=N runs one round again.
TEST(ManagerTormentTest, HoldsAndHeals) {
  const char* given = std::getenv("HELMWAY_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : base::UnguessableId();
  const int rounds = given != nullptr ? 1 : kRounds;
  std::cout << "first seed " << first << std::endl;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const uint64_t seed = first + static_cast<uint64_t>(round);
    SCOPED_TRACE(absl::StrCat("HELMWAY_SEED=", seed));
    World world(seed);
    world.Torment();
    if (!HasFailure()) world.HealAndCheck();
  }
}

}  // namespace
}  // namespace helmway::manager
