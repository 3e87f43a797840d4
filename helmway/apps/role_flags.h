// The flags of each role of a cluster, as public manifests give them, and what they mean.
//
// The Read functions check what one flag alone can't show (a topology, a count against another) and add what
// they find to the errors and warnings of the parse. Their result is of use only if flags.ok() still holds
// afterwards.
#ifndef HELMWAY_APPS_ROLE_FLAGS_H_
#define HELMWAY_APPS_ROLE_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/apps/flags.h"
#include "helmway/apps/instance_type.h"
#include "helmway/apps/plugin_choice.h"
#include "helmway/apps/worker_server.h"

namespace helmway::apps {

const FlagTable& ResourceManagerFlags();
const FlagTable& ProxyFlags();
const FlagTable& WorkerFlags();

// Flags of logging that every command takes: --v, --vmodule, --minloglevel and the ones without effect.
std::vector<FlagSpec> LoggingFlags();

// --xla_*, for commands that compile programs.
ForeignPrefix XlaFlags();

// --gcs_scratch_location, for commands that keep something for later. Read it with ReadScratchLocation, which
// adds an error unless the location is one; empty: none. `has_older_name`: --gcs_location is taken too.
FlagSpec ScratchLocationFlag();
std::string ReadScratchLocation(ParsedFlags& flags, bool has_older_name);

// --compile_cache_days, for the same commands.
FlagSpec CompileCacheDaysFlag();

// --python, for commands that run programs.
FlagSpec PythonFlag();

// What --temporary_flags_for_debugging may say that has a meaning here.
struct DebuggingOptions {
  absl::Duration peer_unreachable_timeout;  // zero: not given
  int64_t missing_slices = -1;              // -1: not given
};

// How long workers are waited for, in seconds.
inline constexpr char kWorkerTimeout[] = "worker_timeout";
inline constexpr char kCollectiveTimeout[] = "collective_timeout";
FlagSpec WorkerTimeoutFlag();
std::vector<FlagSpec> TimeoutFlags();
absl::Duration WorkerTimeoutFrom(const ParsedFlags& flags, const DebuggingOptions& debugging = {});
WorkerTimeouts TimeoutsFrom(const ParsedFlags& flags, const DebuggingOptions& debugging = {});

struct ResourceManagerOptions {
  int port = 0;
  int64_t slices = 0;                   // >= 1
  std::vector<InstanceType> instances;  // one for all slices, or one per slice
  std::string scratch_location;         // empty: none
  // How workers are watched; zero (threshold: 0): not given.
  absl::Duration health_initial_delay;
  absl::Duration health_period;
  absl::Duration health_timeout;
  int health_failure_threshold = 0;
  DebuggingOptions debugging;
};
ResourceManagerOptions ReadResourceManagerFlags(ParsedFlags& flags);

struct ProxyOptions {
  int port = 0;
  std::string resource_manager_address;      // empty: none, the worker is in this process
  std::string scratch_location;              // empty: none
  std::vector<InstanceType> virtual_slices;  // empty: not given
  int64_t elastic_slices = -1;               // slices that may be missing; -1: not given
  std::string sidecar_name;                  // "" or "external"
  std::optional<int> devices;
  std::string python;  // empty: look for it
  int compile_cache_days = 0;
  bool allow_remote_clients = false;
  DebuggingOptions debugging;
};
ProxyOptions ReadProxyFlags(ParsedFlags& flags);

struct WorkerOptions {
  int port = 0;
  std::string resource_manager_address;  // empty: not given
  std::string scratch_location;          // empty: none
  int message_port = 0;                  // 0: any
  std::string sidecar_shm_directory;     // empty: none
  std::string python;                    // empty: look for it
  std::optional<int32_t> slice;          // --slice_id
  std::optional<int32_t> host;           // --host_id, within the slice
  DebuggingOptions debugging;
};
WorkerOptions ReadWorkerFlags(ParsedFlags& flags);

// gs://bucket[/directory], file:///directory or /directory; INVALID_ARGUMENT for anything else.
absl::Status CheckScratchLocation(absl::string_view location);

}  // namespace helmway::apps

#endif  // HELMWAY_APPS_ROLE_FLAGS_H_
