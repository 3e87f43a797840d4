#ifndef HELMWAY_CLUSTER_WORKER_LINK_H_
#define HELMWAY_CLUSTER_WORKER_LINK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/python_callback.h"

namespace helmway::cluster {

// Names. The proxy chooses them before anything is done; workers bind values to them later.
using BufferId = uint64_t;      // one shard on one device; unique in the cluster, never used again
using ExecutableId = uint64_t;  // one loaded program
using SessionId = uint64_t;     // one client stream
using LaunchId = int64_t;       // one run of one executable
using DeviceId = int32_t;       // what JAX sees as device.id

// The number of an IFRT dtype (xla.ifrt.DTypeProto.Kind). XLA's own primitive types have the same numbers up
// to 29 and others beyond.
using ElementType = int32_t;

// ---- What a worker has -------------------------------------------------------------------------------

struct AttributeValue {
  std::variant<std::string, bool, int64_t, std::vector<int64_t>, float> value;
};

struct MemoryInfo {
  int32_t id = 0;  // unique over the cluster
  std::string kind;
  int32_t kind_id = 0;
  std::string debug_string;
  std::string to_string;
  std::vector<DeviceId> devices;
};

struct DeviceInfo {
  DeviceId id = 0;
  int32_t local_hardware_id = 0;
  std::string kind;
  std::string debug_string;
  std::string to_string;
  std::string platform_name;
  std::optional<int32_t> default_memory;
  std::vector<int32_t> memories;  // ids, in the plugin's order
  std::map<std::string, AttributeValue> attributes;
};

struct WorkerInfo {
  std::string platform_name;
  std::string platform_version;
  std::vector<DeviceInfo> devices;
  std::vector<MemoryInfo> memories;
};

// ---- Commands ----------------------------------------------------------------------------------------

// `count` buffers, one per device in the order that the command names: first, first + 1, ... unless `list`
// is filled, which then holds all names.
struct BufferNames {
  BufferId first = 0;
  uint32_t count = 0;
  std::vector<BufferId> list;

  BufferId at(size_t i) const { return list.empty() ? first + i : list[i]; }
  size_t size() const { return list.empty() ? count : list.size(); }
};

struct BufferTarget {
  BufferId buffer;
  DeviceId device;
};
using BufferTargets = absl::InlinedVector<BufferTarget, 1>;

// Buffers whose bytes come later from the host. Until they are filled, whatever uses them waits.
struct DeclareBuffers {
  BufferTargets targets;
};

// The bytes for declared buffers; all targets get the same contents. A token has none. Those of strings are a
// serialized xla.ifrt.proto.StringArrayContents with as many elements as `dims` say, without byte strides.
//
// `user_context`, here and in other commands: the call site in the client's program that errors of the
// command name (wire::WithUserContext), unless an input has failed before; 0 = none.
struct HostContents {
  BufferTargets targets;
  ElementType element_type = 0;
  absl::InlinedVector<int64_t, 6> dims;                // of one buffer
  std::optional<std::vector<int64_t>> byte_strides;    // absent = dense row-major
  std::string memory_kind;                             // empty = the device's default
  std::optional<std::vector<int64_t>> minor_to_major;  // device layout; absent = the plugin's default
  base::HostBytes bytes;
  uint64_t user_context = 0;
};

struct Launch {
  LaunchId id = 0;
  ExecutableId executable = 0;
  std::vector<BufferNames> arguments;  // per argument, the names in the executable's device order
  std::vector<BufferNames> results;    // per output, likewise; new names
  std::vector<int32_t> donated;        // argument numbers that the run consumes, ascending
  std::vector<int32_t> kept;  // argument numbers that must survive even if the program would consume them
  // Launches of one stream whose programs are or call Python functions of the client run one after the other,
  // each when all before it are over. Others take no notice of it.
  int64_t stream = 0;
  // True: the launch takes its place in the device order only with ReleaseLaunch (its inputs are not all here
  // yet). Those of Python functions have no place there.
  bool held = false;
  // Of one that is held: launches that are commanded after it may be released before it.
  bool may_be_passed = false;
  // Of a Python function that others call too for this launch: its results wait for Settle after on_done.
  bool settles = false;
  // Something happens only once on_done is called. Else the worker may take some milliseconds to say that the
  // run has ended well.
  bool end_is_awaited = false;
  // Called once, when the run is over on all devices, on a thread of the worker; never inside Launch.
  absl::AnyInvocable<void(const absl::Status&)> on_done;
  uint64_t user_context = 0;
  // Its place in the order of all launches that the proxy commands to the worker, whatever their session: 1,
  // 2,
  // ..., each once. The worker takes no launch before all with lower places. 0: as it comes, and so for
  // launches that are held, which get their place when they are released.
  uint64_t place = 0;
};

// result[i] becomes a copy of source[i] on device[i] and in a memory of that kind.
struct CopyBuffers {
  BufferNames sources;
  BufferNames results;
  std::vector<DeviceId> devices;
  std::string memory_kind;  // empty = the device's default
  // The results have the plugin's default layout, whatever that of the sources is.
  bool default_layout = false;
  uint64_t user_context = 0;
};

// Where a worker takes what its peers send, and which life of it.
struct PeerAddress {
  std::string address;  // host:port
  uint64_t incarnation = 0;

  friend bool operator==(const PeerAddress& a, const PeerAddress& b) {
    return a.incarnation == b.incarnation && a.address == b.address;
  }
};

// source[i] travels to a peer, where it becomes result[i].
struct SendBuffers {
  BufferNames sources;
  BufferNames results;
  PeerAddress to;
};

// result[i] is what a peer sends under that name, on device[i] and in a memory of that kind. It may have come
// already.
struct ReceiveBuffers {
  BufferNames results;
  std::vector<DeviceId> devices;
  std::string memory_kind;      // empty = the device's default
  bool default_layout = false;  // as in CopyBuffers
};

using Dims = absl::InlinedVector<int64_t, 6>;  // elements

// A block of one buffer that becomes a block of another. The vectors have the rank of both buffers.
struct BufferBlock {
  uint32_t source = 0;  // number in the command's sources
  Dims source_origin;
  Dims result_origin;
  Dims shape;
};

// New buffers, each put together from blocks of other buffers of the same element type, on any device.
struct AssembleBuffers {
  struct Result {
    BufferTargets targets;  // new names; all get the same contents
    Dims dims;
    std::vector<BufferBlock> blocks;  // cover the result once, without overlaps; none if it has no elements
  };
  BufferNames sources;
  std::vector<Result> results;
  ElementType element_type = 0;
  std::string memory_kind;                             // empty = the device's default
  std::optional<std::vector<int64_t>> minor_to_major;  // device layout; absent = the plugin's default
};

// result[i] is what source[i] holds, byte for byte in its device form, as another type or shape, in the
// same memory. Of the same size, else it is INVALID_ARGUMENT. May share the memory with its source; neither
// changes by what happens to the other.
struct BitcastBuffers {
  BufferNames sources;
  BufferNames results;  // new names
  ElementType element_type = 0;
  std::vector<Dims> dims;                              // one for each buffer
  std::optional<std::vector<int64_t>> minor_to_major;  // device layout; absent = the plugin's default
};

// How the bytes of a read shall lie.
struct ReadFormat {
  std::optional<std::vector<int64_t>> byte_strides;  // absent = dense row-major
};

// A host of the session, as the Python beside its devices sees it.
struct PythonHost {
  int32_t process = 0;  // its devices have the ids 2048 * process + i
  int32_t devices = 0;
  int64_t slice = 0;  // of its devices
  int64_t task = 0;   // of the host in its slice

  friend bool operator==(const PythonHost& a, const PythonHost& b) {
    return a.process == b.process && a.devices == b.devices && a.slice == b.slice && a.task == b.task;
  }
};

// What a host must know to run a Python function of the client (colocated Python).
struct PythonFunction {
  // All hosts of the session, by process: jax.process_index() is a host's place here.
  std::vector<PythonHost> hosts;
  // The client's, "3.12" and "0.11.2"; empty: not known.
  std::string python_version;
  std::string jax_version;
};

struct CompileProgram {
  ExecutableId executable = 0;    // the name under which the program is loaded
  std::string code;               // what the plugin's "mlir" format takes
  std::string options;            // serialized xla.CompileOptionsProto with global device ids
  std::vector<DeviceId> devices;  // of the program, replica by replica; empty: the worker's first
  // Not all devices are the worker's: the program is compiled and serialized, and loaded nowhere yet.
  bool for_several_workers = false;
  // Whether it compiles: the program leaves no trace in caches and dumps.
  bool only_to_see = false;
  // Set: `code` is a serialized xla.ifrt.CustomCallProgramProto, a Python function of the client that runs on
  // the hosts of the devices. Each of several workers is given all of it; there are no options.
  std::optional<PythonFunction> python;
};

// One of the workers that run a program together.
struct ProgramWorker {
  PeerAddress address;
  std::vector<int32_t> positions;  // of its devices among those of the program, ascending
};

// Loads what a worker has compiled for several.
struct LoadProgram {
  ExecutableId executable = 0;
  std::shared_ptr<const std::string> serialized;
  std::string options;  // as in CompileProgram
  std::string outline;  // as in CompiledProgram
  // Of a program whose devices talk to each other, else empty: all its devices in order, and its workers, of
  // which the one that loads is number `self`.
  std::vector<DeviceId> devices;
  std::vector<ProgramWorker> workers;
  int32_t self = 0;
};

// What the compiler says about a program. All of it is as the plugin reports it.
struct CompiledProgram {
  std::string name;
  int32_t num_replicas = 1;
  int32_t num_partitions = 1;
  std::vector<DeviceId> devices;  // in assignment order
  std::string optimized_hlo_format;
  std::string optimized_hlo;  // serialized
  std::string outline;        // of it (program::OutlineOf): what is needed to run it, in little
  std::vector<std::string> output_memory_kinds;
  std::string fingerprint;  // empty if unknown
  absl::StatusOr<std::string> memory_stats =
      absl::UnimplementedError("memory stats");  // xla.CompiledMemoryStatsProto
  int64_t code_size_bytes = 0;
  bool calls_python = false;  // functions of its client
  // Only of programs for several workers.
  std::string serialized;
  bool has_collectives = false;  // workers must know each other to load it
};

using CostProperties = std::map<std::string, AttributeValue>;

// The commands of one client session to one worker: an ordered stream.
//
// Commands take effect in the order of the calls. None waits for a device, for the host or for an answer.
// Errors are values: a command that cannot be done binds its results to the first cause, and every use of
// them fails with it. A name belongs to the session that made it and is unknown to others.
// Callbacks run once, on any thread, maybe inside the call (except where stated), with no lock of the link
// held; they must not block. Callers serialize the calls of one session, except Read, Await, Compile,
// ReleaseLaunch, Settle and CostAnalysis, which may be called by any thread once the names they use exist.
class SessionLink {
 public:
  virtual ~SessionLink() = default;

  virtual void Declare(DeclareBuffers command) = 0;
  // Both: targets that were deleted meanwhile are skipped.
  virtual void Fill(HostContents contents) = 0;
  virtual void Fail(const BufferTargets& targets, const absl::Status& status) = 0;
  // The launch may wait for Flush before it starts.
  virtual void Execute(Launch launch) = 0;
  // Starts what waits for it, maybe on this thread: callbacks of launches and of what depends on them may
  // run inside the call. To be called soon after Execute, with no lock held.
  virtual void Flush() = 0;
  // `place`: as Launch::place.
  virtual void ReleaseLaunch(LaunchId id, uint64_t place) = 0;
  // Makes the results of a launch with `settles` ready: as they are, after its on_done, or failed, at any
  // time. Once it is settled nothing changes it. Any thread.
  virtual void Settle(LaunchId id, const absl::Status& status) = 0;
  virtual void Copy(CopyBuffers command) = 0;
  virtual void Send(SendBuffers command) = 0;
  virtual void Receive(ReceiveBuffers command) = 0;
  virtual void Assemble(AssembleBuffers command) = 0;
  virtual void Bitcast(BitcastBuffers command) = 0;
  // Frees the memory once work that was commanded before is done, and forgets the names. Unknown names are
  // skipped.
  virtual void Delete(const std::vector<BufferNames>& buffers) = 0;

  virtual void Read(BufferId buffer, ReadFormat format,
                    absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) = 0;
  // Done when every buffer has its value, with the first error that is found in their order.
  virtual void Await(const std::vector<BufferNames>& buffers,
                     absl::AnyInvocable<void(const absl::Status&)> done) = 0;

  // Never calls back inside the call. The program may be launched from the answer on. It may still be on its
  // way into the device then: launches wait for that, and fail if it fails.
  virtual void Compile(CompileProgram command,
                       absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) = 0;
  virtual void Load(LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) = 0;
  // A Python function is dropped when launches that were commanded before on that stream are over; none: on
  // the stream of its last launch.
  virtual void Unload(ExecutableId executable, std::optional<int64_t> stream) = 0;
  virtual void CostAnalysis(ExecutableId executable,
                            absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) = 0;

  // Calls back if the connection to the worker is lost, maybe at once; never for a worker in this process.
  // What waited for the worker has been told by itself.
  virtual void WhenLost(absl::AnyInvocable<void(const absl::Status&)> lost) = 0;
  // OK; or, once the connection to the worker is lost, DATA_LOSS naming it. Any thread.
  virtual absl::Status Loss() = 0;
  // Calls back whenever the worker has lost a connection from or to another that lives on: what one of them
  // was to send to the other until then may never arrive. At most once per session.
  using PeerLost = absl::AnyInvocable<void(const PeerAddress& peer, const absl::Status& status)>;
  virtual void WhenPeerLost(PeerLost lost) = 0;

  // What the Python beside the devices of one worker says to that of the others, so that they find each other
  // for collectives: a text that means nothing here. Calls back whenever there is one; at most once per
  // session. TellPython: any thread.
  using PythonSays = absl::AnyInvocable<void(const std::string& text)>;
  virtual void WhenPythonSays(PythonSays says) = 0;
  virtual void TellPython(const std::string& text) = 0;

  // Ends the session: fails what is declared and not filled, drops launches that have not started (their
  // on_done gets CANCELLED), frees all buffers and executables once running work is done with them. Later
  // commands do nothing, or call back with CANCELLED. Idempotent; any thread.
  virtual void Close() = 0;
};

// What one worker gives to another in a collective of a launch.
struct CollectivePart {
  SessionId session = 0;
  LaunchId launch = 0;
  int64_t instruction = 0;  // of the program
  int64_t occurrence = 0;   // how often the launch had come to this instruction before
  int32_t group = 0;        // of the instruction
  int32_t phase = 0;        // of the exchange
  int32_t source = 0;       // position of the device that it comes from
  base::HostBytes bytes;
};

// Takes what the collectives of other workers send. Any thread; must not block.
class CollectiveReceiver {
 public:
  virtual ~CollectiveReceiver() = default;
  // A launch or collective that this worker has not come to yet waits for it.
  virtual void TakePart(CollectivePart part) = 0;
  // The launch has failed on another worker, with the first cause that it knows.
  virtual void TakeAbort(SessionId session, LaunchId launch, const absl::Status& status) = 0;
  // A connection from or to a worker is lost.
  virtual void PeerLost(const PeerAddress& peer, const absl::Status& status) = 0;
};

// Takes buffers and parts of collectives to other workers. Any thread.
class PeerSender {
 public:
  virtual ~PeerSender() = default;
  // Who is told when a connection that this opened is lost. To be called before anything is sent.
  virtual void SetReceiver(std::weak_ptr<CollectiveReceiver> receiver) = 0;
  // Opens the connection to a peer unless there is one, so that its loss is noticed.
  virtual void Connect(const PeerAddress& to) = 0;
  // Memory for bytes that go to a peer, which costs the least to give to it.
  virtual absl::StatusOr<base::HostBlock> Allocate(const PeerAddress& to, int64_t bytes) = 0;
  // Never waits. Large bytes may come later than what is sent after them. What can't be delivered is lost,
  // and the loss is told.
  virtual void SendPart(const PeerAddress& to, CollectivePart part) = 0;
  virtual void SendAbort(const PeerAddress& to, SessionId session, LaunchId launch,
                         const absl::Status& status) = 0;
  // Contents without targets and memory kind, or why there are none. What can't be delivered is lost: the
  // receiver hears of it from whoever told it to receive.
  virtual void Send(const PeerAddress& to, SessionId session, BufferId result,
                    absl::StatusOr<HostContents> contents) = 0;
};

// One worker as a proxy sees it. Two implementations: inside the process, and over the network; nothing
// above knows which one it has. Any thread.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual const WorkerInfo& info() const = 0;
  // As SessionLink::Loss.
  virtual absl::Status Loss() = 0;
  // Where its peers reach it; no address if they can't.
  virtual PeerAddress peer_address() const = 0;
  // `callbacks` takes the calls of the session's programs to its client, until the session is closed and what
  // it ran is over. Without it such a call fails.
  virtual std::shared_ptr<SessionLink> OpenSession(SessionId session,
                                                   std::shared_ptr<CallbackSink> callbacks) = 0;
  // Text of the layout that a buffer of this shape gets by default, "{1,0}". `done` is called once, on any
  // thread, maybe inside this call.
  virtual void DefaultLayout(ElementType type, const std::vector<int64_t>& dims,
                             absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) = 0;
  // One device id per partition and replica: result[replica * partitions + partition].
  virtual absl::StatusOr<std::vector<DeviceId>> DefaultDeviceAssignment(int replicas, int partitions) = 0;
};

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_WORKER_LINK_H_
