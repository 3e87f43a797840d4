#ifndef HELMWAY_MANAGER_MANAGER_SERVICE_H_
#define HELMWAY_MANAGER_MANAGER_SERVICE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "helmway/async/event_loop.h"
#include "helmway/manager/actions.h"
#include "helmway/manager/manager.h"
#include "helmway/manager/settings.h"
#include "helmway/net/health_prober.h"
#include "helmway/net/manager_service.h"

namespace helmway::manager {

// The resource manager among real streams: gives the events of gRPC and the clock to a Manager, on one
// thread, and does what it says. Any thread.
class ManagerService final : public net::ManagerCalls {
 public:
  // `settings` have passed CheckSettings. `log_for_tools` writes the lines that tools wait for.
  ManagerService(ManagerSettings settings, absl::AnyInvocable<void(const std::string&)> log_for_tools);
  // The server that gives the calls has been shut down.
  ~ManagerService() override;

  // Takes no more events: what the end of the server does to streams is no loss of workers. Idempotent.
  void Stop();

  std::shared_ptr<net::WorkerHandler> OnWorker(std::shared_ptr<net::WorkerStream> stream) override;
  std::shared_ptr<net::ProxyHandler> OnProxy(std::shared_ptr<net::ProxyStream> stream) override;
  absl::AnyInvocable<void()> OnKeyValue(std::shared_ptr<net::KeyValueCall> call,
                                        const cluster::proto::KeyValueRequest& request) override;

 private:
  class WorkerConnection;
  class ProxyConnection;

  // All below runs on the loop.
  void Do(Actions actions);
  void Do(SendToWorker& action);
  void Do(SendToProxy& action);
  void Do(CloseConnection& action);
  void Do(StartProbe& action);
  void Do(ForgetProbes& action);
  void Do(AnswerKeyValue& action);
  void Do(LogLine& action);

  absl::AnyInvocable<void(const std::string&)> log_for_tools_;
  Manager manager_;
  absl::flat_hash_map<ConnectionId, std::shared_ptr<net::WorkerStream>> workers_;
  absl::flat_hash_map<ConnectionId, std::shared_ptr<net::ProxyStream>> proxies_;
  absl::flat_hash_map<KeyValueCallId, std::shared_ptr<net::KeyValueCall>> key_value_calls_;
  std::atomic<ConnectionId> last_connection_{0};
  std::atomic<KeyValueCallId> last_key_value_call_{0};

  // Probes that end still post to the loop, which has been stopped by then.
  async::EventLoop loop_;
  net::HealthProber prober_;
};

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_MANAGER_SERVICE_H_
