// The cuts of a bucket: into one shard for each owner, a shard into segments of one datagram. All
// index arithmetic of the protocol is here.
// Source: the shard rule of OptiReduce's public code: with q = E / n and m = E mod n the first m
// shards have q + 1 elements, the others q. Shards of zero elements are possible when E < n.
// Difference: there every member owns a shard; here the shards of a small bucket would be shorter
// than their headers are worth, and some members own none.

#ifndef FFI_PROTOCOL_BUCKET_BUCKET_LAYOUT_H_
#define FFI_PROTOCOL_BUCKET_BUCKET_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/ids.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Bytes of the bucket: [offset, offset + bytes).
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Longest segment of a collective, whose datagrams hold `payload_bytes_max`. On one host that is
// more than on a network: then a shard still has some segments, so that sums overlap with
// transfers; and where lost data is dropped, a datagram takes as little with it as on a network.
std::size_t SegmentBytesMax(const CollectiveSpec& spec, std::size_t payload_bytes_max);

// The members that own a shard: so many from the first one on, in a circle.
struct Owners {
  std::uint16_t first = 0;
  std::uint16_t count = 0;
};

// The owners of an allreduce in which everything is waited for: as many as get a shard of
// `shard_bytes_min`, at least one, from the member on that `id` chooses. In every other collective
// all members are owners, see docs/decisions/0043.
Owners OwnersOf(const CollectiveSpec& spec, CollectiveId id, std::size_t shard_bytes_min);

class BucketLayout {
  template <typename Index, typename Number>
  static auto Range(Number first, Number end) {
    return std::views::iota(first, end) |
           std::views::transform([](Number number) { return Index(number); });
  }

 public:
  // A segment holds as many whole elements as fit into `payload_bytes_max`. Without `owners` every
  // member owns a shard.
  BucketLayout(std::uint64_t elements, std::size_t element_bytes, std::uint16_t members,
               std::size_t payload_bytes_max, std::optional<Owners> owners = std::nullopt);

  std::uint16_t members() const { return members_; }
  auto Members() const { return Range<MemberIndex>(std::uint16_t{0}, members_); }
  std::uint64_t bytes() const { return bytes_; }
  // The number of segments of the whole bucket.
  std::uint32_t segments() const { return first_segment_.back(); }

  ByteRange Shard(MemberIndex owner) const {
    OR_CHECK(owner.value() < members_);
    return shards_[owner.index()];
  }
  std::uint32_t SegmentsOf(MemberIndex owner) const {
    OR_CHECK(owner.value() < members_);
    return first_segment_[owner.index() + 1] - first_segment_[owner.index()];
  }
  // The bytes of so many segments of a shard. Its last segment may be shorter.
  std::uint64_t BytesOf(MemberIndex owner, std::size_t segments) const {
    return std::min(segments * LargestSegmentBytes(), Shard(owner).bytes);
  }
  // The first segment of a shard; its others follow.
  SegmentIndex FirstSegment(MemberIndex owner) const {
    OR_CHECK(owner.value() < members_);
    return SegmentIndex(first_segment_[owner.index()]);
  }

  // The segments of a shard, and those of the bucket, in order.
  auto Segments(MemberIndex owner) const {
    return Range<SegmentIndex>(first_segment_[owner.index()], first_segment_[owner.index() + 1]);
  }
  auto Segments() const { return Range<SegmentIndex>(0u, segments()); }
  // The segment with a byte of the bucket.
  SegmentIndex SegmentAt(std::uint64_t offset) const {
    OR_CHECK(offset < bytes_);
    // The last shard that does not begin behind it; empty ones begin with the next.
    const auto next = std::ranges::upper_bound(shards_, offset, {}, &ByteRange::offset);
    const auto owner = static_cast<std::size_t>(next - shards_.begin() - 1);
    const std::uint64_t within = (offset - shards_[owner].offset) / segment_bytes_;
    return SegmentIndex(first_segment_[owner] + static_cast<std::uint32_t>(within));
  }

  std::uint64_t LargestSegmentBytes() const { return largest_segment_bytes_; }
  // The segment exists, belongs to the shard, and has so many bytes.
  bool Fits(MemberIndex owner, SegmentIndex segment, std::size_t bytes) const {
    return segment.value() < segments() && OwnerOf(segment) == owner &&
           bytes == Segment(segment).bytes;
  }

  // These need segment < segments().
  MemberIndex OwnerOf(SegmentIndex segment) const {
    OR_CHECK(segment.value() < segments());
    // The last owner whose first segment is not beyond this one; empty shards share their start.
    const auto next =
        std::upper_bound(first_segment_.begin(), first_segment_.end(), segment.value());
    return MemberIndex(static_cast<std::uint16_t>(next - first_segment_.begin() - 1));
  }
  ByteRange Segment(SegmentIndex segment) const {
    const MemberIndex owner = OwnerOf(segment);
    const ByteRange& shard = shards_[owner.index()];
    const std::uint64_t within = (segment.value() - first_segment_[owner.index()]) * segment_bytes_;
    return {.offset = shard.offset + within,
            .bytes = std::min(segment_bytes_, shard.bytes - within)};
  }

 private:
  std::uint16_t members_;
  std::uint64_t bytes_;
  std::uint64_t segment_bytes_;
  std::uint64_t largest_segment_bytes_ = 0;
  std::vector<ByteRange> shards_;             // one for each owner
  std::vector<std::uint32_t> first_segment_;  // one for each owner, and one past the last
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUCKET_LAYOUT_H_
