#include "helmway/proxy/fake_worker_testing.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/wire/dtype.h"

namespace helmway::proxy {
namespace {

absl::Status SessionEnded() { return absl::CancelledError("the session has ended"); }

std::string Text(const cluster::BufferTargets& targets) {
  return absl::StrJoin(targets, " ", [](std::string* out, const cluster::BufferTarget& target) {
    absl::StrAppend(out, target.buffer, "@", target.device);
  });
}

std::string Text(const cluster::BufferNames& names) {
  std::vector<cluster::BufferId> list;
  for (size_t i = 0; i < names.size(); ++i) list.push_back(names.at(i));
  return absl::StrJoin(list, ",");
}

std::string Text(const std::vector<cluster::BufferNames>& values) {
  return absl::StrJoin(values, "; ", [](std::string* out, const cluster::BufferNames& names) {
    absl::StrAppend(out, Text(names));
  });
}

template <typename List>
std::string Numbers(absl::string_view what, const List& list) {
  return absl::StrCat(" ", what, " [", absl::StrJoin(list, ","), "]");
}

}  // namespace

base::HostBytes BytesOf(absl::string_view text) {
  auto owner = std::make_shared<const std::string>(text);
  return {owner, reinterpret_cast<const uint8_t*>(owner->data()), static_cast<int64_t>(owner->size()),
          /*exclusive=*/true};
}

void BrokenPromises::Add(std::string text) {
  base::MutexLock lock(&mu_);
  list_.push_back(std::move(text));
}

std::vector<std::string> BrokenPromises::list() const {
  base::MutexLock lock(&mu_);
  return list_;
}

// ---- What came -------------------------------------------------------------------------------------------

std::vector<std::string> FakeSessionLink::TakeCommands() {
  base::MutexLock lock(&mu_);
  std::vector<std::string> commands;
  commands.swap(commands_);
  return commands;
}

cluster::BufferTargets FakeSessionLink::declared() const {
  base::MutexLock lock(&mu_);
  return declared_;
}

std::string FakeSessionLink::contents(cluster::BufferId buffer) const {
  base::MutexLock lock(&mu_);
  const auto it = contents_.find(buffer);
  return it == contents_.end() ? "" : it->second;
}

cluster::CompileProgram FakeSessionLink::compile(cluster::ExecutableId executable) const {
  base::MutexLock lock(&mu_);
  const auto it = compiles_.find(executable);
  return it == compiles_.end() ? cluster::CompileProgram{} : it->second;
}

std::vector<cluster::LaunchId> FakeSessionLink::launches_under_way() const {
  base::MutexLock lock(&mu_);
  std::vector<cluster::LaunchId> launches;
  for (const Waiting& waiting : waiting_) {
    if (waiting.kind == Kind::kLaunch) launches.push_back(static_cast<cluster::LaunchId>(waiting.name));
  }
  return launches;
}

std::vector<cluster::ExecutableId> FakeSessionLink::compiling() const {
  base::MutexLock lock(&mu_);
  std::vector<cluster::ExecutableId> executables;
  for (const Waiting& waiting : waiting_) {
    if (waiting.kind == Kind::kCompile) executables.push_back(waiting.name);
  }
  return executables;
}

std::set<cluster::BufferId> FakeSessionLink::live_buffers() const {
  base::MutexLock lock(&mu_);
  return live_;
}

std::set<cluster::ExecutableId> FakeSessionLink::loaded() const {
  base::MutexLock lock(&mu_);
  return loaded_;
}

size_t FakeSessionLink::num_waiting() const {
  base::MutexLock lock(&mu_);
  return waiting_.size();
}

bool FakeSessionLink::closed() const {
  base::MutexLock lock(&mu_);
  return closed_;
}

void FakeSessionLink::AwaitCommand(absl::string_view prefix) const {
  base::MutexLock lock(&mu_);
  auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::any_of(commands_.begin(), commands_.end(),
                       [&](const std::string& command) { return absl::StartsWith(command, prefix); });
  };
  mu_.Await(absl::Condition(&here));
}

std::vector<cluster::LaunchId> FakeSessionLink::ReadyLaunches() const {
  std::vector<cluster::LaunchId> launches;
  for (const Waiting& waiting : waiting_) {
    const auto launch = static_cast<cluster::LaunchId>(waiting.name);
    if (waiting.kind == Kind::kLaunch && held_.count(launch) == 0) launches.push_back(launch);
  }
  return launches;
}

std::vector<cluster::LaunchId> FakeSessionLink::AwaitReadyLaunches() const {
  base::MutexLock lock(&mu_);
  auto here = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !ReadyLaunches().empty(); };
  mu_.Await(absl::Condition(&here));
  return ReadyLaunches();
}

// ---- What is answered ------------------------------------------------------------------------------------

FakeSessionLink::Waiting FakeSessionLink::TakeWaiting(Kind kind, uint64_t name) {
  base::MutexLock lock(&mu_);
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->kind != kind || it->name != name) continue;
    Waiting taken = std::move(*it);
    waiting_.erase(it);
    return taken;
  }
  Break(absl::StrCat("the test answers what does not wait: kind ", static_cast<int>(kind), ", name ", name));
  Waiting none;
  none.kind = kind;
  none.launch_or_await = [](const absl::Status&) {};
  none.read = [](const absl::StatusOr<base::HostBytes>&) {};
  none.compile = [](const absl::StatusOr<cluster::CompiledProgram>&) {};
  none.cost = [](const absl::StatusOr<cluster::CostProperties>&) {};
  return none;
}

void FakeSessionLink::FinishLaunch(cluster::LaunchId launch, const absl::Status& status) {
  Waiting waiting = TakeWaiting(Kind::kLaunch, static_cast<uint64_t>(launch));
  {
    base::MutexLock lock(&mu_);
    if (held_.count(launch) > 0) Break(absl::StrCat("launch ", launch, " is finished but not released"));
  }
  waiting.launch_or_await(status);
}

void FakeSessionLink::AnswerRead(cluster::BufferId buffer, absl::StatusOr<base::HostBytes> bytes) {
  TakeWaiting(Kind::kRead, buffer).read(std::move(bytes));
}

void FakeSessionLink::AnswerAwait(const absl::Status& status) {
  TakeWaiting(Kind::kAwait, 0).launch_or_await(status);
}

void FakeSessionLink::AnswerCompile(cluster::ExecutableId executable,
                                    absl::StatusOr<cluster::CompiledProgram> program) {
  Waiting waiting = TakeWaiting(Kind::kCompile, executable);
  if (program.ok()) {
    base::MutexLock lock(&mu_);
    loaded_.insert(executable);
  }
  waiting.compile(std::move(program));
}

void FakeSessionLink::AnswerCostAnalysis(cluster::ExecutableId executable,
                                         absl::StatusOr<cluster::CostProperties> costs) {
  TakeWaiting(Kind::kCost, executable).cost(std::move(costs));
}

void FakeSessionLink::AnswerAny(size_t which, const absl::Status& status,
                                const cluster::CompiledProgram& program) {
  Waiting waiting;
  {
    base::MutexLock lock(&mu_);
    const auto it = waiting_.begin() + static_cast<int64_t>(which);
    // A launch that is held does not end.
    if (it->kind == Kind::kLaunch && held_.count(static_cast<cluster::LaunchId>(it->name)) > 0) return;
    waiting = std::move(*it);
    waiting_.erase(it);
  }
  Answer(std::move(waiting), status, program);
}

void FakeSessionLink::Answer(Waiting waiting, const absl::Status& status,
                             const cluster::CompiledProgram& program) {
  switch (waiting.kind) {
    case Kind::kLaunch:
    case Kind::kAwait:
      return waiting.launch_or_await(status);
    case Kind::kRead:
      if (!status.ok()) return waiting.read(status);
      return waiting.read(BytesOf("contents"));
    case Kind::kCompile: {
      if (!status.ok()) return waiting.compile(status);
      {
        base::MutexLock lock(&mu_);
        loaded_.insert(waiting.name);
      }
      return waiting.compile(program);
    }
    case Kind::kCost:
      if (!status.ok()) return waiting.cost(status);
      return waiting.cost(cluster::CostProperties{});
  }
}

void FakeSessionLink::set_client_deletes(bool deletes) {
  base::MutexLock lock(&mu_);
  client_deletes_ = deletes;
}

// ---- cluster::SessionLink --------------------------------------------------------------------------------

void FakeSessionLink::Log(std::string line) { commands_.push_back(std::move(line)); }

void FakeSessionLink::Break(absl::string_view text) {
  broken_->Add(absl::StrCat(text, commands_.empty() ? "" : absl::StrCat(" (at \"", commands_.back(), "\")")));
}

void FakeSessionLink::MakeName(cluster::BufferId buffer) {
  if (buffer == 0 || deleted_.count(buffer) > 0 || !live_.insert(buffer).second) {
    Break(absl::StrCat("the new buffer ", buffer, " is 0 or was there before"));
  }
}

void FakeSessionLink::UseName(cluster::BufferId buffer) {
  if (live_.count(buffer) == 0 && deleted_by_client_.count(buffer) == 0) {
    Break(absl::StrCat("buffer ", buffer, " is used, but ",
                       deleted_.count(buffer) > 0 ? "deleted" : "nobody made it"));
  }
}

void FakeSessionLink::UseNames(const cluster::BufferNames& names) {
  for (size_t i = 0; i < names.size(); ++i) UseName(names.at(i));
}

void FakeSessionLink::Declare(cluster::DeclareBuffers command) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  Log(absl::StrCat("declare ", Text(command.targets)));
  for (const cluster::BufferTarget& target : command.targets) {
    MakeName(target.buffer);
    awaiting_bytes_.insert(target.buffer);
    declared_.push_back(target);
  }
}

void FakeSessionLink::Settle(const cluster::BufferTargets& targets, const std::string& contents) {
  for (const cluster::BufferTarget& target : targets) {
    if (awaiting_bytes_.erase(target.buffer) == 0) {
      Break(absl::StrCat("buffer ", target.buffer, " gets bytes but waits for none"));
    }
    contents_[target.buffer] = contents;
  }
}

void FakeSessionLink::Fill(cluster::HostContents contents) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  std::string line = absl::StrCat("fill ", Text(contents.targets), " ",
                                  wire::DTypeName(static_cast<wire::DTypeKind>(contents.element_type)), "[",
                                  absl::StrJoin(contents.dims, ","), "] ", contents.bytes.size, " bytes");
  if (contents.byte_strides) absl::StrAppend(&line, Numbers("strides", *contents.byte_strides));
  if (!contents.memory_kind.empty()) absl::StrAppend(&line, " kind ", contents.memory_kind);
  if (contents.minor_to_major) {
    absl::StrAppend(&line, " layout {", absl::StrJoin(*contents.minor_to_major, ","), "}");
  }
  Log(std::move(line));
  Settle(contents.targets, std::string(reinterpret_cast<const char*>(contents.bytes.data),
                                       static_cast<size_t>(contents.bytes.size)));
}

void FakeSessionLink::Fail(const cluster::BufferTargets& targets, const absl::Status& status) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  Log(absl::StrCat("fail ", Text(targets), " ", absl::StatusCodeToString(status.code()), ": ",
                   status.message()));
  Settle(targets, "");
}

void FakeSessionLink::Execute(cluster::Launch launch) {
  auto on_done = std::move(launch.on_done);
  base::MutexLock lock(&mu_);
  std::string line = absl::StrCat("execute #", launch.id, " program ", launch.executable, " (",
                                  Text(launch.arguments), ") -> (", Text(launch.results), ")");
  if (!launch.donated.empty()) absl::StrAppend(&line, Numbers("donates", launch.donated));
  if (!launch.kept.empty()) absl::StrAppend(&line, Numbers("keeps", launch.kept));
  if (launch.held) absl::StrAppend(&line, " held");
  Log(std::move(line));
  if (closed_) Break("a launch after the end of the session");
  if (launch.id <= 0 || launch.id > INT32_MAX) Break("a launch id that plugins do not take");
  if (loaded_.count(launch.executable) == 0) {
    Break(absl::StrCat("program ", launch.executable, " is not loaded"));
  }
  for (const cluster::BufferNames& names : launch.arguments) UseNames(names);
  for (const cluster::BufferNames& names : launch.results) {
    for (size_t i = 0; i < names.size(); ++i) MakeName(names.at(i));
  }
  const auto num_arguments = static_cast<int32_t>(launch.arguments.size());
  if (!std::is_sorted(launch.donated.begin(), launch.donated.end())) Break("donations are not ascending");
  for (const auto* list : {&launch.donated, &launch.kept}) {
    for (const int32_t index : *list) {
      if (index < 0 || index >= num_arguments) Break(absl::StrCat("there is no argument ", index));
    }
  }
  if (launch.held) held_.insert(launch.id);
  unflushed_ = true;
  Waiting waiting;
  waiting.kind = Kind::kLaunch;
  waiting.name = static_cast<uint64_t>(launch.id);
  waiting.launch_or_await = std::move(on_done);
  waiting_.push_back(std::move(waiting));
}

void FakeSessionLink::Flush() {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  if (unflushed_) Log("flush");
  unflushed_ = false;
}

void FakeSessionLink::ReleaseLaunch(cluster::LaunchId id, uint64_t /*place*/) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  Log(absl::StrCat("release #", id));
  if (held_.erase(id) == 0) Break(absl::StrCat("launch ", id, " is not held"));
}

void FakeSessionLink::Copy(cluster::CopyBuffers command) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  std::string line = absl::StrCat("copy ", Text(command.sources), " -> ", Text(command.results), " @",
                                  absl::StrJoin(command.devices, ","));
  if (!command.memory_kind.empty()) absl::StrAppend(&line, " kind ", command.memory_kind);
  Log(std::move(line));
  if (command.sources.size() != command.devices.size() || command.results.size() != command.devices.size()) {
    Break("a copy whose lists differ in length");
  }
  UseNames(command.sources);
  for (size_t i = 0; i < command.results.size(); ++i) MakeName(command.results.at(i));
}

void FakeSessionLink::Assemble(cluster::AssembleBuffers command) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  std::string line = absl::StrCat("assemble ", Text(command.sources), " ->");
  UseNames(command.sources);
  for (const cluster::AssembleBuffers::Result& result : command.results) {
    absl::StrAppend(&line, " ", Text(result.targets), " [", absl::StrJoin(result.dims, ","), "] of ",
                    result.blocks.size());
    for (const cluster::BufferTarget& target : result.targets) MakeName(target.buffer);
    for (const cluster::BufferBlock& block : result.blocks) {
      if (block.source >= command.sources.size()) Break("a block of no source");
      if (block.source_origin.size() != result.dims.size() ||
          block.result_origin.size() != result.dims.size() || block.shape.size() != result.dims.size()) {
        Break("a block of another rank than its result");
      }
    }
  }
  if (!command.memory_kind.empty()) absl::StrAppend(&line, " kind ", command.memory_kind);
  Log(std::move(line));
}

void FakeSessionLink::Bitcast(cluster::BitcastBuffers command) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  Log(absl::StrCat("bitcast ", Text(command.sources), " -> ", Text(command.results), " ",
                   command.element_type));
  if (command.sources.size() != command.dims.size() || command.results.size() != command.dims.size()) {
    Break("a bitcast whose lists differ in length");
  }
  UseNames(command.sources);
  for (size_t i = 0; i < command.results.size(); ++i) MakeName(command.results.at(i));
}

void FakeSessionLink::Send(cluster::SendBuffers /*command*/) {
  base::MutexLock lock(&mu_);
  Break("a proxy sends nothing from worker to worker itself");
}

void FakeSessionLink::Receive(cluster::ReceiveBuffers /*command*/) {
  base::MutexLock lock(&mu_);
  Break("a proxy sends nothing from worker to worker itself");
}

void FakeSessionLink::Load(cluster::LoadProgram /*command*/,
                           absl::AnyInvocable<void(const absl::Status&)> done) {
  {
    base::MutexLock lock(&mu_);
    Break("a proxy loads no serialized programs itself");
  }
  done(absl::UnimplementedError("Load"));
}

void FakeSessionLink::WhenLost(absl::AnyInvocable<void(const absl::Status&)> /*lost*/) {}

void FakeSessionLink::Delete(const std::vector<cluster::BufferNames>& buffers) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  std::vector<cluster::BufferId> known;
  for (const cluster::BufferNames& names : buffers) {
    for (size_t i = 0; i < names.size(); ++i) {
      const cluster::BufferId buffer = names.at(i);
      // What a client deletes is deleted again when the last array that shares it goes.
      deleted_.insert(buffer);
      if (client_deletes_) deleted_by_client_.insert(buffer);
      // A name that nobody made may be given up too.
      if (live_.erase(buffer) > 0) known.push_back(buffer);
    }
  }
  if (!known.empty()) Log(absl::StrCat("delete ", absl::StrJoin(known, ",")));
}

void FakeSessionLink::Read(cluster::BufferId buffer, cluster::ReadFormat format,
                           absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  {
    base::MutexLock lock(&mu_);
    if (!closed_) {
      std::string line = absl::StrCat("read ", buffer);
      if (format.byte_strides) absl::StrAppend(&line, Numbers("strides", *format.byte_strides));
      Log(std::move(line));
      UseName(buffer);
      Waiting waiting;
      waiting.kind = Kind::kRead;
      waiting.name = buffer;
      waiting.read = std::move(done);
      waiting_.push_back(std::move(waiting));
      return;
    }
  }
  done(SessionEnded());
}

void FakeSessionLink::Await(const std::vector<cluster::BufferNames>& buffers,
                            absl::AnyInvocable<void(const absl::Status&)> done) {
  {
    base::MutexLock lock(&mu_);
    if (!closed_) {
      Log(absl::StrCat("await ", Text(buffers)));
      for (const cluster::BufferNames& names : buffers) UseNames(names);
      Waiting waiting;
      waiting.kind = Kind::kAwait;
      waiting.launch_or_await = std::move(done);
      waiting_.push_back(std::move(waiting));
      return;
    }
  }
  done(SessionEnded());
}

void FakeSessionLink::Compile(cluster::CompileProgram command,
                              absl::AnyInvocable<void(absl::StatusOr<cluster::CompiledProgram>)> done) {
  base::MutexLock lock(&mu_);
  if (closed_) {
    Break("a compile after the end of the session");
    return;
  }
  Log(absl::StrCat("compile ", command.executable));
  if (!compiles_.try_emplace(command.executable, command).second) Break("the program's name is not new");
  Waiting waiting;
  waiting.kind = Kind::kCompile;
  waiting.name = command.executable;
  waiting.compile = std::move(done);
  waiting_.push_back(std::move(waiting));
}

void FakeSessionLink::Unload(cluster::ExecutableId executable, std::optional<int64_t> stream) {
  base::MutexLock lock(&mu_);
  if (closed_) return;
  Log(absl::StrCat("unload ", executable, stream ? absl::StrCat(" stream ", *stream) : ""));
  if (loaded_.erase(executable) == 0) Break("a program that is not loaded is unloaded");
}

void FakeSessionLink::CostAnalysis(cluster::ExecutableId executable,
                                   absl::AnyInvocable<void(absl::StatusOr<cluster::CostProperties>)> done) {
  {
    base::MutexLock lock(&mu_);
    if (!closed_) {
      Log(absl::StrCat("cost ", executable));
      if (loaded_.count(executable) == 0) Break("the costs of a program that is not loaded");
      Waiting waiting;
      waiting.kind = Kind::kCost;
      waiting.name = executable;
      waiting.cost = std::move(done);
      waiting_.push_back(std::move(waiting));
      return;
    }
  }
  done(SessionEnded());
}

void FakeSessionLink::Close() {
  std::deque<Waiting> waiting;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    Log("close");
    closed_ = true;
    waiting.swap(waiting_);
    live_.clear();
    loaded_.clear();
    held_.clear();
    awaiting_bytes_.clear();
  }
  for (Waiting& one : waiting) Answer(std::move(one), SessionEnded(), {});
}

// ---- FakeWorker ------------------------------------------------------------------------------------------

FakeWorker::FakeWorker(int num_devices) {
  info_.platform_name = "cpu";
  info_.platform_version = "a fake";
  for (int i = 0; i < num_devices; ++i) {
    cluster::DeviceInfo device;
    device.id = 10 + i;
    device.local_hardware_id = i;
    device.kind = "cpu";
    device.debug_string = absl::StrCat("Device ", device.id);
    device.to_string = absl::StrCat("Device(id=", device.id, ")");
    device.platform_name = "cpu";
    device.default_memory = 2 * i;
    device.memories = {2 * i, 2 * i + 1};
    for (const auto& [id, kind] :
         {std::pair<int32_t, const char*>{2 * i, "device"}, {2 * i + 1, "pinned_host"}}) {
      cluster::MemoryInfo memory;
      memory.id = id;
      memory.kind = kind;
      memory.kind_id = id % 2;
      memory.debug_string = absl::StrCat("Memory ", id);
      memory.to_string = absl::StrCat("Memory(", kind, " ", id, ")");
      memory.devices = {device.id};
      info_.memories.push_back(std::move(memory));
    }
    info_.devices.push_back(std::move(device));
  }
}

std::vector<std::shared_ptr<FakeSessionLink>> FakeWorker::links() const {
  base::MutexLock lock(&mu_);
  return links_;
}

std::shared_ptr<cluster::SessionLink> FakeWorker::OpenSession(
    cluster::SessionId /*session*/, std::shared_ptr<cluster::CallbackSink> /*callbacks*/) {
  auto link = std::make_shared<FakeSessionLink>(broken_);
  base::MutexLock lock(&mu_);
  links_.push_back(link);
  return link;
}

void FakeWorker::DefaultLayout(cluster::ElementType type, const std::vector<int64_t>& dims,
                               absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) {
  default_layout_asked = {type, dims};
  default_layout_done_ = std::move(done);
  if (!holds_default_layout) AnswerDefaultLayout();
}

absl::StatusOr<std::vector<cluster::DeviceId>> FakeWorker::DefaultDeviceAssignment(int replicas,
                                                                                   int partitions) {
  if (!default_assignment_error.ok()) return default_assignment_error;
  std::vector<cluster::DeviceId> ids;
  for (int i = 0; i < replicas * partitions; ++i) ids.push_back(info_.devices[static_cast<size_t>(i)].id);
  return ids;
}

}  // namespace helmway::proxy
