// Identities carried in datagrams, and indices of tables.

#ifndef FFI_BASE_IDS_H_
#define FFI_BASE_IDS_H_

#include <cstdint>

#include "ffi/base/strong_int.h"

namespace optireduce {

// A participant of the session: one process. In [0, world size).
using Rank = StrongInt<struct RankTag, std::uint16_t>;

// A collective: its name, shapes, dtype, mode and members, hashed. It is equal on every member.
using CollectiveId = StrongInt<struct CollectiveIdTag, std::uint32_t>;

// The number of a call of a collective; it only grows.
using Sequence = StrongInt<struct SequenceTag, std::uint32_t>;

// Position of a rank among the members of a collective; also the shard that it owns.
using MemberIndex = StrongInt<struct MemberIndexTag, std::uint16_t>;

// A segment, counted over the whole bucket, so that it identifies its shard too.
using SegmentIndex = StrongInt<struct SegmentIndexTag, std::uint32_t>;

// One call of one collective.
struct CallId {
  CollectiveId collective;
  Sequence sequence;
  friend constexpr auto operator<=>(const CallId&, const CallId&) = default;
};

}  // namespace optireduce

template <>
struct std::hash<optireduce::CallId> {
  std::size_t operator()(const optireduce::CallId& call) const noexcept {
    const std::uint64_t both =
        (std::uint64_t{call.collective.value()} << 32) | call.sequence.value();
    return std::hash<std::uint64_t>{}(both * 0x9E3779B97F4A7C15ull);
  }
};

#endif  // FFI_BASE_IDS_H_
