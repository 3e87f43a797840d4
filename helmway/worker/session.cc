#include "helmway/worker/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "helmway/base/available_memory.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/executable.h"
#include "helmway/program/collectives.h"
#include "helmway/program/compile_options.h"
#include "helmway/program/executable_spec.h"
#include "helmway/wire/ifrt_types.pb.h"
#include "helmway/wire/xla_data.pb.h"
#include "helmway/wire/xla_hlo.pb.h"
#include "helmway/worker/assembly.h"
#include "helmway/worker/compiler.h"
#include "helmway/worker/device_queue.h"
#include "helmway/worker/host_transfer.h"
#include "helmway/worker/view.h"
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

// Calls `done` once when all of these are, failed or not: on this thread, or where the last one is finished.
void WhenDone(const std::vector<SlotRef>& slots, absl::AnyInvocable<void()> done) {
  std::vector<async::CompletionRef> events;
  for (const SlotRef& slot : slots) events.push_back(slot->ready);
  async::WhenAllDone(events, std::move(done));
}

// Streams of a session that run programs which call back at one time. More than a program has threads that
// call JAX, as a rule; the plugin has a limit of its own for each device, XLA's on CPU of 32.
constexpr int kMaxCallingBack = 64;

// Handing a program to the plugin costs some time for each of its arguments and outputs.
constexpr size_t kMaxValuesToStartAtOnce = 64;

// What a run allocates on each of its devices, as far as the compiler says. A program from the cache may no
// longer know it by itself.
int64_t AllocatedBytes(const cluster::CompiledProgram& program) {
  xla::CompiledMemoryStatsProto stats;
  if (!program.memory_stats.ok() || !stats.ParseFromString(*program.memory_stats)) return 0;
  return stats.output_size_in_bytes() - stats.alias_size_in_bytes() + stats.temp_size_in_bytes();
}

// Compile options for a program that calls back: its devices may wait long for one that waits for the client.
// XLA would end the process when a collective has waited for 40 seconds.
std::string WithPatience(const std::string& serialized) {
  constexpr int64_t kSeconds = int64_t{10} * 365 * 86400;
  xla::CompileOptionsProto options;
  if (!options.ParseFromString(serialized)) return serialized;
  for (const char* option :
       {"xla_cpu_collective_call_terminate_timeout_seconds", "xla_cpu_collective_timeout_seconds"}) {
    (*options.mutable_env_option_overrides())[option].set_int_field(kSeconds);
  }
  return options.SerializeAsString();
}

// What a buffer is, without its bytes.
absl::StatusOr<cluster::HostContents> Describe(const Slot& slot) {
  cluster::HostContents contents;
  if (slot.strings) {
    contents.element_type = xla::ifrt::DTypeProto::KIND_STRING;
    return contents;
  }
  contents.element_type = static_cast<cluster::ElementType>(slot.buffer.element_type());
  const absl::Span<const int64_t> dims = slot.buffer.dimensions();
  contents.dims.assign(dims.begin(), dims.end());
  HELMWAY_ASSIGN_OR_RETURN(const pjrt::MemoryLayout layout, slot.buffer.GetMemoryLayout());
  if (!std::is_sorted(layout.minor_to_major.rbegin(), layout.minor_to_major.rend())) {
    contents.minor_to_major.emplace(layout.minor_to_major.begin(), layout.minor_to_major.end());
  }
  return contents;
}

}  // namespace

Session::Session(Worker* worker, cluster::SessionId id, std::shared_ptr<cluster::CallbackSink> callbacks)
    : worker_(worker),
      id_(id),
      callbacks_(std::move(callbacks)),
      callback_lanes_(std::make_shared<StreamLanes>(&worker->callback_threads(), kMaxCallingBack)),
      python_(std::make_shared<ColocatedPython>(worker)) {}

Session::~Session() {
  Close();
  worker_->Forget(id_);
  // What it had, many small things among others, would stay with the C library.
  worker_->transfers().PostOrRun([] { base::ReturnFreeMemory(); });
}

SlotRef Session::FindLocked(cluster::BufferId id) {
  const auto it = slots_.find(id);
  return it == slots_.end() ? SlotRef() : it->second;
}

SlotRef Session::FindForHost(cluster::BufferId id) {
  if (SlotRef slot = FindLocked(id)) return slot;
  const auto it = deleted_awaiting_host_.find(id);
  if (it == deleted_awaiting_host_.end()) return SlotRef();
  SlotRef slot = std::move(it->second);
  deleted_awaiting_host_.erase(it);
  return slot;
}

SlotRef Session::FindOrFailed(cluster::BufferId id) {
  if (SlotRef slot = FindLocked(id)) return slot;
  return base::MakeRef<Slot>(
      async::DoneCompletion(closed_ ? SessionEnded() : absl::InvalidArgumentError("Array has been deleted.")),
      nullptr);
}

SlotRef Session::FindReadable(cluster::BufferId id) {
  SlotRef slot = FindOrFailed(id);
  if (!slot->consumed.load(std::memory_order_relaxed)) return slot;
  return base::MakeRef<Slot>(async::DoneCompletion(Consumed()), nullptr);
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
  absl::InlinedVector<std::pair<SlotRef, cluster::DeviceId>, 1> slots;
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferTarget& target : contents.targets) {
      SlotRef slot = FindForHost(target.buffer);
      if (!slot) continue;
      slot->user_context = contents.user_context;
      slots.emplace_back(std::move(slot), target.device);
    }
  }
  FillSlots(std::move(slots), std::move(contents));
}

void Session::FillSlots(absl::InlinedVector<std::pair<SlotRef, cluster::DeviceId>, 1> slots,
                        cluster::HostContents contents) {
  absl::InlinedVector<std::pair<SlotRef, const pjrt::Device*>, 1> work;
  for (auto& [slot, device] : slots) {
    const DeviceQueue* queue = worker_->queue(device);
    if (queue == nullptr) {
      slot->Finish(absl::InvalidArgumentError(absl::StrCat("no device ", device)));
      continue;
    }
    work.emplace_back(std::move(slot), queue->device());
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
      slot = FindForHost(target.buffer);
      if (const auto it = receiving_.find(target.buffer); it != receiving_.end()) {
        slot = std::move(it->second.slot);
        receiving_.erase(it);
      }
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
    if (const auto function = python_->Find(launch.executable))
      return CallPython(std::move(launch), function);
    // The proxy names only executables that it has loaded, so this is the end of the session. The results
    // have no slots; whoever reads them finds that out.
    if (launch.on_done) {
      worker_->transfers().PostOrRun(
          [on_done = std::move(launch.on_done)]() mutable { on_done(SessionEnded()); });
    }
    return;
  }
  std::unique_ptr<LaunchShare> share;
  if (program->collectives != nullptr) {
    share = worker_->collectives().Begin(id_, launch.id, program->collectives, program->queues.size());
  }
  LaunchRef record = base::MakeRef<LaunchRecord>(worker_->launches().Begin(), program,
                                                 static_cast<int32_t>(launch.id), launch.user_context,
                                                 cancelled_, std::move(launch.on_done), std::move(share));
  const size_t devices = program->queues.size();
  std::vector<LaunchPart>& parts = record->parts();
  parts.resize(devices);
  const bool calls_back = program->callback_client != nullptr;
  // What waits behind a launch that is late is late too.
  bool late = calls_back || launch.may_be_passed || !program->loaded->done();
  bool held;
  absl::Status conflict;
  {
    base::MutexLock lock(&mu_);
    for (size_t d = 0; d < devices; ++d) {
      LaunchPart& part = parts[d];
      part.done = base::MakeRef<async::Completion>();
      part.arguments.reserve(launch.arguments.size());
      for (const cluster::BufferNames& names : launch.arguments) {
        SlotRef slot = FindReadable(names.at(d));
        late = late || slot->is_late();
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
        slot->late.store(late, std::memory_order_relaxed);
        if (!closed_) slots_[launch.results[i].at(d)] = slot;
        part.results.push_back(std::move(slot));
      }
    }
    if (late) {
      // What is commanded after it may run before it.
      for (LaunchPart& part : parts) {
        for (const SlotRef& slot : part.arguments) part.holds.emplace_back(slot);
      }
    }
    // On one device the plugin would refuse the run and on others begin it, so that they wait for the first.
    if (!conflict.ok()) {
      for (LaunchPart& part : parts) {
        part.arguments[0] = base::MakeRef<Slot>(async::DoneCompletion(conflict), nullptr);
      }
    }
    // A program that calls back waits for its inputs by itself. But of those that span workers each needs its
    // place in the order of them all.
    held = launch.held && !closed_ && (!calls_back || program->spans_workers);
    if (held) held_[launch.id] = record;
  }
  if (held) return;
  if (calls_back && !program->spans_workers) {
    callback_lanes_->Push(launch.stream, RunOf(std::move(record)));
    return;
  }
  if (late || !program->may_start_at_once) {
    Enqueue(std::move(record));
    return;
  }
  DeviceQueue* queue = program->queues[0];
  queue->PushQuietly(record, 0);
  DeviceQueue* other = unflushed_.exchange(queue);
  if (other != nullptr && other != queue) other->Wake();
}

void Session::CallPython(cluster::Launch launch, const std::shared_ptr<PythonProgram>& program) {
  PythonRun run;
  run.under_way = worker_->launches().Begin();
  run.program = program;
  run.executable = launch.executable;
  run.launch = launch.id;
  run.stream = launch.stream;
  run.settles = launch.settles;
  run.user_context = launch.user_context;
  run.on_done = std::move(launch.on_done);
  program->last_stream = launch.stream;
  const size_t devices = program->devices.size();
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferNames& names : launch.arguments) {
      std::vector<ReadHold>& holds = run.arguments.emplace_back();
      for (size_t d = 0; d < devices; ++d) holds.emplace_back(FindReadable(names.at(d)));
    }
    for (const cluster::BufferNames& names : launch.results) {
      std::vector<SlotRef>& results = run.results.emplace_back();
      for (size_t d = 0; d < devices; ++d) {
        SlotRef slot = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
        slot->awaits_launch = true;
        slot->user_context = launch.user_context;
        slot->late.store(true, std::memory_order_relaxed);
        if (!closed_) slots_[names.at(d)] = slot;
        results.push_back(std::move(slot));
      }
    }
  }
  // It waits for its inputs by itself, also if the launch is held.
  python_->Run(std::move(run));
}

void Session::Settle(cluster::LaunchId id, const absl::Status& status) { python_->Settle(id, status); }

absl::AnyInvocable<void()> Session::RunOf(LaunchRef record) {
  return [record = std::move(record), sink = callbacks_, threads = &worker_->callback_threads()] {
    record->RunCallingBack(sink.get(), threads);
  };
}

void Session::Enqueue(LaunchRef record) {
  if (const std::shared_ptr<CallbackClient>& client = record->program().callback_client; client != nullptr) {
    // When all of programs that span workers which this client got before are over; others run meanwhile.
    client->in_order().Push(0, RunOf(record));
    return;
  }
  Sequencer& sequencer = worker_->sequencer();
  const bool spans_workers = record->program().spans_workers;
  std::vector<async::CompletionRef> awaited;
  for (const LaunchPart& part : record->parts()) {
    for (const SlotRef& slot : part.arguments) {
      if (slot->is_late()) awaited.push_back(slot->ready);
    }
  }
  if (!record->program().loaded->done()) awaited.push_back(record->program().loaded);
  // Other workers may get from those what their parts of this launch wait for, while this part has a place
  // before them and keeps its device busy.
  if (spans_workers) sequencer.AppendEntering(&awaited);
  if (awaited.empty()) {
    if (!spans_workers) return sequencer.Enqueue(record);
    if (sequencer.EnqueueUnlessSomeWait(record)) return;
  }

  // What is commanded, or released, after it may come before it.
  for (LaunchPart& part : record->parts()) {
    for (const SlotRef& slot : part.results) slot->late.store(true, std::memory_order_release);
    if (!part.holds.empty()) continue;
    for (const SlotRef& slot : part.arguments) part.holds.emplace_back(slot);
  }
  if (spans_workers) {
    const uint64_t announced = sequencer.Announce(std::move(record));
    async::WhenAllDone(awaited, [&sequencer, announced] { sequencer.SetReady(announced); });
  } else {
    async::WhenAllDone(awaited, [&sequencer, record = std::move(record), entered = sequencer.AddEntering()] {
      sequencer.Enqueue(record);
      entered->Finish(absl::OkStatus());
    });
  }
}

void Session::Flush() {
  if (unflushed_.load(std::memory_order_relaxed) == nullptr) return;
  if (DeviceQueue* queue = unflushed_.exchange(nullptr)) queue->RunOrWake();
}

void Session::ReleaseLaunch(cluster::LaunchId id, uint64_t /*place*/) {
  LaunchRef record;
  {
    base::MutexLock lock(&mu_);
    const auto it = held_.find(id);
    if (it == held_.end()) return;
    record = std::move(it->second);
    held_.erase(it);
    // What has come to read its arguments meanwhile may still be on its way into the queues.
    for (LaunchPart& part : record->parts()) {
      for (size_t a = 0; a < part.arguments.size(); ++a) {
        const Slot& slot = *part.arguments[a];
        if (slot.consumer == record.get() && slot.readers.load() > 0) {
          part.kept_arguments.push_back(static_cast<int64_t>(a));
        }
      }
    }
  }
  Enqueue(std::move(record));
}

void Session::Copy(cluster::CopyBuffers command) {
  for (size_t i = 0; i < command.devices.size(); ++i) {
    SlotRef source;
    SlotRef result = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
    result->user_context = command.user_context;
    result->readers = 1;  // as long as it may be a view of the source's memory
    {
      base::MutexLock lock(&mu_);
      source = FindReadable(command.sources.at(i));
      if (closed_) return;
      result->late.store(source->is_late(), std::memory_order_relaxed);
      slots_[command.results.at(i)] = result;
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
      if (const std::optional<ViewForm> form = FormOfCopy(**hold, device, memory, default_layout)) {
        return ViewSlot(self->worker_->client(), std::move(*hold), *form, result);
      }
      result->readers.fetch_sub(1);
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

void Session::Send(cluster::SendBuffers command) {
  cluster::PeerSender* const peers = worker_->peers();
  if (peers == nullptr) return;  // a proxy sends only between workers that have peers
  for (size_t i = 0; i < command.sources.size(); ++i) {
    SlotRef slot;
    {
      base::MutexLock lock(&mu_);
      slot = FindOrFailed(command.sources.at(i));
    }
    auto deliver = [peers, to = command.to, session = id_,
                    result = command.results.at(i)](absl::StatusOr<cluster::HostContents> contents) {
      peers->Send(to, session, result, std::move(contents));
    };
    if (slot->consumed.load(std::memory_order_relaxed)) {
      deliver(Consumed());
      continue;
    }
    async::CompletionRef ready = slot->ready;
    ready->OnDone([self = shared_from_this(), hold = ReadHold(std::move(slot)),
                   deliver](const absl::Status& status) mutable {
      if (!status.ok()) {
        // The end of this worker's part of the session is no answer: the proxy tells the receiver of the
        // loss.
        if (!self->cancelled_->load()) deliver(status);
        return;
      }
      absl::StatusOr<cluster::HostContents> contents = Describe(*hold);
      if (!contents.ok()) return deliver(contents.status());
      // What is sent is dense and row-major; the receiver lays it out as here.
      ReadSlot(std::move(hold), {}, &self->worker_->host_memory(),
               [contents = *std::move(contents), deliver](absl::StatusOr<base::HostBytes> bytes) mutable {
                 if (!bytes.ok()) return deliver(bytes.status());
                 contents.bytes = *std::move(bytes);
                 deliver(std::move(contents));
               });
    });
  }
}

void Session::Receive(cluster::ReceiveBuffers command) {
  for (size_t i = 0; i < command.devices.size(); ++i) {
    const cluster::BufferId buffer = command.results.at(i);
    Receiving receiving{command.devices[i], command.memory_kind, command.default_layout,
                        base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr)};
    // What it comes from may wait for launches that are not in the queues here yet.
    receiving.slot->late.store(true, std::memory_order_relaxed);
    absl::StatusOr<cluster::HostContents> contents;
    {
      base::MutexLock lock(&mu_);
      if (closed_) return;
      slots_[buffer] = receiving.slot;
      const auto it = arrived_.find(buffer);
      if (it == arrived_.end()) {
        receiving_[buffer] = std::move(receiving);
        continue;
      }
      contents = std::move(it->second);
      arrived_.erase(it);
    }
    BindReceived(std::move(receiving), std::move(contents));
  }
}

void Session::TakeFromPeer(cluster::BufferId buffer, absl::StatusOr<cluster::HostContents> contents) {
  Receiving receiving;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    const auto it = receiving_.find(buffer);
    if (it == receiving_.end()) {
      // A buffer that is known already has failed, or has come before.
      if (!slots_.contains(buffer)) arrived_.insert_or_assign(buffer, std::move(contents));
      return;
    }
    receiving = std::move(it->second);
    receiving_.erase(it);
  }
  BindReceived(std::move(receiving), std::move(contents));
}

void Session::BindReceived(Receiving receiving, absl::StatusOr<cluster::HostContents> contents) {
  if (!contents.ok()) {
    receiving.slot->Finish(contents.status());
    return;
  }
  contents->memory_kind = std::move(receiving.memory_kind);
  if (receiving.default_layout) contents->minor_to_major.reset();
  FillSlots({{std::move(receiving.slot), receiving.device}}, *std::move(contents));
}

void Session::Assemble(cluster::AssembleBuffers command) {
  std::vector<SlotRef> sources(command.sources.size());
  std::vector<std::vector<SlotRef>> slots(command.results.size());
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    for (const cluster::AssembleBuffers::Result& result : command.results) {
      for (const cluster::BufferBlock& block : result.blocks) {
        if (block.source >= sources.size() || sources[block.source]) continue;
        sources[block.source] = FindReadable(command.sources.at(block.source));
      }
    }
    const bool late = std::any_of(sources.begin(), sources.end(),
                                  [](const SlotRef& source) { return source && source->is_late(); });
    for (size_t r = 0; r < slots.size(); ++r) {
      for (const cluster::BufferTarget& target : command.results[r].targets) {
        slots[r].push_back(base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr));
        slots[r].back()->late.store(late, std::memory_order_relaxed);
        slots_[target.buffer] = slots[r].back();
      }
    }
  }
  for (AssemblyJob& job : MakeAssemblyJobs(std::move(command), sources, slots, worker_->client())) {
    std::vector<SlotRef> awaited;
    for (const ReadHold& hold : job.sources) awaited.push_back(hold.slot());
    auto shared_job = std::make_shared<AssemblyJob>(std::move(job));
    WhenDone(awaited, [self = shared_from_this(), shared_job] {
      auto run = [self, shared_job] {
        if (self->cancelled_->load()) return DropAssembly(*shared_job, SessionEnded());
        RunAssembly(self->worker_->client(), self->worker_->host_memory(), std::move(*shared_job));
      };
      if (!self->worker_->assemblers().Post(std::move(run))) {
        DropAssembly(*shared_job, absl::ResourceExhaustedError("too many buffers wait to be put together"));
      }
    });
  }
}

void Session::Bitcast(cluster::BitcastBuffers command) {
  for (size_t i = 0; i < command.dims.size(); ++i) {
    SlotRef source;
    SlotRef result = base::MakeRef<Slot>(base::MakeRef<async::Completion>(), nullptr);
    result->readers = 1;  // for good: its memory is the source's too
    {
      base::MutexLock lock(&mu_);
      if (closed_) return;
      source = FindReadable(command.sources.at(i));
      result->late.store(source->is_late(), std::memory_order_relaxed);
      slots_[command.results.at(i)] = result;
    }
    auto form = std::make_shared<const ViewForm>(
        ViewForm{command.element_type, std::move(command.dims[i]), command.minor_to_major});
    const async::CompletionRef ready = source->ready;
    ready->OnDone([self = shared_from_this(), hold = std::make_shared<ReadHold>(std::move(source)), result,
                   form](const absl::Status& status) {
      if (!status.ok()) {
        result->Finish(status);
        return;
      }
      // As for a copy: the plugin call is for neither this thread.
      auto bitcast = [self, hold, result, form] {
        ViewSlot(self->worker_->client(), std::move(*hold), *form, result);
      };
      if (!self->worker_->transfers().Post(std::move(bitcast))) {
        result->Finish(absl::ResourceExhaustedError("too many buffers wait to be bitcast"));
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
        if (it->second->awaits_host && !it->second->ready->done()) {
          deleted_awaiting_host_[it->first] = std::move(it->second);
        } else {
          dropped.push_back(std::move(it->second));
        }
        slots_.erase(it);
      }
    }
  }
}

void Session::Read(cluster::BufferId buffer, cluster::ReadFormat format,
                   absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  SlotRef slot;
  {
    base::MutexLock lock(&mu_);
    slot = FindReadable(buffer);
  }
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
  std::vector<SlotRef> slots;
  {
    base::MutexLock lock(&mu_);
    for (const cluster::BufferNames& names : buffers) {
      for (size_t i = 0; i < names.size(); ++i) slots.push_back(FindOrFailed(names.at(i)));
    }
  }
  WhenDone(slots, [slots, done = std::move(done)]() mutable {
    for (const SlotRef& slot : slots) {
      if (!slot->ready->status().ok()) return done(slot->ready->status());
    }
    done(absl::OkStatus());
  });
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

void Session::CheckRoomFor(int64_t bytes, LoadedProgram& program) {
  if (bytes < base::kLargeAllocationBytes) return;
  program.check_room = [worker = worker_, bytes] { return worker->CheckRoom(bytes); };
  program.may_start_at_once = false;
}

absl::StatusOr<cluster::CompiledProgram> Session::CompileNow(const cluster::CompileProgram& command,
                                                             absl::AnyInvocable<void()>* load) {
  auto program = std::make_shared<LoadedProgram>();
  program->client = &worker_->client();
  Compiler::Compiled compiled;
  // What the bytes do not show is seen in the compiled program.
  bool calls_back = absl::StrContains(command.code, cluster::kPythonCallbackTarget);
  if (!calls_back) {
    HELMWAY_ASSIGN_OR_RETURN(compiled, worker_->compiler().Compile(command));
    calls_back = compiled.calls_back();
  }
  if (calls_back) {
    HELMWAY_ASSIGN_OR_RETURN(program->callback_client, GetCallbackClient());
    cluster::CompileProgram patient = command;
    patient.options = WithPatience(command.options);
    HELMWAY_ASSIGN_OR_RETURN(
        compiled, worker_->compiler().CompileUncached(program->callback_client->client(), patient));
  }
  const program::ExecutableSpec& spec = compiled.spec;
  for (const std::string& target : spec.custom_call_targets) {
    HELMWAY_RETURN_IF_ERROR(program::CheckTargetOfClient(target));
  }
  cluster::CompiledProgram& result = compiled.program;
  for (const cluster::DeviceId device : result.devices) program->queues.push_back(worker_->queue(device));
  program->NoteTokens(spec);
  program->has_cross_device_ops = result.devices.size() > 1 && spec.has_cross_device_ops;
  program->may_start_at_once = !calls_back && result.devices.size() == 1 && spec.is_short &&
                               spec.parameters.size() + spec.outputs.size() <= kMaxValuesToStartAtOnce;
  CheckRoomFor(AllocatedBytes(result) * static_cast<int64_t>(result.devices.size()), *program);
  program->executable = std::move(compiled.executable);
  if (compiled.load) {
    program->loaded = base::MakeRef<async::Completion>();
    *load = [program, load = std::move(compiled.load), cancelled = cancelled_]() mutable {
      absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> executable = SessionEnded();
      if (!cancelled->load()) executable = load();
      const absl::Status status = executable.status();
      if (status.ok()) program->executable = *std::move(executable);
      program->loaded->Finish(status);
    };
  }
  base::MutexLock lock(&mu_);
  if (!closed_) programs_[command.executable] = std::move(program);
  return closed_ ? SessionEnded() : absl::StatusOr<cluster::CompiledProgram>(std::move(result));
}

absl::StatusOr<cluster::CompiledProgram> Session::CompileForSeveral(const cluster::CompileProgram& command) {
  if (!worker_->replaces_collectives()) return CompileForSlice(command);
  // The compiler's own devices are numbered from 0 on; the real ones come with the loading.
  xla::CompileOptionsProto options;
  if (!options.ParseFromString(command.options)) {
    return absl::InvalidArgumentError("the compile options can't be parsed");
  }
  xla::DeviceAssignmentProto& assignment =
      *options.mutable_executable_build_options()->mutable_device_assignment();
  int next = 0;
  const int replicas = assignment.replica_count();
  for (int r = 0; r < replicas; ++r) {
    for (auto& partition : *assignment.mutable_computation_devices())
      partition.set_replica_device_ids(r, next++);
  }
  HELMWAY_ASSIGN_OR_RETURN(std::shared_ptr<pjrt::Client> compiler, worker_->CompilerFor(next));
  cluster::CompileProgram renumbered = command;
  renumbered.options = options.SerializeAsString();
  HELMWAY_ASSIGN_OR_RETURN(Compiler::Compiled compiled,
                           worker_->compiler().CompileForSeveral(
                               compiler, {replicas, replicas == 0 ? 0 : next / replicas}, renumbered));
  const program::ExecutableSpec& spec = compiled.spec;
  cluster::CompiledProgram& result = compiled.program;
  if (spec.has_cross_device_ops) {
    return absl::UnimplementedError(
        absl::StrCat("program ", result.name,
                     " has collectives between devices of different workers that the "
                     "plugin has not let us replace"));
  }
  return std::move(result);
}

absl::StatusOr<cluster::CompiledProgram> Session::CompileForSlice(const cluster::CompileProgram& command) {
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<cluster::DeviceId> devices,
                           program::AssignedDevices(command.options));
  for (const cluster::DeviceId device : devices) {
    if (!worker_->device_ids().Knows(device)) {
      return absl::UnimplementedError(absl::StrCat(
          "a program on devices of several workers whose plugin's clients are not one, on the platform ",
          worker_->info().platform_name, " (device ", device,
          "): only within a slice of a cluster do they have collectives between them"));
    }
  }
  HELMWAY_ASSIGN_OR_RETURN(Compiler::Compiled compiled, worker_->compiler().CompileForSlice(command));
  if (compiled.calls_back()) {
    return absl::UnimplementedError(absl::StrCat("program ", compiled.program.name,
                                                 " calls Python functions of its client, on the platform ",
                                                 worker_->info().platform_name));
  }
  return std::move(compiled.program);
}

absl::Status Session::LoadNow(const cluster::LoadProgram& command) {
  auto program = std::make_shared<LoadedProgram>();
  program->client = &worker_->client();
  if (!command.workers.empty()) {
    program->plugin_collectives = !worker_->replaces_collectives();
    if (!program->plugin_collectives) {
      HELMWAY_RETURN_IF_ERROR(ReplaceCollectivesHere::Prepare(*worker_->client().plugin()));
    }
    HELMWAY_ASSIGN_OR_RETURN(program->collectives, CollectiveProgram::Create(command));
  }
  xla::CompileOptionsProto options;
  if (!options.ParseFromString(command.options)) {
    return absl::InvalidArgumentError("the compile options can't be parsed");
  }
  // The devices are those of the assignment.
  options.mutable_executable_build_options()->set_device_ordinal(-1);
  const std::string serialized_options = options.SerializeAsString();
  HELMWAY_ASSIGN_OR_RETURN(const std::string plugin_options,
                           worker_->device_ids().OptionsForPlugin(serialized_options));
  const xla::DeviceAssignmentProto& assignment = options.executable_build_options().device_assignment();
  HELMWAY_ASSIGN_OR_RETURN(const std::vector<cluster::DeviceId> devices,
                           program::AssignedDevices(serialized_options));
  HELMWAY_ASSIGN_OR_RETURN(
      const program::ExecutableSpec spec,
      program::FromOptimizedHlo(program::kOutlineFormat, command.outline, devices, assignment.replica_count(),
                                assignment.computation_count()));
  const pjrt::Client* client = &worker_->client();
  if (!spec.python_callbacks.empty()) {
    HELMWAY_ASSIGN_OR_RETURN(program->callback_client, GetCallbackClient());
    client = program->callback_client->client().get();
  }
  auto load = [&] { return client->DeserializeAndLoad(*command.serialized, plugin_options); };
  absl::StatusOr<std::unique_ptr<pjrt::LoadedExecutable>> loaded = load();
  if (!loaded.ok() && CustomCalls::IsMissingTarget(loaded.status())) {
    if (worker_->custom_calls().Load().ok()) loaded = load();
    if (!loaded.ok() && CustomCalls::IsMissingTarget(loaded.status())) {
      return worker_->custom_calls().Explain(loaded.status());
    }
  }
  HELMWAY_RETURN_IF_ERROR(loaded.status());
  std::unique_ptr<pjrt::LoadedExecutable> executable = *std::move(loaded);
  for (const pjrt::Device* device : executable->addressable_devices()) {
    const cluster::DeviceId id = worker_->device_ids().Of(*device);
    program->queues.push_back(worker_->queue(id));
    if (program->collectives == nullptr) continue;
    const std::vector<cluster::DeviceId>& all = program->collectives->devices();
    const auto at = std::find(all.begin(), all.end(), id);
    if (at == all.end()) return absl::InvalidArgumentError("the program has other devices than the command");
    program->positions.push_back(static_cast<int32_t>(at - all.begin()));
  }
  program->spans_workers = true;
  program->NoteTokens(spec);
  if (const auto stats = executable->GetCompiledMemoryStats(); stats.ok()) {
    CheckRoomFor((stats->output_bytes - stats->alias_bytes + stats->temp_bytes) *
                     static_cast<int64_t>(program->queues.size()),
                 *program);
  }
  program->executable = std::move(executable);
  base::MutexLock lock(&mu_);
  if (closed_) return SessionEnded();
  programs_[command.executable] = std::move(program);
  return absl::OkStatus();
}

void Session::Load(cluster::LoadProgram command, absl::AnyInvocable<void(const absl::Status&)> done) {
  auto shared_done = std::make_shared<decltype(done)>(std::move(done));
  auto task = [self = shared_from_this(), command = std::move(command), shared_done] {
    (*shared_done)(self->cancelled_->load() ? SessionEnded() : self->LoadNow(command));
  };
  if (worker_->compilers().Post(std::move(task))) return;
  worker_->transfers().PostOrRun(
      [shared_done] { (*shared_done)(absl::ResourceExhaustedError("too many programs wait to be loaded")); });
}

void Session::Compile(cluster::CompileProgram command,
                      absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) {
  if (command.python) return python_->Load(std::move(command), std::move(done));
  auto shared_done = std::make_shared<decltype(done)>(std::move(done));
  auto task = [self = shared_from_this(), command = std::move(command), shared_done] {
    if (self->cancelled_->load()) return (*shared_done)(SessionEnded());
    // The client goes on with what it has to do while the program is loaded.
    absl::AnyInvocable<void()> load;
    (*shared_done)(command.for_several_workers ? self->CompileForSeveral(command)
                                               : self->CompileNow(command, &load));
    if (load) load();
  };
  if (worker_->compilers().Post(std::move(task))) return;
  worker_->transfers().PostOrRun([shared_done] {
    (*shared_done)(absl::ResourceExhaustedError("too many programs wait to be compiled"));
  });
}

void Session::Unload(cluster::ExecutableId executable, std::optional<int64_t> stream) {
  if (python_->Unload(executable, stream)) return;
  std::shared_ptr<const LoadedProgram> dropped;
  base::MutexLock lock(&mu_);
  const auto it = programs_.find(executable);
  if (it == programs_.end()) return;
  dropped = std::move(it->second);
  programs_.erase(it);
}

void Session::WhenPeerLost(PeerLost lost) {
  if (!cancelled_->load()) worker_->collectives().WhenPeerLost(id_, std::move(lost));
}

void Session::CostAnalysis(cluster::ExecutableId executable,
                           absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) {
  std::shared_ptr<const LoadedProgram> program = FindProgram(executable);
  if (program == nullptr) {
    return done(cancelled_->load() ? SessionEnded()
                                   : absl::NotFoundError(absl::StrCat("no executable ", executable)));
  }
  program->loaded->OnDone([program, done = std::move(done)](const absl::Status& loaded) mutable {
    if (!loaded.ok()) return done(loaded);
    absl::StatusOr<pjrt::AttributeMap> analysis = program->executable->CostAnalysis();
    if (!analysis.ok()) return done(analysis.status());
    cluster::CostProperties properties;
    for (const auto& [name, value] : *analysis) {
      properties[name] = std::visit([](const auto& v) { return cluster::AttributeValue{v}; }, value);
    }
    done(std::move(properties));
  });
}

void Session::Close() {
  decltype(slots_) slots;
  decltype(deleted_awaiting_host_) deleted;
  decltype(programs_) programs;
  decltype(held_) held;
  decltype(receiving_) receiving;
  decltype(arrived_) arrived;
  std::shared_ptr<CallbackClient> callback_client;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    cancelled_->store(true);
    slots.swap(slots_);
    deleted.swap(deleted_awaiting_host_);
    programs.swap(programs_);
    held.swap(held_);
    receiving.swap(receiving_);
    arrived.swap(arrived_);
    callback_client.swap(callback_client_);
  }
  python_->Close();
  for (auto& [id, launch] : held) launch->Drop(SessionEnded());
  for (auto& [id, one] : receiving) one.slot->Finish(SessionEnded());
  // Peers end theirs too, or may be gone: nothing is to wait for them.
  worker_->collectives().AbortSession(id_, SessionEnded());
  for (auto& [id, slot] : deleted) slot->Finish(SessionEnded());
  // Slots that wait for the host end here; those of launches under way are finished by their queues.
  for (auto& [id, slot] : slots) {
    if (slot->producer == nullptr && !slot->awaits_launch && !slot->ready->done()) {
      slot->Finish(SessionEnded());
    }
  }
}

}  // namespace helmway::worker
