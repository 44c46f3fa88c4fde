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
    : members_(members),
      bytes_(elements * element_bytes),
      segment_bytes_(payload_bytes_max / element_bytes * element_bytes),
      shards_(members),
      first_segment_(members + 1u) {
  const Owners owning = owners.value_or(Owners{.count = members});
  OR_CHECK(members > 0 && segment_bytes_ > 0);
  OR_CHECK(owning.first < members && owning.count > 0 && owning.count <= members);
  const std::uint64_t quotient = elements / owning.count;
  const std::uint64_t remainder = elements % owning.count;
  largest_segment_bytes_ =
      std::min(segment_bytes_, (quotient + (remainder > 0 ? 1 : 0)) * element_bytes);
  std::uint64_t offset = 0;
  std::uint64_t segments = 0;
  std::uint16_t shards = 0;
  for (std::uint16_t member = 0; member < members; ++member) {
    const bool owns = (member + members - owning.first) % members < owning.count;
    const std::uint64_t shard = owns ? quotient + (shards < remainder ? 1 : 0) : 0;
    shards += owns;
    shards_[member] = {.offset = offset, .bytes = shard * element_bytes};
    first_segment_[member] = static_cast<std::uint32_t>(segments);
    offset += shards_[member].bytes;
    segments += (shards_[member].bytes + segment_bytes_ - 1) / segment_bytes_;
    OR_CHECK(segments <= std::numeric_limits<std::uint32_t>::max());
  }
  first_segment_[members] = static_cast<std::uint32_t>(segments);
}

}  // namespace optireduce
