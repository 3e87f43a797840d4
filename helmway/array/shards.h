#ifndef HELMWAY_ARRAY_SHARDS_H_
#define HELMWAY_ARRAY_SHARDS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::array {

// Told which buffers nobody names any more.
class ReleaseSink {
 public:
  virtual ~ReleaseSink() = default;
  virtual void Release(cluster::BufferId first, uint32_t count) = 0;
};

// A share in the buffers of an array: the names, in the order of the array's devices, and the duty to release
// each when the last share in it goes. Arrays that are parts or compositions of one another share buffers.
//
// An array that was made whole costs the same whatever the number of its shards: its names are a range. Only
// an array that is taken apart counts its shards one by one.
//
// Not thread-safe: all shares of one session, and its sink, are guarded by whatever guards the session.
class Shards {
 public:
  Shards() = default;
  // `count` fresh names from `first` on; the caller has taken them from the cluster's counter.
  static Shards Fresh(cluster::BufferId first, uint32_t count, ReleaseSink* sink);
  // The parts one after the other, sharing with them.
  static Shards Join(absl::Span<const Shards* const> parts);

  Shards(Shards&& other) noexcept { *this = std::move(other); }
  Shards& operator=(Shards&& other) noexcept;
  ~Shards() { Reset(); }

  Shards Share() const;
  Shards ShareOne(size_t position) const;
  void Reset();

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  cluster::BufferId at(size_t position) const;
  cluster::BufferNames Names() const;

 private:
  class Block;
  // Part of a block: `count` names from number `offset` in it.
  struct Segment {
    std::shared_ptr<Block> block;
    uint32_t offset;
    uint32_t count;
  };
  void Append(const Segment& segment);

  absl::InlinedVector<Segment, 1> segments_;
  size_t size_ = 0;
};

}  // namespace helmway::array

#endif  // HELMWAY_ARRAY_SHARDS_H_
