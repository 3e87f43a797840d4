#include "helmway/manager/manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/base/local_addresses.h"
#include "helmway/cluster/versions.h"

namespace helmway::manager {
namespace {

using cluster::WorkerState;

cluster::proto::WorkerRecord::State ToProto(WorkerState state) {
  switch (state) {
    case WorkerState::kExpected:
      return cluster::proto::WorkerRecord::EXPECTED;
    case WorkerState::kStarting:
      return cluster::proto::WorkerRecord::STARTING;
    case WorkerState::kUp:
      return cluster::proto::WorkerRecord::UP;
    case WorkerState::kDraining:
      return cluster::proto::WorkerRecord::DRAINING;
    case WorkerState::kDown:
      break;
  }
  return cluster::proto::WorkerRecord::DOWN;
}

std::vector<std::string> SliceTypes(const ManagerSettings& settings) {
  std::vector<std::string> types;
  for (const SliceSettings& slice : settings.slices) types.push_back(slice.instance_type);
  return types;
}

}  // namespace

Manager::Manager(ManagerSettings settings, uint64_t incarnation, uint64_t first_lease, absl::Time now)
    : settings_(std::move(settings)),
      incarnation_(incarnation),
      settles_at_(now + settings_.recovery_time),
      places_(&settings_, incarnation),
      leases_(SliceTypes(settings_), first_lease),
      key_values_(&settings_, incarnation),
      warn_at_(now + settings_.no_slice_warning) {}

// ---- Workers ------------------------------------------------------------------------------------------

Actions Manager::OnWorkerMessage(absl::Time now, ConnectionId connection, absl::string_view peer,
                                 const cluster::proto::WorkerMessage& message) {
  Actions actions;
  switch (message.message_case()) {
    case cluster::proto::WorkerMessage::kHello:
      places_.OnHello(now, connection, peer, message.hello(), actions);
      TakeGeneration(connection, message.hello().generation(), actions);
      break;
    case cluster::proto::WorkerMessage::kReady:
      places_.OnReady(now, connection, message.ready(), actions);
      TakeGeneration(connection, message.ready().generation(), actions);
      break;
    case cluster::proto::WorkerMessage::kDraining:
      places_.OnDraining(now, connection, message.draining(), actions);
      break;
    case cluster::proto::WorkerMessage::MESSAGE_NOT_SET:
      // A message of a later version that may be ignored.
      break;
  }
  return Finish(now, std::move(actions));
}

Actions Manager::OnWorkerClosed(absl::Time now, ConnectionId connection) {
  Actions actions;
  places_.OnClosed(now, connection, actions);
  return Finish(now, std::move(actions));
}

Actions Manager::OnProbeAnswer(absl::Time now, int32_t worker, uint64_t probe, const absl::Status& status) {
  Actions actions;
  places_.OnProbeAnswer(now, worker, probe, status, actions);
  return Finish(now, std::move(actions));
}

void Manager::TakeGeneration(ConnectionId connection, uint64_t generation, Actions& actions) {
  const Place* place = places_.PlaceOfConnection(connection);
  if (place == nullptr || generation == 0) return;
  TellToRestart(key_values_.OnFormed(place->slice, place->task, place->incarnation, generation), actions);
}

void Manager::TellToRestart(const KeyValues::Outdated& outdated, Actions& actions) {
  for (const uint64_t incarnation : outdated.workers) {
    const Place* place = places_.PlaceOf(incarnation);
    if (place == nullptr) continue;
    actions.push_back(LogLine{LogLine::kWarning,
                              absl::StrCat("the worker on ", place->name, " (slice ", place->slice, ", host ",
                                           place->task, ") has to start again: ", outdated.reason)});
    // One without a stream is told when it comes back.
    if (place->connection == 0) continue;
    cluster::proto::ManagerToWorker message;
    message.mutable_slice_restarted()->set_reason(outdated.reason);
    actions.push_back(SendToWorker{place->connection, std::move(message)});
  }
}

// ---- What plugins tell each other ------------------------------------------------------------------------

Actions Manager::OnKeyValueCall(absl::Time now, KeyValueCallId call,
                                const cluster::proto::KeyValueRequest& request) {
  Actions actions;
  const Place* place = places_.PlaceOf(request.incarnation());
  if (place == nullptr) {
    actions.push_back(AnswerKeyValue{call, key_values_.WhyUnknown(request), {}});
    return actions;
  }
  TellToRestart(key_values_.OnCall(now, call, place->slice, place->task, request, actions), actions);
  return actions;
}

void Manager::OnKeyValueGone(KeyValueCallId call) { key_values_.OnGone(call); }

// ---- Proxies ------------------------------------------------------------------------------------------

Actions Manager::OnProxyMessage(absl::Time now, ConnectionId connection, absl::string_view peer,
                                const cluster::proto::ProxyMessage& message) {
  Actions actions;
  const auto it = watchers_.find(connection);
  if (it != watchers_.end()) it->second.last_heard = now;
  if (message.has_hello()) {
    if (it == watchers_.end()) {
      OnProxyHello(now, connection, peer, message.hello(), actions);
    } else {
      Dismiss(connection, absl::InvalidArgumentError("a second hello on one stream"), actions);
    }
  } else if (it == watchers_.end()) {
    actions.push_back(
        CloseConnection{connection, absl::InvalidArgumentError("something was said before the hello")});
  } else if (message.has_goodbye()) {
    Dismiss(connection, absl::OkStatus(), actions);
  }
  return Finish(now, std::move(actions));
}

void Manager::OnProxyHello(absl::Time now, ConnectionId connection, absl::string_view peer,
                           const cluster::proto::ProxyHello& hello, Actions& actions) {
  constexpr size_t kMaxNameBytes = 128;
  std::string name =
      absl::StrCat("the proxy ", hello.name().substr(0, kMaxNameBytes), " (", base::HostOfPeer(peer), ")");
  std::replace_if(
      name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      '?');
  absl::Status status = cluster::CheckPeerVersion("the resource manager", name, hello.version().protocol(),
                                                  hello.version().software().substr(0, kMaxNameBytes));
  if (status.ok() && hello.incarnation() == 0) {
    status = absl::InvalidArgumentError("a proxy without an incarnation");
  }
  if (status.ok() && hello.has_lease()) {
    Leases::Request request;
    request.name = name;
    request.all = hello.lease().all();
    request.may_be_missing = hello.lease().may_be_missing();
    request.instance_types.assign(hello.lease().instance_types().begin(),
                                  hello.lease().instance_types().end());
    request.held.assign(hello.held_slices().begin(), hello.held_slices().end());
    request.held_number = hello.held_lease();
    status = leases_.Ask(hello.incarnation(), std::move(request));
  }
  if (!status.ok()) {
    actions.push_back(CloseConnection{connection, status});
    actions.push_back(LogLine{LogLine::kError, absl::StrCat(name, " is refused: ", status.message())});
    return;
  }
  if (const auto before = proxies_.find(hello.incarnation()); before != proxies_.end()) {
    const ConnectionId replaced = before->second;
    Forget(replaced);
    actions.push_back(CloseConnection{replaced, absl::AbortedError("the proxy came again")});
  }
  gone_.erase(hello.incarnation());
  if (!hello.has_lease()) leases_.End(hello.incarnation());
  proxies_[hello.incarnation()] = connection;
  Watcher& watcher = watchers_[connection];
  watcher.incarnation = hello.incarnation();
  watcher.name = name;
  watcher.leases = hello.has_lease();
  watcher.last_heard = now;
  watcher.lease = watcher.leases;
  watcher.sent_info.assign(places_.places().size(), 0);
  watcher.sending = true;

  cluster::proto::ManagerToProxy message;
  cluster::proto::Snapshot* snapshot = message.mutable_snapshot();
  snapshot->mutable_version()->set_protocol(cluster::kProtocolVersion);
  snapshot->mutable_version()->set_software(std::string(cluster::SoftwareVersion()));
  snapshot->set_manager_incarnation(incarnation_);
  for (const SliceSettings& slice : settings_.slices) {
    cluster::proto::SliceShape* shape = snapshot->add_slices();
    shape->set_instance_type(slice.instance_type);
    shape->set_hosts(slice.hosts);
    shape->set_devices_per_host(slice.devices_per_host);
  }
  for (const Place& place : places_.places()) {
    if (place.state != WorkerState::kExpected) *snapshot->add_workers() = Record(place, watcher);
  }
  snapshot->set_settled(settled_);
  actions.push_back(SendToProxy{connection, std::move(message)});
  actions.push_back(
      LogLine{LogLine::kInfo, absl::StrCat(name, watcher.leases ? " asks for slices" : " looks on")});
}

Actions Manager::OnProxySent(absl::Time now, ConnectionId connection) {
  const auto it = watchers_.find(connection);
  if (it != watchers_.end()) it->second.sending = false;
  return Finish(now, {});
}

Actions Manager::OnProxyClosed(absl::Time now, ConnectionId connection) {
  Actions actions;
  const auto it = watchers_.find(connection);
  if (it == watchers_.end()) return actions;
  const uint64_t proxy = it->second.incarnation;
  const std::string name = it->second.name;
  const Leases::State* lease = leases_.state(proxy);
  if (lease != nullptr && lease->granted) {
    gone_[proxy] = {now + settings_.lease_grace, name};
  } else {
    leases_.End(proxy);
  }
  Forget(connection);
  actions.push_back(LogLine{LogLine::kInfo, absl::StrCat(name, " is gone")});
  return Finish(now, std::move(actions));
}

void Manager::Forget(ConnectionId connection) {
  const auto it = watchers_.find(connection);
  proxies_.erase(it->second.incarnation);
  watchers_.erase(it);
}

void Manager::Dismiss(ConnectionId connection, const absl::Status& status, Actions& actions) {
  const Watcher& watcher = watchers_.at(connection);
  EndLease(watcher.incarnation, watcher.name, status.ok() ? "it ends" : status.message(), actions);
  Forget(connection);
  actions.push_back(CloseConnection{connection, status});
}

void Manager::EndLease(uint64_t proxy, absl::string_view name, absl::string_view why, Actions& actions) {
  const Leases::State* lease = leases_.state(proxy);
  if (lease != nullptr && lease->granted) {
    actions.push_back(LogLine{LogLine::kInfo, absl::StrCat("slice(s) ", absl::StrJoin(lease->slices, ", "),
                                                           " taken back from ", name, ": ", why)});
  }
  leases_.End(proxy);
}

// ---- Time and consequences ----------------------------------------------------------------------------

Actions Manager::OnTime(absl::Time now) {
  Actions actions;
  places_.OnTime(now, actions);
  key_values_.OnTime(now, actions);
  std::vector<ConnectionId> silent;
  for (const auto& [connection, watcher] : watchers_) {
    if (now - watcher.last_heard >= settings_.proxy_silence) silent.push_back(connection);
  }
  for (const ConnectionId connection : silent) {
    Dismiss(connection,
            absl::AbortedError(absl::StrCat("nothing was heard of the proxy for ",
                                            absl::FormatDuration(settings_.proxy_silence))),
            actions);
  }
  for (auto it = gone_.begin(); it != gone_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    EndLease(it->first, it->second.name, "it is gone", actions);
    it = gone_.erase(it);
  }
  if (!settled_ && now >= settles_at_) {
    settled_ = true;
    for (auto& [connection, watcher] : watchers_) watcher.settled = true;
  }
  if (now >= warn_at_) {
    warn_at_ = absl::InfiniteFuture();
    actions.push_back(LogLine{
        LogLine::kWarning,
        absl::StrCat(
            "no slice is ready since ", absl::FormatDuration(settings_.no_slice_warning), ": expecting ",
            DescribeSlices(settings_.slices), ", ", places_.places().size(),
            " worker(s). In Kubernetes the workers' jobs may not exist: see kubectl describe jobset")});
  }
  return Finish(now, std::move(actions));
}

absl::Time Manager::next_deadline() const {
  absl::Time next = std::min({places_.next_deadline(), key_values_.next_deadline(), warn_at_});
  if (!settled_) next = std::min(next, settles_at_);
  for (const auto& [connection, watcher] : watchers_) {
    next = std::min(next, watcher.last_heard + settings_.proxy_silence);
  }
  for (const auto& [proxy, gone] : gone_) next = std::min(next, gone.until);
  return next;
}

Actions Manager::Finish(absl::Time now, Actions actions) {
  const std::set<int32_t> changed = places_.TakeChanged();
  std::set<int32_t> slices;
  for (const int32_t worker : changed) slices.insert(places_.places()[static_cast<size_t>(worker)].slice);
  for (const int32_t slice : slices) leases_.SetReady(slice, places_.SliceIsReady(slice));
  if (!slices.empty()) {
    int ready = 0;
    for (size_t slice = 0; slice < settings_.slices.size(); ++slice) {
      ready += places_.SliceIsReady(static_cast<int32_t>(slice)) ? 1 : 0;
    }
    if (ready != ready_slices_) {
      actions.push_back(LogLine{LogLine::kForTools, absl::StrCat("*** ", ready, "/", settings_.slices.size(),
                                                                 " Pathways Slices Now Ready ***")});
      if (ready > 0) {
        warn_at_ = absl::InfiniteFuture();
      } else {
        warn_at_ = now + settings_.no_slice_warning;
      }
      ready_slices_ = ready;
    }
  }

  leases_.SetOnHold(!settled_ && places_.saw_older_life());
  for (const uint64_t proxy : leases_.Assign()) {
    const auto stream = proxies_.find(proxy);
    if (stream == proxies_.end()) continue;
    Watcher& watcher = watchers_.at(stream->second);
    watcher.lease = true;
    const Leases::State* lease = leases_.state(proxy);
    actions.push_back(LogLine{LogLine::kInfo,
                              lease->granted ? absl::StrCat("slice(s) ", absl::StrJoin(lease->slices, ", "),
                                                            " leased to ", watcher.name)
                                             : absl::StrCat(watcher.name, " waits for ", lease->waits_for)});
  }
  for (auto& [connection, watcher] : watchers_) {
    watcher.workers.insert(changed.begin(), changed.end());
    Tell(connection, watcher, actions);
  }
  return actions;
}

void Manager::Tell(ConnectionId connection, Watcher& watcher, Actions& actions) {
  if (watcher.sending) return;
  if (!watcher.workers.empty() || watcher.settled) {
    cluster::proto::ManagerToProxy message;
    cluster::proto::Changes* changes = message.mutable_changes();
    for (const int32_t worker : watcher.workers) {
      *changes->add_workers() = Record(places_.places()[static_cast<size_t>(worker)], watcher);
    }
    changes->set_settled(settled_);
    actions.push_back(SendToProxy{connection, std::move(message)});
    watcher.workers.clear();
    watcher.settled = false;
    watcher.sending = true;
  }
  if (watcher.lease) {
    const Leases::State* state = leases_.state(watcher.incarnation);
    cluster::proto::ManagerToProxy message;
    cluster::proto::Lease* lease = message.mutable_lease();
    lease->set_state(state->granted ? cluster::proto::Lease::GRANTED : cluster::proto::Lease::WAITING);
    lease->mutable_slices()->Assign(state->slices.begin(), state->slices.end());
    lease->set_waits_for(state->waits_for);
    lease->set_number(state->number);
    actions.push_back(SendToProxy{connection, std::move(message)});
    watcher.lease = false;
    watcher.sending = true;
  }
}

cluster::proto::WorkerRecord Manager::Record(const Place& place, Watcher& watcher) const {
  cluster::proto::WorkerRecord record;
  record.set_worker(place.worker);
  record.set_slice(place.slice);
  record.set_task(place.task);
  record.set_state(ToProto(place.state));
  record.set_reason(place.reason);
  record.set_incarnation(place.incarnation);
  record.set_host(place.host);
  record.set_pod(place.pod);
  record.set_address(place.address);
  record.set_software(place.software);
  uint64_t& sent = watcher.sent_info[static_cast<size_t>(place.worker)];
  if (place.info != nullptr && sent != place.info_number) {
    *record.mutable_info() = *place.info;
    sent = place.info_number;
  }
  return record;
}

}  // namespace helmway::manager
