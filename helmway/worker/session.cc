#include "helmway/worker/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/executable.h"
#include "helmway/program/executable_spec.h"
#include "helmway/wire/xla_data.pb.h"
#include "helmway/wire/xla_hlo.pb.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/host_transfer.h"
#include "helmway/worker/worker.h"

namespace helmway::worker {
namespace {

absl::Status SessionEnded() { return absl::CancelledError("the session has ended"); }

absl::Status Consumed() {
  return absl::InvalidArgumentError(
      "Array has been deleted or donated: an earlier run of a program consumed it.");
}

// Finishes once with the outcome of several slots.
struct AwaitState {
  std::vector<SlotRef> slots;
  std::atomic<size_t> remaining;
  absl::AnyInvocable<void(const absl::Status&)> done;

  void OneReady() {
    if (remaining.fetch_sub(1) != 1) return;
    for (const SlotRef& slot : slots) {
      if (!slot->ready->status().ok()) return done(slot->ready->status());
    }
    done(absl::OkStatus());
  }
};

// Handing a program to the plugin costs some time for each of its arguments and outputs.
constexpr size_t kMaxValuesToStartAtOnce = 64;

std::string SerializeMemoryStats(const pjrt::CompiledMemoryStats& stats) {
  xla::CompiledMemoryStatsProto proto;
  proto.set_generated_code_size_in_bytes(stats.generated_code_bytes);
  proto.set_argument_size_in_bytes(stats.argument_bytes);
  proto.set_output_size_in_bytes(stats.output_bytes);
  proto.set_alias_size_in_bytes(stats.alias_bytes);
  proto.set_temp_size_in_bytes(stats.temp_bytes);
  proto.set_host_generated_code_size_in_bytes(stats.host_generated_code_bytes);
  proto.set_host_argument_size_in_bytes(stats.host_argument_bytes);
  proto.set_host_output_size_in_bytes(stats.host_output_bytes);
  proto.set_host_alias_size_in_bytes(stats.host_alias_bytes);
  proto.set_host_temp_size_in_bytes(stats.host_temp_bytes);
  proto.set_peak_memory_in_bytes(stats.peak_memory_bytes);
  proto.set_total_size_in_bytes(stats.total_bytes);
  return proto.SerializeAsString();
}

}  // namespace

Session::Session(Worker* worker, std::shared_ptr<cluster::CallbackSink> callbacks)
    : worker_(worker),
      callback_lanes_(std::make_shared<CallbackLanes>(std::move(callbacks), &worker->callback_threads())) {}

Session::~Session() { Close(); }

SlotRef Session::FindLocked(cluster::BufferId id) {
  const auto it = slots_.find(id);
  return it == slots_.end() ? SlotRef() : it->second;
}

SlotRef Session::FindOrFailed(cluster::BufferId id) {
  if (SlotRef slot = FindLocked(id)) return slot;
  return base::MakeRef<Slot>(
      async::DoneCompletion(
          closed_ ? SessionEnded()
                  : absl::InvalidArgumentError(absl::StrCat("Array has been deleted. (buffer ", id, ")"))),
      nullptr);
}

void Session::Declare(cluster::DeclareBuffers command) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  for (const cluster::BufferTarget& target : command.targets) {
    SlotRef slot = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
    slot->awaits_host = true;
    slots_[target.buffer] = std::move(slot);
  }
}

void Session::Fill(cluster::HostContents contents) {
  absl::InlinedVector<std::pair<SlotRef, const pjrt::Device*>, 1> work;
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferTarget& target : contents.targets) {
      SlotRef slot = FindLocked(target.buffer);
      if (!slot) continue;
      const DeviceQueue* queue = worker_->queue(target.device);
      if (queue == nullptr) {
        slot->ready->Finish(absl::InvalidArgumentError(absl::StrCat("no device ", target.device)));
        continue;
      }
      work.emplace_back(std::move(slot), queue->device());
    }
  }
  const bool slow = FillIsSlow(contents);
  auto fill = [self = shared_from_this(), work, contents = std::move(contents)] {
    for (const auto& [slot, device] : work) FillSlot(self->worker_->client(), device, contents, slot);
  };
  if (!slow) {
    fill();
  } else if (!worker_->transfers().Post(std::move(fill))) {
    for (const auto& [slot, device] : work) {
      slot->ready->Finish(absl::ResourceExhaustedError("too many transfers from the host wait"));
    }
  }
}

void Session::Fail(const cluster::BufferTargets& targets, const absl::Status& status) {
  for (const cluster::BufferTarget& target : targets) {
    SlotRef slot;
    {
      base::MutexLock lock(&mu_);
      slot = FindLocked(target.buffer);
    }
    if (slot) slot->ready->Finish(status);
  }
}

std::shared_ptr<const LoadedProgram> Session::FindProgram(cluster::ExecutableId id) {
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(id);
  return it == programs_.end() ? nullptr : it->second;
}

void Session::Execute(cluster::Launch launch) {
  std::shared_ptr<const LoadedProgram> program = FindProgram(launch.executable);
  if (program == nullptr) {
    // The proxy names only executables that it has loaded, so this is the end of the session. The results
    // have no slots; whoever reads them finds that out.
    if (launch.on_done) {
      auto on_done =
          std::make_shared<absl::AnyInvocable<void(const absl::Status&)>>(std::move(launch.on_done));
      if (!worker_->transfers().Post([on_done] { (*on_done)(SessionEnded()); })) (*on_done)(SessionEnded());
    }
    return;
  }
  LaunchRef record = base::MakeRef<LaunchRecord>(program, static_cast<int32_t>(launch.id), cancelled_,
                                                 std::move(launch.on_done));
  const size_t devices = program->queues.size();
  std::vector<LaunchPart>& parts = record->parts();
  parts.resize(devices);
  const bool calls_back = program->callback_client != nullptr;
  bool late = calls_back;
  bool held;
  {
    base::MutexLock lock(&mu_);
    for (size_t d = 0; d < devices; ++d) {
      LaunchPart& part = parts[d];
      part.done = base::MakeRef<async::Completion>();
      part.arguments.reserve(launch.arguments.size());
      for (const cluster::BufferNames& names : launch.arguments) {
        SlotRef slot = FindOrFailed(names.at(d));
        if (slot->consumed.load(std::memory_order_relaxed)) {
          slot = base::MakeRef<Slot>(async::DoneCompletion(Consumed()), nullptr);
        }
        late = late || slot->is_late();
        part.arguments.push_back(std::move(slot));
      }
      part.kept_arguments.assign(launch.kept.begin(), launch.kept.end());
      for (const int32_t a : launch.donated) {
        Slot& slot = *part.arguments[static_cast<size_t>(a)];
        slot.consumed.store(true, std::memory_order_relaxed);
        if (slot.readers.load() > 0) part.kept_arguments.push_back(a);
      }
      if (calls_back) {
        for (const SlotRef& slot : part.arguments) part.holds.emplace_back(slot);
      }
    }
    for (size_t d = 0; d < devices; ++d) {
      LaunchPart& part = parts[d];
      part.results.reserve(launch.results.size());
      for (size_t i = 0; i < launch.results.size(); ++i) {
        const bool is_token = program->token_outputs[i];
        if (is_token && !part.tokens_done) part.tokens_done = base::MakeRef<async::Completion>();
        // Nothing but the end of the launch fills a token.
        SlotRef slot = base::MakeRef<Slot>(is_token ? part.tokens_done : part.done,
                                           calls_back || is_token ? nullptr : program->queues[d]);
        slot->awaits_launch = is_token || calls_back;
        slot->awaits_callback = late;
        if (!closed_) slots_[launch.results[i].at(d)] = slot;
        part.results.push_back(std::move(slot));
      }
    }
    // A program that calls back waits for its inputs by itself.
    held = launch.held && !closed_ && !calls_back;
    if (held) held_[launch.id] = record;
  }
  if (calls_back) {
    callback_lanes_->Push(launch.stream, std::move(record));
    return;
  }
  if (held) return;
  if (late || !program->may_start_at_once) {
    Enqueue(std::move(record));
    return;
  }
  DeviceQueue* queue = program->queues[0];
  queue->PushQuietly(record, 0);
  DeviceQueue* other = unflushed_.exchange(queue);
  if (other != nullptr && other != queue) other->Wake();
}

void Session::Enqueue(LaunchRef record) {
  std::vector<async::CompletionRef> late;
  for (const LaunchPart& part : record->parts()) {
    for (const SlotRef& slot : part.arguments) {
      if (slot->is_late()) late.push_back(slot->ready);
    }
  }
  if (late.empty()) {
    worker_->sequencer().Enqueue(record);
    return;
  }
  struct Parked {
    LaunchRef record;
    std::atomic<size_t> late;
  };
  auto parked = std::make_shared<Parked>();
  parked->record = std::move(record);
  parked->late.store(late.size());
  for (const async::CompletionRef& ready : late) {
    ready->OnDone([worker = worker_, parked](const absl::Status&) {
      if (parked->late.fetch_sub(1) == 1) worker->sequencer().Enqueue(parked->record);
    });
  }
}

void Session::Flush() {
  if (unflushed_.load(std::memory_order_relaxed) == nullptr) return;
  if (DeviceQueue* queue = unflushed_.exchange(nullptr)) queue->RunOrWake();
}

void Session::ReleaseLaunch(cluster::LaunchId id) {
  LaunchRef record;
  {
    base::MutexLock lock(&mu_);
    const auto it = held_.find(id);
    if (it == held_.end()) return;
    record = std::move(it->second);
    held_.erase(it);
  }
  Enqueue(std::move(record));
}

void Session::Copy(cluster::CopyBuffers command) {
  for (size_t i = 0; i < command.devices.size(); ++i) {
    SlotRef source;
    SlotRef result = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
    {
      base::MutexLock lock(&mu_);
      source = FindOrFailed(command.sources.at(i));
      if (closed_) return;
      result->awaits_callback = source->is_late();
      result->awaits_launch = result->awaits_callback;
      slots_[command.results.at(i)] = result;
    }
    if (source->consumed.load(std::memory_order_relaxed)) {
      result->ready->Finish(Consumed());
      continue;
    }
    const DeviceQueue* queue = worker_->queue(command.devices[i]);
    if (queue == nullptr) {
      result->ready->Finish(absl::InvalidArgumentError(absl::StrCat("no device ", command.devices[i])));
      continue;
    }
    const pjrt::Memory* memory = command.memory_kind.empty()
                                     ? queue->device()->default_memory()
                                     : queue->device()->FindMemory(command.memory_kind);
    if (memory == nullptr) {
      result->ready->Finish(absl::InvalidArgumentError(absl::StrCat(
          "device ", command.devices[i], " has no memory of kind \"", command.memory_kind, "\"")));
      continue;
    }
    source->ready->OnDone([self = shared_from_this(), hold = std::make_shared<ReadHold>(source), result,
                           memory](const absl::Status& status) mutable {
      if (!status.ok()) {
        result->ready->Finish(status);
        return;
      }
      // The plugin call is not for the thread that finished the source, nor for the command thread.
      auto copy = [hold = std::move(hold), result, memory] {
        absl::StatusOr<pjrt::Buffer> buffer = (*hold)->buffer.CopyToMemory(memory);
        if (!buffer.ok()) {
          result->ready->Finish(buffer.status());
          return;
        }
        result->buffer = *std::move(buffer);
        absl::StatusOr<pjrt::Event> ready = result->buffer.ReadyEvent();
        if (!ready.ok()) {
          result->ready->Finish(ready.status());
          return;
        }
        ready->OnReady([hold, result](const absl::Status& outcome) { result->ready->Finish(outcome); });
      };
      if (!self->worker_->transfers().Post(std::move(copy))) {
        result->ready->Finish(absl::ResourceExhaustedError("too many copies between devices wait"));
      }
    });
  }
}

void Session::Delete(const std::vector<cluster::BufferNames>& buffers) {
  std::vector<SlotRef> dropped;  // freed outside the lock: giving memory back takes time
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferNames& names : buffers) {
      for (size_t i = 0; i < names.size(); ++i) {
        const auto it = slots_.find(names.at(i));
        if (it == slots_.end()) continue;
        dropped.push_back(std::move(it->second));
        slots_.erase(it);
      }
    }
  }
  // Nothing can fill these any more, and somebody may wait for them.
  for (const SlotRef& slot : dropped) {
    if (slot->awaits_host && !slot->ready->done()) {
      slot->ready->Finish(absl::InvalidArgumentError("Array has been deleted before its bytes came."));
    }
  }
}

void Session::Read(cluster::BufferId buffer, cluster::ReadFormat format,
                   absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  SlotRef slot;
  {
    base::MutexLock lock(&mu_);
    slot = FindOrFailed(buffer);
  }
  if (slot->consumed.load(std::memory_order_relaxed)) return done(Consumed());
  async::CompletionRef ready = slot->ready;
  ReadHold hold(std::move(slot));
  if (ready->done()) {
    if (!ready->status().ok()) return done(ready->status());
    return ReadSlot(std::move(hold), format, &worker_->host_memory(), std::move(done));
  }
  ready->OnDone([hold = std::move(hold), format = std::move(format), self = shared_from_this(),
                 done = std::move(done)](const absl::Status& status) mutable {
    if (!status.ok()) return done(status);
    ReadSlot(std::move(hold), format, &self->worker_->host_memory(), std::move(done));
  });
}

void Session::Await(const std::vector<cluster::BufferNames>& buffers,
                    absl::AnyInvocable<void(const absl::Status&)> done) {
  auto state = std::make_shared<AwaitState>();
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferNames& names : buffers) {
      for (size_t i = 0; i < names.size(); ++i) state->slots.push_back(FindOrFailed(names.at(i)));
    }
  }
  state->done = std::move(done);
  // One more than the slots, for this call: so that an empty list is answered, and not before all are asked.
  state->remaining.store(state->slots.size() + 1);
  for (const SlotRef& slot : state->slots) {
    slot->ready->OnDone([state](const absl::Status&) { state->OneReady(); });
  }
  state->OneReady();
}

absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> Session::CompileOn(
    const pjrt::Client& client, const cluster::CompileProgram& command) {
  pjrt::CompileRequest request;
  request.code = command.code;
  request.serialized_options = command.options;
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> compiled = client.Compile(request);
  if (!compiled.ok() && CustomCalls::IsMissingTarget(compiled.status())) {
    // JAX's custom calls are loaded when the first program wants one.
    if (worker_->custom_calls().Load().ok()) compiled = client.Compile(request);
    if (!compiled.ok() && CustomCalls::IsMissingTarget(compiled.status())) {
      return worker_->custom_calls().Explain(compiled.status());
    }
  }
  return compiled;
}

absl::StatusOr<std::shared_ptr<CallbackClient>> Session::GetCallbackClient() {
  {
    base::MutexLock lock(&mu_);
    if (callback_client_ != nullptr) return callback_client_;
  }
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<CallbackClient> leased, worker_->callback_clients().Lease());
  base::MutexLock lock(&mu_);
  if (callback_client_ == nullptr && !closed_) callback_client_ = leased;
  return leased;
}

absl::StatusOr<cluster::CompiledProgram> Session::CompileNow(const cluster::CompileProgram& command) {
  auto program = std::make_shared<LoadedProgram>();
  std::unique_ptr<pjrt::LoadedExecutable> executable;
  pjrt::ProgramBytes hlo;
  program::ExecutableSpec spec;
  // What the bytes do not show is seen in the compiled program.
  bool calls_back = absl::StrContains(command.code, cluster::kPythonCallbackTarget);
  while (true) {
    if (calls_back) {
      HELMWAY_ASSIGN_OR_RETURN(program->callback_client, GetCallbackClient());
    }
    HELMWAY_ASSIGN_OR_RETURN(
        executable, CompileOn(calls_back ? *program->callback_client->client() : worker_->client(), command));
    HELMWAY_ASSIGN_OR_RETURN(hlo, executable->OptimizedHlo());
    std::vector<cluster::DeviceId> devices;
    for (const pjrt::Device* device : executable->addressable_devices()) devices.push_back(device->id());
    HELMWAY_ASSIGN_OR_RETURN(
        spec, program::FromOptimizedHlo(hlo.format, hlo.bytes, devices, executable->num_replicas(),
                                        executable->num_partitions()));
    if (calls_back || !std::binary_search(spec.custom_call_targets.begin(), spec.custom_call_targets.end(),
                                          cluster::kPythonCallbackTarget)) {
      break;
    }
    calls_back = true;
  }
  for (const program::ValueSpec& value : spec.parameters) program->token_parameters.push_back(value.is_token);
  for (const program::ValueSpec& value : spec.outputs) program->token_outputs.push_back(value.is_token);
  cluster::CompiledProgram result;
  result.name = executable->name();
  result.num_replicas = executable->num_replicas();
  result.num_partitions = executable->num_partitions();
  for (const pjrt::Device* device : executable->addressable_devices()) {
    result.devices.push_back(device->id());
    program->queues.push_back(worker_->queue(device->id()));
  }
  program->has_cross_device_ops = result.devices.size() > 1 && spec.has_cross_device_ops;
  program->may_start_at_once = !calls_back && result.devices.size() == 1 && spec.is_short &&
                               spec.parameters.size() + spec.outputs.size() <= kMaxValuesToStartAtOnce;
  result.optimized_hlo_format = std::move(hlo.format);
  result.optimized_hlo = std::move(hlo.bytes);
  HELMWAY_ASSIGN_OR_RETURN(result.output_memory_kinds, executable->OutputMemoryKinds());
  result.fingerprint = executable->Fingerprint().value_or("");
  if (absl::StatusOr<pjrt::CompiledMemoryStats> stats = executable->GetCompiledMemoryStats(); stats.ok()) {
    result.memory_stats = SerializeMemoryStats(*stats);
  } else {
    result.memory_stats = stats.status();
  }
  result.code_size_bytes = executable->GeneratedCodeSizeBytes().value_or(0);
  program->executable = std::move(executable);
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  programs_[command.executable] = std::move(program);
  return result;
}

void Session::Compile(cluster::CompileProgram command,
                      absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) {
  auto shared_done = std::make_shared<decltype(done)>(std::move(done));
  auto task = [self = shared_from_this(), command = std::move(command), shared_done] {
    if (self->cancelled_->load()) return (*shared_done)(SessionEnded());
    (*shared_done)(self->CompileNow(command));
  };
  if (worker_->compilers().Post(std::move(task))) return;
  auto refuse = [shared_done] {
    (*shared_done)(absl::ResourceExhaustedError("too many programs wait to be compiled"));
  };
  if (!worker_->transfers().Post(refuse)) refuse();
}

void Session::Unload(cluster::ExecutableId executable) {
  std::shared_ptr<const LoadedProgram> dropped;
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(executable);
  if (it == programs_.end()) return;
  dropped = std::move(it->second);
  programs_.erase(it);
}

void Session::CostAnalysis(cluster::ExecutableId executable,
                           absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) {
  std::shared_ptr<const LoadedProgram> program = FindProgram(executable);
  if (program == nullptr) {
    return done(cancelled_->load() ? SessionEnded()
                                   : absl::NotFoundError(absl::StrCat("no executable ", executable)));
  }
  absl::StatusOr<pjrt::AttributeMap> analysis = program->executable->CostAnalysis();
  if (!analysis.ok()) return done(analysis.status());
  cluster::CostProperties properties;
  for (const auto& [name, value] : *analysis) {
    properties[name] = std::visit([](const auto& v) { return cluster::AttributeValue{v}; }, value);
  }
  done(std::move(properties));
}

void Session::Close() {
  decltype(slots_) slots;
  decltype(programs_) programs;
  decltype(held_) held;
  std::shared_ptr<CallbackClient> callback_client;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    cancelled_->store(true);
    slots.swap(slots_);
    programs.swap(programs_);
    held.swap(held_);
    callback_client.swap(callback_client_);
  }
  for (auto& [id, launch] : held) launch->Drop(SessionEnded());
  // Slots that wait for the host end here; those of launches under way are finished by their queues.
  for (auto& [id, slot] : slots) {
    if (slot->producer == nullptr && !slot->awaits_launch && !slot->ready->done()) {
      slot->ready->Finish(SessionEnded());
    }
  }
}

}  // namespace helmway::worker
