#ifndef HELMWAY_WORKER_DUMPS_H_
#define HELMWAY_WORKER_DUMPS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "helmway/async/thread_pool.h"
#include "helmway/base/mutex.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/storage/store.h"

namespace helmway::worker {

// What the options of a compile ask to be written down: XLA's xla_dump_* options.
struct DumpRequest {
  std::string location;   // xla_dump_to: as storage::ParseLocation takes it
  std::string module_re;  // xla_dump_hlo_module_re; empty: every module
};

// Takes all xla_dump_* options out of `options` (serialized xla.CompileOptionsProto), or, with `directory`,
// leaves them in and has XLA write to that directory of this host. nullopt: nothing is to be dumped.
// INVALID_ARGUMENT for a location or an expression that is none.
absl::StatusOr<std::optional<DumpRequest>> TakeDumpOptions(std::string& options,
                                                           absl::string_view directory = "");

// Whether a module of that name is to be dumped: the expression matches a part of it.
bool Matches(const DumpRequest& request, const std::string& module);

// Writes what there is to know of compiles to storage, in the background:
//   <location>/<compile>/program.mlirbc          the program as it came
//                        program.mlir            the same as text, if a Python with jaxlib is there
//                        compile_options.pb      xla.CompileOptionsProto
//                        compile_options.txt     the same as text
//                        after_optimizations.hlo.pb, .txt   what the compiler made of it
//                        error.txt               instead, if it failed
//                        xla/...                 all that XLA itself wrote
//   <location>/index/<module>/<compile>.json     names the folder and its files
// <compile> is the time in UTC and a random number. Nothing is ever overwritten. Any thread.
class Dumps {
 public:
  struct Compile {
    DumpRequest request;
    std::string directory;  // where XLA has written; removed afterwards
    std::string code;
    std::string options;
    absl::StatusOr<cluster::CompiledProgram> result = absl::UnknownError("");
  };

  // `python`: a command whose jaxlib prints programs as text; empty: there is none. `environment`: how to
  // reach storage.
  Dumps(std::string python, std::map<std::string, std::string> environment);
  // Writes what still waits.
  ~Dumps();

  // A fresh directory of this host for XLA to write to.
  absl::StatusOr<std::string> MakeDirectory();

  // Of a compile that does not match its request only the directory is removed. If too much waits the compile
  // is left out, with a warning.
  void Write(Compile compile);

  // Waits until all of it is written, or the time has come.
  void Flush(absl::Time deadline);

 private:
  void WriteNow(const Compile& compile);
  absl::StatusOr<std::string> ToText(const std::string& directory, const std::string& code);
  std::shared_ptr<storage::Store> StoreAt(const std::string& location);

  const std::string python_;
  const std::map<std::string, std::string> environment_;
  base::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<storage::Store>> stores_ ABSL_GUARDED_BY(mu_);
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<async::ThreadPool> writer_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_DUMPS_H_
