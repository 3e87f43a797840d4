#ifndef HELMWAY_CLUSTER_PYTHON_CALLBACK_H_
#define HELMWAY_CLUSTER_PYTHON_CALLBACK_H_

#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace helmway::cluster {

// The custom call by which a program calls a Python function of its client. The name is JAX's, since XLA's
// partitioner looks for it; the attributes are ours (python/helmway/_callbacks.py), both u64: `client`, a
// random number of the client process, and `callback`, which of that process's functions it is. Operands and
// results are dense and row-major; tokens among them only order.
inline constexpr char kPythonCallbackTarget[] = "xla_ffi_python_cpu_callback";

// An argument or result of one call.
struct CallbackArray {
  int32_t element_type = 0;  // the number of an IFRT dtype
  std::vector<int64_t> dims;
  // In the form that the device has: types under 8 bits are packed, the first element in the low bits. Not
  // owned: valid until the call's `done` is called. Null and 0 for tokens.
  uint8_t* data = nullptr;
  int64_t bytes = 0;
};

// A running program calls its client.
struct CallbackCall {
  uint64_t client = 0;
  uint64_t callback = 0;
  std::vector<CallbackArray> arguments;
  std::vector<CallbackArray> results;  // to be written before `done`
  // Called once, by any thread, maybe inside Call. Returns soon. An error fails the program's run, with this
  // code and text.
  absl::AnyInvocable<void(const absl::Status&)> done;
};

// Takes the calls of one session's programs. Any thread.
class CallbackSink {
 public:
  virtual ~CallbackSink() = default;
  // Must not block.
  virtual void Call(CallbackCall call) = 0;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_PYTHON_CALLBACK_H_
