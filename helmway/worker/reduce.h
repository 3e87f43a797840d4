#ifndef HELMWAY_WORKER_REDUCE_H_
#define HELMWAY_WORKER_REDUCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "helmway/pjrt/element_type.h"
#include "helmway/program/collectives.h"

namespace helmway::worker {

// Whether Reduce knows this function of this type.
bool CanReduce(program::Reduction reduction, pjrt::ElementType type);

// Reduces `inputs`, `bytes` of elements each, into `result`, element by element and in the order of the
// inputs, as XLA's CPU client does between devices of one process, so that the values are equal bit for bit:
// it begins with the neutral element, rounds after each step, and its minimum and maximum pass over a NaN
// that is not the first value. `result` must not be one of the inputs. For what CanReduce refuses it does
// nothing. Any thread.
void Reduce(program::Reduction reduction, pjrt::ElementType type, absl::Span<const uint8_t* const> inputs,
            uint8_t* result, int64_t bytes);

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_REDUCE_H_
