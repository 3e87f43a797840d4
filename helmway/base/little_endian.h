#ifndef HELMWAY_BASE_LITTLE_ENDIAN_H_
#define HELMWAY_BASE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>

namespace helmway::base {

// The low `bytes` bytes of a number, at most 8, the lowest first, as our own formats have numbers.
inline void StoreLittleEndian(uint64_t value, size_t bytes, uint8_t* target) {
  for (size_t i = 0; i < bytes; ++i) target[i] = static_cast<uint8_t>(value >> (8 * i));
}

inline uint64_t LoadLittleEndian(const uint8_t* source, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{source[i]} << (8 * i);
  return value;
}

}  // namespace helmway::base

#endif  // HELMWAY_BASE_LITTLE_ENDIAN_H_
