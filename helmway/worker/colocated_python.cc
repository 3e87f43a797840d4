#include "helmway/worker/colocated_python.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "helmway/base/status.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/dtype.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/string_array.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/host_transfer.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

// Streams of a session whose functions run at one time. They may wait for each other, so it is far above the
// threads that a program has.
constexpr int kMaxRunning = 1024;
constexpr int kMaxLoading = 4096;
constexpr absl::Duration kStartPatience = absl::Minutes(2);

absl::Status SessionEnded() { return absl::CancelledError("the session has ended"); }

bool IsWide(cluster::ElementType type) {
  switch (type) {
    case xla::ifrt::DTypeProto::KIND_S64:
    case xla::ifrt::DTypeProto::KIND_U64:
    case xla::ifrt::DTypeProto::KIND_F64:
    case xla::ifrt::DTypeProto::KIND_C128:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<PythonProgram::Value> ParseValue(const xla::ifrt::ArraySpecProto& spec,
                                                const std::vector<cluster::DeviceId>& devices) {
  PythonProgram::Value value;
  value.type = spec.dtype().kind();
  HELMWAY_ASSIGN_OR_RETURN(const std::shared_ptr<const program::Sharding> sharding,
                           program::Sharding::Parse(spec.sharding()));
  value.memory_kind = sharding->memory_kind().value_or("");
  const std::vector<int64_t> dims(spec.shape().dims().begin(), spec.shape().dims().end());
  const absl::Span<const int32_t> all = sharding->devices();
  for (const cluster::DeviceId device : devices) {
    const auto at = std::find(all.begin(), all.end(), device);
    if (at == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("an array that is not on the program's device ", device));
    }
    HELMWAY_ASSIGN_OR_RETURN(const std::vector<int64_t> shard,
                             sharding->ShardShapeAt(dims, at - all.begin()));
    value.dims.emplace_back(shard.begin(), shard.end());
  }
  return value;
}

// JAX takes this text of a compile error for a server without colocated Python.
absl::Status WithoutFallback(const absl::Status& status) {
  constexpr absl::string_view kText = "PjRtCompiler requires an HloProgram";
  if (!absl::StrContains(status.message(), kText)) return status;
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{kText, "PjRtCompiler requires HLO"}}));
}

absl::Status CheckVersion(absl::string_view what, absl::string_view client, absl::string_view server,
                          absl::string_view python) {
  if (client.empty() || client == server) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("colocated Python: the client has ", what, " ", client, ", the server's ", python, " has ",
                   server, "; functions travel only between equal versions (--python names the server's)"));
}

// Gives the results of a run what was made in their place, or fails them; those that have failed before stay
// so.
void Finish(const PythonArrays& results, PythonArrays made, const absl::Status& status) {
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t d = 0; d < results[i].size(); ++d) {
      if (status.ok()) {
        results[i][d]->buffer = std::move(made[i][d]->buffer);
        results[i][d]->strings = std::move(made[i][d]->strings);
      }
      results[i][d]->Finish(status);
    }
  }
}

}  // namespace

ColocatedPython::ColocatedPython(Worker* worker)
    : worker_(worker),
      calls_(std::make_shared<StreamLanes>(&worker->callback_threads(), kMaxRunning)),
      loads_(std::make_shared<StreamLanes>(&worker->callback_threads(), 1)),
      tells_(std::make_shared<StreamLanes>(&worker->callback_threads(), 1)) {}

// ---- Programs --------------------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<Sidecar>> ColocatedPython::GetSidecar(
    const cluster::PythonFunction& function) {
  if (worker_->python().empty()) {
    return absl::FailedPreconditionError(
        "colocated Python: no Python was found on the server; name one that has jax and cloudpickle with "
        "--python=PATH");
  }
  std::shared_ptr<Sidecar> sidecar;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return SessionEnded();
    if (sidecar_ == nullptr || !sidecar_->status().ok()) {
      sidecar_ = Sidecar::Start({worker_->python(), worker_->process_id(), function.hosts,
                                 [says = says_](const std::string& text) {
                                   if (says != nullptr) (*says)(text);
                                 }},
                                &worker_->callback_threads());
    }
    sidecar = sidecar_;
  }
  if (absl::Status status = sidecar->AwaitReady(kStartPatience); !status.ok()) {
    return absl::IsCancelled(status) ? status : base::Annotate(status, "colocated Python");
  }
  HELMWAY_RETURN_IF_ERROR(
      CheckVersion("Python", function.python_version, sidecar->python_version(), worker_->python()));
  HELMWAY_RETURN_IF_ERROR(
      CheckVersion("jax", function.jax_version, sidecar->jax_version(), worker_->python()));
  return sidecar;
}

absl::StatusOr<cluster::CompiledProgram> ColocatedPython::LoadNow(const cluster::CompileProgram& command) {
  auto proto = std::make_shared<xla::ifrt::CustomCallProgramProto>();
  if (!proto->ParseFromString(command.code)) {
    return absl::InvalidArgumentError("the Python program can't be parsed");
  }
  auto program = std::make_shared<PythonProgram>();
  program->name = proto->name();
  for (const int32_t device : proto->devices().device_ids()) {
    if (worker_->queue(device) != nullptr) program->devices.push_back(device);
  }
  if (program->devices.empty())
    return absl::InvalidArgumentError("a Python program for no device of this worker");
  bool x64 = false;
  for (const auto& [specs, values] : {std::pair(&proto->input_specs(), &program->inputs),
                                      std::pair(&proto->output_specs(), &program->outputs)}) {
    for (const xla::ifrt::ArraySpecProto& spec : *specs) {
      HELMWAY_ASSIGN_OR_RETURN(PythonProgram::Value value, ParseValue(spec, program->devices));
      x64 = x64 || IsWide(value.type);
      values->push_back(std::move(value));
    }
  }
  HELMWAY_ASSIGN_OR_RETURN(program->sidecar, GetSidecar(*command.python));
  const std::string& text = proto->serialized_program_text();
  const base::HostBytes pickled{proto, reinterpret_cast<const uint8_t*>(text.data()),
                                static_cast<int64_t>(text.size())};
  if (absl::Status status = program->sidecar->Load(command.executable, program->name, pickled, x64);
      !status.ok()) {
    return WithoutFallback(base::Annotate(status, absl::StrCat("colocated Python ", program->name)));
  }
  cluster::CompiledProgram compiled;
  compiled.name = program->name;
  compiled.devices.assign(proto->devices().device_ids().begin(), proto->devices().device_ids().end());
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  programs_[command.executable] = std::move(program);
  return compiled;
}

void ColocatedPython::Load(cluster::CompileProgram command,
                           absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) {
  if (loading_.fetch_add(1) >= kMaxLoading) {
    loading_.fetch_sub(1);
    return worker_->callback_threads().Run([done = std::move(done)]() mutable {
      done(absl::ResourceExhaustedError("too many Python functions wait to be loaded"));
    });
  }
  loads_->Push(0,
               [self = shared_from_this(), command = std::move(command), done = std::move(done)]() mutable {
                 done(self->LoadNow(command));
                 self->loading_.fetch_sub(1);
               });
}

std::shared_ptr<PythonProgram> ColocatedPython::Find(cluster::ExecutableId id) {
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(id);
  return it == programs_.end() ? nullptr : it->second;
}

bool ColocatedPython::Unload(cluster::ExecutableId id, std::optional<int64_t> stream) {
  std::shared_ptr<PythonProgram> program;
  {
    base::MutexLock lock(&mu_);
    const auto it = programs_.find(id);
    if (it == programs_.end()) return false;
    program = std::move(it->second);
    programs_.erase(it);
  }
  const int64_t on = stream.value_or(program->last_stream);
  calls_->Push(on, [id, on, sidecar = program->sidecar] { sidecar->Unload(id, on); });
  return true;
}

void ColocatedPython::WhenSays(cluster::SessionLink::PythonSays says) {
  base::MutexLock lock(&mu_);
  if (!closed_) says_ = std::make_shared<cluster::SessionLink::PythonSays>(std::move(says));
}

void ColocatedPython::Tell(const std::string& text) {
  std::shared_ptr<Sidecar> sidecar;
  {
    base::MutexLock lock(&mu_);
    sidecar = sidecar_;
  }
  // Who has none has no part in what the others do. Never on the thread of a stream, which must not wait.
  if (sidecar != nullptr) tells_->Push(0, [sidecar = std::move(sidecar), text] { sidecar->Tell(text); });
}

void ColocatedPython::Close() {
  std::shared_ptr<Sidecar> sidecar;
  decltype(programs_) programs;
  decltype(unsettled_) unsettled;
  {
    base::MutexLock lock(&mu_);
    closed_ = true;
    sidecar.swap(sidecar_);
    programs.swap(programs_);
    unsettled.swap(unsettled_);
  }
  if (sidecar != nullptr) sidecar->Kill();
  for (const auto& [launch, one] : unsettled) Finish(one.results, {}, SessionEnded());
}

// ---- Calls -----------------------------------------------------------------------------------------------

void ColocatedPython::Run(PythonRun run) {
  if (run.settles) {
    base::MutexLock lock(&mu_);
    // After the end nobody settles it.
    if (closed_) {
      run.settles = false;
    } else {
      unsettled_[run.launch] = {run.results, {}};
    }
  }
  const int64_t stream = run.stream;
  calls_->Push(stream, [self = shared_from_this(), run = std::move(run)]() mutable { self->RunNow(run); });
}

void ColocatedPython::RunNow(PythonRun& run) {
  absl::StatusOr<PythonArrays> made = Call(run);
  run.arguments.clear();
  const absl::Status status = made.status();
  if (!run.settles) {
    Finish(run.results, status.ok() ? *std::move(made) : PythonArrays(), status);
  } else if (!status.ok()) {
    Settle(run.launch, status);
  } else {
    // Unless it has failed elsewhere meanwhile.
    base::MutexLock lock(&mu_);
    const auto it = unsettled_.find(run.launch);
    if (it != unsettled_.end()) it->second.made = *std::move(made);
  }
  run.results.clear();
  if (run.on_done) std::exchange(run.on_done, nullptr)(wire::WithUserContext(status, run.user_context));
}

void ColocatedPython::Settle(cluster::LaunchId launch, const absl::Status& status) {
  Unsettled one;
  {
    base::MutexLock lock(&mu_);
    const auto it = unsettled_.find(launch);
    if (it == unsettled_.end()) return;
    one = std::move(it->second);
    unsettled_.erase(it);
  }
  if (status.ok() && one.made.size() != one.results.size()) {
    Finish(one.results, {}, absl::InternalError("settled too early"));
  } else {
    Finish(one.results, std::move(one.made), status);
  }
}

absl::StatusOr<SidecarArrays> ColocatedPython::ReadArguments(PythonRun& run) {
  absl::Status status;
  int64_t bytes = 0;
  for (const auto& argument : run.arguments) {
    for (const ReadHold& hold : argument) status.Update(hold->ready->Wait());
  }
  HELMWAY_RETURN_IF_ERROR(status);
  struct Read {
    base::Notification done;
    absl::StatusOr<base::HostBytes> bytes = absl::UnknownError("");
  };
  SidecarArrays arrays;
  for (auto& argument : run.arguments) {
    std::vector<SidecarShard>& shards = arrays.emplace_back();
    for (size_t d = 0; d < argument.size(); ++d) {
      auto read = std::make_shared<Read>();
      ReadSlot(std::move(argument[d]), {}, &worker_->host_memory(),
               [read](absl::StatusOr<base::HostBytes> got) {
                 read->bytes = std::move(got);
                 read->done.Notify();
               });
      read->done.WaitForNotification();
      HELMWAY_RETURN_IF_ERROR(read->bytes.status());
      bytes += read->bytes->size;
      shards.push_back({run.program->devices[d], *std::move(read->bytes)});
    }
  }
  // They are copied into memory of the host.
  HELMWAY_RETURN_IF_ERROR(worker_->CheckRoom(bytes));
  return arrays;
}

absl::StatusOr<SlotRef> ColocatedPython::MakeBuffer(const PythonProgram::Value& value, size_t device_number,
                                                    cluster::DeviceId device, base::HostBytes bytes) {
  static const uint8_t kNothing = 0;
  cluster::HostContents contents;
  contents.targets.push_back({});
  contents.element_type = value.type;
  contents.dims = value.dims[device_number];
  contents.memory_kind = value.memory_kind;
  const std::vector<int64_t> dims(contents.dims.begin(), contents.dims.end());
  bool fits;
  if (value.type == xla::ifrt::DTypeProto::KIND_STRING) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    HELMWAY_ASSIGN_OR_RETURN(const int64_t strings, wire::CountStrings(absl::MakeConstSpan(
                                                        bytes.data, static_cast<size_t>(bytes.size))));
    fits = strings == count;
  } else {
    HELMWAY_ASSIGN_OR_RETURN(const int64_t size,
                             wire::HostByteCount(static_cast<xla::ifrt::DTypeProto::Kind>(value.type), dims));
    fits = bytes.size == size;
  }
  if (!fits) return absl::InternalError("Python has returned an array of another size");
  if (bytes.data == nullptr) bytes.data = &kNothing;
  contents.bytes = std::move(bytes);
  SlotRef slot = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
  FillSlot(worker_->client(), worker_->queue(device)->device(), contents, slot);
  HELMWAY_RETURN_IF_ERROR(slot->ready->Wait());
  return slot;
}

absl::StatusOr<PythonArrays> ColocatedPython::Call(PythonRun& run) {
  const PythonProgram& program = *run.program;
  HELMWAY_ASSIGN_OR_RETURN(SidecarArrays arguments, ReadArguments(run));
  {
    base::MutexLock lock(&mu_);
    if (closed_) return SessionEnded();
  }
  absl::StatusOr<SidecarArrays> outputs = program.sidecar->Run(run.executable, run.stream, arguments);
  if (!outputs.ok()) return base::Annotate(outputs.status(), absl::StrCat("colocated Python ", program.name));
  arguments.clear();
  if (outputs->size() != program.outputs.size())
    return absl::InternalError("Python has returned other outputs");
  PythonArrays made;
  for (size_t i = 0; i < outputs->size(); ++i) {
    std::vector<SlotRef>& slots = made.emplace_back();
    for (size_t d = 0; d < program.devices.size(); ++d) {
      const auto shard =
          std::find_if((*outputs)[i].begin(), (*outputs)[i].end(),
                       [&](const SidecarShard& one) { return one.device == program.devices[d]; });
      if (shard == (*outputs)[i].end())
        return absl::InternalError("Python has returned an array without a shard");
      HELMWAY_ASSIGN_OR_RETURN(SlotRef slot,
                               MakeBuffer(program.outputs[i], d, program.devices[d], shard->bytes));
      slots.push_back(std::move(slot));
    }
  }
  return made;
}

}  // namespace helmway::worker
