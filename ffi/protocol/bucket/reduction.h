// Stage one at the owner: the contributions to one shard, kept by source until they can be added in
// rank order. A bitmap for each source makes a repeated segment harmless.
//
// Memory: one shard for each other member. The sum is written over one of the contributions that
// went into it, so that it costs none of its own; it stays until every member has it.

#ifndef FFI_PROTOCOL_BUCKET_REDUCTION_H_
#define FFI_PROTOCOL_BUCKET_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/codec/element_type.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/receipt.h"

namespace optireduce {

class Reduction {
 public:
  // The shard of `owner`. `layout` must outlive this. `contributed`: by the other members, too.
  Reduction(const BucketLayout& layout, MemberIndex owner, ElementType element_type,
            BufferPool& pool, bool contributed = true);
  // Memory for the contributions of the others to the shard, or for its sum alone.
  static std::uint64_t StagingBytes(const BucketLayout& layout, MemberIndex owner,
                                    bool contributed);

  // `payload` has the size of the segment, which is one of the shard. Late: it was reduced without,
  // and nothing is kept; a second one is a duplicate nevertheless. If the segment is ready now, it
  // must be reduced before `payload` is gone: the last contribution is added where it lies.
  Receipt Receive(MemberIndex source, SegmentIndex segment, std::span<const std::byte> payload);

  // The contributions of `source`, which may be the owner, are not waited for until one of them
  // comes.
  void MakeOptional(MemberIndex source);
  // Undoes MakeOptional().
  void Require(MemberIndex source);
  // `source` sends no more contributions; those that have come count.
  void Exclude(MemberIndex source);

  // From now on the owner's own contribution is read from `bucket`.
  void Attach(const BucketView* bucket) { own_ = bucket; }
  // From now on only the existing sums may be asked for.
  void Detach() { own_ = nullptr; }

  // Every contribution that is waited for is there, and it is not reduced yet.
  bool Ready(SegmentIndex segment) const;
  bool Reduced(SegmentIndex segment) const { return reduced_.Contains(Within(segment)); }
  bool finished() const { return reduced_.full(); }

  // Adds the contributions that are there, and `late`, which may be empty. With `rescale` the sum
  // is multiplied by members / contributions: an unbiased estimate when those that are missing do
  // not depend on their values. Without any data the sum is zero; with `rescale` there is none, and
  // this returns false. The contributions, not `late`, also stand for those of `absent` members.
  bool Reduce(SegmentIndex segment, std::span<const std::byte> late, bool rescale,
              std::size_t absent = 0);

  std::span<const std::byte> Sum(SegmentIndex segment) const;
  void ReplaceSum(SegmentIndex segment, std::span<const std::byte> sum);
  std::uint16_t contributions(SegmentIndex segment) const;
  // Segments of the shard that `source` has contributed.
  std::size_t received(MemberIndex source) const { return received_[source.index()].count(); }
  bool Received(MemberIndex source, SegmentIndex segment) const {
    return received_[source.index()].Contains(Within(segment));
  }
  const Bitmap& received_bitmap(MemberIndex source) const { return received_[source.index()]; }

  // Everything is reduced: keeps the sums, in one shard of memory, and nothing else.
  void Compact(BufferPool& pool);

 private:
  std::size_t Within(SegmentIndex segment) const {
    return segment.value() - layout_.FirstSegment(owner_).value();
  }
  std::byte* Slot(MemberIndex source, SegmentIndex segment) const;
  // Fills `sources_` in rank order; returns where the sum goes.
  std::byte* GatherSources(SegmentIndex segment);

  const BucketLayout& layout_;
  MemberIndex owner_;
  ElementType element_type_;
  const BucketView* own_ = nullptr;
  Buffer staging_;                      // one slot for each source except the owner
  std::vector<Bitmap> received_;        // one for each source: segments within the shard
  std::vector<bool> excluded_;          // one for each source
  std::vector<bool> optional_;          // one for each source
  std::vector<std::uint16_t> arrived_;  // one for each segment: contributed, or optional sources
  std::vector<std::uint16_t> summed_;   // one for each segment: contributions in its sum
  std::vector<MemberIndex> sum_slot_;   // one for each segment: whose slot holds the sum
  Bitmap reduced_;
  // The contribution that made a segment ready, until it is reduced.
  struct Last {
    std::size_t within;
    MemberIndex source;
    const std::byte* bytes;
  };
  std::optional<Last> last_;
  bool compact_ = false;                   // `staging_` is the shard of the sums
  std::vector<std::byte> scratch_;         // one segment that lies across leaves
  std::vector<const std::byte*> sources_;  // used by Reduce
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_REDUCTION_H_
