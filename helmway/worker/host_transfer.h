#ifndef HELMWAY_WORKER_HOST_TRANSFER_H_
#define HELMWAY_WORKER_HOST_TRANSFER_H_

#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "helmway/base/host_memory.h"
#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/slot.h"
#include "helmway/worker/token.h"

namespace helmway::worker {

// A read of at most this many bytes is copied out; a larger one hands out the device's own memory where the
// platform lets the host read it, and keeps the buffer in place until the reader is done.
inline constexpr int64_t kLargestCopiedRead = 16 << 10;

// Whether filling a buffer with these contents copies within the call more than a thread that must not block
// should (strided or narrow elements: the plugin repacks them).
bool FillIsSlow(const cluster::HostContents& contents);

// Makes a device buffer of host bytes and binds it to `slot`, which becomes ready, or failed. Bytes that are
// dense are handed to the plugin without a copy: the buffer lies in them and keeps them alive. Strings stay
// in the host bytes. For everything but tokens.
void FillSlot(const pjrt::Client& client, const pjrt::Device* device, const cluster::HostContents& contents,
              const SlotRef& slot);

// The memory of a ready buffer, if the host can read it as the dense row-major array that it is there: on
// CPU, without sub-byte types, which are packed on the device.
std::optional<pjrt::ExternalReference> HostView(const pjrt::Buffer& buffer);

// Binds a token. Blocks the first time, while the program that makes tokens is compiled.
void FillSlotWithToken(TokenMaker& tokens, const pjrt::Device* device, const std::string& memory_kind,
                       const SlotRef& slot);

// Reads the whole contents of a ready slot as `format` wants them. `done` runs once, maybe inside the call.
void ReadSlot(ReadHold slot, const cluster::ReadFormat& format, base::HostMemoryPool* pool,
              absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done);

// Whether the elements lie row-major, without tiles. True for what has no layout.
bool HasDefaultLayout(const pjrt::Buffer& buffer);

// Binds `result` to a copy of a ready buffer in the default layout, on `device` and in a memory of that kind.
void CopyByWayOfHost(const pjrt::Client& client, ReadHold source, const pjrt::Device* device,
                     const std::string& memory_kind, base::HostMemoryPool* pool, const SlotRef& result);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_HOST_TRANSFER_H_
