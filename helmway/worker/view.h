#ifndef HELMWAY_WORKER_BITCAST_H_
#define HELMWAY_WORKER_BITCAST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "helmway/cluster/worker_link.h"
#include "helmway/pjrt/client.h"
#include "helmway/worker/slot.h"

namespace helmway::worker {

// What the bytes of a buffer are to be taken for.
struct BitcastForm {
  cluster::ElementType element_type = 0;
  cluster::Dims dims;
  std::optional<std::vector<int64_t>> minor_to_major;  // absent = the plugin's default layout
};

// Binds to `result` a view of the memory of a ready slot, in another form, and finishes it. Nothing is
// copied: the source and its memory live as long as the view, and neither is written while there are two of
// them, since both count as read: programs that would consume one make a copy. INVALID_ARGUMENT if the device
// would take another number of bytes for that form; UNIMPLEMENTED if the plugin has no views.
void BitcastSlot(const pjrt::Client& client, ReadHold source, const BitcastForm& form, const SlotRef& result);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_BITCAST_H_
