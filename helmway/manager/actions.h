#ifndef HELMWAY_MANAGER_ACTIONS_H_
#define HELMWAY_MANAGER_ACTIONS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "helmway/cluster/manager.pb.h"

namespace helmway::manager {

// One stream of a worker or proxy. Never 0, never used again.
using ConnectionId = uint64_t;

// What the state machines want to be done, in this order.

struct SendToWorker {
  ConnectionId connection;
  cluster::proto::ManagerToWorker message;
};

struct SendToProxy {
  ConnectionId connection;
  cluster::proto::ManagerToProxy message;
};

// End the stream with this status. The state machines have forgotten it already.
struct CloseConnection {
  ConnectionId connection;
  absl::Status status;
};

// Ask the worker at `address` by the health service; the answer comes with both numbers.
struct StartProbe {
  int32_t worker;
  uint64_t probe;
  std::string address;
  absl::Duration timeout;
};

// No more probes of this worker for now.
struct ForgetProbes {
  int32_t worker;
};

// One call of the key-value store. Never 0, never used again.
using KeyValueCallId = uint64_t;

// End the call; `answer` if the status is OK.
struct AnswerKeyValue {
  KeyValueCallId call;
  absl::Status status;
  cluster::proto::KeyValueAnswer answer;
};

struct LogLine {
  enum Level { kInfo, kWarning, kError, kForTools };
  Level level;
  std::string text;
};

using Action = std::variant<SendToWorker, SendToProxy, CloseConnection, StartProbe, ForgetProbes,
                            AnswerKeyValue, LogLine>;
using Actions = std::vector<Action>;

}  // namespace helmway::manager

#endif  // HELMWAY_MANAGER_ACTIONS_H_
