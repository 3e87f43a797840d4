#include "helmway/worker/collectives.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "helmway/base/status.h"
#include "helmway/pjrt/ffi.h"
#include "helmway/pjrt/hlo_transform.h"
#include "helmway/worker/python_callback.h"
#include "helmway/worker/reduce.h"
#include "helmway/worker/run_data.h"

namespace helmway::worker {

using program::CollectiveKind;

namespace {

// Sums up to here are sent whole to everybody, which takes one way there; above, each device sums a share and
// gives it to the others, which takes two ways and moves the least.
constexpr int64_t kMaxWholeReduction = 32 << 10;
// Bytes of all members up to here cost some microseconds, less than to wake a thread for them.
constexpr int64_t kMaxBytesHere = 32 << 10;
// Slices of operands lie in messages at multiples of this, so that they can be read as what they are.
constexpr int64_t kAlignment = 16;
constexpr size_t kMaxQueued = 1 << 20;
constexpr size_t kMaxEndedSessions = 1024;
// In the place of an instruction of the program, in messages: the sender starts with the others.
constexpr int64_t kStart = -1;
// Ids of launches go round here.
constexpr int64_t kLaunchIds = 0x7fffffff;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Memory in blocks of `length` bytes that begin `stride` bytes apart.
template <typename Byte>
struct Blocks {
  Byte* data = nullptr;
  int64_t count = 0;
  int64_t stride = 0;
  int64_t length = 0;

  int64_t bytes() const { return count * length; }
};
using Source = Blocks<const uint8_t>;
using Target = Blocks<uint8_t>;

Source Whole(const uint8_t* data, int64_t bytes) { return {data, bytes > 0, bytes, bytes}; }

void Copy(const Source& from, const Target& to) {
  if (from.length == to.length || from.count == 0) {
    for (int64_t b = 0; b < from.count && from.length > 0; ++b) {
      std::memcpy(to.data + b * to.stride, from.data + b * from.stride, static_cast<size_t>(from.length));
    }
    return;
  }
  // One side is dense.
  if (from.stride == from.length) {
    for (int64_t b = 0; b < to.count; ++b) {
      std::memcpy(to.data + b * to.stride, from.data + b * to.length, static_cast<size_t>(to.length));
    }
  } else {
    for (int64_t b = 0; b < from.count; ++b) {
      std::memcpy(to.data + b * from.length, from.data + b * from.stride, static_cast<size_t>(from.length));
    }
  }
}

}  // namespace

// What an instruction does, as this worker sees it.
struct CollectivePlan {
  struct Remote {
    size_t worker;                // of the program
    std::vector<size_t> members;  // of the group, by number in it
  };
  struct Group {
    std::vector<int32_t> members;  // positions in the program
    std::vector<size_t> local;     // numbers of the members on this worker
    std::vector<Remote> remote;
    size_t expected = 0;  // parts that come from other workers
  };
  program::Collective what;
  std::vector<Group> groups;
  std::vector<int32_t> group_of;  // by position, -1 for none
  // Of a permutation, which is one group of all devices: by member, -1 for none.
  std::vector<int64_t> source_of, target_of;

  size_t NumberIn(const Group& group, int32_t position) const {
    return static_cast<size_t>(std::find(group.members.begin(), group.members.end(), position) -
                               group.members.begin());
  }
};

namespace {

absl::StatusOr<std::shared_ptr<const CollectivePlan>> ReadPlan(const CollectiveProgram& program,
                                                               const pjrt::FfiCall& call) {
  auto plan = std::make_shared<CollectivePlan>();
  program::Collective& what = plan->what;
  HELMWAY_ASSIGN_OR_RETURN(const uint64_t id, call.Uint64Attribute("id"));
  what.id = static_cast<int64_t>(id);
  HELMWAY_ASSIGN_OR_RETURN(const auto kind, call.Int64ArrayAttribute("kind"));
  HELMWAY_ASSIGN_OR_RETURN(const auto reduction, call.Int64ArrayAttribute("reduction"));
  HELMWAY_ASSIGN_OR_RETURN(const auto blocks, call.Int64ArrayAttribute("blocks"));
  HELMWAY_ASSIGN_OR_RETURN(const auto members, call.Int64ArrayAttribute("members"));
  HELMWAY_ASSIGN_OR_RETURN(const auto sizes, call.Int64ArrayAttribute("sizes"));
  const absl::Status bad =
      absl::InvalidArgumentError(absl::StrCat("collective ", id, " does not fit its program"));
  if (kind.size() != 1 || reduction.size() != 1) return bad;
  what.kind = static_cast<CollectiveKind>(kind[0]);
  what.reduction = static_cast<program::Reduction>(reduction[0]);
  what.blocks.assign(blocks.begin(), blocks.end());
  const auto devices = static_cast<int64_t>(program.devices().size());
  size_t next = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || static_cast<size_t>(size) > members.size() - next) return bad;
    auto& group = what.groups.emplace_back();
    for (int64_t i = 0; i < size; ++i, ++next) {
      if (members[next] < 0 || members[next] >= devices) return bad;
      group.push_back(members[next]);
    }
  }
  plan->group_of.assign(static_cast<size_t>(devices), -1);
  auto add_group = [&](const std::vector<int64_t>& positions) {
    CollectivePlan::Group& group = plan->groups.emplace_back();
    for (const int64_t position : positions) {
      const auto p = static_cast<int32_t>(position);
      const size_t number = group.members.size();
      group.members.push_back(p);
      plan->group_of[static_cast<size_t>(p)] = static_cast<int32_t>(plan->groups.size()) - 1;
      const size_t worker = program.worker_of(p);
      if (worker == program.self()) {
        group.local.push_back(number);
        continue;
      }
      auto it = std::find_if(group.remote.begin(), group.remote.end(),
                             [&](const CollectivePlan::Remote& one) { return one.worker == worker; });
      if (it == group.remote.end()) it = group.remote.insert(it, {worker, {}});
      it->members.push_back(number);
    }
    for (const auto& remote : group.remote) group.expected += remote.members.size();
  };
  if (what.kind == CollectiveKind::kCollectivePermute) {
    plan->source_of.assign(static_cast<size_t>(devices), -1);
    plan->target_of.assign(static_cast<size_t>(devices), -1);
    for (const auto& pair : what.groups) {
      if (pair.size() != 2) return bad;
      plan->source_of[static_cast<size_t>(pair[1])] = pair[0];
      plan->target_of[static_cast<size_t>(pair[0])] = pair[1];
    }
    std::vector<int64_t> all;
    for (int64_t d = 0; d < devices; ++d) all.push_back(d);
    add_group(all);
    CollectivePlan::Group& group = plan->groups[0];
    group.expected = 0;
    for (const size_t member : group.local) {
      const int64_t source = plan->source_of[member];
      if (source >= 0 && program.worker_of(static_cast<int32_t>(source)) != program.self()) ++group.expected;
    }
  } else {
    for (const auto& group : what.groups) add_group(group);
    if (what.kind == CollectiveKind::kCollectiveBroadcast) {
      for (CollectivePlan::Group& group : plan->groups) {
        group.expected =
            !group.members.empty() && program.worker_of(group.members[0]) != program.self() ? 1 : 0;
      }
    }
  }
  return plan;
}

struct ExchangeKey {
  int64_t instruction;
  int64_t occurrence;
  int32_t group;
  friend bool operator<(const ExchangeKey& a, const ExchangeKey& b) {
    return std::tie(a.instruction, a.occurrence, a.group) < std::tie(b.instruction, b.occurrence, b.group);
  }
};

}  // namespace

// One collective of one group in one launch, on this worker. Changed under the engine's lock until it runs,
// then by the task that runs it.
struct Collectives::Exchange {
  struct Member {
    bool here = false;
    absl::InlinedVector<pjrt::FfiBuffer, 2> operands, results;  // without dims
    Waiting waiting;
  };

  explicit Exchange(ExchangeKey name) : key(name) {}

  const ExchangeKey key;
  std::shared_ptr<const CollectivePlan> plan;  // null as long as only parts have come
  std::vector<Member> members;                 // as local of the group
  size_t joined = 0;
  absl::Time since = absl::InfiniteFuture();    // when the last one came to it, once one of this worker has
  std::map<int32_t, base::HostBytes> parts[2];  // by stage and source
  size_t stage = 0;
  bool running = false;

  const CollectivePlan::Group& group() const { return plan->groups[static_cast<size_t>(key.group)]; }

  // The number of devices that share the sum of a reduction in two stages; 0 if it is not one.
  int64_t Shares(const Member& member) const {
    if (plan->what.kind != CollectiveKind::kAllReduce || group().members.size() < 2) return 0;
    int64_t bytes = 0;
    for (const pjrt::FfiBuffer& operand : member.operands) bytes += operand.bytes;
    return bytes > kMaxWholeReduction ? static_cast<int64_t>(group().members.size()) : 0;
  }

  // What it works on. At least one member is here.
  int64_t Bytes() const {
    int64_t bytes = 0;
    for (const pjrt::FfiBuffer& operand : members[0].operands) bytes += operand.bytes;
    return bytes * static_cast<int64_t>(group().members.size());
  }

  // The share of member `target` in a reduction of operand `k`.
  Source Share(const pjrt::FfiBuffer& operand, int64_t shares, size_t target) const {
    const int64_t element = pjrt::ElementBits(operand.type) / 8;
    const int64_t share = (operand.bytes / element + shares - 1) / shares * element;
    const int64_t begin = std::min(share * static_cast<int64_t>(target), operand.bytes);
    return Whole(operand.data + begin, std::min(share, operand.bytes - begin));
  }

  // What member `target` gets of operand `k` of a member.
  Source Slice(const Member& member, size_t k, size_t target) const {
    const pjrt::FfiBuffer& operand = member.operands[k];
    const auto n = static_cast<int64_t>(group().members.size());
    switch (plan->what.kind) {
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllToAll: {
        const int64_t blocks = plan->what.blocks[k];
        if (operand.bytes == 0) return {};
        const int64_t length = operand.bytes / (blocks * n);
        return {operand.data + static_cast<int64_t>(target) * length, blocks, n * length, length};
      }
      case CollectiveKind::kAllToAllTuple:
        return k == target ? Whole(operand.data, operand.bytes) : Source{};
      case CollectiveKind::kAllReduce:
        if (const int64_t shares = Shares(member)) return Share(operand, shares, target);
        break;
      default:
        break;
    }
    return Whole(operand.data, operand.bytes);
  }

  // Whether each target gets bytes of its own, not all the same.
  bool IsPerTarget(const Member& member) const {
    switch (plan->what.kind) {
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kAllToAllTuple:
        return true;
      case CollectiveKind::kAllReduce:
        return Shares(member) > 0;
      default:
        return false;
    }
  }

  // The slices that `member` sends to a worker that has `targets`, one after the other.
  template <typename Function>
  void ForEachSlice(const Member& member, const std::vector<size_t>& targets, Function function) const {
    const bool per_target = IsPerTarget(member);
    for (const size_t target : targets) {
      for (size_t k = 0; k < member.operands.size(); ++k) function(target, k, Slice(member, k, target));
      if (!per_target) break;
    }
  }

  // What `target`, a local member, gets of operand `k` of member `source`, wherever that is. `like` is any
  // local member: all have operands of the same form.
  absl::StatusOr<Source> Get(const Member& like, size_t source, size_t k, size_t target) const {
    const auto& local = group().local;
    const auto at = std::find(local.begin(), local.end(), source);
    if (at != local.end()) return Slice(members[static_cast<size_t>(at - local.begin())], k, target);
    const auto part = parts[0].find(group().members[source]);
    if (part == parts[0].end()) return absl::InternalError("a part is missing");
    const bool per_target = IsPerTarget(like);
    std::optional<Source> found;
    int64_t offset = 0;
    ForEachSlice(like, local, [&](size_t t, size_t slice_k, const Source& slice) {
      if (slice_k == k && (t == target || !per_target)) {
        found = Source{part->second.data + offset, slice.count, slice.length, slice.length};
      }
      offset += Aligned(slice.bytes());
    });
    if (!found || offset != part->second.size) {
      return absl::InvalidArgumentError(absl::StrCat("device ", group().members[source],
                                                     " of the program gave ", part->second.size,
                                                     " bytes instead of ", offset));
    }
    return *found;
  }

  std::vector<Waiting> TakeWaiting() {
    std::vector<Waiting> waiting;
    for (Member& member : members) {
      if (member.here) waiting.push_back(std::move(member.waiting));
      member.here = false;
    }
    return waiting;
  }

  bool IsReady() const {
    if (plan == nullptr || running || joined < members.size() || members.empty()) return false;
    return parts[stage].size() >= (stage == 0 ? group().expected : group().remote.size());
  }

  // The devices, by position in the program, that have not come to it.
  std::vector<int32_t> Missing() const {
    std::vector<int32_t> missing;
    for (size_t m = 0; m < members.size(); ++m) {
      if (!members[m].here) missing.push_back(group().members[group().local[m]]);
    }
    if (stage == 1) {
      for (const auto& remote : group().remote) {
        const int32_t first = group().members[remote.members[0]];
        if (parts[1].count(first) == 0) missing.push_back(first);
      }
      return missing;
    }
    for (const auto& remote : group().remote) {
      for (const size_t member : remote.members) {
        const int32_t position = group().members[member];
        if (parts[0].count(position) == 0 && IsAwaited(position)) missing.push_back(position);
      }
    }
    return missing;
  }

  // Whether this worker gets anything from a device of another.
  bool IsAwaited(int32_t position) const {
    switch (plan->what.kind) {
      case CollectiveKind::kCollectiveBroadcast:
        return position == group().members[0];
      case CollectiveKind::kCollectivePermute:
        return std::any_of(group().local.begin(), group().local.end(),
                           [&](size_t member) { return plan->source_of[member] == position; });
      default:
        return true;
    }
  }

  std::string Name() const {
    return absl::StrCat(program::CollectiveName(plan->what.kind), " (instruction ", key.instruction, ")");
  }
};

// Guarded by the engine's lock but for what is const.
struct CollectiveLaunch {
  explicit CollectiveLaunch(std::pair<cluster::SessionId, cluster::LaunchId> name) : key(name) {}

  const std::pair<cluster::SessionId, cluster::LaunchId> key;
  std::shared_ptr<CollectiveProgram> program;  // set by Begin
  absl::Status status;
  std::map<ExchangeKey, std::shared_ptr<Collectives::Exchange>> exchanges;
  // Of programs with the plugin's collectives (LaunchShare::StartWithOthers).
  std::set<int32_t> started;  // workers that start, by the first position of their devices
  bool starts = false;        // this worker has said so
  absl::Time starts_since;    // if so
  absl::Time starts_until = absl::InfiniteFuture();  // or gives up
  std::optional<absl::Status> start;                 // whether it does
};

struct LaunchShare::Part {
  int32_t position;
  RunData data;
  pjrt::RunContext context;
  base::Mutex mu;
  absl::flat_hash_map<int64_t, int64_t> occurrences ABSL_GUARDED_BY(mu);  // by instruction
};

// ---- Compiling -------------------------------------------------------------------------------------------

namespace {
thread_local ReplaceCollectivesHere* replacing = nullptr;
}  // namespace

struct CollectiveTransform {
  static absl::StatusOr<std::optional<std::string>> Run(absl::string_view module) {
    if (replacing == nullptr) return std::nullopt;
    xla::HloModuleProto proto;
    if (!proto.ParseFromArray(module.data(), static_cast<int>(module.size()))) {
      return absl::InternalError("the compiler's program can't be parsed");
    }
    absl::StatusOr<bool> changed = program::ReplaceCollectives(replacing->size_, &proto);
    if (!changed.ok()) {
      replacing->status_.Update(changed.status());
      return changed.status();
    }
    if (!*changed) return std::nullopt;
    replacing->replaced_ = true;
    return proto.SerializeAsString();
  }
};

absl::Status ReplaceCollectivesHere::Prepare(const pjrt::Plugin& plugin) {
  HELMWAY_RETURN_IF_ERROR(pjrt::RegisterFfiHandler(plugin, program::kCollectiveTarget, "Host",
                                                   &pjrt::FfiHandlerOf<&Collectives::Call>));
  return pjrt::RegisterHloTransform(plugin, "helmway_collectives", &CollectiveTransform::Run);
}

ReplaceCollectivesHere::ReplaceCollectivesHere(program::ProgramSize size) : size_(size) { replacing = this; }
ReplaceCollectivesHere::~ReplaceCollectivesHere() { replacing = nullptr; }

// ---- Programs --------------------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<CollectiveProgram>> CollectiveProgram::Create(
    const cluster::LoadProgram& command) {
  auto program = std::shared_ptr<CollectiveProgram>(new CollectiveProgram());
  program->devices_ = command.devices;
  program->workers_ = command.workers;
  const size_t none = command.workers.size();
  program->worker_of_.assign(command.devices.size(), none);
  for (size_t w = 0; w < command.workers.size(); ++w) {
    for (const int32_t position : command.workers[w].positions) {
      if (position < 0 || static_cast<size_t>(position) >= command.devices.size() ||
          program->worker_of_[static_cast<size_t>(position)] != none) {
        return absl::InvalidArgumentError("the devices of a program are not shared out among its workers");
      }
      program->worker_of_[static_cast<size_t>(position)] = w;
    }
  }
  if (std::find(program->worker_of_.begin(), program->worker_of_.end(), none) != program->worker_of_.end() ||
      command.self < 0 || static_cast<size_t>(command.self) >= none) {
    return absl::InvalidArgumentError("a device of a program belongs to no worker");
  }
  program->self_ = static_cast<size_t>(command.self);
  return program;
}

std::shared_ptr<const CollectivePlan> CollectiveProgram::Find(int64_t instruction) const {
  base::MutexLock lock(&mu_);
  const auto it = plans_.find(instruction);
  return it == plans_.end() ? nullptr : it->second;
}

std::shared_ptr<const CollectivePlan> CollectiveProgram::Add(int64_t instruction,
                                                             std::shared_ptr<const CollectivePlan> plan) {
  base::MutexLock lock(&mu_);
  return plans_.emplace(instruction, std::move(plan)).first->second;
}

// ---- Launches --------------------------------------------------------------------------------------------

namespace {

// "the devices 4, 5 of the worker at host:port", and so for all workers that have any of these.
std::string DescribeDevices(const CollectiveProgram& program, const std::vector<int32_t>& positions) {
  std::map<size_t, std::vector<cluster::DeviceId>> by_worker;
  for (const int32_t position : positions) {
    by_worker[program.worker_of(position)].push_back(program.devices()[static_cast<size_t>(position)]);
  }
  std::vector<std::string> texts;
  for (const auto& [worker, devices] : by_worker) {
    texts.push_back(absl::StrCat("the devices ", absl::StrJoin(devices, ", "), " of the worker at ",
                                 program.workers()[worker].address.address));
  }
  return absl::StrJoin(texts, " and ");
}

// The error of a launch for which a worker is lost.
absl::Status Lost(const CollectiveProgram& program, size_t worker, absl::string_view why) {
  const cluster::ProgramWorker& lost = program.workers()[worker];
  std::vector<cluster::DeviceId> devices;
  for (const int32_t position : lost.positions) {
    devices.push_back(program.devices()[static_cast<size_t>(position)]);
  }
  return absl::DataLossError(absl::StrCat("the worker at ", lost.address.address, " with the devices ",
                                          absl::StrJoin(devices, ", "),
                                          " was lost while a program ran on it: ", why));
}

}  // namespace

LaunchShare::LaunchShare(std::shared_ptr<Collectives> engine, std::shared_ptr<CollectiveLaunch> launch,
                         size_t parts)
    : engine_(std::move(engine)), launch_(std::move(launch)), parts_(parts) {}

LaunchShare::~LaunchShare() { engine_->Ended(*launch_); }

absl::StatusOr<const pjrt::RunContext*> LaunchShare::Context(const pjrt::Plugin& plugin, size_t index,
                                                             int32_t position, CallbackRun* callbacks) {
  parts_[index] = std::make_unique<Part>();
  Part& part = *parts_[index];
  part.position = position;
  part.data = {.share = this, .part = index, .callbacks = callbacks};
  HELMWAY_ASSIGN_OR_RETURN(part.context, pjrt::RunContext::Create(plugin, &part.data));
  return &part.context;
}

absl::Status LaunchShare::status() const {
  base::MutexLock lock(&engine_->mu_);
  return launch_->status;
}

absl::Status LaunchShare::StartWithOthers() { return engine_->Start(*launch_); }

absl::Status LaunchShare::Settle(const absl::Status& outcome) {
  if (outcome.ok()) return outcome;
  return engine_->Abort(*launch_, outcome, outcome);
}

Collectives::Collectives(const CollectivesOptions& options)
    : options_(options),
      threads_(std::make_unique<async::ThreadPool>(async::ThreadPool::Options{
          .name = "collectives", .threads = options.threads, .max_queued = kMaxQueued})) {
  if (options.wait_limit == absl::InfiniteDuration()) return;
  watch_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watch");
    const absl::Duration pause =
        std::clamp(options_.wait_limit / 8, absl::Milliseconds(10), absl::Seconds(10));
    while (!stopping_.WaitForNotificationWithTimeout(pause)) FailOverdue(absl::Now());
  });
}

Collectives::~Collectives() { Stop(); }

void Collectives::Stop() {
  if (threads_ == nullptr) return;
  if (watch_.joinable()) {
    stopping_.Notify();
    watch_.join();
  }
  threads_.reset();
}

void Collectives::FailOverdue(absl::Time now) {
  std::vector<std::pair<std::shared_ptr<CollectiveLaunch>, absl::Status>> overdue;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [key, launch] : launches_) {
      if (!launch->status.ok() || launch->program == nullptr) continue;
      if (launch->starts && !launch->start.has_value() && now - launch->starts_since > options_.wait_limit) {
        std::vector<int32_t> missing;
        for (const cluster::ProgramWorker& worker : launch->program->workers()) {
          if (!launch->started.contains(worker.positions.front())) {
            missing.insert(missing.end(), worker.positions.begin(), worker.positions.end());
          }
        }
        overdue.emplace_back(
            launch, absl::DeadlineExceededError(absl::StrCat(
                        "the start of launch ", key.second, " has waited for ",
                        absl::FormatDuration(absl::Floor(now - launch->starts_since, absl::Milliseconds(1))),
                        " for ", DescribeDevices(*launch->program, missing))));
        continue;
      }
      for (const auto& [name, exchange] : launch->exchanges) {
        if (exchange->running || now - exchange->since <= options_.wait_limit) continue;
        overdue.emplace_back(
            launch, absl::DeadlineExceededError(absl::StrCat(
                        exchange->Name(), " of launch ", key.second, " has waited for ",
                        absl::FormatDuration(absl::Floor(now - exchange->since, absl::Milliseconds(1))),
                        " for ", DescribeDevices(*launch->program, exchange->Missing()))));
        break;
      }
    }
  }
  for (const auto& [launch, status] : overdue) {
    LOG(ERROR) << status.message();
    Abort(*launch, status, status).IgnoreError();
  }
}

bool Collectives::IsOver(const LaunchKey& key) const {
  const auto it = youngest_.find(key.first);
  if (it == youngest_.end()) return std::find(ended_.begin(), ended_.end(), key.first) != ended_.end();
  const int64_t ahead = (key.second - it->second + 2 * kLaunchIds) % kLaunchIds;
  return ahead == 0 || ahead > kLaunchIds / 2;
}

std::shared_ptr<CollectiveLaunch> Collectives::FindOrExpect(const LaunchKey& key) {
  const auto it = launches_.find(key);
  if (it != launches_.end()) return it->second;
  if (IsOver(key)) return nullptr;
  return launches_[key] = std::make_shared<CollectiveLaunch>(key);
}

std::unique_ptr<LaunchShare> Collectives::Begin(cluster::SessionId session, cluster::LaunchId launch,
                                                std::shared_ptr<CollectiveProgram> program, size_t parts) {
  std::shared_ptr<CollectiveLaunch> begun;
  {
    base::MutexLock lock(&mu_);
    const LaunchKey key(session, launch);
    std::shared_ptr<CollectiveLaunch>& known = launches_[key];
    if (known == nullptr) known = std::make_shared<CollectiveLaunch>(key);
    known->program = program;
    begun = known;
    youngest_[session] = launch;
  }
  // So that a peer that is gone, or goes, is noticed even if this launch only waits for it.
  for (size_t w = 0; options_.peers != nullptr && w < program->workers().size(); ++w) {
    if (w != program->self()) options_.peers->Connect(program->workers()[w].address);
  }
  return std::make_unique<LaunchShare>(shared_from_this(), std::move(begun), parts);
}

void Collectives::Ended(CollectiveLaunch& launch) {
  std::shared_ptr<CollectiveLaunch> dropped;
  base::MutexLock lock(&mu_);
  const auto it = launches_.find(launch.key);
  if (it == launches_.end() || it->second.get() != &launch) return;
  dropped = std::move(it->second);
  launches_.erase(it);
}

absl::Status Collectives::Abort(CollectiveLaunch& launch, const absl::Status& status,
                                const absl::Status& told) {
  std::vector<Waiting> ended;
  std::shared_ptr<CollectiveProgram> program;
  {
    base::MutexLock lock(&mu_);
    if (!launch.status.ok()) return launch.status;
    launch.status = status;
    program = launch.program;
    for (auto it = launch.exchanges.begin(); it != launch.exchanges.end();) {
      // What runs uses the memory of its members, and ends them itself.
      if (it->second->running) {
        ++it;
        continue;
      }
      for (Waiting& one : it->second->TakeWaiting()) ended.push_back(std::move(one));
      it = launch.exchanges.erase(it);
    }
  }
  if (!told.ok() && program != nullptr && options_.peers != nullptr) {
    for (size_t w = 0; w < program->workers().size(); ++w) {
      if (w == program->self()) continue;
      options_.peers->SendAbort(program->workers()[w].address, launch.key.first, launch.key.second, told);
    }
  }
  Finish(std::move(ended), status);
  return status;
}

void Collectives::WhenPeerLost(cluster::SessionId session, cluster::SessionLink::PeerLost lost) {
  base::MutexLock lock(&telling_);
  peer_lost_[session] = std::move(lost);
}

void Collectives::AbortSession(cluster::SessionId session, const absl::Status& status) {
  {
    base::MutexLock lock(&telling_);
    peer_lost_.erase(session);
  }
  std::vector<std::shared_ptr<CollectiveLaunch>> launches;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [key, launch] : launches_) {
      if (key.first == session && launch->program != nullptr) launches.push_back(launch);
    }
  }
  for (const auto& launch : launches) {
    {
      base::MutexLock lock(&mu_);
      if (launch->starts) {
        launch->starts_until = absl::Now() + options_.start_after_end;
        continue;
      }
    }
    const CollectiveProgram& program = *launch->program;
    Abort(*launch, status, Lost(program, program.self(), "it has ended the session")).IgnoreError();
  }
}

void Collectives::ForgetSession(cluster::SessionId session) {
  std::vector<std::shared_ptr<CollectiveLaunch>> dropped;
  base::MutexLock lock(&mu_);
  youngest_.erase(session);
  ended_.push_back(session);
  if (ended_.size() > kMaxEndedSessions) ended_.pop_front();
  for (auto it = launches_.begin(); it != launches_.end();) {
    if (it->first.first == session && it->second->program == nullptr) {
      dropped.push_back(std::move(it->second));
      launches_.erase(it++);
    } else {
      ++it;
    }
  }
}

void Collectives::TakeAbort(cluster::SessionId session, cluster::LaunchId launch,
                            const absl::Status& status) {
  std::shared_ptr<CollectiveLaunch> known;
  {
    base::MutexLock lock(&mu_);
    known = FindOrExpect({session, launch});
  }
  if (known == nullptr) return;
  Abort(*known, status.ok() ? absl::InternalError("a launch has failed without a cause") : status,
        absl::OkStatus())
      .IgnoreError();
}

void Collectives::PeerLost(const cluster::PeerAddress& peer, const absl::Status& status) {
  std::vector<std::pair<std::shared_ptr<CollectiveLaunch>, absl::Status>> losses;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [key, launch] : launches_) {
      if (launch->program == nullptr) continue;
      const std::vector<cluster::ProgramWorker>& workers = launch->program->workers();
      for (size_t w = 0; w < workers.size(); ++w) {
        if (!(workers[w].address == peer)) continue;
        std::string why(status.ok() ? "it has ended" : status.message());
        for (const auto& [name, exchange] : launch->exchanges) {
          if (exchange->joined == 0 || exchange->running) continue;
          absl::StrAppend(&why, "; launch ", key.second, " waits for ",
                          DescribeDevices(*launch->program, exchange->Missing()), " in ", exchange->Name());
          break;
        }
        losses.emplace_back(launch, Lost(*launch->program, w, why));
      }
    }
  }
  for (const auto& [launch, loss] : losses) Abort(*launch, loss, loss).IgnoreError();
  // Buffers on their way are lost too, and only whoever commanded them knows which.
  const absl::Status why = status.ok() ? absl::UnavailableError("the connection has ended") : status;
  base::MutexLock lock(&telling_);
  for (auto& [session, lost] : peer_lost_) lost(peer, why);
}

// ---- The plugin's own collectives ------------------------------------------------------------------------

bool Collectives::AllStart(const CollectiveLaunch& launch) const {
  const std::vector<cluster::ProgramWorker>& workers = launch.program->workers();
  return launch.started.size() >= workers.size() &&
         std::all_of(workers.begin(), workers.end(), [&](const cluster::ProgramWorker& worker) {
           return launch.started.contains(worker.positions.front());
         });
}

absl::Status Collectives::Start(CollectiveLaunch& launch) {
  const CollectiveProgram& program = *launch.program;
  const int32_t self = program.workers()[program.self()].positions.front();
  bool says_so = false;
  {
    base::MutexLock lock(&mu_);
    if (!launch.starts) {
      // From here on nothing of this worker ends the launch, since the others may begin it.
      if (!launch.status.ok()) return launch.status;
      launch.starts = true;
      launch.starts_since = absl::Now();
      launch.started.insert(self);
      says_so = true;
    }
  }
  for (size_t w = 0; says_so && options_.peers != nullptr && w < program.workers().size(); ++w) {
    if (w == program.self()) continue;
    cluster::CollectivePart part;
    part.session = launch.key.first;
    part.launch = launch.key.second;
    part.instruction = kStart;
    part.source = self;
    options_.peers->SendPart(program.workers()[w].address, std::move(part));
  }
  absl::Status given_up;
  {
    base::MutexLock lock(&mu_);
    const auto decided = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return launch.start.has_value() || !launch.status.ok() || AllStart(launch);
    };
    const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return decided() || launch.starts_until != absl::InfiniteFuture();
    };
    mu_.Await(absl::Condition(&changed));
    if (!decided()) mu_.AwaitWithTimeout(absl::Condition(&decided), launch.starts_until - absl::Now());
    // All parts of this worker get one answer, and the others' word counts for more than a failure.
    if (!launch.start.has_value()) {
      if (AllStart(launch)) {
        launch.start = absl::OkStatus();
      } else if (!launch.status.ok()) {
        launch.start = launch.status;
      } else {
        given_up = absl::CancelledError("the session has ended");
        launch.start = given_up;
      }
    }
    if (given_up.ok()) return *launch.start;
  }
  return Abort(launch, given_up, Lost(program, program.self(), "it has ended the session"));
}

// ---- Exchanges -------------------------------------------------------------------------------------------

absl::Status Collectives::Call(pjrt::FfiCall& call) {
  const auto* data = static_cast<const RunData*>(call.run_data());
  if (data == nullptr || data->share == nullptr) return absl::InternalError("a collective outside a launch");
  LaunchShare& share = *data->share;
  return share.engine_->Join(*share.launch_, *share.parts_[data->part], call);
}

absl::Status Collectives::Join(CollectiveLaunch& launch, LaunchShare::Part& part, pjrt::FfiCall& call) {
  CollectiveProgram& program = *launch.program;
  HELMWAY_ASSIGN_OR_RETURN(const uint64_t id, call.Uint64Attribute("id"));
  const auto instruction = static_cast<int64_t>(id);
  std::shared_ptr<const CollectivePlan> plan = program.Find(instruction);
  if (plan == nullptr) {
    HELMWAY_ASSIGN_OR_RETURN(plan, ReadPlan(program, call));
    plan = program.Add(instruction, std::move(plan));
  }
  const int32_t group_number = plan->group_of[static_cast<size_t>(part.position)];
  if (group_number < 0) {
    return absl::InvalidArgumentError(absl::StrCat(program::CollectiveName(plan->what.kind), ": device ",
                                                   program.devices()[static_cast<size_t>(part.position)],
                                                   " is in no group"));
  }
  if (call.num_arguments() != plan->what.blocks.size() || call.num_results() != call.num_arguments()) {
    return absl::InvalidArgumentError("a collective with other operands than it was compiled with");
  }
  Exchange::Member member;
  member.here = true;
  for (size_t k = 0; k < call.num_arguments(); ++k) {
    HELMWAY_ASSIGN_OR_RETURN(pjrt::FfiBuffer operand, call.argument(k));
    HELMWAY_ASSIGN_OR_RETURN(pjrt::FfiBuffer result, call.result(k));
    operand.dims = result.dims = {};  // do not outlive the call
    member.operands.push_back(operand);
    member.results.push_back(result);
    if (plan->what.reduction != program::Reduction::kNone && !CanReduce(plan->what.reduction, operand.type)) {
      return absl::UnimplementedError(
          absl::StrCat("reducing ", std::string(pjrt::ElementTypeName(operand.type)), " between workers"));
    }
  }
  ExchangeKey key{instruction, 0, group_number};
  {
    base::MutexLock lock(&part.mu);
    key.occurrence = part.occurrences[instruction]++;
  }

  const CollectivePlan::Group& group = plan->groups[static_cast<size_t>(group_number)];
  const size_t number = plan->NumberIn(group, part.position);
  const auto local =
      static_cast<size_t>(std::find(group.local.begin(), group.local.end(), number) - group.local.begin());
  if (!group.remote.empty()) {
    // Sent before it can end, since then its memory goes.
    Exchange sending(key);
    sending.plan = plan;
    sending.members.resize(group.local.size());
    sending.members[local].operands = member.operands;
    HELMWAY_RETURN_IF_ERROR(SendToOthers(launch, sending, local, instruction, key.occurrence));
  }

  HELMWAY_ASSIGN_OR_RETURN(member.waiting.promise, call.Defer());
  member.waiting.callbacks = part.data.callbacks;
  std::vector<Waiting> failed;
  absl::Status status;
  std::shared_ptr<CollectiveLaunch> known_launch;
  std::shared_ptr<Exchange> runs;
  {
    base::MutexLock lock(&mu_);
    const auto known = launches_.find(launch.key);
    if (!launch.status.ok() || known == launches_.end()) {
      status = launch.status.ok() ? absl::InternalError("the launch is over") : launch.status;
      failed.push_back(std::move(member.waiting));
    } else {
      std::shared_ptr<Exchange>& exchange = launch.exchanges[key];
      if (exchange == nullptr) exchange = std::make_shared<Exchange>(key);
      if (exchange->plan == nullptr) {
        exchange->plan = plan;
        exchange->members.resize(group.local.size());
      }
      exchange->members[local] = std::move(member);
      ++exchange->joined;
      exchange->since = absl::Now();
      known_launch = known->second;
      runs = StartIfReady(known_launch, exchange);
    }
  }
  // Nothing follows yet on what this call itself awaits.
  if (runs != nullptr) Run(known_launch, runs, /*goes_on=*/group.local.size() == 1);
  Finish(std::move(failed), status);
  return absl::OkStatus();
}

absl::Status Collectives::SendToOthers(CollectiveLaunch& launch, const Exchange& exchange, size_t member,
                                       int64_t instruction, int64_t occurrence) {
  const CollectivePlan& plan = *exchange.plan;
  const CollectivePlan::Group& group = exchange.group();
  const size_t number = group.local[member];
  const Exchange::Member& mine = exchange.members[member];
  if (plan.what.kind == CollectiveKind::kCollectiveBroadcast && number != 0) return absl::OkStatus();
  base::HostBytes same;  // the part, where all workers get the same
  for (const CollectivePlan::Remote& remote : group.remote) {
    if (plan.what.kind == CollectiveKind::kCollectivePermute) {
      const int64_t target = plan.target_of[number];
      if (target < 0 || launch.program->worker_of(static_cast<int32_t>(target)) != remote.worker) continue;
    }
    if (options_.peers == nullptr) return absl::UnimplementedError("this worker reaches no other");
    cluster::CollectivePart part;
    part.session = launch.key.first;
    part.launch = launch.key.second;
    part.instruction = instruction;
    part.occurrence = occurrence;
    part.group = exchange.key.group;
    part.source = group.members[number];
    if (same.owner == nullptr || exchange.IsPerTarget(mine)) {
      int64_t bytes = 0;
      exchange.ForEachSlice(mine, remote.members, [&](size_t /*target*/, size_t /*k*/, const Source& slice) {
        bytes += Aligned(slice.bytes());
      });
      HELMWAY_ASSIGN_OR_RETURN(
          base::HostBlock block,
          options_.peers->Allocate(launch.program->workers()[remote.worker].address, bytes));
      int64_t offset = 0;
      exchange.ForEachSlice(mine, remote.members, [&](size_t /*target*/, size_t /*k*/, const Source& slice) {
        const int64_t length = slice.bytes();
        Copy(slice, {block.data + offset, 1, length, length});
        std::memset(block.data + offset + length, 0, static_cast<size_t>(Aligned(length) - length));
        offset += Aligned(length);
      });
      same = std::move(block).Finish();
      same.exclusive = false;
    }
    part.bytes = same;
    options_.peers->SendPart(launch.program->workers()[remote.worker].address, std::move(part));
  }
  return absl::OkStatus();
}

// What the members of this worker have summed, for the other workers.
absl::Status Collectives::SendReduced(CollectiveLaunch& launch, const Exchange& exchange) {
  const CollectivePlan::Group& group = exchange.group();
  const Exchange::Member& like = exchange.members[0];
  const int64_t shares = exchange.Shares(like);
  int64_t bytes = 0;
  for (const size_t member : group.local) {
    for (const pjrt::FfiBuffer& result : like.results) {
      bytes += Aligned(exchange.Share(result, shares, member).bytes());
    }
  }
  HELMWAY_ASSIGN_OR_RETURN(
      base::HostBlock block,
      options_.peers->Allocate(launch.program->workers()[group.remote[0].worker].address, bytes));
  int64_t offset = 0;
  for (const size_t member : group.local) {
    for (const pjrt::FfiBuffer& result : like.results) {
      const Source share = exchange.Share(result, shares, member);
      const int64_t length = share.bytes();
      if (length > 0) std::memcpy(block.data + offset, share.data, static_cast<size_t>(length));
      std::memset(block.data + offset + length, 0, static_cast<size_t>(Aligned(length) - length));
      offset += Aligned(length);
    }
  }
  base::HostBytes sums = std::move(block).Finish();
  sums.exclusive = false;
  for (const CollectivePlan::Remote& remote : group.remote) {
    cluster::CollectivePart part;
    part.session = launch.key.first;
    part.launch = launch.key.second;
    part.instruction = exchange.key.instruction;
    part.occurrence = exchange.key.occurrence;
    part.group = exchange.key.group;
    part.phase = 1;
    part.source = group.members[group.local[0]];
    part.bytes = sums;
    options_.peers->SendPart(launch.program->workers()[remote.worker].address, std::move(part));
  }
  return absl::OkStatus();
}

void Collectives::TakePart(cluster::CollectivePart part) {
  std::shared_ptr<CollectiveLaunch> launch;
  std::shared_ptr<Exchange> runs;
  absl::Status status;
  {
    base::MutexLock lock(&mu_);
    launch = FindOrExpect({part.session, part.launch});
    if (launch == nullptr) return;
    if (part.instruction == kStart) {
      launch->started.insert(part.source);
      return;
    }
    if (!launch->status.ok()) return;
    const ExchangeKey key{part.instruction, part.occurrence, part.group};
    std::shared_ptr<Exchange>& exchange = launch->exchanges[key];
    if (exchange == nullptr) exchange = std::make_shared<Exchange>(key);
    if (part.phase < 0 || part.phase > 1 ||
        (exchange->running && static_cast<size_t>(part.phase) <= exchange->stage) ||
        !exchange->parts[part.phase].emplace(part.source, std::move(part.bytes)).second) {
      status = absl::InternalError(absl::StrCat("collective ", part.instruction, " got a part of device ",
                                                part.source, " of the program twice"));
    } else {
      if (exchange->joined > 0) exchange->since = absl::Now();
      runs = StartIfReady(launch, exchange);
    }
  }
  // The programs that wait for it go on on other threads.
  if (runs != nullptr) Run(launch, runs, /*goes_on=*/false);
  if (!status.ok()) Abort(*launch, status, status).IgnoreError();
}

auto Collectives::StartIfReady(const std::shared_ptr<CollectiveLaunch>& launch,
                               const std::shared_ptr<Exchange>& exchange) -> std::shared_ptr<Exchange> {
  if (!exchange->IsReady()) return nullptr;
  exchange->running = true;
  if (exchange->Bytes() <= kMaxBytesHere) return exchange;
  Post([this, launch, exchange] { Run(launch, exchange, /*goes_on=*/true); });
  return nullptr;
}

void Collectives::Run(const std::shared_ptr<CollectiveLaunch>& launch,
                      const std::shared_ptr<Exchange>& exchange, bool goes_on) {
  // What has come for the first stage does not change while it runs, but parts of the second may come; maps
  // keep them apart.
  absl::Status status = Compute(*exchange, exchange->stage);
  const bool shares =
      exchange->stage == 0 && exchange->Shares(exchange->members[0]) > 0 && !exchange->group().remote.empty();
  if (status.ok() && shares) status = SendReduced(*launch, *exchange);
  if (!status.ok()) {
    status = absl::Status(status.code(), absl::StrCat(exchange->Name(), ": ", status.message()));
    status = Abort(*launch, status, status);
  }
  std::vector<Waiting> ended;
  std::shared_ptr<Exchange> runs;
  {
    base::MutexLock lock(&mu_);
    if (status.ok()) status = launch->status;
    if (status.ok() && shares) {
      exchange->stage = 1;
      exchange->since = absl::Now();
      exchange->running = false;
      runs = StartIfReady(launch, exchange);
    } else {
      ended = exchange->TakeWaiting();
      launch->exchanges.erase(exchange->key);
    }
  }
  if (runs != nullptr) return Run(launch, runs, goes_on);
  Finish(std::move(ended), status, goes_on);
}

absl::Status Collectives::Compute(Exchange& exchange, size_t stage) {
  const CollectivePlan& plan = *exchange.plan;
  const CollectivePlan::Group& group = exchange.group();
  const Exchange::Member& like = exchange.members[0];
  const size_t operands = like.operands.size();
  const auto n = static_cast<int64_t>(group.members.size());
  for (const Exchange::Member& member : exchange.members) {
    for (size_t k = 0; k < operands; ++k) {
      if (member.operands[k].bytes != like.operands[k].bytes ||
          member.results[k].bytes != like.results[k].bytes ||
          member.operands[k].type != like.operands[k].type) {
        return absl::InvalidArgumentError("the devices bring operands of different forms");
      }
    }
  }

  if (stage == 1) {
    const int64_t shares = exchange.Shares(like);
    for (const CollectivePlan::Remote& remote : group.remote) {
      const auto part = exchange.parts[1].find(group.members[remote.members[0]]);
      if (part == exchange.parts[1].end()) return absl::InvalidArgumentError("sums of an unknown worker");
      int64_t offset = 0;
      for (const size_t member : remote.members) {
        for (size_t k = 0; k < operands; ++k) {
          const int64_t length = exchange.Share(like.results[k], shares, member).bytes();
          if (offset + Aligned(length) > part->second.size) {
            return absl::InvalidArgumentError("another worker gave fewer sums than are its");
          }
          for (Exchange::Member& mine : exchange.members) {
            const Source place = exchange.Share(mine.results[k], shares, member);
            if (length > 0) {
              std::memcpy(mine.results[k].data + (place.data - mine.results[k].data),
                          part->second.data + offset, static_cast<size_t>(length));
            }
          }
          offset += Aligned(length);
        }
      }
    }
    return absl::OkStatus();
  }

  // The reduction of one slice of all members, for the local member `target`.
  auto reduce = [&](size_t k, size_t target, uint8_t* result, int64_t room) -> absl::Status {
    absl::InlinedVector<Source, 8> sources;
    for (size_t source = 0; source < group.members.size(); ++source) {
      HELMWAY_ASSIGN_OR_RETURN(sources.emplace_back(), exchange.Get(like, source, k, target));
    }
    if (sources[0].bytes() > room) return absl::InvalidArgumentError("a result that is too small");
    absl::InlinedVector<const uint8_t*, 8> inputs(sources.size());
    for (int64_t b = 0; b < sources[0].count; ++b) {
      for (size_t s = 0; s < sources.size(); ++s) inputs[s] = sources[s].data + b * sources[s].stride;
      Reduce(plan.what.reduction, like.operands[k].type, inputs, result + b * sources[0].length,
             sources[0].length);
    }
    return absl::OkStatus();
  };

  switch (plan.what.kind) {
    case CollectiveKind::kAllReduce: {
      const int64_t shares = exchange.Shares(like);
      for (size_t k = 0; k < operands; ++k) {
        const int64_t bytes = like.results[k].bytes;
        if (bytes != like.operands[k].bytes) return absl::InvalidArgumentError("a result of another size");
        for (const size_t target : group.local) {
          int64_t begin = 0, length = bytes;
          if (shares > 0) {
            const Source share = exchange.Share(like.results[k], shares, target);
            begin = share.data - like.results[k].data;
            length = share.bytes();
          }
          uint8_t* const first = like.results[k].data + begin;
          HELMWAY_RETURN_IF_ERROR(reduce(k, target, first, length));
          for (size_t m = 1; m < exchange.members.size() && length > 0; ++m) {
            std::memcpy(exchange.members[m].results[k].data + begin, first, static_cast<size_t>(length));
          }
          if (shares == 0) break;  // all get the same
        }
      }
      return absl::OkStatus();
    }
    case CollectiveKind::kReduceScatter:
      for (size_t m = 0; m < exchange.members.size(); ++m) {
        for (size_t k = 0; k < operands; ++k) {
          const pjrt::FfiBuffer& result = exchange.members[m].results[k];
          HELMWAY_RETURN_IF_ERROR(reduce(k, group.local[m], result.data, result.bytes));
        }
      }
      return absl::OkStatus();
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      for (size_t m = 0; m < exchange.members.size(); ++m) {
        for (size_t k = 0; k < operands; ++k) {
          const pjrt::FfiBuffer& result = exchange.members[m].results[k];
          const int64_t blocks = plan.what.blocks[k];
          if (result.bytes == 0) continue;
          const int64_t length = result.bytes / (blocks * n);
          for (size_t source = 0; source < group.members.size(); ++source) {
            HELMWAY_ASSIGN_OR_RETURN(const Source from, exchange.Get(like, source, k, group.local[m]));
            if (from.bytes() != blocks * length)
              return absl::InvalidArgumentError("a result of another size");
            Copy(from, {result.data + static_cast<int64_t>(source) * length, blocks, n * length, length});
          }
        }
      }
      return absl::OkStatus();
    case CollectiveKind::kAllToAllTuple:
      for (size_t m = 0; m < exchange.members.size(); ++m) {
        const size_t target = group.local[m];
        for (size_t source = 0; source < group.members.size(); ++source) {
          const pjrt::FfiBuffer& result = exchange.members[m].results[source];
          HELMWAY_ASSIGN_OR_RETURN(const Source from, exchange.Get(like, source, target, target));
          if (from.bytes() != result.bytes) return absl::InvalidArgumentError("a result of another size");
          Copy(from, {result.data, 1, result.bytes, result.bytes});
        }
      }
      return absl::OkStatus();
    case CollectiveKind::kCollectivePermute:
    case CollectiveKind::kCollectiveBroadcast:
      for (size_t m = 0; m < exchange.members.size(); ++m) {
        const int64_t source =
            plan.what.kind == CollectiveKind::kCollectiveBroadcast ? 0 : plan.source_of[group.local[m]];
        for (size_t k = 0; k < operands; ++k) {
          const pjrt::FfiBuffer& result = exchange.members[m].results[k];
          if (result.bytes == 0) continue;
          if (source < 0) {
            std::memset(result.data, 0, static_cast<size_t>(result.bytes));
            continue;
          }
          HELMWAY_ASSIGN_OR_RETURN(const Source from,
                                   exchange.Get(like, static_cast<size_t>(source), k, group.local[m]));
          if (from.bytes() != result.bytes) return absl::InvalidArgumentError("a result of another size");
          Copy(from, {result.data, 1, result.bytes, result.bytes});
        }
      }
      return absl::OkStatus();
  }
  return absl::UnimplementedError("a collective of an unknown kind");
}

void Collectives::Finish(std::vector<Waiting> ended, const absl::Status& status, bool goes_on) {
  // Each goes on with its device's program, on a thread of its own.
  for (Waiting& one : ended) {
    CallbackRun* const callbacks = one.callbacks;
    auto go_on = [promise = std::move(one.promise), status]() mutable { promise.Finish(status); };
    if (callbacks != nullptr) {
      callbacks->GoOn(std::move(go_on));
    } else if (goes_on && &one == &ended.back()) {
      go_on();
    } else {
      Post(std::move(go_on));
    }
  }
}

void Collectives::Post(absl::AnyInvocable<void()> task) {
  if (threads_ == nullptr) return task();
  threads_->PostOrRun(std::move(task));
}

}  // namespace helmway::worker
