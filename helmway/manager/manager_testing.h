// A manager with a clock of its own and peers that are only messages.
#ifndef HELMWAY_MANAGER_MANAGER_TESTING_H_
#define HELMWAY_MANAGER_MANAGER_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "helmway/cluster/versions.h"
#include "helmway/cluster/worker_info.h"
#include "helmway/manager/manager.h"

namespace helmway::manager {

inline ManagerSettings TestSettings(int slices, int hosts, int devices = 2) {
  ManagerSettings settings;
  for (int i = 0; i < slices; ++i) {
    settings.slices.push_back({.instance_type = absl::StrCat("cpu:", hosts, "x", devices),
                               .platform = "cpu",
                               .hosts = hosts,
                               .devices_per_host = devices});
  }
  return settings;
}

inline cluster::proto::WorkerInfo TestDevices(int32_t worker, int devices,
                                              const std::string& platform = "cpu") {
  cluster::proto::WorkerInfo info;
  info.set_platform_name(platform);
  for (int i = 0; i < devices; ++i) info.add_devices()->set_id(cluster::FirstDeviceId(worker) + i);
  return info;
}

struct FakeWorker {
  std::string host = "host";
  int port = 1;
  std::string address = "10.0.0.1";
  uint64_t incarnation = 1;
  std::optional<int> slice;
  std::optional<int> task;
  std::optional<int> linear;
  std::optional<cluster::proto::Place> held;
  int protocol = cluster::kProtocolVersion;
  std::string advertise;
  uint64_t generation = 0;  // of its slice, once it has made its client
};

// Runs a Manager and keeps what it wants to be done.
class ManagerHarness {
 public:
  explicit ManagerHarness(ManagerSettings settings, uint64_t incarnation = 77)
      : settings_(std::move(settings)) {
    Restart(incarnation);
  }

  // A new life of the manager. All streams are gone; what peers know stays with them.
  void Restart(uint64_t incarnation, uint64_t first_lease = 1) {
    manager = std::make_unique<Manager>(settings_, incarnation, first_lease, now);
    to_workers.clear();
    closed.clear();
    probes.clear();
    answers.clear();
  }

  void Apply(Actions actions) {
    for (Action& action : actions) {
      if (auto* send = std::get_if<SendToWorker>(&action)) {
        to_workers[send->connection].push_back(std::move(send->message));
      } else if (auto* told = std::get_if<SendToProxy>(&action)) {
        to_proxies[told->connection].push_back(std::move(told->message));
      } else if (auto* close = std::get_if<CloseConnection>(&action)) {
        closed[close->connection] = close->status;
      } else if (auto* probe = std::get_if<StartProbe>(&action)) {
        probes[probe->worker] = *probe;
      } else if (auto* forget = std::get_if<ForgetProbes>(&action)) {
        probes.erase(forget->worker);
      } else if (auto* answer = std::get_if<AnswerKeyValue>(&action)) {
        answers[answer->call] = *answer;
      } else {
        logs.push_back(std::get<LogLine>(action));
      }
    }
  }

  ConnectionId WorkerHello(const FakeWorker& worker) {
    const ConnectionId connection = ++connections_;
    cluster::proto::WorkerMessage message;
    cluster::proto::WorkerHello* hello = message.mutable_hello();
    hello->mutable_version()->set_protocol(worker.protocol);
    hello->mutable_version()->set_software("0.0.1");
    hello->set_incarnation(worker.incarnation);
    hello->set_host(worker.host);
    hello->set_port(worker.port);
    hello->set_advertise_address(worker.advertise);
    if (worker.slice) hello->set_slice(*worker.slice);
    if (worker.task) hello->set_task(*worker.task);
    if (worker.linear) hello->set_linear(*worker.linear);
    if (worker.held) *hello->mutable_held() = *worker.held;
    hello->set_generation(worker.generation);
    Apply(manager->OnWorkerMessage(now, connection, absl::StrCat("ipv4:", worker.address, ":999"), message));
    return connection;
  }
  void Ready(ConnectionId connection, cluster::proto::WorkerInfo info, bool standin = false,
             uint64_t generation = 0) {
    cluster::proto::WorkerMessage message;
    *message.mutable_ready()->mutable_info() = std::move(info);
    message.mutable_ready()->set_cpu_standin(standin);
    message.mutable_ready()->set_generation(generation);
    Apply(manager->OnWorkerMessage(now, connection, "", message));
  }
  void Drain(ConnectionId connection) {
    cluster::proto::WorkerMessage message;
    message.mutable_draining()->set_deadline_ms(1000);
    Apply(manager->OnWorkerMessage(now, connection, "", message));
  }
  void CloseWorker(ConnectionId connection) { Apply(manager->OnWorkerClosed(now, connection)); }
  // The process is dead: its stream ends, and nobody listens where it did.
  void KillWorker(ConnectionId connection) {
    CloseWorker(connection);
    Tick();
    if (const auto given = Given(connection))
      Answer(given->worker(), absl::UnavailableError("connection refused"));
  }

  // The place that the stream's worker was given, if it was.
  std::optional<cluster::proto::Place> Given(ConnectionId connection) const {
    const auto it = to_workers.find(connection);
    if (it == to_workers.end()) return std::nullopt;
    return it->second.front().assigned().place();
  }
  bool Registered(ConnectionId connection) const {
    const auto it = to_workers.find(connection);
    return it != to_workers.end() && it->second.back().has_registered();
  }

  // Hello, devices and the first probe. Returns the stream.
  ConnectionId Join(const FakeWorker& worker) {
    const ConnectionId connection = WorkerHello(worker);
    const auto given = Given(connection);
    if (!given.has_value()) return connection;
    Ready(connection, TestDevices(given->worker(), DevicesOf(given->slice())));
    Tick();
    Answer(given->worker(), absl::OkStatus());
    return connection;
  }

  int DevicesOf(int slice) const { return settings_.slices[static_cast<size_t>(slice)].devices_per_host; }

  // Answers the probe of that worker that is under way; false if there is none.
  bool Answer(int32_t worker, const absl::Status& status) {
    const auto it = probes.find(worker);
    if (it == probes.end()) return false;
    const StartProbe probe = it->second;
    probes.erase(it);
    Apply(manager->OnProbeAnswer(now, worker, probe.probe, status));
    return true;
  }

  ConnectionId ProxyHello(uint64_t incarnation, std::optional<cluster::proto::LeaseRequest> lease,
                          std::vector<int32_t> held = {}, uint64_t held_lease = 0,
                          int protocol = cluster::kProtocolVersion) {
    const ConnectionId connection = ++connections_;
    cluster::proto::ProxyMessage message;
    cluster::proto::ProxyHello* hello = message.mutable_hello();
    hello->mutable_version()->set_protocol(protocol);
    hello->set_incarnation(incarnation);
    hello->set_name(absl::StrCat("p", incarnation));
    if (lease) *hello->mutable_lease() = *lease;
    hello->mutable_held_slices()->Assign(held.begin(), held.end());
    hello->set_held_lease(held_lease);
    Apply(manager->OnProxyMessage(now, connection, "ipv4:10.0.0.9:1", message));
    return connection;
  }
  void Heartbeat(ConnectionId connection) {
    cluster::proto::ProxyMessage message;
    message.mutable_heartbeat();
    Apply(manager->OnProxyMessage(now, connection, "", message));
  }
  void Goodbye(ConnectionId connection) {
    cluster::proto::ProxyMessage message;
    message.mutable_goodbye();
    Apply(manager->OnProxyMessage(now, connection, "", message));
  }
  void CloseProxy(ConnectionId connection) { Apply(manager->OnProxyClosed(now, connection)); }
  void Sent(ConnectionId connection) { Apply(manager->OnProxySent(now, connection)); }

  void Tick() { Apply(manager->OnTime(now)); }
  // Goes on by `duration`, stopping at every deadline. `at_deadline` runs after each.
  template <typename F>
  void Advance(absl::Duration duration, F at_deadline) {
    const absl::Time end = now + duration;
    while (manager->next_deadline() <= end) {
      now = std::max(now, manager->next_deadline());
      Tick();
      at_deadline();
    }
    now = end;
  }
  void AnswerAll(const absl::Status& status = absl::OkStatus()) {
    while (!probes.empty()) Answer(probes.begin()->first, status);
  }
  // All workers answer meanwhile.
  void Advance(absl::Duration duration) {
    Advance(duration, [this] { AnswerAll(); });
  }

  // These proxies are heard meanwhile too.
  void AdvanceHearing(absl::Duration duration, const std::vector<ConnectionId>& proxies) {
    const absl::Time end = now + duration;
    while (now < end) {
      Advance(std::min(absl::Seconds(2), end - now));
      for (const ConnectionId proxy : proxies) Heartbeat(proxy);
    }
  }

  std::vector<std::string> TakeLogs(LogLine::Level level) {
    std::vector<std::string> texts;
    for (const LogLine& line : logs) {
      if (line.level == level) texts.push_back(line.text);
    }
    logs.clear();
    return texts;
  }
  const Place& place(int32_t worker) const { return manager->places().places()[static_cast<size_t>(worker)]; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::unique_ptr<Manager> manager;
  std::map<ConnectionId, std::vector<cluster::proto::ManagerToWorker>> to_workers;
  std::map<ConnectionId, std::vector<cluster::proto::ManagerToProxy>> to_proxies;
  std::map<ConnectionId, absl::Status> closed;
  std::map<int32_t, StartProbe> probes;  // under way
  std::map<KeyValueCallId, AnswerKeyValue> answers;
  std::vector<LogLine> logs;

 private:
  const ManagerSettings settings_;
  ConnectionId connections_ = 0;
};

inline cluster::proto::LeaseRequest AllSlices() {
  cluster::proto::LeaseRequest request;
  request.set_all(true);
  return request;
}

inline cluster::proto::LeaseRequest SlicesOf(const std::vector<std::string>& types) {
  cluster::proto::LeaseRequest request;
  for (const std::string& type : types) request.add_instance_types(type);
  return request;
}

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_MANAGER_TESTING_H_
