#include "helmway/worker/python_callback.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "helmway/base/status.h"
#include "helmway/pjrt/ffi.h"
#include "helmway/pjrt/ffi_call.h"
#include "helmway/worker/run_data.h"

namespace helmway::worker {
namespace {

// Calls that a failed run leaves out before they fail: more than the steps of most loops.
constexpr int kMaxLeftOut = 100'000;

cluster::CallbackArray ToArray(const pjrt::FfiBuffer& buffer) {
  return {.element_type = static_cast<int32_t>(buffer.type),
          .dims = std::vector<int64_t>(buffer.dims.begin(), buffer.dims.end()),
          .data = buffer.bytes == 0 ? nullptr : buffer.data,
          .bytes = buffer.bytes};
}

// The custom call.
absl::Status CallPython(pjrt::FfiCall& ffi) {
  const auto* data = static_cast<const RunData*>(ffi.run_data());
  if (data == nullptr || data->callbacks == nullptr) {
    return absl::InternalError("a Python callback outside a run of a program that has any");
  }
  cluster::CallbackCall call;
  HELMWAY_ASSIGN_OR_RETURN(call.client, ffi.Uint64Attribute("client"));
  HELMWAY_ASSIGN_OR_RETURN(call.callback, ffi.Uint64Attribute("callback"));
  for (size_t i = 0; i < ffi.num_arguments(); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(const pjrt::FfiBuffer buffer, ffi.argument(i));
    call.arguments.push_back(ToArray(buffer));
  }
  for (size_t i = 0; i < ffi.num_results(); ++i) {
    HELMWAY_ASSIGN_OR_RETURN(const pjrt::FfiBuffer buffer, ffi.result(i));
    call.results.push_back(ToArray(buffer));
  }
  HELMWAY_ASSIGN_OR_RETURN(pjrt::FfiPromise promise, ffi.Defer());
  data->callbacks->Call(std::move(call), [promise = std::move(promise)](const absl::Status& status) mutable {
    promise.Finish(status);
  });
  return absl::OkStatus();
}

}  // namespace

void CallbackRun::Call(cluster::CallbackCall call, absl::AnyInvocable<void(const absl::Status&)> finish) {
  std::vector<cluster::CallbackArray> results = call.results;
  call.done = [this, results = std::move(results),
               finish = std::move(finish)](const absl::Status& status) mutable {
    GoOn([outcome = Outcome(status, results), finish = std::move(finish)]() mutable { finish(outcome); });
  };
  bool leave_out;
  {
    base::MutexLock lock(&mu_);
    leave_out = !failure_.ok();
  }
  if (leave_out) {
    std::exchange(call.done, nullptr)(absl::OkStatus());
  } else {
    sink_->Call(std::move(call));
  }
}

absl::Status CallbackRun::Outcome(const absl::Status& status,
                                  const std::vector<cluster::CallbackArray>& results) {
  if (!must_go_on_) return status;
  {
    base::MutexLock lock(&mu_);
    failure_.Update(status);
    if (failure_.ok()) return status;
    if (++left_out_ > kMaxLeftOut) return failure_;
  }
  for (const cluster::CallbackArray& result : results) {
    if (result.bytes > 0) std::memset(result.data, 0, static_cast<size_t>(result.bytes));
  }
  return absl::OkStatus();
}

absl::Status CallbackRun::failure() const {
  base::MutexLock lock(&mu_);
  return failure_;
}

absl::Status RegisterPythonCallback(const pjrt::Plugin& plugin) {
  return pjrt::RegisterFfiHandler(plugin, cluster::kPythonCallbackTarget, "Host",
                                  &pjrt::FfiHandlerOf<&CallPython>);
}

}  // namespace helmway::worker
