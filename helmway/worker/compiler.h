#ifndef HELMWAY_WORKER_COMPILER_H_
#define HELMWAY_WORKER_COMPILER_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/mutex.h"
#include "helmway/cache/compile_cache.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/pjrt/executable.h"
#include "helmway/program/collectives.h"
#include "helmway/program/compile_options.h"
#include "helmway/program/executable_spec.h"
#include "helmway/worker/custom_calls.h"
#include "helmway/worker/device_ids.h"
#include "helmway/worker/dumps.h"

namespace helmway::worker {

// Makes loaded programs out of what clients send: from the cache, or with the plugin's compiler. Any thread;
// each call needs the deep stack that XLA's passes want.
class Compiler {
 public:
  struct Compiled {
    std::unique_ptr<pjrt::LoadedExecutable> executable;
    // Set in place of `executable` if the program is known from the cache: makes it, which takes as long as
    // the plugin needs to load the code. Once, with a deep stack as well, while the compiler and the command
    // live.
    absl::AnyInvocable<absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>>()> load;
    // What the proxy is told. The same whether the program was compiled or came from the cache.
    cluster::CompiledProgram program;
    program::ExecutableSpec spec;  // of the optimized module

    // Whether it calls Python functions of its client.
    bool calls_back() const;
  };

  // `ids` are those of the client's devices; `custom_calls` and `dumps` must outlive the compiler. `cache`
  // may be null: everything is compiled. `for_slice`: options for CompileForSlice that a command does not
  // set.
  Compiler(std::shared_ptr<pjrt::Client> client, DeviceIds ids, CustomCalls* custom_calls, Dumps* dumps,
           std::shared_ptr<cache::CompileCache> cache, program::XlaOptions for_slice = {});
  ~Compiler();

  // Blocks for as long as it takes, also while another thread compiles the same program. Errors are the
  // plugin's; none comes from the cache. Programs that call back are never cached: their functions are those
  // of one client. Nobody waits for the loading of a program from the cache: that is for the caller to do.
  absl::StatusOr<Compiled> Compile(const cluster::CompileProgram& command);
  // For the devices of another client of the plugin; past the cache.
  absl::StatusOr<Compiled> CompileUncached(std::shared_ptr<pjrt::Client> client,
                                           const cluster::CompileProgram& command);
  // For devices of several workers, for which those of `client`, numbered from 0 on, stand in: with our
  // collectives in place of XLA's, and with `program.serialized`, which every worker loads.
  absl::StatusOr<Compiled> CompileForSeveral(std::shared_ptr<pjrt::Client> client, program::ProgramSize size,
                                             const cluster::CompileProgram& command);
  // For devices of several workers that are all devices of the worker's client: with the plugin's own
  // collectives, and with `program.serialized`. Past the cache.
  absl::StatusOr<Compiled> CompileForSlice(const cluster::CompileProgram& command);

 private:
  // What a program is compiled for.
  struct Target {
    std::shared_ptr<pjrt::Client> client;
    bool cached = true;
    std::optional<program::ProgramSize> several;  // workers; replicas and partitions
    bool slice = false;                           // CompileForSlice
  };
  // Device ids in options and descriptions are the cluster's; only what goes to the plugin has its own.
  // Clients other than the worker's have the cluster's ids.
  const DeviceIds* IdsOf(const Target& target) const { return target.client == client_ ? &ids_ : nullptr; }

  absl::StatusOr<Compiled> CompileFor(const Target& target, const cluster::CompileProgram& command);
  // The same for all that compiles to the same; FAILED_PRECONDITION and others: the program has none.
  absl::StatusOr<std::string> KeyOf(const Target& target, const std::string& code,
                                    const std::string& options);
  // Past the cache. `options`: those of the command without what is in `dump`.
  absl::StatusOr<Compiled> CompileNow(const Target& target, const cluster::CompileProgram& command,
                                      const std::string& options, const std::optional<DumpRequest>& dump);
  absl::StatusOr<Compiled> CompileAnew(const Target& target, const std::string& code,
                                       const std::string& options);
  // Compiles, and has what `request` asks for written down.
  absl::StatusOr<Compiled> CompileAndDump(const Target& target, const cluster::CompileProgram& command,
                                          const DumpRequest& request);
  // The program of an entry before it is loaded.
  absl::StatusOr<Compiled> Foresee(const Target& target, const cache::Entry& entry,
                                   const std::string& options);
  // The executable of an entry that is to be `foreseen`.
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> Load(const Target& target,
                                                               const cache::Entry& entry,
                                                               const std::string& options,
                                                               const cluster::CompiledProgram& foreseen);
  // The same, or what is compiled if the entry is of no use.
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> LoadOrCompile(
      const Target& target, const cluster::CompileProgram& command, const std::string& options,
      const std::optional<DumpRequest>& dump, const cluster::CompiledProgram& foreseen,
      cache::CompileCache::Lease lease);
  void Publish(const Target& target, const Compiled& compiled, cache::CompileCache::Lease& lease);

  const std::shared_ptr<pjrt::Client> client_;
  const DeviceIds ids_;
  const program::XlaOptions for_slice_;
  CustomCalls* const custom_calls_;
  Dumps* const dumps_;
  const std::shared_ptr<cache::CompileCache> cache_;
  const bool code_is_for_host_;
  std::string host_;
  // Hashing a plugin takes a while and is begun at once; `plugin_` is fixed after `identified_`.
  absl::StatusOr<std::string> plugin_;
  base::Notification identified_;
  std::thread identify_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_COMPILER_H_
