#ifndef HELMWAY_WORKER_VIEW_H_
#define HELMWAY_WORKER_VIEW_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/slot.h"

namespace helmway::worker {

// What the bytes of a buffer are to be taken for, and where.
struct ViewForm {
  cluster::ElementType element_type = 0;
  cluster::Dims dims;
  std::optional<std::vector<int64_t>> minor_to_major;  // absent = the plugin's default layout
  const pjrt::Memory* memory = nullptr;                // of the same device and bytes; null = the source's
};

// Binds to `result` a view of the memory of a ready slot, in another form, and finishes it. Nothing is
// copied: the source and its memory live as long as the view. Neither may be written while there are two of
// them, so both count as read (`result` must since it was named): programs that would consume one make a
// copy. INVALID_ARGUMENT if the device
// would take another number of bytes for that form; UNIMPLEMENTED if the plugin has no views.
void ViewSlot(const pjrt::Client& client, ReadHold source, const ViewForm& form, const SlotRef& result);

// Whether a copy of a ready slot without error, which lies on `device`, to `memory` may be a view: the
// memories of a CPU differ in name only. Then the form of it. `default_layout`: as in cluster::CopyBuffers.
std::optional<ViewForm> FormOfCopy(const Slot& source, const pjrt::Device* device, const pjrt::Memory* memory,
                                   bool default_layout);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_VIEW_H_
