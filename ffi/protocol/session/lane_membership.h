// The membership of the rank as one lane, this endpoint, follows it: the views that the lane has
// adopted, and messages of the membership in both directions. FailureDetector and CallGate apply
// a view to peers and calls.

#ifndef FFI_PROTOCOL_SESSION_LANE_MEMBERSHIP_H_
#define FFI_PROTOCOL_SESSION_LANE_MEMBERSHIP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/membership/membership.h"
#include "ffi/protocol/membership/shared_membership.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class LaneMembership {
 public:
  // `session` must outlive this. `of_all_lanes` may be null if this is the only lane of the rank.
  LaneMembership(SessionState& session, std::shared_ptr<SharedMembership> of_all_lanes);

  // Some collective continues without ranks that are silent.
  bool in_use() const { return shared_ && shared_->facts().in_use; }
  bool Survives(const CollectiveSpec& spec) const { return OutlivesMembers(spec) && in_use(); }
  // The members are about to agree, as far as this rank knows. Needs in_use().
  bool agreeing() const { return shared_->facts().timeout != kNever; }
  // An agreement is under way: no call may begin. Needs in_use().
  bool frozen() const { return shared_->Open()->frozen(); }
  // No agreement is in sight: too few members can reach each other.
  bool stuck() const { return in_use() && shared_->facts().stuck; }
  // The error of calls that are stuck.
  Status WhyStuck(Instant now) const;
  // The others continue without this rank.
  bool removed() const { return !view().Has(session_.options.rank); }
  Status WhyRemoved() const;  // ok unless removed()

  // The newest view that the lane has adopted.
  const View& view() const { return views_.back(); }
  // The first view, and the views with other members than the one before.
  const std::vector<View>& views() const { return views_; }

  // A program calls the collective. True if that changes the membership.
  bool UseFor(const CollectiveSpec& spec);
  // An authenticated datagram has come. True if that may change the membership.
  bool Hear(Instant now, const Header& header, std::span<const std::byte> payload);
  void Suspect(Instant now, Rank rank) { shared_->Open()->Suspect(now, lane_, rank); }
  // Long datagrams to the rank arrive again, or do not. Without effect unless in_use().
  void SetUnusable(Instant now, Rank rank, bool unusable);
  // One more attempt to agree, for a rank that is stuck.
  void Retry(Instant now) { shared_->Open()->Retry(now); }
  // The calls of its bucket that this rank has skipped.
  std::uint32_t Skipped(const Collective& origin);
  // The call begins under the number. Returns the calls that it skips.
  std::uint32_t Skip(const Collective& origin, Sequence position, Sequence number);
  // True if a call may begin in the present view.
  bool TryStart(const Collective& origin, const Collective& in_view, Sequence sequence);

  // After a possible change, on this lane or another: tells the membership what the lane knows.
  void Follow(Instant now);
  // Adopts the next view; false if there is none.
  bool AdoptNext();
  // When to call HandleTimeout; Instant{} after a change on another lane.
  Instant timeout() const;
  // True if the membership may have changed.
  bool HandleTimeout(Instant now);
  // Writes the payload of the next message to `out`, which holds kMembershipBytesMax.
  std::optional<Membership::Outgoing> Poll(Instant now, std::span<std::byte> out);

 private:
  // The error of this rank, which was removed: the ranks that the others had not heard.
  std::string WhyLost() const;
  bool HearMember(Instant now, const Header& header, std::span<const std::byte> payload);

  SessionState& session_;
  std::shared_ptr<SharedMembership> shared_;  // null where the session is too small for one
  const std::uint16_t lane_;                  // this lane among those that share it
  std::vector<View> views_;
  std::uint32_t changes_ = 0;  // changes of the membership that are followed
  bool followed_ = false;      // once: earlier silences are known to the membership
  bool due_ = false;           // there may be messages to send
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_LANE_MEMBERSHIP_H_
