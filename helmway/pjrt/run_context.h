#ifndef HELMWAY_PJRT_RUN_CONTEXT_H_
#define HELMWAY_PJRT_RUN_CONTEXT_H_

#include "absl/status/statusor.h"
#include "helmway/pjrt/plugin.h"

struct PJRT_ExecuteContext;

namespace helmway::pjrt {

// A pointer of the caller's that the custom calls of a run can reach (FfiCall::run_data). Given to a run by
// ExecuteOptions; must live until the run is over on every device that got it. Immutable; any thread.
class RunContext {
 public:
  // UNIMPLEMENTED: the plugin passes nothing to custom calls.
  static absl::StatusOr<RunContext> Create(const Plugin& plugin, void* data);
  RunContext() = default;
  RunContext(RunContext&& other) noexcept;
  RunContext& operator=(RunContext&& other) noexcept;
  ~RunContext();

  PJRT_ExecuteContext* get() const { return context_; }

 private:
  RunContext(const PJRT_Api* api, PJRT_ExecuteContext* context) : api_(api), context_(context) {}
  const PJRT_Api* api_ = nullptr;
  PJRT_ExecuteContext* context_ = nullptr;
};

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_RUN_CONTEXT_H_
