#include "helmway/worker/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/executable.h"
#include "helmway/program/executable_spec.h"
#include "helmway/wire/ifrt_types.pb.h"
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

absl::Status DonatedTwice(int32_t first, int32_t second) {
  return absl::InvalidArgumentError(
      absl::StrCat("Attempt to donate the same buffer twice in Execute(): as arguments ", first, " and ",
                   second, ", like f(donate(a), donate(a))"));
}

absl::Status UsedAndDonated(int32_t donated, int32_t used) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Attempt to use a buffer that was previously donated in the same call to Execute(): argument ", donated,
      " donates what argument ", used, " uses, like f(donate(a), a)"));
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

Session::Session(Worker* worker) : worker_(worker) {}

Session::~Session() { Close(); }

SlotRef Session::FindLocked(cluster::BufferId id) {
  const auto it = slots_.find(id);
  return it == slots_.end() ? SlotRef() : it->second;
}

SlotRef Session::FindOrFailed(cluster::BufferId id) {
  if (SlotRef slot = FindLocked(id)) return slot;
  return base::MakeRef<Slot>(
      async::DoneCompletion(closed_ ? SessionEnded() : absl::InvalidArgumentError("Array has been deleted.")),
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
      slot->user_context = contents.user_context;
      const DeviceQueue* queue = worker_->queue(target.device);
      if (queue == nullptr) {
        slot->Finish(absl::InvalidArgumentError(absl::StrCat("no device ", target.device)));
        continue;
      }
      work.emplace_back(std::move(slot), queue->device());
    }
  }
  const bool token = contents.element_type == xla::ifrt::DTypeProto::KIND_TOKEN;
  const bool slow = FillIsSlow(contents);
  auto fill = [self = shared_from_this(), work, token, slow, contents = std::move(contents)] {
    // A fill that is not slow takes the host's bytes as they are.
    const absl::Status room = slow ? self->worker_->CheckRoom(contents.bytes.size) : absl::OkStatus();
    for (const auto& [slot, device] : work) {
      if (!room.ok()) {
        slot->Finish(room);
      } else if (token) {
        FillSlotWithToken(self->worker_->tokens(), device, contents.memory_kind, slot);
      } else {
        FillSlot(self->worker_->client(), device, contents, slot);
      }
    }
  };
  if (!slow && !token) {
    fill();
  } else if (!(token ? worker_->compilers() : worker_->transfers()).Post(std::move(fill))) {
    for (const auto& [slot, device] : work) {
      slot->Finish(absl::ResourceExhaustedError("too many transfers from the host wait"));
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
    if (slot) slot->Finish(status);
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
  LaunchRef record = base::MakeRef<LaunchRecord>(program, static_cast<int32_t>(launch.id),
                                                 launch.user_context, cancelled_, std::move(launch.on_done));
  const size_t devices = program->queues.size();
  std::vector<LaunchPart>& parts = record->parts();
  parts.resize(devices);
  bool held;
  absl::Status conflict;
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
        part.arguments.push_back(std::move(slot));
      }
      part.kept_arguments.assign(launch.kept.begin(), launch.kept.end());
      for (const int32_t a : launch.donated) {
        Slot& slot = *part.arguments[static_cast<size_t>(a)];
        if (slot.consumer == record.get()) conflict.Update(DonatedTwice(slot.consumed_as, a));
        slot.consumed.store(true, std::memory_order_relaxed);
        slot.consumer = record.get();
        slot.consumed_as = a;
        if (slot.readers.load() > 0) part.kept_arguments.push_back(a);
      }
      if (!launch.donated.empty()) {
        for (size_t a = 0; a < part.arguments.size(); ++a) {
          const Slot& slot = *part.arguments[a];
          if (slot.consumer == record.get() && slot.consumed_as != static_cast<int32_t>(a)) {
            conflict.Update(UsedAndDonated(slot.consumed_as, static_cast<int32_t>(a)));
          }
        }
      }
      part.results.reserve(launch.results.size());
      for (const cluster::BufferNames& names : launch.results) {
        SlotRef slot = base::MakeRef<Slot>(part.done, program->queues[d]);
        if (!closed_) slots_[names.at(d)] = slot;
        part.results.push_back(std::move(slot));
      }
    }
    // On one device the plugin would refuse the run and on others begin it, so that they wait for the first.
    if (!conflict.ok()) {
      for (LaunchPart& part : parts) {
        part.arguments[0] = base::MakeRef<Slot>(async::DoneCompletion(conflict), nullptr);
      }
    }
    held = launch.held && !closed_;
    if (held) held_[launch.id] = record;
  }
  if (held) return;
  if (!program->may_start_at_once) {
    worker_->sequencer().Enqueue(record);
    return;
  }
  DeviceQueue* queue = program->queues[0];
  queue->PushQuietly(record, 0);
  DeviceQueue* other = unflushed_.exchange(queue);
  if (other != nullptr && other != queue) other->Wake();
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
  worker_->sequencer().Enqueue(record);
}

void Session::Copy(cluster::CopyBuffers command) {
  for (size_t i = 0; i < command.devices.size(); ++i) {
    SlotRef source;
    SlotRef result = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
    result->user_context = command.user_context;
    {
      base::MutexLock lock(&mu_);
      source = FindOrFailed(command.sources.at(i));
      if (closed_) return;
      slots_[command.results.at(i)] = result;
    }
    if (source->consumed.load(std::memory_order_relaxed)) {
      result->Finish(Consumed());
      continue;
    }
    const DeviceQueue* queue = worker_->queue(command.devices[i]);
    if (queue == nullptr) {
      result->Finish(absl::InvalidArgumentError(absl::StrCat("no device ", command.devices[i])));
      continue;
    }
    const pjrt::Device* device = queue->device();
    const pjrt::Memory* memory =
        command.memory_kind.empty() ? device->default_memory() : device->FindMemory(command.memory_kind);
    if (memory == nullptr) {
      result->Finish(absl::InvalidArgumentError(absl::StrCat(
          "device ", command.devices[i], " has no memory of kind \"", command.memory_kind, "\"")));
      continue;
    }
    source->ready->OnDone([self = shared_from_this(), hold = std::make_shared<ReadHold>(source), result,
                           device, memory,
                           default_layout = command.default_layout](const absl::Status& status) mutable {
      if (!status.ok()) {
        result->Finish(status);
        return;
      }
      if ((*hold)->strings) {
        result->strings = (*hold)->strings;
        result->Finish(absl::OkStatus());
        return;
      }
      // The plugin call is not for the thread that finished the source, nor for the command thread.
      auto copy = [self, hold = std::move(hold), result, device, memory, default_layout] {
        if (default_layout && !HasDefaultLayout((*hold)->buffer)) {
          return CopyByWayOfHost(self->worker_->client(), std::move(*hold), device, memory->kind(),
                                 &self->worker_->host_memory(), result);
        }
        const auto bytes = static_cast<int64_t>((*hold)->buffer.OnDeviceSizeBytes().value_or(0));
        if (absl::Status room = self->worker_->CheckRoom(bytes); !room.ok()) {
          result->Finish(room);
          return;
        }
        absl::StatusOr<pjrt::Buffer> buffer = (*hold)->buffer.CopyToMemory(memory);
        if (!buffer.ok()) {
          result->Finish(buffer.status());
          return;
        }
        result->buffer = *std::move(buffer);
        absl::StatusOr<pjrt::Event> ready = result->buffer.ReadyEvent();
        if (!ready.ok()) {
          result->Finish(ready.status());
          return;
        }
        ready->OnReady([hold, result](const absl::Status& outcome) { result->Finish(outcome); });
      };
      if (!self->worker_->transfers().Post(std::move(copy))) {
        result->Finish(absl::ResourceExhaustedError("too many copies between devices wait"));
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
      slot->Finish(absl::InvalidArgumentError("Array has been deleted before its bytes came."));
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

absl::StatusOr<cluster::CompiledProgram> Session::CompileNow(const cluster::CompileProgram& command) {
  pjrt::CompileRequest request;
  request.code = command.code;
  request.serialized_options = command.options;
  HELMWAY_ASSIGN_OR_RETURN(std::unique_ptr<pjrt::LoadedExecutable> executable,
                           worker_->client().Compile(request));
  cluster::CompiledProgram result;
  result.name = executable->name();
  result.num_replicas = executable->num_replicas();
  result.num_partitions = executable->num_partitions();
  auto program = std::make_shared<LoadedProgram>();
  for (const pjrt::Device* device : executable->addressable_devices()) {
    result.devices.push_back(device->id());
    program->queues.push_back(worker_->queue(device->id()));
  }
  HELMWAY_ASSIGN_OR_RETURN(pjrt::ProgramBytes hlo, executable->OptimizedHlo());
  HELMWAY_ASSIGN_OR_RETURN(program::ExecutableSpec spec,
                           program::FromOptimizedHlo(hlo.format, hlo.bytes, result.devices,
                                                     result.num_replicas, result.num_partitions));
  program->has_cross_device_ops = result.devices.size() > 1 && spec.has_cross_device_ops;
  program->may_start_at_once = result.devices.size() == 1 && spec.is_short &&
                               spec.parameters.size() + spec.outputs.size() <= kMaxValuesToStartAtOnce;
  result.optimized_hlo_format = std::move(hlo.format);
  result.optimized_hlo = std::move(hlo.bytes);
  HELMWAY_ASSIGN_OR_RETURN(result.output_memory_kinds, executable->OutputMemoryKinds());
  result.fingerprint = executable->Fingerprint().value_or("");
  if (absl::StatusOr<pjrt::CompiledMemoryStats> stats = executable->GetCompiledMemoryStats(); stats.ok()) {
    result.memory_stats = SerializeMemoryStats(*stats);
    const int64_t bytes = (stats->output_bytes - stats->alias_bytes + stats->temp_bytes) *
                          static_cast<int64_t>(result.devices.size());
    if (bytes >= base::kLargeAllocationBytes) {
      program->check_room = [worker = worker_, bytes] { return worker->CheckRoom(bytes); };
      program->may_start_at_once = false;
    }
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
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    cancelled_->store(true);
    slots.swap(slots_);
    programs.swap(programs_);
    held.swap(held_);
  }
  for (auto& [id, launch] : held) launch->Drop(SessionEnded());
  // Slots that wait for the host end here; those of launches under way are finished by their queues.
  for (auto& [id, slot] : slots) {
    if (slot->producer == nullptr && !slot->ready->done()) slot->Finish(SessionEnded());
  }
}

}  // namespace helmway::worker
