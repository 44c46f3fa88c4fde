// A call on its way into an endpoint, and out of it again.

#ifndef FFI_PROTOCOL_SUBMISSION_H_
#define FFI_PROTOCOL_SUBMISSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/codec/element_type.h"
#include "ffi/codec/wire_format.h"

namespace optireduce {

// What happens to data that is late. The values travel on the wire: never renumber.
enum class LatePolicy : std::uint8_t {
  kWait = 0,   // retransmitted until it is there; only a dead peer ends the wait, with an error
  kDrop = 1,   // the stage closes at its deadline without it
  kDefer = 2,  // the stage closes at its deadline, and what is late joins a later call
};

// What all ranks must agree on for a call to be the same call.
struct CollectiveSpec {
  std::string name;               // what the user, or the call site, calls it
  std::string description;        // name, dtype, shapes, mode: what an error message shows
  std::uint64_t fingerprint = 0;  // hash of shapes, dtype, mode and operation
  ElementType element_type = ElementType::kFloat32;
  WireFormat wire_format = WireFormat::kFloat32;  // as the elements are, unless these are float32
  std::uint64_t elements = 0;                     // of the bucket: the sum over its leaves
  LatePolicy reduce_scatter = LatePolicy::kWait;
  LatePolicy all_gather = LatePolicy::kWait;
  // For kDrop and kDefer, from the start of the stage: T_rs and T_ag. A call ends by their sum.
  Duration reduce_scatter_deadline{};
  Duration all_gather_deadline{};
  std::vector<Rank> members;  // ascending; member i owns shard i
};

// The position of `rank` among the members, if it is one.
inline std::optional<MemberIndex> MemberOf(const CollectiveSpec& spec, Rank rank) {
  const auto at = std::ranges::lower_bound(spec.members, rank);
  if (at == spec.members.end() || *at != rank) return std::nullopt;
  return MemberIndex(static_cast<std::uint16_t>(at - spec.members.begin()));
}

// True when both describe the same collective (texts aside).
inline bool SameCollective(const CollectiveSpec& a, const CollectiveSpec& b) {
  return a.fingerprint == b.fingerprint && a.element_type == b.element_type &&
         a.wire_format == b.wire_format && a.elements == b.elements &&
         a.reduce_scatter == b.reduce_scatter && a.all_gather == b.all_gather &&
         a.reduce_scatter_deadline == b.reduce_scatter_deadline &&
         a.all_gather_deadline == b.all_gather_deadline && a.members == b.members;
}

// Its elements are rounded to the wire format, except in a drain.
inline bool Rounds(const CollectiveSpec& spec) { return spec.wire_format != WireFormat::kFloat32; }

// What is late in some stage of it joins a later call.
inline bool Defers(const CollectiveSpec& spec) {
  return spec.reduce_scatter == LatePolicy::kDefer || spec.all_gather == LatePolicy::kDefer;
}

// What is late in it is lost.
inline bool Drops(const CollectiveSpec& spec) { return spec.all_gather == LatePolicy::kDrop; }

// Of mode bounded: it can go on without members that are silent.
inline bool IsBounded(const CollectiveSpec& spec) {
  return spec.reduce_scatter == LatePolicy::kDefer && spec.all_gather == LatePolicy::kDefer;
}

// As users name it. Needs HasMode(spec), deadlines aside.
inline std::string_view ModeOf(const CollectiveSpec& spec) {
  if (spec.reduce_scatter == LatePolicy::kDrop) return "lossy";
  if (spec.all_gather == LatePolicy::kDefer) return "bounded";
  return spec.reduce_scatter == LatePolicy::kDefer ? "agreed" : "exact";
}

// One of the pairs of policies that are modes, with deadlines where it needs them.
inline bool HasMode(const CollectiveSpec& spec) {
  if (spec.reduce_scatter == LatePolicy::kWait) return spec.all_gather == LatePolicy::kWait;
  if (spec.reduce_scatter_deadline <= Duration(0) || spec.all_gather_deadline <= Duration(0)) {
    return false;
  }
  return spec.all_gather == spec.reduce_scatter ||
         (spec.reduce_scatter == LatePolicy::kDefer && spec.all_gather == LatePolicy::kWait);
}

// A piece of the bucket; reduced in place.
struct Leaf {
  std::byte* data = nullptr;
  std::uint64_t elements = 0;
};

struct Submission {
  CollectiveSpec spec;
  Sequence sequence;
  std::vector<Leaf> leaves;  // together `spec.elements`; valid until the call's CallDone
  // Of a collective that defers: waits for everything that is under way to anybody, so that
  // afterwards nothing is. A call like any other, that all members must make as such.
  bool drain = false;
  // How long an endpoint kept the call from beginning, while ranks agreed on who takes part.
  Duration held{};
  std::uint64_t token = 0;   // comes back in CallDone
  std::uint64_t record = 0;  // the call in the flight record; the endpoint does not look at it
};

// How one call went. Fractions are in [0, 1].
struct CallStats {
  // Of the results that this rank got: contributions missing from the sums.
  double missing_contributions = 0;
  // Elements of the result that did not come in time; they are zero.
  double missing_results = 0;
  // Elements of the result that hold data of earlier calls.
  double deferred = 0;
  // Of what this rank sends in the call, what is not known to have arrived.
  double in_flight = 0;
  Duration deadline{};              // by which the call had to end; 0 where it waits
  Duration deadline_needed{};       // what would not have cut any that is learned; 0 where none is
  Duration elapsed{};               // from the submission
  std::uint64_t retransmitted = 0;  // segments that this rank sent again
  std::uint64_t late = 0;           // segments that came for this call after their stage had closed
  Rank slowest;                     // whose data came last, or did not come
  std::uint16_t live = 1;           // members that are not gone
  Duration behind{};           // how long the call waited for it after the others' data was here
  std::vector<Rank> absent{};  // of which nothing came in time
  bool passed = false;         // the others were past the call: it waited for nobody
};

struct CallDone {
  std::uint64_t token = 0;
  Status status;  // not ok: the leaves hold no meaningful values
  CallStats stats;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SUBMISSION_H_
