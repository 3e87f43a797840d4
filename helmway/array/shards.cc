#include "helmway/array/shards.h"

#include <utility>

namespace helmway::array {

// The names that were made together, and how often each is shared.
class Shards::Block {
 public:
  Block(cluster::BufferId first, uint32_t count, ReleaseSink* sink)
      : first_(first), count_(count), sink_(sink) {}

  cluster::BufferId first() const { return first_; }

  void AddRefs(uint32_t offset, uint32_t count) {
    if (count == count_) {
      ++whole_refs_;
      return;
    }
    if (refs_.empty()) refs_.resize(count_);
    for (uint32_t i = offset; i < offset + count; ++i) ++refs_[i];
  }

  void DropRefs(uint32_t offset, uint32_t count) {
    if (count == count_) {
      if (--whole_refs_ > 0) return;
      if (refs_.empty()) {
        sink_->Release(first_, count_);
        return;
      }
    } else {
      for (uint32_t i = offset; i < offset + count; ++i) --refs_[i];
      if (whole_refs_ > 0) return;
    }
    for (uint32_t i = offset; i < offset + count; ++i) {
      if (refs_[i] == 0) sink_->Release(first_ + i, 1);
    }
  }

 private:
  const cluster::BufferId first_;
  const uint32_t count_;
  ReleaseSink* const sink_;
  uint32_t whole_refs_ = 0;
  std::vector<uint32_t> refs_;  // per name, besides the whole ones; empty until the block is taken apart
};

Shards Shards::Fresh(cluster::BufferId first, uint32_t count, ReleaseSink* sink) {
  Shards shards;
  if (count > 0) shards.Append({std::make_shared<Block>(first, count, sink), 0, count});
  return shards;
}

Shards Shards::Join(absl::Span<const Shards* const> parts) {
  Shards joined;
  for (const Shards* part : parts) {
    for (const Segment& segment : part->segments_) joined.Append(segment);
  }
  return joined;
}

Shards& Shards::operator=(Shards&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  segments_ = std::move(other.segments_);
  size_ = std::exchange(other.size_, 0);
  other.segments_.clear();
  return *this;
}

void Shards::Append(const Segment& segment) {
  segment.block->AddRefs(segment.offset, segment.count);
  segments_.push_back(segment);
  size_ += segment.count;
}

Shards Shards::Share() const {
  Shards shared;
  for (const Segment& segment : segments_) shared.Append(segment);
  return shared;
}

Shards Shards::ShareOne(size_t position) const {
  Shards shared;
  for (const Segment& segment : segments_) {
    if (position < segment.count) {
      shared.Append({segment.block, segment.offset + static_cast<uint32_t>(position), 1});
      break;
    }
    position -= segment.count;
  }
  return shared;
}

void Shards::Reset() {
  for (Segment& segment : segments_) {
    if (segment.block) segment.block->DropRefs(segment.offset, segment.count);
  }
  segments_.clear();
  size_ = 0;
}

cluster::BufferId Shards::at(size_t position) const {
  for (const Segment& segment : segments_) {
    if (position < segment.count) return segment.block->first() + segment.offset + position;
    position -= segment.count;
  }
  return 0;
}

cluster::BufferNames Shards::Names() const {
  cluster::BufferNames names;
  if (segments_.size() == 1) {
    names.first = segments_[0].block->first() + segments_[0].offset;
    names.count = segments_[0].count;
    return names;
  }
  names.list.reserve(size_);
  for (const Segment& segment : segments_) {
    for (uint32_t i = 0; i < segment.count; ++i)
      names.list.push_back(segment.block->first() + segment.offset + i);
  }
  return names;
}

}  // namespace helmway::array
