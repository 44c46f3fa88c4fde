// Some segments of a range of the bucket, in memory that exists only while there are any: late
// data, retained contributions, deferred sends.

#ifndef FFI_PROTOCOL_BUCKET_SEGMENT_STORE_H_
#define FFI_PROTOCOL_BUCKET_SEGMENT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/codec/element_type.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"

namespace optireduce {

class SegmentStore {
 public:
  // A store of the segments [first, first + segments). `layout` and `pool` must outlive this.
  SegmentStore(const BucketLayout& layout, SegmentIndex first, std::uint32_t segments,
               ElementType element_type, BufferPool& pool);

  bool empty() const { return held_.count() == 0; }
  bool Contains(SegmentIndex segment) const { return held_.Contains(Within(segment)); }
  std::uint64_t held_bytes() const;
  // Needs Contains(segment).
  std::span<const std::byte> Get(SegmentIndex segment) const;

  // Adds to the segment element by element, or is its first value. `bytes` are the whole segment.
  void Add(SegmentIndex segment, std::span<const std::byte> bytes);
  // Needs Contains(segment).
  void Replace(SegmentIndex segment, std::span<const std::byte> bytes);
  void Remove(SegmentIndex segment);
  // Adds all segments of the bucket, which is zero then.
  void TakeFrom(BucketView& bucket);
  // Adds the segments [first, first + segments) to the bucket instead; returns the bytes of these.
  std::uint64_t MoveTo(BucketView& bucket, SegmentIndex first, std::uint32_t segments);
  void Clear();

 private:
  std::size_t Within(SegmentIndex segment) const { return segment.value() - first_; }
  std::byte* At(SegmentIndex segment) const;

  const BucketLayout* layout_;
  std::uint32_t first_;
  std::uint32_t segments_;
  ElementType element_type_;
  BufferPool* pool_;
  Bitmap held_;
  Buffer memory_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_SEGMENT_STORE_H_
