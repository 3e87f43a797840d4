#include "helmway/worker/custom_calls.h"

#include <glog/logging.h>

#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "helmway/base/status.h"
#include "helmway/base/thread_sanitizer.h"
#include "helmway/pjrt/ffi.h"
#include "helmway/worker/embedded_python.h"

namespace helmway::worker {
namespace {

// XLA's name of a platform, or null if JAX has no custom calls for it.
const char* XlaPlatform(absl::string_view platform) {
  if (platform == "cpu") return "Host";
  if (platform == "cuda") return "CUDA";
  if (platform == "rocm") return "ROCM";
  return nullptr;
}

// Finds handlers as JAX does: modules of jaxlib have registrations(), {platform: [(target, capsule,
// version)]}. Version 0 is XLA's old untyped interface, which the plugin interface cannot register. A module
// whose accelerator package is not installed has nothing. LAPACK's functions come from scipy and must be
// looked up before the first of them runs.
constexpr char kScript[] = R"py(
import ctypes, importlib
take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(TAKE)
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(NOTE)
name_of = ctypes.pythonapi.PyCapsule_GetName
name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

import jaxlib
modules = {
    'cpu': ['lapack', 'cpu_sparse'],
    'cuda': ['gpu_linalg', 'gpu_prng', 'gpu_rnn', 'gpu_solver', 'gpu_sparse', 'gpu_triton'],
    'rocm': ['gpu_linalg', 'gpu_prng', 'gpu_rnn', 'gpu_solver', 'gpu_sparse', 'gpu_triton'],
}[PLATFORM]
for name in modules:
  try:
    module = importlib.import_module('jaxlib.' + name)
    if name == 'lapack':
      importlib.import_module('jaxlib.cpu._lapack').initialize()
    found = module.registrations() if hasattr(module, 'registrations') else {}
  except Exception as e:
    note(SELF, f'jaxlib.{name}: {type(e).__name__}: {e}'.encode(errors='replace'))
    continue
  for platform, targets in found.items():
    if platform.lower() != PLATFORM:
      continue
    for target, capsule, version in targets:
      if version == 1 and not isinstance(capsule, dict):
        take(SELF, target.encode(), pointer_of(capsule, name_of(capsule)))
)py";

constexpr char kMissing[] = "No FFI handler registered for ";
constexpr char kMissingUntyped[] = "No registered implementation for untyped custom call to ";
// What JAX calls a function with a partitioning of its own.
constexpr char kPartitioned[] = "CustomSPMDPartitioning";

}  // namespace

CustomCalls::CustomCalls(std::shared_ptr<pjrt::Plugin> plugin, std::string platform, std::string python)
    : plugin_(std::move(plugin)), platform_(std::move(platform)), python_(std::move(python)) {}

bool CustomCalls::IsMissingTarget(const absl::Status& compile_error) {
  return absl::StrContains(compile_error.message(), kMissing);
}

absl::Status CustomCalls::Load() {
  base::MutexLock lock(&mu_);
  if (!tried_) {
    tried_ = true;
    loaded_ = LoadNow();
    if (loaded_.ok()) {
      LOG(INFO) << "Registered " << registered_ << " custom calls of the jaxlib of " << python_
                << (problems_.empty() ? "" : "; problems: ") << absl::StrJoin(problems_, "; ");
    } else {
      LOG(WARNING) << "JAX's custom calls are not available: " << loaded_.message();
    }
  }
  return loaded_;
}

absl::Status CustomCalls::LoadNow() {
  if (XlaPlatform(platform_) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("JAX has none for the platform '", platform_, "'"));
  }
  if (python_.empty()) {
    return absl::FailedPreconditionError(
        "no Python was found on the server to load them with; name one that has jaxlib and scipy with "
        "--python=PATH");
  }
  absl::StatusOr<EmbeddedPython*> python = EmbeddedPython::Get(python_);
  if (!python.ok()) return absl::FailedPreconditionError(python.status().message());
  const std::string script =
      absl::StrCat("TAKE=", reinterpret_cast<uintptr_t>(&Take), "\nNOTE=", reinterpret_cast<uintptr_t>(&Note),
                   "\nSELF=", reinterpret_cast<uintptr_t>(this), "\nPLATFORM='", platform_, "'\n", kScript);
  if (absl::Status status = (*python)->Run(script); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(status.message(), " (in the server's ", python_, "; `",
                                                      python_, " -m pip install jaxlib scipy`)"));
  }
  if (registered_ == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the jaxlib of the server's ", python_, " has none for ", platform_,
                     problems_.empty() ? "" : ": ", absl::StrJoin(problems_, "; ")));
  }
  return absl::OkStatus();
}

// Both are called by the script, so within LoadNow.
void CustomCalls::Take(void* calls, const char* target, void* handler) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  base::OwnCode own;
  auto* self = static_cast<CustomCalls*>(calls);
  const absl::Status status = pjrt::RegisterFfiHandler(*self->plugin_, target, XlaPlatform(self->platform_),
                                                       reinterpret_cast<pjrt::FfiHandler*>(handler));
  if (status.ok()) {
    ++self->registered_;
  } else {
    self->problems_.push_back(absl::StrCat(target, ": ", status.message()));
  }
}

void CustomCalls::Note(void* calls, const char* problem) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  base::OwnCode own;
  static_cast<CustomCalls*>(calls)->problems_.emplace_back(problem);
}

std::optional<absl::Status> CustomCalls::ExplainUntyped(const absl::Status& compile_error) {
  const absl::string_view message = compile_error.message();
  if (!absl::StrContains(message, kMissingUntyped)) return std::nullopt;
  const absl::string_view advice =
      absl::StrContains(message, absl::StrCat(kMissingUntyped, kPartitioned))
          ? "a function with custom partitioning asks the process of its user how to be partitioned. With "
            "the "
            "Python package `helmway` there, XLA partitions it as any other"
          : "no jaxlib has handlers of this form, and one that was registered in the client's process exists "
            "only there";
  return absl::Status(compile_error.code(), absl::StrCat(message, "; ", advice));
}

absl::Status CustomCalls::Explain(const absl::Status& compile_error) {
  base::MutexLock lock(&mu_);
  std::string advice;
  if (!loaded_.ok()) {
    advice = absl::StrCat("the custom calls of JAX could not be loaded on the server: ", loaded_.message());
  } else {
    advice =
        absl::StrCat("the jaxlib of the server's ", python_,
                     " has no such custom call. A handler that was registered in the client's process exists "
                     "only there");
    if (!problems_.empty()) absl::StrAppend(&advice, "; problems: ", absl::StrJoin(problems_, "; "));
  }
  return absl::Status(compile_error.code(), absl::StrCat(compile_error.message(), "; ", advice));
}

}  // namespace helmway::worker
