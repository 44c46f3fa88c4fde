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

Owners OwnersOf(const CollectiveSpec& spec, CollectiveId id, std::size_t shard_bytes_min) {
  const auto members = static_cast<std::uint16_t>(spec.members.size());
  const bool waits =
      spec.reduce_scatter == LatePolicy::kWait && spec.all_gather == LatePolicy::kWait;
  const std::uint64_t bytes = spec.elements * SizeOf(spec.element_type);
  const std::uint64_t shards = bytes / std::max<std::size_t>(shard_bytes_min, 1);
  if (!waits || shards >= members) return {.count = members};
  return {.first = static_cast<std::uint16_t>(id.value() % members),
          .count = static_cast<std::uint16_t>(std::max<std::uint64_t>(shards, 1))};
}

BucketLayout::BucketLayout(std::uint64_t elements, std::size_t element_bytes, std::uint16_t members,
                           std::size_t payload_bytes_max, std::optional<Owners> owners)
    : elements_(elements),
      element_bytes_(element_bytes),
      members_(members),
      owners_(owners.value_or(Owners{.count = members})),
      segment_elements_(payload_bytes_max / element_bytes),
      first_segment_(members + 1u) {
  OR_CHECK(members > 0 && segment_elements_ > 0);
  OR_CHECK(owners_.first < members && owners_.count > 0 && owners_.count <= members);
  quotient_ = elements / owners_.count;
  remainder_ = elements % owners_.count;
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
  const std::uint32_t member = owner.value();
  OR_CHECK(member < members_);
  // Members [first, end) own shards, and those below `wrapped`. Shards are in the order of members.
  const std::uint32_t first = owners_.first;
  const std::uint32_t end = std::min<std::uint32_t>(first + owners_.count, members_);
  const std::uint32_t wrapped = owners_.count - (end - first);
  const bool owns = member < wrapped || (member >= first && member < end);
  // Owners before the member.
  const std::uint64_t index =
      std::min(member, wrapped) + std::min(std::max(member, first), end) - first;
  const std::uint64_t offset = index * quotient_ + std::min(index, remainder_);
  const std::uint64_t count = owns ? quotient_ + (index < remainder_ ? 1 : 0) : 0;
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
  return std::min(segment_elements_, quotient_ + (remainder_ > 0 ? 1 : 0)) * element_bytes_;
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
