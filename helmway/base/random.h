#ifndef HELMWAY_BASE_RANDOM_H_
#define HELMWAY_BASE_RANDOM_H_

#include <cstdint>

namespace helmway::base {

// 64 bits from the kernel's generator; never 0. For names that must not be guessed (session ids). Any thread.
uint64_t UnguessableId();

}  // namespace helmway::base

#endif  // HELMWAY_BASE_RANDOM_H_
