#include "helmway/manager/places.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "helmway/base/local_addresses.h"
#include "helmway/base/status.h"
#include "helmway/cluster/versions.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::manager {
namespace {

using cluster::WorkerState;

constexpr size_t kMaxRefusedKept = 1024;
constexpr int32_t kMaxPort = 65535;
constexpr char kConnectionLost[] = "its connection to the resource manager is lost";

// Who may have a place that is free, or that somebody else is in.
enum Claim {
  kSameAddress,  // the last worker here listened where the new one listens: it is gone
  kNeverUsed,
  kLeft,
  kUnresponsive,  // the worker here does not answer
  kNotStarted,    // the worker here has no devices yet, and the new one has been here before
  kTaken,
};

std::string PlaceText(const Place& place) {
  return absl::StrCat("slice ", place.slice, ", host ", place.task);
}

// One line, of bounded length, from a text of a peer.
std::string Tidy(absl::string_view text) {
  constexpr size_t kMaxBytes = 256;
  std::string tidy(text.substr(0, kMaxBytes));
  for (char& c : tidy) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return tidy;
}

bool PlatformFits(absl::string_view expected, absl::string_view actual) {
  if (expected == actual) return true;
  return expected == "gpu" && (actual == "cuda" || actual == "rocm");
}

}  // namespace

Places::Places(const ManagerSettings* settings, uint64_t manager_incarnation)
    : settings_(settings), manager_incarnation_(manager_incarnation) {
  for (size_t slice = 0; slice < settings->slices.size(); ++slice) {
    first_worker_.push_back(static_cast<int32_t>(places_.size()));
    for (int32_t task = 0; task < settings->slices[slice].hosts; ++task) {
      Place place;
      place.worker = static_cast<int32_t>(places_.size());
      place.slice = static_cast<int32_t>(slice);
      place.task = task;
      places_.push_back(std::move(place));
    }
  }
  scheduled_.assign(places_.size(), absl::InfiniteFuture());
}

bool Places::SliceIsReady(int32_t slice) const {
  const auto first = places_.begin() + first_worker_[static_cast<size_t>(slice)];
  return std::all_of(first, first + settings_->slices[static_cast<size_t>(slice)].hosts,
                     [](const Place& place) { return place.state == WorkerState::kUp; });
}

const Place* Places::PlaceOf(uint64_t incarnation) const {
  const auto it = incarnations_.find(incarnation);
  return it == incarnations_.end() ? nullptr : &places_[static_cast<size_t>(it->second)];
}

const Place* Places::PlaceOfConnection(ConnectionId connection) const {
  const auto it = connections_.find(connection);
  return it == connections_.end() ? nullptr : &places_[static_cast<size_t>(it->second)];
}

// ---- Registration -------------------------------------------------------------------------------------

void Places::OnHello(absl::Time now, ConnectionId connection, absl::string_view peer, const Hello& hello,
                     Actions& actions) {
  if (connections_.contains(connection)) {
    const absl::Status status = absl::InvalidArgumentError("a second hello on one stream");
    Lose(places_[static_cast<size_t>(connections_[connection])], std::string(status.message()), actions);
    Refuse(connection, hello.incarnation(), status, actions);
    return;
  }
  const std::string peer_host = base::HostOfPeer(peer);
  const std::string probe_address = hello.advertise_address().empty()
                                        ? absl::StrCat(peer_host, ":", hello.port())
                                        : Tidy(hello.advertise_address());
  std::string address = probe_address;
  if (hello.advertise_address().empty() && base::IsLoopbackHost(peer_host) &&
      !settings_->advertised_host.empty()) {
    // Other hosts can't use the loopback address that we see.
    address = absl::StrCat(settings_->advertised_host, ":", hello.port());
  }
  const std::string host = Tidy(hello.host());
  const std::string name = absl::StrCat(host.empty() ? "a host without a name" : host, " (", address, ")");
  const auto refuse = [&](const absl::Status& status) {
    Refuse(connection, hello.incarnation(), status, actions);
  };

  if (absl::Status skew =
          cluster::CheckPeerVersion("the resource manager", absl::StrCat("the worker on ", name),
                                    hello.version().protocol(), Tidy(hello.version().software()));
      !skew.ok()) {
    return refuse(skew);
  }
  if (hello.incarnation() == 0) return refuse(absl::InvalidArgumentError("a worker without an incarnation"));
  if (hello.advertise_address().empty()) {
    if (hello.port() < 1 || hello.port() > kMaxPort) {
      return refuse(absl::InvalidArgumentError(absl::StrCat("a worker at the port ", hello.port())));
    }
    if (peer_host.empty()) {
      return refuse(absl::InvalidArgumentError(absl::StrCat("the address of the worker can't be told from '",
                                                            Tidy(peer), "'; set HELMWAY_ADVERTISE_ADDRESS")));
    }
  }

  int32_t worker;
  if (const auto known = incarnations_.find(hello.incarnation()); known != incarnations_.end()) {
    worker = known->second;
  } else {
    auto chosen = Choose(now, hello, name, probe_address);
    if (!chosen.ok()) return refuse(chosen.status());
    worker = *chosen;
    saw_older_life_ = saw_older_life_ || hello.has_held();
  }

  Place& place = places_[static_cast<size_t>(worker)];
  const std::string successor = absl::StrCat("the worker on ", name);
  const bool same = place.incarnation == hello.incarnation();
  if (place.connection != 0) {
    connections_.erase(place.connection);
    actions.push_back(
        CloseConnection{place.connection,
                        absl::AbortedError(same ? "the worker registered again"
                                                : absl::StrCat(successor, " has taken ", PlaceText(place)))});
  }
  if (!same) {
    if (place.incarnation != 0 && (place.state != WorkerState::kDown || place.health.has_value())) {
      Lose(place, absl::StrCat("replaced by ", successor), actions);
    }
    incarnations_.erase(place.incarnation);
    incarnations_[hello.incarnation()] = worker;
    place.incarnation = hello.incarnation();
    place.draining = false;
  }
  place.connection = connection;
  place.missing_until.reset();
  place.ready = false;
  connections_[connection] = worker;
  place.name = name;
  place.host = host;
  place.pod = Tidy(hello.pod());
  place.address = address;
  place.probe_address = probe_address;
  place.software = Tidy(hello.version().software());
  changed_.insert(worker);
  Schedule(place);

  const SliceSettings& slice = SliceOf(place);
  cluster::proto::ManagerToWorker message;
  cluster::proto::Assigned* assigned = message.mutable_assigned();
  assigned->mutable_version()->set_protocol(cluster::kProtocolVersion);
  assigned->mutable_version()->set_software(std::string(cluster::SoftwareVersion()));
  assigned->set_manager_incarnation(manager_incarnation_);
  assigned->mutable_place()->set_slice(place.slice);
  assigned->mutable_place()->set_task(place.task);
  assigned->mutable_place()->set_worker(place.worker);
  assigned->mutable_place()->set_instance_type(slice.instance_type);
  assigned->set_hosts(slice.hosts);
  assigned->set_devices_per_host(slice.devices_per_host);
  assigned->set_slices(static_cast<int32_t>(settings_->slices.size()));
  assigned->set_workers(static_cast<int32_t>(places_.size()));
  assigned->set_address(place.address);
  actions.push_back(SendToWorker{connection, std::move(message)});
  Update(place, actions);
}

absl::Status Places::Mismatch(absl::string_view what) const {
  return absl::FailedPreconditionError(
      absl::StrCat("The newly added instance does not match with the expected instances: ", what));
}

absl::StatusOr<std::vector<int32_t>> Places::Candidates(const Hello& hello, const std::string& name) const {
  const auto wrong = [&](absl::string_view what) {
    return Mismatch(
        absl::StrCat("the worker on ", name, " says that it is ", what, ", but the resource manager expects ",
                     DescribeSlices(settings_->slices), ", ", places_.size(),
                     " hosts together; change --instance_count or --instance_type of the resource "
                     "manager, or what numbers the workers"));
  };
  const auto slices = static_cast<int32_t>(settings_->slices.size());
  if (hello.has_held()) {
    const cluster::proto::Place& held = hello.held();
    if (held.worker() < 0 || static_cast<size_t>(held.worker()) >= places_.size() ||
        places_[static_cast<size_t>(held.worker())].slice != held.slice() ||
        places_[static_cast<size_t>(held.worker())].task != held.task() ||
        SliceOf(places_[static_cast<size_t>(held.worker())]).instance_type != held.instance_type()) {
      return wrong(absl::StrCat("host ", held.task(), " of slice ", held.slice(), ", a ",
                                Tidy(held.instance_type()), ", since it was started (worker ", held.worker(),
                                "; restart it if the cluster has changed)"));
    }
    return std::vector<int32_t>{held.worker()};
  }
  if (hello.has_linear() && !hello.has_slice() && !hello.has_task()) {
    if (hello.linear() < 0 || static_cast<size_t>(hello.linear()) >= places_.size()) {
      return wrong(absl::StrCat("host ", hello.linear(), " of all"));
    }
    return std::vector<int32_t>{hello.linear()};
  }
  if (hello.has_slice() && (hello.slice() < 0 || hello.slice() >= slices)) {
    return wrong(absl::StrCat("in slice ", hello.slice()));
  }
  std::vector<int32_t> candidates;
  for (const Place& place : places_) {
    if (hello.has_slice() && place.slice != hello.slice()) continue;
    if (hello.has_task() && place.task != hello.task()) continue;
    candidates.push_back(place.worker);
  }
  if (candidates.empty()) {
    return wrong(hello.has_slice() ? absl::StrCat("host ", hello.task(), " of slice ", hello.slice())
                                   : absl::StrCat("host ", hello.task(), " of its slice"));
  }
  return candidates;
}

absl::StatusOr<int32_t> Places::Choose(absl::Time now, const Hello& hello, const std::string& name,
                                       const std::string& probe_address) {
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<int32_t> candidates, Candidates(hello, name));
  const auto claim = [&](const Place& place) {
    if (place.incarnation != 0 && place.probe_address == probe_address) return kSameAddress;
    if (place.incarnation == 0) return kNeverUsed;
    if (place.state == WorkerState::kDown) return place.connection == 0 ? kLeft : kUnresponsive;
    if (hello.has_held() && !place.health.has_value()) return kNotStarted;
    return kTaken;
  };
  int32_t best = candidates.front();
  Claim best_claim = kTaken;
  for (const int32_t worker : candidates) {
    const Claim each = claim(places_[static_cast<size_t>(worker)]);
    if (each < best_claim) {
      best = worker;
      best_claim = each;
    }
  }
  if (best_claim != kTaken) return best;
  // Somebody here may be dead without our knowing it yet: the one who asks will ask again.
  for (const int32_t worker : candidates) {
    Place& place = places_[static_cast<size_t>(worker)];
    if (candidates.size() > 1 && place.host != hello.host()) continue;
    if (place.health.has_value()) place.health->ProbeSoon(now);
    Schedule(place);
  }
  const bool one_place_only =
      hello.has_held() || (hello.has_slice() ? hello.has_task() : hello.has_linear() && !hello.has_task());
  if (one_place_only) {
    const Place& place = places_[static_cast<size_t>(best)];
    return absl::AlreadyExistsError(
        absl::StrCat("two workers claim ", PlaceText(place), ": the one on ", place.name, ", incarnation ",
                     absl::Hex(place.incarnation), ", has it and is alive; the one on ", name,
                     ", incarnation ", absl::Hex(hello.incarnation()),
                     ", is refused. Give each worker numbers of its own, or end one of them"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the worker on ", name, " is one too many: all ", candidates.size(), " places ",
                   hello.has_slice() ? absl::StrCat("of slice ", hello.slice()) : "that it may take", " in ",
                   DescribeSlices(settings_->slices),
                   " are taken; change --instance_count or --instance_type "
                   "of the resource manager"));
}

Place* Places::Find(ConnectionId connection, absl::string_view what, Actions& actions) {
  const auto it = connections_.find(connection);
  if (it != connections_.end()) return &places_[static_cast<size_t>(it->second)];
  actions.push_back(
      CloseConnection{connection, absl::InvalidArgumentError(absl::StrCat(what, " before the hello"))});
  return nullptr;
}

absl::Status Places::CheckDevices(const Place& place, const cluster::proto::WorkerReady& ready) const {
  HELMWAY_RETURN_IF_ERROR(cluster::WorkerInfoFromProto(ready.info()).status());
  const SliceSettings& slice = SliceOf(place);
  const std::string platform = Tidy(ready.info().platform_name());
  const bool fits = PlatformFits(slice.platform, platform) || (ready.cpu_standin() && platform == "cpu");
  if (!fits || ready.info().devices_size() != slice.devices_per_host) {
    return Mismatch(
        absl::StrCat("the worker on ", place.name, " has ", ready.info().devices_size(), " ", platform,
                     " device(s), but slice ", place.slice, " is a ", slice.instance_type, " with ",
                     slice.devices_per_host, " ", slice.platform, " device(s) on each of ", slice.hosts,
                     " host(s); change --instance_type of the resource manager",
                     !fits && platform == "cpu"
                         ? ", or set HELMWAY_CPU_STANDIN=1 for the worker to let CPU devices stand in"
                         : ""));
  }
  const cluster::DeviceId first = cluster::FirstDeviceId(place.worker);
  for (const auto& device : ready.info().devices()) {
    if (device.id() < first || device.id() - first >= cluster::kDeviceIdsPerWorker) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", place.worker, " has a device with the id ",
                                                     device.id(), "; its ids start at ", first));
    }
  }
  return absl::OkStatus();
}

void Places::OnReady(absl::Time now, ConnectionId connection, const cluster::proto::WorkerReady& ready,
                     Actions& actions) {
  Place* place = Find(connection, "devices", actions);
  if (place == nullptr) return;
  absl::Status status = CheckDevices(*place, ready);
  if (status.ok() && place->ready) status = absl::InvalidArgumentError("devices came twice");
  if (!status.ok()) {
    place->state = WorkerState::kDown;  // it never came up
    Lose(*place, std::string(status.message()), actions);
    Refuse(connection, place->incarnation, status, actions);
    return;
  }
  place->ready = true;
  refused_.erase(place->incarnation);
  // One that was only away for a moment is watched still, and has the devices that it had.
  if (!place->health.has_value()) {
    place->info = std::make_shared<const cluster::proto::WorkerInfo>(ready.info());
    ++place->info_number;
    changed_.insert(place->worker);
    place->health.emplace(&settings_->health, probes_ + 1, now);
  }
  cluster::proto::ManagerToWorker message;
  message.mutable_registered();
  actions.push_back(SendToWorker{connection, std::move(message)});
  actions.push_back(LogLine{
      LogLine::kInfo,
      absl::StrCat("the worker on ", place->name, " is ", PlaceText(*place), " (worker ", place->worker,
                   ", incarnation ", absl::Hex(place->incarnation), ", helmway ", place->software, ")")});
  Update(*place, actions);
  Schedule(*place);
}

void Places::OnDraining(absl::Time /*now*/, ConnectionId connection,
                        const cluster::proto::WorkerDraining& draining, Actions& actions) {
  Place* place = Find(connection, "the wish to end", actions);
  if (place == nullptr) return;
  if (!place->draining) {
    actions.push_back(
        LogLine{LogLine::kInfo, absl::StrCat("the worker on ", place->name, " (", PlaceText(*place),
                                             ") was told to end, within ", draining.deadline_ms(), " ms")});
  }
  place->draining = true;
  Update(*place, actions);
}

void Places::OnClosed(absl::Time now, ConnectionId connection, Actions& actions) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  Place& place = places_[static_cast<size_t>(it->second)];
  if (place.state != WorkerState::kUp) {
    Lose(place, place.draining ? "it was told to end" : kConnectionLost, actions);
    return;
  }
  connections_.erase(it);
  place.connection = 0;
  place.missing_until = now + settings_->reconnect_time;
  place.health->ProbeSoon(now);
  Schedule(place);
}

void Places::Lose(Place& place, std::string reason, Actions& actions) {
  connections_.erase(place.connection);
  place.connection = 0;
  place.missing_until.reset();
  if (place.health.has_value()) {
    place.health.reset();
    actions.push_back(ForgetProbes{place.worker});
  }
  Schedule(place);
  place.reason = std::move(reason);
  changed_.insert(place.worker);
  Update(place, actions);
}

void Places::Refuse(ConnectionId connection, uint64_t incarnation, const absl::Status& status,
                    Actions& actions) {
  actions.push_back(CloseConnection{connection, status});
  // A refused worker comes again and again.
  if (refused_.size() >= kMaxRefusedKept) refused_.clear();
  std::string& last = refused_[incarnation];
  if (last == status.message()) return;
  last = std::string(status.message());
  actions.push_back(LogLine{LogLine::kError, absl::StrCat("a worker is refused: ", status.message())});
}

// ---- Health -------------------------------------------------------------------------------------------

void Places::OnProbeAnswer(absl::Time now, int32_t worker, uint64_t probe, const absl::Status& status,
                           Actions& actions) {
  if (worker < 0 || static_cast<size_t>(worker) >= places_.size()) return;
  Place& place = places_[static_cast<size_t>(worker)];
  if (!place.health.has_value()) return;
  const int failures = place.health->failures();
  place.health->OnAnswer(now, probe, status);
  if (place.connection == 0 && place.health->failures() > failures) {
    Lose(place,
         absl::StrCat(kConnectionLost, ", and it does not answer at ", place.probe_address, ": ",
                      status.message()),
         actions);
    return;
  }
  Update(place, actions);
  Schedule(place);
}

void Places::OnTime(absl::Time now, Actions& actions) {
  while (!due_.empty() && due_.begin()->first <= now) {
    Place& place = places_[static_cast<size_t>(due_.begin()->second)];
    if (place.missing_until.has_value() && *place.missing_until <= now) {
      Lose(place, absl::StrCat(kConnectionLost, ", and it did not come back"), actions);
      continue;
    }
    if (place.health->Start(now)) {
      probes_ = std::max(probes_, place.health->probe());
      actions.push_back(
          StartProbe{place.worker, place.health->probe(), place.probe_address, settings_->health.timeout});
    }
    Schedule(place);
  }
}

absl::Time Places::next_deadline() const {
  return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
}

void Places::Schedule(Place& place) {
  absl::Time& entry = scheduled_[static_cast<size_t>(place.worker)];
  if (entry != absl::InfiniteFuture()) due_.erase({entry, place.worker});
  entry = place.health.has_value() ? place.health->next() : absl::InfiniteFuture();
  if (place.missing_until.has_value()) entry = std::min(entry, *place.missing_until);
  if (entry != absl::InfiniteFuture()) due_.insert({entry, place.worker});
}

void Places::Update(Place& place, Actions& actions) {
  WorkerState state;
  if (place.connection == 0 && !place.missing_until.has_value()) {
    state = WorkerState::kDown;
  } else if (!place.health.has_value() || place.health->verdict() == HealthCheck::Verdict::kUnknown) {
    state = WorkerState::kStarting;
  } else if (place.health->verdict() == HealthCheck::Verdict::kUnhealthy) {
    state = WorkerState::kDown;
    if (place.state != state) {
      place.reason =
          absl::StrCat("it does not answer at ", place.probe_address, ": ", place.health->failures(),
                       " probes failed, the last with: ", place.health->last_failure().message());
    }
  } else {
    state = place.draining ? WorkerState::kDraining : WorkerState::kUp;
  }
  const WorkerState before = place.state;
  place.state = state;
  if (state == before) return;
  if (state != WorkerState::kDown) place.reason.clear();
  changed_.insert(place.worker);
  const std::string who = absl::StrCat("the worker on ", place.name, " (", PlaceText(place), ")");
  if (state == WorkerState::kDown) {
    actions.push_back(LogLine{LogLine::kWarning, absl::StrCat(who, " is lost: ", place.reason)});
  } else if (state == WorkerState::kUp && before == WorkerState::kDown) {
    actions.push_back(LogLine{LogLine::kInfo, absl::StrCat(who, " answers again")});
  }
}

}  // namespace helmway::manager
