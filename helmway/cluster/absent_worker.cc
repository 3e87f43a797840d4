#include "helmway/cluster/absent_worker.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "helmway/async/thread_pool.h"
#include "helmway/cluster/worker_info.h"

namespace helmway::cluster {
namespace {

class AbsentSession final : public SessionLink {
 public:
  AbsentSession(absl::Status loss, std::shared_ptr<async::ThreadPool> callbacks)
      : loss_(std::move(loss)), callbacks_(std::move(callbacks)) {}

  void Declare(DeclareBuffers /*command*/) override {}
  void Fill(HostContents /*contents*/) override {}
  void Fail(const BufferTargets& /*targets*/, const absl::Status& /*status*/) override {}
  void Execute(Launch launch) override {
    if (!launch.on_done) return;
    callbacks_->PostOrRun([loss = loss_, done = std::move(launch.on_done)]() mutable { done(loss); });
  }
  void Flush() override {}
  void ReleaseLaunch(LaunchId /*id*/, uint64_t /*place*/) override {}
  void Settle(LaunchId /*id*/, const absl::Status& /*status*/) override {}
  void Copy(CopyBuffers /*command*/) override {}
  void Send(SendBuffers /*command*/) override {}
  void Receive(ReceiveBuffers /*command*/) override {}
  void Assemble(AssembleBuffers /*command*/) override {}
  void Bitcast(BitcastBuffers /*command*/) override {}
  void Delete(const std::vector<BufferNames>& /*buffers*/) override {}
  void Read(BufferId /*buffer*/, ReadFormat /*format*/,
            absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) override {
    done(loss_);
  }
  void Await(const std::vector<BufferNames>& /*buffers*/,
             absl::AnyInvocable<void(const absl::Status&)> done) override {
    done(loss_);
  }
  void Compile(CompileProgram /*command*/,
               absl::AnyInvocable<void(absl::StatusOr<CompiledProgram>)> done) override {
    callbacks_->PostOrRun([loss = loss_, done = std::move(done)]() mutable { done(loss); });
  }
  void Load(LoadProgram /*command*/, absl::AnyInvocable<void(const absl::Status&)> done) override {
    done(loss_);
  }
  void Unload(ExecutableId /*executable*/, std::optional<int64_t> /*stream*/) override {}
  void CostAnalysis(ExecutableId /*executable*/,
                    absl::AnyInvocable<void(absl::StatusOr<CostProperties>)> done) override {
    done(loss_);
  }
  void WhenLost(absl::AnyInvocable<void(const absl::Status&)> lost) override { lost(loss_); }
  absl::Status Loss() override { return loss_; }
  void WhenPeerLost(PeerLost /*lost*/) override {}
  void WhenPythonSays(PythonSays /*says*/) override {}
  void TellPython(const std::string& /*text*/) override {}
  void Close() override {}

 private:
  const absl::Status loss_;
  const std::shared_ptr<async::ThreadPool> callbacks_;  // for what must not run inside a call
};

class AbsentWorker final : public WorkerLink {
 public:
  AbsentWorker(WorkerInfo info, absl::Status loss) : info_(std::move(info)), loss_(std::move(loss)) {}
  ~AbsentWorker() override { callbacks_->Stop(); }

  const WorkerInfo& info() const override { return info_; }
  PeerAddress peer_address() const override { return {}; }
  absl::Status Loss() override { return loss_; }
  std::shared_ptr<SessionLink> OpenSession(SessionId /*session*/,
                                           std::shared_ptr<CallbackSink> /*callbacks*/) override {
    return std::make_shared<AbsentSession>(loss_, callbacks_);
  }
  void DefaultLayout(ElementType /*type*/, const std::vector<int64_t>& /*dims*/,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> done) override {
    done(loss_);
  }
  absl::StatusOr<std::vector<DeviceId>> DefaultDeviceAssignment(int /*replicas*/,
                                                                int /*partitions*/) override {
    return loss_;
  }

 private:
  const WorkerInfo info_;
  const absl::Status loss_;
  const std::shared_ptr<async::ThreadPool> callbacks_ = std::make_shared<async::ThreadPool>(
      async::ThreadPool::Options{.name = "absent-worker", .max_queued = size_t{1} << 24});
};

// The text with every number that is a key replaced by its value.
std::string Renumber(absl::string_view text, const absl::flat_hash_map<std::string, std::string>& numbers) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end == i) {
      result += text[i++];
      continue;
    }
    const std::string number(text.substr(i, end - i));
    const auto it = numbers.find(number);
    result += it == numbers.end() ? number : it->second;
    i = end;
  }
  return result;
}

}  // namespace

std::unique_ptr<WorkerLink> MakeAbsentWorker(WorkerInfo info, absl::Status loss) {
  return std::make_unique<AbsentWorker>(std::move(info), std::move(loss));
}

absl::StatusOr<WorkerInfo> ExpectWorker(const WorkerInfo& sibling, const WorkerPlaceInCluster& sibling_place,
                                        const WorkerPlaceInCluster& place) {
  WorkerInfo info = sibling;
  const DeviceId shift = FirstDeviceId(place.worker) - FirstDeviceId(sibling_place.worker);
  absl::flat_hash_map<std::string, std::string> numbers;
  for (size_t i = 0; i < info.devices.size(); ++i) {
    DeviceInfo& device = info.devices[i];
    if (device.id != FirstDeviceId(sibling_place.worker) + static_cast<DeviceId>(i)) {
      return absl::UnimplementedError("devices with ids that say nothing of those of other workers");
    }
    if (device.attributes.count("coords") > 0 && sibling_place.task != place.task) {
      return absl::UnimplementedError(
          "devices with coordinates, and none is there with this place in its slice");
    }
    numbers[absl::StrCat(device.id)] = absl::StrCat(device.id + shift);
    device.id += shift;
    SetPlace(place.slice, place.task, &device);
  }
  for (DeviceInfo& device : info.devices) {
    device.debug_string = Renumber(device.debug_string, numbers);
    device.to_string = Renumber(device.to_string, numbers);
  }
  for (MemoryInfo& memory : info.memories) {
    for (DeviceId& device : memory.devices) device += shift;
  }
  return info;
}

}  // namespace helmway::cluster
