#ifndef HELMWAY_WORKER_CUSTOM_CALLS_H_
#define HELMWAY_WORKER_CUSTOM_CALLS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "helmway/base/mutex.h"
#include "helmway/pjrt/plugin.h"

namespace helmway::worker {

// The implementations that jaxlib has for JAX's custom calls (LAPACK on CPU; on GPUs the solvers and others).
// They live in extension modules of jaxlib and of its accelerator packages, so they are loaded through an
// embedded interpreter and registered with the plugin. They are plain functions: running them takes no GIL.
// Any thread.
class CustomCalls {
 public:
  // `platform`: the plugin's platform name ("cpu", "cuda", "rocm"). `python`: the command of the interpreter
  // whose jaxlib is to be used; empty if there is none.
  CustomCalls(std::shared_ptr<pjrt::Plugin> plugin, std::string platform, std::string python);

  // Whether a compile failed because the plugin knows no implementation of a typed custom call.
  static bool IsMissingTarget(const absl::Status& compile_error);

  // Registers all that jaxlib has, in the first call; later ones give the same answer. Blocks while Python
  // imports (under a second). FAILED_PRECONDITION says what could not be loaded, and what to install.
  absl::Status Load();

  // `compile_error` (of a program with a missing target, after Load) with what its reader can do.
  absl::Status Explain(const absl::Status& compile_error);

  // The same of a program that has an untyped custom call that the plugin does not know, which Load can't
  // help; none where that is not what is wrong.
  static std::optional<absl::Status> ExplainUntyped(const absl::Status& compile_error);

 private:
  absl::Status LoadNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Take(void* calls, const char* target, void* handler);
  static void Note(void* calls, const char* problem);

  const std::shared_ptr<pjrt::Plugin> plugin_;
  const std::string platform_;
  const std::string python_;
  base::Mutex mu_;
  bool tried_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status loaded_ ABSL_GUARDED_BY(mu_);
  int registered_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> problems_ ABSL_GUARDED_BY(mu_);
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_CUSTOM_CALLS_H_
