#include "helmway/apps/embedded_server.h"

#include <glog/logging.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/apps/xla_flags.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/mutex.h"
#include "helmway/base/status.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/cache/keeper.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/ifrt_service.h"
#include "helmway/proxy/proxy.h"
#include "helmway/storage/open.h"
#include "helmway/worker/dumps.h"
#include "helmway/worker/worker.h"

namespace helmway::apps {
namespace {

// Idle host blocks that are kept for the next transfers.
constexpr int64_t kMaxCachedHostBytes = int64_t{1} << 30;

// Compiled programs that are kept in memory.
constexpr int64_t kMaxCompileCacheBytes = int64_t{512} << 20;

int64_t MachineBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE); }
int64_t CachedHostBytes() { return std::min(kMaxCachedHostBytes, MachineBytes() / 16); }
int64_t CompileCacheBytes() { return std::min(kMaxCompileCacheBytes, MachineBytes() / 32); }

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
  const std::shared_ptr<cluster::SessionLink> session = worker.OpenSession(0);
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
    worker::WorkerOptions worker_options;
    worker_options.plugin_path = options.plugin_path;
    worker_options.python = options.python;
    worker_options.virtual_devices = options.devices;
    worker_options.host_memory = host_memory;
    worker_options.environment = options.environment;
    cache::CompileCacheOptions cache_options;
    cache_options.max_memory_bytes = CompileCacheBytes();
    if (!options.scratch_location.empty()) {
      HELMWAY_ASSIGN_OR_RETURN(const storage::Location location,
                               storage::ParseLocation(options.scratch_location));
      cache_options.store = storage::OpenStore(location.Below(cache::kCacheDirectory), options.environment,
                                               cache::CacheRetryPolicy());
      server->keeper_ = std::make_unique<cache::Keeper>(cache_options.store, options.compile_cache_days);
    }
    worker_options.compile_cache = std::make_shared<cache::CompileCache>(std::move(cache_options));
    HELMWAY_ASSIGN_OR_RETURN(server->worker_, worker::Worker::Create(worker_options));
    proxy::ProxyOptions proxy_options;
    proxy_options.allow_remote_clients = options.allow_remote_clients;
    proxy_options.large_transfer_directory = options.large_transfer_directory;
    proxy_options.host_memory = host_memory;
    proxy_options.scratch_location = options.scratch_location;
    proxy_options.xla_options = CheckXlaFlags(*server->worker_, options.xla_flags);
    server->proxy_ = std::make_unique<proxy::Proxy>(server->worker_.get(), std::move(proxy_options));
    server->service_ = net::MakeIfrtService(server->proxy_.get());
    HELMWAY_ASSIGN_OR_RETURN(server->grpc_,
                             net::GrpcServer::Start(options.listen_address, {server->service_.get()}));
    return server;
  }

  ~EmbeddedServerImpl() override { Shutdown(); }
  int port() const override { return grpc_->port(); }
  void Shutdown() override {
    if (grpc_) grpc_->Shutdown();
  }

 private:
  std::unique_ptr<cache::Keeper> keeper_;
  // Destroyed from the bottom up: no stream outlives the proxy, no session the worker.
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<proxy::Proxy> proxy_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<net::GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(const EmbeddedServerOptions& options) {
  return EmbeddedServerImpl::Create(options);
}

}  // namespace helmway::apps
