#include "helmway/apps/embedded_server.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/cluster_front.h"
#include "helmway/apps/command.h"
#include "helmway/apps/compile_cache.h"
#include "helmway/apps/host_cache.h"
#include "helmway/apps/xla_flags.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/base/random.h"
#include "helmway/base/status.h"
#include "helmway/cache/keeper.h"
#include "helmway/cluster/worker_group.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/callback_service.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/net/message_stream.h"
#include "helmway/net/remote_worker.h"
#include "helmway/proxy/proxy.h"
#include "helmway/worker/dumps.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

// Returns after the answer.
absl::Status TryToCompile(cluster::WorkerLink& worker, const program::XlaOptions& options) {
  cluster::CompileProgram command;
  command.code =
      "module @options { func.func public @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } "
      "}";
  // Without a place of their own, dumps go to this process's output.
  std::string directory = (std::filesystem::temp_directory_path() / "helmway-flags-XXXXXX").string();
  const bool has_directory = mkdtemp(directory.data()) != nullptr;
  absl::Cleanup remove = [&] {
    std::error_code ignored;
    if (has_directory) std::filesystem::remove_all(directory, ignored);
  };
  program::XlaOptions harmless = options;
  for (const auto& [name, option] : options) {
    if (absl::StartsWith(name, "xla_dump_")) harmless["xla_dump_to"].set_string_field(directory);
  }
  command.options = program::SerializeDefaultCompileOptions(harmless);
  command.only_to_see = true;
  const std::shared_ptr<cluster::SessionLink> session = worker.OpenSession(base::UnguessableId(), nullptr);
  absl::Status outcome;
  base::Notification done;
  session->Compile(std::move(command), [&](const absl::StatusOr<cluster::CompiledProgram>& compiled) {
    outcome = compiled.status();
    done.Notify();
  });
  done.WaitForNotification();
  session->Close();
  return outcome;
}

// The options that the plugin takes; warns of the others.
program::XlaOptions CheckXlaFlags(cluster::WorkerLink& worker, const std::vector<std::string>& flags) {
  XlaFlagsOutcome outcome = AcceptXlaFlags(
      flags, [&worker](const program::XlaOptions& options) { return TryToCompile(worker, options); });
  if (const auto to = outcome.options.find("xla_dump_to"); to != outcome.options.end()) {
    std::string& where = *to->second.mutable_string_field();
    if (!absl::StrContains(where, "://")) where = std::filesystem::absolute(where).string();
  }
  std::string serialized = program::SerializeDefaultCompileOptions(outcome.options);
  if (const absl::Status dumps = worker::TakeDumpOptions(serialized).status(); !dumps.ok()) {
    outcome.warnings.push_back(absl::StrCat("no dumps: ", dumps.message()));
    for (auto it = outcome.options.begin(); it != outcome.options.end();) {
      it = absl::StartsWith(it->first, "xla_dump_") ? outcome.options.erase(it) : std::next(it);
    }
  }
  for (const std::string& warning : outcome.warnings) LOG(WARNING) << warning;
  return std::move(outcome.options);
}

class EmbeddedServerImpl final : public EmbeddedServer {
 public:
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Create(const EmbeddedServerOptions& options) {
    auto server = std::make_unique<EmbeddedServerImpl>();
    auto host_memory = std::make_shared<base::HostMemoryPool>(CachedHostBytes());
    if (!options.scratch_location.empty()) {
      HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<storage::Store> store,
                               OpenCompileCacheStore(options.scratch_location, options.environment));
      server->keeper_ = std::make_unique<cache::Keeper>(std::move(store), options.compile_cache_days);
    }
    proxy::ProxyOptions proxy_options;
    proxy_options.allow_remote_clients = options.allow_remote_clients;
    proxy_options.large_transfer_directory = options.large_transfer_directory;
    proxy_options.host_memory = host_memory;
    proxy_options.scratch_location = options.scratch_location;
    if (!options.resource_manager_address.empty()) {
      server->front_ = ClusterFront::Start({.calls = &server->calls_,
                                            .manager_address = options.resource_manager_address,
                                            .name = options.name,
                                            .lease = options.lease,
                                            .elastic_slices = options.elastic_slices,
                                            .worker_timeout = options.worker_timeout,
                                            .proxy = std::move(proxy_options),
                                            .xla_options = [flags = options.xla_flags](auto& workers) {
                                              return CheckXlaFlags(workers, flags);
                                            }});
      server->Serve(server->front_.get());
    } else {
      if (options.workers.empty()) {
        HELMWAY_RETURN_IF_ERROR(server->MakeWorker(options, host_memory));
      } else {
        HELMWAY_RETURN_IF_ERROR(server->ConnectToWorkers(options, host_memory));
      }
      proxy_options.xla_options = CheckXlaFlags(*server->worker_, options.xla_flags);
      server->proxy_ = std::make_unique<proxy::Proxy>(server->worker_.get(), std::move(proxy_options));
      server->Serve(server->proxy_.get());
    }
    HELMWAY_ASSIGN_OR_RETURN(
        server->grpc_, net::GrpcServer::Start(options.listen_address,
                                              {server->service_.get(), server->callback_service_.get()}, {},
                                              &server->calls_));
    return server;
  }

  ~EmbeddedServerImpl() override { Shutdown(); }
  int port() const override { return grpc_->port(); }
  absl::Status ReturnWorker(size_t number, const RemoteWorkerAddress& address) override {
    if (group_ == nullptr) return absl::InvalidArgumentError("the server has no workers of their own");
    HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<cluster::WorkerLink> link,
                             net::ConnectToWorker(link_options_(number, address)));
    HELMWAY_RETURN_IF_ERROR(group_->Return(static_cast<cluster::WorkerIndex>(number), std::move(link)));
    LOG(WARNING) << address.name << " is back, at " << address.address;
    return absl::OkStatus();
  }
  void Shutdown() override {
    if (grpc_) grpc_->Shutdown();
  }

 private:
  template <typename Manager>  // of sessions and of streams of callbacks
  void Serve(Manager* manager) {
    service_ = net::MakeIfrtService(manager);
    callback_service_ = net::MakeCallbackService(manager);
  }

  absl::Status MakeWorker(const EmbeddedServerOptions& options,
                          const std::shared_ptr<base::HostMemoryPool>& host_memory) {
    worker::WorkerOptions worker_options;
    worker_options.plugin_path = options.plugin.path;
    worker_options.plugin_kind = options.plugin.kind;
    worker_options.plugin_options = options.plugin.options;
    worker_options.python = options.python;
    worker_options.virtual_devices = options.devices.value_or(1);
    if (options.devices.has_value()) {
      worker_options.host_devices = worker::HostDevices{.first = 0, .count = *options.devices};
    }
    worker_options.host_memory = host_memory;
    worker_options.environment = options.environment;
    HELMWAY_ASSIGN_OR_RETURN(worker_options.compile_cache,
                             MakeCompileCache(options.scratch_location, options.environment));
    HELMWAY_ASSIGN_OR_RETURN(worker_, worker::Worker::Create(worker_options));
    return absl::OkStatus();
  }

  absl::Status ConnectToWorkers(const EmbeddedServerOptions& options,
                                const std::shared_ptr<base::HostMemoryPool>& host_memory) {
    link_options_ = [this, timeout = options.worker_timeout, told = options.on_worker_lost, host_memory](
                        size_t number, const RemoteWorkerAddress& worker) {
      auto on_lost = [told, number, incarnation = worker.incarnation](const absl::Status& status) {
        LOG(WARNING) << status.message();
        if (told) told(number, incarnation);
      };
      return net::RemoteWorkerOptions{.address = worker.address,
                                      .name = worker.name,
                                      .incarnation = worker.incarnation,
                                      .timeout = timeout,
                                      .software = Software(),
                                      .on_lost = std::move(on_lost),
                                      .streams = &streams_,
                                      .host_memory = host_memory};
    };
    std::vector<net::RemoteWorkerOptions> links;
    for (size_t i = 0; i < options.workers.size(); ++i) links.push_back(link_options_(i, options.workers[i]));
    std::vector<std::unique_ptr<cluster::WorkerLink>> workers;
    for (auto& link : net::ConnectToWorkers(links)) {
      HELMWAY_ASSIGN_OR_RETURN(workers.emplace_back(), std::move(link));
    }
    HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<cluster::WorkerGroup> group,
                             cluster::WorkerGroup::Create(std::move(workers)));
    group_ = group.get();
    worker_ = std::move(group);
    return absl::OkStatus();
  }

  std::unique_ptr<cache::Keeper> keeper_;
  // Destroyed from the bottom up: no stream outlives the proxy, no session the worker.
  net::CompletionThread calls_;
  net::MessageStreamClient streams_{&calls_};
  std::unique_ptr<cluster::WorkerLink> worker_;
  cluster::WorkerGroup* group_ = nullptr;  // worker_, if there are several
  std::function<net::RemoteWorkerOptions(size_t number, const RemoteWorkerAddress& worker)> link_options_;
  std::unique_ptr<proxy::Proxy> proxy_;
  std::unique_ptr<ClusterFront> front_;  // instead of the two
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Service> callback_service_;
  std::unique_ptr<net::GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(const EmbeddedServerOptions& options) {
  return EmbeddedServerImpl::Create(options);
}

}  // namespace helmway::apps
