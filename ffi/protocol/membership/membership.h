// The members of the session, agreed among its ranks: a rank that is silent for too long is removed
// at the same call on all others.
//
// The session goes through views. The next view is one decision of the members of the present one,
// by single-decree Paxos: a coordinator asks all members for their votes under a ballot of its own
// (a vote promises to take part in no older one), proposes a view, and has decided once more than
// half of the members have accepted it. A view that may have been decided is adopted by every later
// ballot. So no view is decided in two ways, whichever ranks die, sleep or are cut off. A minority
// decides nothing.
//
//   Suspect -> status to all -> prepare -> votes -> proposal -> accepted -> decision
//
// A vote holds the newest call of each collective that the voter has begun. From its vote on the
// voter begins no call (frozen) until it knows the next view. All members of the next view have
// voted. So each collective has a first call without the removed ranks: the newest call of the
// votes plus one. Frozen voters cannot miss a view: a rank that hears of a later view than the next
// one is no member of it, and the newest decision is all that it needs.
//
// Messages are made of the state when they are sent. They are sent again until they have had their
// effect, and change nothing when they are repeated, reordered or late.
//
// Membership joins the parts: Connectivity (the evidence about ranks), Paxos (one decision) and
// MembershipMailbox (messages). It says when a ballot begins and what it proposes.
//
// Each lane of a rank is a path to each of the others; all share one membership. A rank is a
// suspect while it is silent on any lane: a member is one on every lane. Messages to all go over
// every lane, so one working lane is enough to agree, and each lane shows whether it works. Answers
// go back over the lane of the question.
//
// Ranks of a slice are members together: a view has all of them or none, so a majority of the ranks
// is one of the slices. A rank whose slice is not whole votes, and is removed with it.
//
// Calls are those of buckets (BucketOf): the parts of a bucket, on several lanes, are one call and
// change members together.

#ifndef FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_H_
#define FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/membership/connectivity.h"
#include "ffi/protocol/membership/membership_mailbox.h"
#include "ffi/protocol/membership/paxos.h"
#include "ffi/protocol/membership/slices.h"
#include "ffi/protocol/membership/view.h"
#include "ffi/protocol/wire/membership_message.h"

namespace optireduce {

class Membership {
 public:
  using Outgoing = MembershipMailbox::Outgoing;

  // Needs `peer_timeout` > 0 and `lanes` > 0. The first view is without the `absent` ranks.
  Membership(Rank self, std::uint16_t world_size, Duration peer_timeout, std::uint16_t lanes = 1,
             Slices slices = Slices(1), std::span<const Rank> absent = {});

  // ---- The outcome.

  const View& view() const { return view_; }
  // The views before it, in order; of those with the same members the last.
  const std::vector<View>& earlier() const { return earlier_; }
  // This rank was removed: view() is without it.
  bool removed() const { return !view_.Has(self_); }
  // The ranks of this rank's slice that were suspected when it was removed.
  const std::vector<Rank>& lost_with() const { return lost_with_; }
  // The others cannot be reached, or do not agree: no decision is in sight.
  bool stuck() const { return stuck_; }
  // No call may begin: the vote of this rank stands until the next view.
  bool frozen() const { return paxos_.frozen(); }
  // Members of the slices that this rank reaches as a whole.
  std::size_t Connected(Instant now) const {
    return connectivity_.WholeReached(now, view_.members).size();
  }
  // Grows with everything that concerns all lanes: another view, stuck or not, messages to all.
  std::uint32_t changes() const { return changes_; }

  // ---- Events.

  // A part of a call begins, of the bucket that the program has called and of the one among the
  // members of `view`. False when it may not: the view is another one by now, or this is frozen and
  // no part of the call has begun before.
  bool TryStart(std::uint32_t view, CallId call, CollectiveId among_members);
  // A datagram over the lane proves that `rank` lives.
  void Heard(Instant now, std::uint16_t lane, Rank rank);
  // `rank` is silent on the lane for peer_timeout. Withdrawn when it is heard there.
  void Suspect(Instant now, std::uint16_t lane, Rank rank);
  // `rank` cannot be used over the lane, though it is heard there: it is suspected until this is
  // taken back.
  void SetUnusable(Instant now, std::uint16_t lane, Rank rank, bool unusable);
  // One more attempt to agree, for a rank that is stuck.
  void Retry(Instant now) { WakeAt(now); }
  // The payload of a message of `from`. False if it is malformed.
  bool Handle(Instant now, std::uint16_t lane, Rank from, std::span<const std::byte> payload);
  void HandleTimeout(Instant now);
  // When to call HandleTimeout; kNever when all is well.
  Instant timeout() const { return next_tick_; }
  // Writes the next message to send over the lane; `out` holds kMembershipBytesMax.
  std::optional<Outgoing> Poll(Instant now, std::uint16_t lane, std::span<std::byte> out);

 private:
  void WakeAt(Instant at) { next_tick_ = std::min(next_tick_, at); }
  // Some member is suspected, or a ballot is under way.
  bool InDoubt(Instant now) const;
  // A decision is needed, as far as this rank knows.
  bool NeedsDecision(Instant now) const;

  // ---- Messages.
  // Over all lanes.
  void SendAll(std::span<const Rank> ranks, MembershipKind kind);
  // Nothing if the message is obsolete.
  std::optional<MembershipMailbox::Draft> Make(Instant now, Rank to, MembershipKind kind) const;
  // The state calls for a message of this kind to the member.
  bool IsDue(Rank to, MembershipKind kind) const;
  // A member has another view than this rank.
  void HandleOtherView(Instant now, std::uint16_t lane, Rank from, std::uint32_t view);
  // A message of a member about the present view.
  void HandleMember(Instant now, std::uint16_t lane, Rank from, MembershipMessage message);
  void HandleSuspects(Instant now, Rank from, const std::vector<Rank>& suspects);
  void HandleStatus(Instant now, std::uint16_t lane, Rank from, const MembershipMessage& message);
  void HandleVote(Instant now, Rank from, MembershipMessage message);
  bool HandleDecision(Instant now, MembershipMessage message);

  // ---- The agreement.
  void UpdateStuck(Instant now);
  void SetStuck(bool stuck);
  // This rank may begin a ballot.
  bool OwnTurn(Instant now) const;
  void Bid(Instant now);
  // Each member that this rank may still hear has voted.
  bool HasVotesOfAll(Instant now) const;
  void ProposeIfVoted(Instant now);
  void DecideIfAccepted(Instant now);
  void Begin(Instant now, View view);

  Rank self_;
  Duration peer_timeout_;
  Duration retry_interval_;
  // Time in which a message comes and is answered, whichever way was cut off.
  Duration last_chance_;
  Slices slices_;
  View view_;
  std::vector<View> earlier_;
  std::vector<Rank> lost_with_;
  std::vector<CallId> newest_;  // call of each bucket, ascending
  Connectivity connectivity_;
  Paxos paxos_;  // the decision on the next view
  MembershipMailbox mailbox_;
  bool stuck_ = false;
  std::uint32_t changes_ = 0;
  Instant next_tick_ = kNever;
  std::optional<Instant> in_doubt_since_;
  std::optional<Instant> needs_decision_since_;
  // Since when this rank reaches a majority of the members, or does not.
  std::optional<Instant> majority_since_;
  std::optional<Instant> minority_since_;
  Instant regained_at_{};  // a rank was heard that had been silent, or not asked
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_H_
