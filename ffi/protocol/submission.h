// A call as passed into an endpoint, and its outcome as returned by it.

#ifndef FFI_PROTOCOL_SUBMISSION_H_
#define FFI_PROTOCOL_SUBMISSION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/codec/element_type.h"
#include "ffi/codec/wire_format.h"

namespace optireduce {

// Treatment of late data. The values are part of the wire format: never renumber.
enum class LatePolicy : std::uint8_t {
  kWait = 0,     // retransmitted until it arrives; only a dead peer ends the wait, with an error
  kDrop = 1,     // the stage closes at its deadline without it
  kDefer = 2,    // the stage closes at its deadline, and late data joins a later call
  kNoStage = 3,  // the collective has no such stage
};

// The properties that identify a collective, which all ranks must agree on.
//
// An allreduce has both stages. A reduce_scatter has the first alone: the result of a rank is the
// sum of its shard, and the rest of its bucket is undefined. An all_gather has the second alone: a
// rank contributes its shard, and the rest of its bucket is not read. Shards of a collective with
// one stage have one size (HasWholeShards).
struct CollectiveSpec {
  std::string name;               // given by the user or derived from the call site
  std::string description;        // name, dtype, shapes, mode, for error messages
  std::uint64_t fingerprint = 0;  // hash of shapes, dtype, mode and operation
  ElementType element_type = ElementType::kFloat32;
  WireFormat wire_format = WireFormat::kFloat32;  // the element type's own, unless that is float32
  std::uint64_t elements = 0;                     // size of the bucket: the sum over its leaves
  LatePolicy reduce_scatter = LatePolicy::kWait;
  LatePolicy all_gather = LatePolicy::kWait;
  // The deadlines of kDrop and kDefer, from the start of the stage: T_rs and T_ag. A call ends by
  // their sum. A stage that the collective lacks has 0.
  Duration reduce_scatter_deadline{};
  Duration all_gather_deadline{};
  std::vector<Rank> members;  // ascending; member i owns shard i
};

// The position of `rank` among the members, if it is a member.
inline std::optional<MemberIndex> MemberOf(const CollectiveSpec& spec, Rank rank) {
  const auto at = std::ranges::lower_bound(spec.members, rank);
  if (at == spec.members.end() || *at != rank) return std::nullopt;
  return MemberIndex(static_cast<std::uint16_t>(at - spec.members.begin()));
}

inline bool HasReduceScatter(const CollectiveSpec& spec) {
  return spec.reduce_scatter != LatePolicy::kNoStage;
}
inline bool HasAllGather(const CollectiveSpec& spec) {
  return spec.all_gather != LatePolicy::kNoStage;
}
inline bool HasBothStages(const CollectiveSpec& spec) {
  return HasReduceScatter(spec) && HasAllGather(spec);
}
// The shards have one size, unless the collective has both stages.
inline bool HasWholeShards(const CollectiveSpec& spec) {
  return HasBothStages(spec) || spec.elements % spec.members.size() == 0;
}

// True if both describe the same collective (texts aside).
inline bool SameCollective(const CollectiveSpec& a, const CollectiveSpec& b) {
  return a.fingerprint == b.fingerprint && a.element_type == b.element_type &&
         a.wire_format == b.wire_format && a.elements == b.elements &&
         a.reduce_scatter == b.reduce_scatter && a.all_gather == b.all_gather &&
         a.reduce_scatter_deadline == b.reduce_scatter_deadline &&
         a.all_gather_deadline == b.all_gather_deadline && a.members == b.members;
}

// No late data joins a later call.
inline bool DropsLateData(const CollectiveSpec& spec) {
  return spec.reduce_scatter == LatePolicy::kDrop || spec.all_gather == LatePolicy::kDrop;
}

// Elements are rounded to the wire format, except in a drain.
inline bool Rounds(const CollectiveSpec& spec) { return spec.wire_format != WireFormat::kFloat32; }

// The name of the mode for users. Requires HasMode(spec), deadlines aside.
inline std::string_view ModeOf(const CollectiveSpec& spec) {
  if (DropsLateData(spec)) return "lossy";
  if (spec.all_gather == LatePolicy::kDefer) return "bounded";
  if (spec.reduce_scatter != LatePolicy::kDefer) return "exact";
  // Without a second stage these two are one: a shard has one owner, which no other can contradict.
  return HasAllGather(spec) ? "agreed" : "bounded";
}

// True if the policies form a mode, with deadlines if the mode needs them.
inline bool HasMode(const CollectiveSpec& spec) {
  if (!HasReduceScatter(spec)) {
    // A value that comes late is no part of a later result.
    if (spec.all_gather != LatePolicy::kDrop) return spec.all_gather == LatePolicy::kWait;
    return spec.reduce_scatter_deadline == Duration(0) && spec.all_gather_deadline > Duration(0);
  }
  if (spec.reduce_scatter == LatePolicy::kWait) {
    return spec.all_gather == LatePolicy::kWait || !HasAllGather(spec);
  }
  if (spec.reduce_scatter_deadline <= Duration(0)) return false;
  if (!HasAllGather(spec)) return spec.all_gather_deadline == Duration(0);
  if (spec.all_gather_deadline <= Duration(0)) return false;
  return spec.all_gather == spec.reduce_scatter ||
         (spec.reduce_scatter == LatePolicy::kDefer && spec.all_gather == LatePolicy::kWait);
}

// The members that an all_gather with kDrop waits for: all but `spare` of each cluster. Members
// that are absent are the first of the spare ones.
struct Quorum {
  std::vector<std::uint16_t> clusters;  // each member's, from 0; empty: all members are waited for
  std::uint16_t spare = 0;
};

// A part of the bucket: the result, and this rank's values.
struct Leaf {
  std::byte* data = nullptr;
  std::uint64_t elements = 0;
  const std::byte* from = nullptr;  // the place of the values, unchanged; null: `data`

  const std::byte* values() const { return from != nullptr ? from : data; }
};

struct Submission {
  CollectiveSpec spec;
  Sequence sequence;
  std::vector<Leaf> leaves;  // together `spec.elements`; valid until the call's CallDone
  // The call waits for all deferred data under way to any member, so that none is left afterwards.
  // All members must make it as a drain.
  bool drain = false;
  // The program divides the sums by the number of members.
  bool averages = false;
  Quorum quorum{};
  // Time for which an endpoint kept the call from beginning: during an agreement on the members, or
  // until the others began their next call.
  Duration pending_for{};
  // Numbers that the call skips (CatchUp); `sequence` is then its number, not its position.
  std::uint32_t skipped = 0;
  std::uint64_t token = 0;   // returned in CallDone
  std::uint64_t record = 0;  // the call in the flight record; opaque to the endpoint
};

// The last data of a member's contribution (of two members: the first) arrived at this time after
// the submission of the call; a negative time is before it.
struct PeerArrival {
  Rank rank;
  Duration at{};
};

// The arrivals of the members whose data came last, latest first; without those of which none came.
// Chosen: the slowest members explain a call, and a record of thousands of calls is bounded.
struct LastArrivals {
  std::array<PeerArrival, 8> latest;
  std::size_t size = 0;

  std::span<const PeerArrival> Values() const { return std::span(latest).first(size); }
};

// Measurements of one call. Fractions are in [0, 1].
struct CallStats {
  // Contributions missing from the sums of the results that this rank received.
  double missing_contributions = 0;
  // Elements of the result that did not arrive in time; they are zero.
  double missing_results = 0;
  // Elements of the result that hold data of earlier calls.
  double deferred = 0;
  // Data sent by this rank in the call that is not known to have arrived.
  double in_flight = 0;
  Duration deadline{};         // latest end of the call; 0 if the call waits
  Duration deadline_needed{};  // least bound that cuts no learned deadline; 0 if none is learned
  Duration elapsed{};          // time since the submission
  std::uint64_t retransmitted = 0;  // segments retransmitted by this rank
  std::uint64_t late = 0;      // segments of this call that arrived after their stage had closed
  Rank slowest;                // the rank whose data came last, or did not come
  std::uint16_t live = 1;      // members that are not gone
  bool rounded = false;        // the data of this rank was rounded to fewer bytes
  Duration behind{};           // wait for the slowest rank after the data of the others had arrived
  LastArrivals arrivals{};     // the slowest ranks, the slowest first
  std::vector<Rank> absent{};  // ranks of which no data arrived in time
  bool passed = false;         // the others were past the call: it waited for no rank
  Sequence number{};  // the call's number in the session; its position and all skipped calls
  std::uint32_t skipped = 0;  // calls of the others that this rank has skipped before this one
};

struct CallDone {
  std::uint64_t token = 0;
  Status status;  // not ok: the values of the leaves are undefined
  CallStats stats;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SUBMISSION_H_
