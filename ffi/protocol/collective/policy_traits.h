// The consequences of a collective's mode for the other parts of an endpoint. This file and
// CallPolicy are the only code that derives behavior from late policies.
//
//                          exact  agreed  bounded  lossy
//   HasDeadlines           no     yes     yes      yes
//   WaitsForMembers        yes    yes     drains   no
//   RetainsLateData        no     yes     yes      no
//   NeedsNoMember          no     no      no       yes
//   OutlivesMembers        no     no      yes      no
//
// A reduce_scatter that defers is as one in mode bounded, but does not outlive its members: the
// shard of a removed rank would have no owner. An all_gather is as one in mode exact or lossy.

#ifndef FFI_PROTOCOL_COLLECTIVE_POLICY_TRAITS_H_
#define FFI_PROTOCOL_COLLECTIVE_POLICY_TRAITS_H_

#include "ffi/protocol/submission.h"

namespace optireduce {

// A call sums the contributions that have arrived by a deadline.
inline bool HasDeadlines(const CollectiveSpec& spec) {
  return DropsLateData(spec) || spec.reduce_scatter == LatePolicy::kDefer;
}

// Late data joins a later call. A call can be a drain, and a member that left in good order has
// sent everything for the calls that it made.
inline bool RetainsLateData(const CollectiveSpec& spec) {
  return spec.reduce_scatter == LatePolicy::kDefer;
}

// Its elements are pairs of a value and its weight, which are read at once: late ones need no
// drain, and cost a training nothing. See docs/decisions/0048; no call has other complex numbers.
inline bool HoldsValues(const CollectiveSpec& spec) {
  return spec.element_type == ElementType::kComplex64 ||
         spec.element_type == ElementType::kComplex128;
}

// A call ends on no rank before all members have made it, unless by an error.
inline bool WaitsForMembers(const CollectiveSpec& spec, bool drain) {
  return spec.reduce_scatter == LatePolicy::kWait || spec.all_gather == LatePolicy::kWait ||
         (drain && RetainsLateData(spec));
}

// A call ends whichever members take part, at the latest once all others are past it. Nothing of it
// remains.
inline bool NeedsNoMember(const CollectiveSpec& spec) { return DropsLateData(spec); }

// A call ends by its deadlines on every rank that has made it, except a drain.
inline bool EndsByDeadline(const CollectiveSpec& spec) {
  return HasDeadlines(spec) && spec.all_gather != LatePolicy::kWait;
}

// Calls continue without members that are removed from the session.
inline bool OutlivesMembers(const CollectiveSpec& spec) {
  return spec.all_gather == LatePolicy::kDefer;
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_POLICY_TRAITS_H_
