#ifndef HELMWAY_WORKER_SLOT_H_
#define HELMWAY_WORKER_SLOT_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "helmway/async/completion.h"
#include "helmway/base/host_memory.h"
#include "helmway/base/ref_counted.h"
#include "helmway/pjrt/buffer.h"
#include "helmway/wire/status.h"

namespace helmway::worker {

class DeviceQueue;
class LaunchRecord;

// The place of one named buffer: made when a command names it, bound to a plugin buffer later, or never.
//
// Who may touch `buffer` and `strings`: the maker until `ready` is done (a launch's results belong to the
// thread of their device queue, and later launches of the same queue may use them before they are ready,
// since the plugin orders its own work); everybody for reading after `ready` is done without error. If
// `ready` failed both may be empty.
class Slot final : public base::RefCounted<Slot> {
 public:
  // `producer`: the device queue whose launch will bind the slot; null if the contents come from elsewhere.
  Slot(async::CompletionRef ready_event, const DeviceQueue* producer_queue)
      : ready(std::move(ready_event)), producer(producer_queue) {}

  const async::CompletionRef ready;
  const DeviceQueue* const producer;
  pjrt::Buffer buffer;
  // In place of `buffer` for strings, which no plugin holds: serialized xla.ifrt.proto.StringArrayContents.
  std::optional<base::HostBytes> strings;
  // The next ones are set before others see the slot. Declared for bytes from the host:
  bool awaits_host = false;
  // Without a producer, but the end of a launch finishes it, also when the session ends.
  bool awaits_launch = false;
  // Filled after something that no thread may wait for that serves others: a client that answers its
  // program's calls, the loading of a program, or what another worker sends. False again once only work that
  // is in the queues is left.
  std::atomic<bool> late{false};
  bool is_late() const { return late.load(std::memory_order_acquire) && !ready->done(); }
  // Of the command that makes the contents. Set before that can fail.
  uint64_t user_context = 0;

  // OK if a ready slot without error holds elements in a plugin's memory. Strings and tokens have none there.
  absl::Status CheckElements() const {
    if (strings) return absl::UnimplementedError("resharding and bitcasts of strings by their bytes");
    if (!buffer || buffer.element_type() == pjrt::ElementType::kToken) {
      return absl::UnimplementedError("resharding and bitcasts of tokens by their bytes");
    }
    return absl::OkStatus();
  }
  // Ends the making.
  void Finish(absl::Status status) { ready->Finish(wire::WithUserContext(std::move(status), user_context)); }

  // Reads and copies that were commanded and are not over, and one more if the memory is, or may become, that
  // of another slot too. While there are any, a launch that is commanded
  // to consume the buffer leaves it alone and lets the plugin copy instead.
  std::atomic<int> readers{0};
  // A launch that was commanded earlier consumes the buffer. Set by the session's command thread.
  std::atomic<bool> consumed{false};
  // Which launch that is, and as which of its arguments. Of the session's command thread.
  const LaunchRecord* consumer = nullptr;
  int32_t consumed_as = 0;
};

using SlotRef = base::Ref<Slot>;

// Counts as one of the slot's readers for as long as it lives.
class ReadHold {
 public:
  ReadHold() = default;
  explicit ReadHold(SlotRef slot) : slot_(std::move(slot)) { slot_->readers.fetch_add(1); }
  ReadHold(ReadHold&& other) noexcept : slot_(std::move(other.slot_)) {}
  ReadHold& operator=(ReadHold&& other) noexcept {
    Release();
    slot_ = std::move(other.slot_);
    return *this;
  }
  ~ReadHold() { Release(); }
  Slot* operator->() const { return slot_.get(); }
  Slot& operator*() const { return *slot_; }
  const SlotRef& slot() const { return slot_; }

 private:
  void Release() {
    if (slot_) slot_->readers.fetch_sub(1);
    slot_.reset();
  }
  SlotRef slot_;
};

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_SLOT_H_
