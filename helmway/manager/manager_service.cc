#include "helmway/manager/manager_service.h"

#include <glog/logging.h>

#include <variant>

#include "absl/time/clock.h"
#include "helmway/base/clock.h"
#include "helmway/base/random.h"

namespace helmway::manager {
namespace {

// Higher than the numbers that earlier lives of the manager have given, if the clocks of their hosts are
// halfway right: far fewer leases are made than nanoseconds go by.
uint64_t FirstLease() { return static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())); }

}  // namespace

// Both pass what happens on to the loop, one message at a time: the next is read when the last was taken.
class ManagerService::WorkerConnection final : public net::WorkerHandler {
 public:
  WorkerConnection(ManagerService* service, ConnectionId id, std::shared_ptr<net::WorkerStream> stream)
      : service_(service), id_(id), stream_(std::move(stream)) {}

  void OnMessage(cluster::proto::WorkerMessage message) override {
    service_->loop_.Post([service = service_, id = id_, stream = stream_, message = std::move(message)] {
      service->Do(service->manager_.OnWorkerMessage(base::SteadyNow(), id, stream->peer(), message));
      stream->Read();
    });
  }
  void OnSent() override {}
  void OnClosed() override {
    service_->loop_.Post([service = service_, id = id_] {
      service->workers_.erase(id);
      service->Do(service->manager_.OnWorkerClosed(base::SteadyNow(), id));
    });
    stream_.reset();
  }

 private:
  ManagerService* const service_;
  const ConnectionId id_;
  std::shared_ptr<net::WorkerStream> stream_;
};

class ManagerService::ProxyConnection final : public net::ProxyHandler {
 public:
  ProxyConnection(ManagerService* service, ConnectionId id, std::shared_ptr<net::ProxyStream> stream)
      : service_(service), id_(id), stream_(std::move(stream)) {}

  void OnMessage(cluster::proto::ProxyMessage message) override {
    service_->loop_.Post([service = service_, id = id_, stream = stream_, message = std::move(message)] {
      service->Do(service->manager_.OnProxyMessage(base::SteadyNow(), id, stream->peer(), message));
      stream->Read();
    });
  }
  void OnSent() override {
    service_->loop_.Post([service = service_, id = id_] {
      service->Do(service->manager_.OnProxySent(base::SteadyNow(), id));
    });
  }
  void OnClosed() override {
    service_->loop_.Post([service = service_, id = id_] {
      service->proxies_.erase(id);
      service->Do(service->manager_.OnProxyClosed(base::SteadyNow(), id));
    });
    stream_.reset();
  }

 private:
  ManagerService* const service_;
  const ConnectionId id_;
  std::shared_ptr<net::ProxyStream> stream_;
};

ManagerService::ManagerService(ManagerSettings settings,
                               absl::AnyInvocable<void(const std::string&)> log_for_tools)
    : log_for_tools_(std::move(log_for_tools)),
      manager_(std::move(settings), base::UnguessableId(), FirstLease(), base::SteadyNow()),
      loop_("manager", [this] { Do(manager_.OnTime(base::SteadyNow())); }) {
  loop_.Post([this] { Do({}); });
}

ManagerService::~ManagerService() { Stop(); }

void ManagerService::Stop() { loop_.Stop(); }

std::shared_ptr<net::WorkerHandler> ManagerService::OnWorker(std::shared_ptr<net::WorkerStream> stream) {
  const ConnectionId id = ++last_connection_;
  loop_.Post([this, id, stream] {
    workers_[id] = stream;
    stream->Read();
  });
  return std::make_shared<WorkerConnection>(this, id, std::move(stream));
}

std::shared_ptr<net::ProxyHandler> ManagerService::OnProxy(std::shared_ptr<net::ProxyStream> stream) {
  const ConnectionId id = ++last_connection_;
  loop_.Post([this, id, stream] {
    proxies_[id] = stream;
    stream->Read();
  });
  return std::make_shared<ProxyConnection>(this, id, std::move(stream));
}

absl::AnyInvocable<void()> ManagerService::OnKeyValue(std::shared_ptr<net::KeyValueCall> call,
                                                      const cluster::proto::KeyValueRequest& request) {
  const KeyValueCallId id = ++last_key_value_call_;
  loop_.Post([this, id, call = std::move(call), request] {
    key_value_calls_[id] = call;
    Do(manager_.OnKeyValueCall(base::SteadyNow(), id, request));
  });
  return [this, id] {
    loop_.Post([this, id] {
      key_value_calls_.erase(id);
      manager_.OnKeyValueGone(id);
    });
  };
}

void ManagerService::Do(Actions actions) {
  for (Action& action : actions) std::visit([this](auto& each) { Do(each); }, action);
  loop_.SetDeadline(manager_.next_deadline());
}

void ManagerService::Do(SendToWorker& action) {
  if (const auto it = workers_.find(action.connection); it != workers_.end()) {
    it->second->Send(std::move(action.message));
  }
}

void ManagerService::Do(SendToProxy& action) {
  if (const auto it = proxies_.find(action.connection); it != proxies_.end()) {
    it->second->Send(std::move(action.message));
  }
}

void ManagerService::Do(CloseConnection& action) {
  if (const auto it = workers_.find(action.connection); it != workers_.end())
    it->second->Close(action.status);
  if (const auto it = proxies_.find(action.connection); it != proxies_.end())
    it->second->Close(action.status);
}

void ManagerService::Do(StartProbe& action) {
  prober_.Probe(action.worker, action.address, action.timeout,
                [this, worker = action.worker, probe = action.probe](const absl::Status& status) {
                  loop_.Post([this, worker, probe, status] {
                    Do(manager_.OnProbeAnswer(base::SteadyNow(), worker, probe, status));
                  });
                });
}

void ManagerService::Do(ForgetProbes& action) { prober_.Forget(action.worker); }

void ManagerService::Do(AnswerKeyValue& action) {
  const auto it = key_value_calls_.find(action.call);
  if (it == key_value_calls_.end()) return;
  if (action.status.ok()) {
    it->second->Answer(std::move(action.answer));
  } else {
    it->second->Answer(action.status);
  }
  key_value_calls_.erase(it);
}

void ManagerService::Do(LogLine& action) {
  switch (action.level) {
    case LogLine::kInfo:
      LOG(INFO) << action.text;
      break;
    case LogLine::kWarning:
      LOG(WARNING) << action.text;
      break;
    case LogLine::kError:
      LOG(ERROR) << action.text;
      break;
    case LogLine::kForTools:
      log_for_tools_(action.text);
      break;
  }
}

}  // namespace helmway::manager
