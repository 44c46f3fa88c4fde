#include "ffi/protocol/bucket/segment_store.h"

#include <array>
#include <cstring>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

SegmentStore::SegmentStore(const BucketLayout& layout, SegmentIndex first, std::uint32_t segments,
                           ElementType element_type, BufferPool& pool)
    : layout_(&layout),
      first_(first.value()),
      segments_(segments),
      element_type_(element_type),
      pool_(&pool),
      held_(segments) {}

std::byte* SegmentStore::At(SegmentIndex segment) const {
  const std::uint64_t base = layout_->Segment(SegmentIndex(first_)).offset;
  return memory_.data() + (layout_->Segment(segment).offset - base);
}

std::uint64_t SegmentStore::held_bytes() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t s = first_; s < first_ + segments_ && !empty(); ++s) {
    if (Contains(SegmentIndex(s))) bytes += layout_->Segment(SegmentIndex(s)).bytes;
  }
  return bytes;
}

std::span<const std::byte> SegmentStore::Get(SegmentIndex segment) const {
  OR_CHECK(Contains(segment));
  return {At(segment), layout_->Segment(segment).bytes};
}

void SegmentStore::Add(SegmentIndex segment, std::span<const std::byte> bytes) {
  OR_CHECK(bytes.size() == layout_->Segment(segment).bytes);
  if (empty()) {
    const ByteRange first = layout_->Segment(SegmentIndex(first_));
    const ByteRange last = layout_->Segment(SegmentIndex(first_ + segments_ - 1));
    memory_ = pool_->Take(last.offset + last.bytes - first.offset);
  }
  std::byte* const at = At(segment);
  if (held_.Insert(Within(segment))) {
    std::memcpy(at, bytes.data(), bytes.size());
    return;
  }
  const std::array<const std::byte*, 2> both = {at, bytes.data()};
  SumContributions(element_type_, both, bytes.size() / SizeOf(element_type_), 1.0, at);
}

void SegmentStore::Replace(SegmentIndex segment, std::span<const std::byte> bytes) {
  OR_CHECK(Contains(segment) && bytes.size() == layout_->Segment(segment).bytes);
  std::memcpy(At(segment), bytes.data(), bytes.size());
}

void SegmentStore::Remove(SegmentIndex segment) {
  if (held_.Erase(Within(segment)) && empty()) memory_ = Buffer();
}

void SegmentStore::TakeFrom(BucketView& bucket) {
  std::vector<std::byte> scratch(layout_->LargestSegmentBytes());
  for (const SegmentIndex segment : layout_->Segments()) {
    const ByteRange range = layout_->Segment(segment);
    Add(segment, bucket.Read(range, scratch));
    bucket.Zero(range);
  }
}

std::uint64_t SegmentStore::MoveTo(BucketView& bucket, SegmentIndex first, std::uint32_t segments) {
  if (empty()) return 0;
  std::vector<std::byte> scratch(layout_->LargestSegmentBytes());
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < segments && !empty(); ++i) {
    const SegmentIndex segment(first.value() + i);
    if (!Contains(segment)) continue;
    const ByteRange range = layout_->Segment(segment);
    Add(segment, bucket.Read(range, scratch));
    bucket.Write(range.offset, Get(segment));
    Remove(segment);
    bytes += range.bytes;
  }
  return bytes;
}

void SegmentStore::Clear() {
  held_ = Bitmap(segments_);
  memory_ = Buffer();
}

}  // namespace optireduce
