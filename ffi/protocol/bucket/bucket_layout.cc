#include "ffi/protocol/bucket/bucket_layout.h"

#include <algorithm>
#include <limits>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Least number of segments of a shard, where datagrams are long enough for fewer. Chosen: 1 MiB
// among 4 ranks took 0.85 of the time with 16 segments instead of 30, and 1.15 with 4.
constexpr std::uint64_t kSegmentsOfShard = 16;
// Longest segment of a datagram of a network. Chosen: see docs/decisions/0016.
constexpr std::size_t kNetworkSegmentBytes = 8932;

}  // namespace

std::size_t SegmentBytesMax(const CollectiveSpec& spec, std::size_t payload_bytes_max) {
  const std::size_t least = std::min(kNetworkSegmentBytes, payload_bytes_max);
  if (spec.reduce_scatter == LatePolicy::kDrop) return least;
  const std::uint64_t shard = spec.elements / spec.members.size() * SizeOf(spec.element_type);
  return std::clamp<std::uint64_t>(shard / kSegmentsOfShard, least, payload_bytes_max);
}

BucketLayout::BucketLayout(std::uint64_t elements, std::size_t element_bytes, std::uint16_t members,
                           std::size_t payload_bytes_max)
    : elements_(elements),
      element_bytes_(element_bytes),
      members_(members),
      segment_elements_(payload_bytes_max / element_bytes),
      first_segment_(members + 1u) {
  OR_CHECK(members > 0 && segment_elements_ > 0);
  quotient_ = elements / members;
  remainder_ = elements % members;
  std::uint64_t first = 0;
  for (std::uint16_t owner = 0; owner < members; ++owner) {
    first_segment_[owner] = static_cast<std::uint32_t>(first);
    const std::uint64_t shard = Shard(MemberIndex(owner)).bytes / element_bytes_;
    first += (shard + segment_elements_ - 1) / segment_elements_;
    OR_CHECK(first <= std::numeric_limits<std::uint32_t>::max());
  }
  first_segment_[members] = static_cast<std::uint32_t>(first);
}

ByteRange BucketLayout::Shard(MemberIndex owner) const {
  const std::uint64_t index = owner.value();
  OR_CHECK(index < members_);
  const std::uint64_t offset = index * quotient_ + std::min(index, remainder_);
  const std::uint64_t count = quotient_ + (index < remainder_ ? 1 : 0);
  return {.offset = offset * element_bytes_, .bytes = count * element_bytes_};
}

std::uint32_t BucketLayout::SegmentsOf(MemberIndex owner) const {
  OR_CHECK(owner.value() < members_);
  return first_segment_[owner.index() + 1] - first_segment_[owner.index()];
}

SegmentIndex BucketLayout::FirstSegment(MemberIndex owner) const {
  OR_CHECK(owner.value() < members_);
  return SegmentIndex(first_segment_[owner.index()]);
}

std::uint64_t BucketLayout::LargestSegmentBytes() const {
  return std::min(segment_elements_ * element_bytes_, Shard(MemberIndex(0)).bytes);
}

MemberIndex BucketLayout::OwnerOf(SegmentIndex segment) const {
  OR_CHECK(segment.value() < segments());
  // The last owner whose first segment is not beyond this one; empty shards share their start.
  const auto next = std::upper_bound(first_segment_.begin(), first_segment_.end(), segment.value());
  return MemberIndex(static_cast<std::uint16_t>(next - first_segment_.begin() - 1));
}

ByteRange BucketLayout::Segment(SegmentIndex segment) const {
  const MemberIndex owner = OwnerOf(segment);
  const ByteRange shard = Shard(owner);
  const std::uint64_t within =
      (segment.value() - first_segment_[owner.index()]) * segment_elements_ * element_bytes_;
  return {
      .offset = shard.offset + within,
      .bytes = std::min<std::uint64_t>(segment_elements_ * element_bytes_, shard.bytes - within)};
}

}  // namespace optireduce
