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
// one is no member of it, and the newest decision is all that such a rank has to be told.
//
// Messages are made of the state when they are sent. They are sent again until they have had their
// effect, and change nothing when they are repeated, reordered or late.
//
// The lanes of a rank are so many paths to each of the others, and share one membership. A rank is
// a suspect while it is silent on any of them: a member is one on every lane. Messages to all go
// over every lane, so that one lane that works is enough to agree, and each lane shows whether it
// does; answers go back over the lane of the question.
//
// Calls are those of buckets (BucketOf): the parts of a bucket, on several lanes, are one call and
// change members together.

#ifndef FFI_PROTOCOL_SESSION_MEMBERSHIP_H_
#define FFI_PROTOCOL_SESSION_MEMBERSHIP_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/wire/membership_message.h"

namespace optireduce {

// The members, and the first call of each bucket with exactly these; an unlisted bucket had no call
// before. Also a view without a change may be decided, when a suspect turns out to live.
struct View {
  std::uint32_t number = 0;  // 0 has all ranks
  std::vector<Rank> members;
  std::vector<CallId> firsts;  // ascending; each by its bucket

  bool Has(Rank rank) const;
  // The first call of the bucket in which only the members take part.
  Sequence FirstOf(CollectiveId bucket) const;
  friend bool operator==(const View&, const View&) = default;
};

class Membership {
 public:
  // Needs `peer_timeout` > 0 and `lanes` > 0.
  Membership(Rank self, std::uint16_t world_size, Duration peer_timeout, std::uint16_t lanes = 1);

  // ---- The outcome.

  const View& view() const { return view_; }
  // Those before it, the first one first; of those with the same members the last.
  const std::vector<View>& earlier() const { return earlier_; }
  // This rank was removed: view() is without it.
  bool removed() const { return !view_.Has(self_); }
  // The others cannot be reached, or do not agree: no decision is in sight.
  bool stuck() const { return stuck_; }
  // No call may begin: what this rank has voted stands until the next view.
  bool frozen() const { return frozen_; }
  // Members that this rank can talk to, itself included.
  std::size_t Connected(Instant now) const;
  // Grows with everything that concerns all lanes: another view, stuck or not, messages to all.
  std::uint32_t changes() const { return changes_; }

  // ---- Events.

  // A part of a call begins, of the bucket that the program has called and of the one among the
  // members of `view`. False when it may not: the view is another one by now, or this is frozen and
  // no part of the call has begun before.
  bool TryStart(std::uint32_t view, CallId call, CollectiveId among_members);
  // Something has come of `rank` over the lane that proves that it lives.
  void Heard(Instant now, std::uint16_t lane, Rank rank);
  // `rank` is silent on the lane for peer_timeout. Withdrawn when it is heard there.
  void Suspect(Instant now, std::uint16_t lane, Rank rank);
  // `rank` cannot be used over the lane, though it is heard there: it is suspected until this is
  // taken back.
  void SetUnusable(Instant now, std::uint16_t lane, Rank rank, bool unusable);
  // One more attempt to agree, for a rank that is stuck.
  void Retry(Instant now) { next_tick_ = std::min(next_tick_, now); }
  // The payload of a message of `from`. False when it is none.
  bool Handle(Instant now, std::uint16_t lane, Rank from, std::span<const std::byte> payload);
  void HandleTimeout(Instant now);
  // When to call HandleTimeout; kNever when all is well.
  Instant timeout() const { return next_tick_; }

  struct Outgoing {
    Rank to;
    std::size_t bytes = 0;
  };
  // Writes the next message to send over the lane; `out` holds kMembershipBytesMax.
  std::optional<Outgoing> Poll(Instant now, std::uint16_t lane, std::span<std::byte> out);

 private:
  // Chosen: a rank that slept takes all others for silent until they have answered.
  static constexpr int kMinorityPerTimeout = 4;
  // Source: MembershipKind.
  static constexpr std::size_t kKinds = 6;
  // A message that comes in parts: which of them are there.
  struct Assembly {
    MembershipMessage message;  // the calls of all parts so far
    std::vector<bool> seen;
    std::size_t missing = 0;
  };
  // The knowledge of another rank over one lane.
  struct Path {
    Instant heard_at{};
    bool suspected = false;
    bool unusable = false;
    std::optional<Instant> told_at;            // the newest decision
    std::array<bool, kKinds> due{};            // by kind: a message is to be sent
    std::array<std::uint16_t, kKinds> part{};  // the next part of it
  };
  // The knowledge of another rank over all lanes.
  struct Other {
    bool suspected() const { return std::ranges::any_of(paths, &Path::suspected); }

    std::vector<Path> paths;  // by lane
    // The ranks that it suspects, and since when it suspects any rank, and this rank.
    std::vector<Rank> suspects;
    Instant suspects_at{};
    std::optional<Instant> suspects_since;
    std::optional<Instant> suspects_us_since;
    std::array<Assembly, kKinds> assemblies;  // by kind
  };
  struct Proposal {
    std::vector<Rank> members;
    std::vector<CallId> firsts;
  };

  Other& other(Rank rank) { return others_[rank.index()]; }
  const Other& other(Rank rank) const { return others_[rank.index()]; }
  Path& path(std::uint16_t lane, Rank rank) { return other(rank).paths[lane]; }
  bool Majority(std::size_t count) const { return count * 2 > view_.members.size(); }
  bool Claims(Instant now, Rank rank) const;
  bool Reaches(Instant now, Rank rank) const;
  bool Concerned(Instant now) const;
  // Something has to be decided, as far as this rank knows.
  bool Convinced(Instant now) const;
  bool bidding() const { return ballot_.round > 0 && ballot_.coordinator == self_; }

  // ---- Messages.
  void Due(std::uint16_t lane, Rank to, MembershipKind kind);
  // Over all lanes.
  void DueTo(std::span<const Rank> ranks, MembershipKind kind);
  // Without its calls; nothing if the message is obsolete.
  std::optional<MembershipMessage> Make(Instant now, Rank to, MembershipKind kind) const;
  std::span<const CallId> CallsOf(MembershipKind kind) const;
  std::optional<Outgoing> PollPath(Instant now, std::uint16_t lane, Rank to,
                                   std::span<std::byte> out);
  // The whole message once all parts are there.
  std::optional<MembershipMessage> Assemble(Rank from, MembershipMessage part);
  // A message of a member about the present view.
  void HandleBallot(Instant now, std::uint16_t lane, Rank from, const MembershipMessage& message);
  void HandleStatus(Instant now, std::uint16_t lane, Rank from, const MembershipMessage& message);
  void HandlePrepare(Instant now, std::uint16_t lane, Rank from, const MembershipMessage& message);
  void HandleVote(Instant now, Rank from, const MembershipMessage& message);
  void HandleProposal(Instant now, std::uint16_t lane, Rank from, const MembershipMessage& message);
  void HandleAccepted(Instant now, Rank from, const MembershipMessage& message);
  bool HandleDecision(Instant now, const MembershipMessage& message);
  void TellDecision(Instant now, std::uint16_t lane, Rank to);
  void NoteSuspects(Instant now, Rank from, const std::vector<Rank>& suspects);

  // ---- membership_agreement.cc
  Duration RetryInterval() const;
  Duration LastChance() const;
  void Tick(Instant now);
  void SuspectSilent(Instant now);
  void NoteStuck(Instant now);
  void SetStuck(bool stuck);
  bool OwnTurn(Instant now) const;
  void Promise(Instant now, const Ballot& ballot);
  void Bid(Instant now);
  void ProposeIfVoted(Instant now);
  // By pairs that do not reach each other, then by suspects, then the highest rank: the last one
  // goes first.
  struct Unreached {
    int pairs = 0;
    int suspected = 0;
    Rank rank{};
    friend auto operator<=>(const Unreached&, const Unreached&) = default;
  };
  // Those among them who take part in such a pair, ascending.
  std::vector<Unreached> UnreachedAmong(Instant now, const std::vector<Rank>& ranks) const;
  // It is silent on some lane, and heard on another: it can vote.
  bool IsPartlySilent(Instant now, Rank rank) const;
  // There is one, and what is known does not show whose fault that is, or shows that it is that of
  // this rank.
  bool LacksEvidence(Instant now) const;
  // The voters without those that do not reach each other.
  std::vector<Rank> Agreeable(Instant now) const;
  bool Suspects(Instant now, Rank a, Rank b) const;
  std::vector<CallId> FirstsAfterVotes() const;
  std::vector<Rank> OwnSuspects() const;
  void DecideIfAccepted(Instant now);
  void Begin(Instant now, View view);

  Rank self_;
  Duration peer_timeout_;
  View view_;
  std::vector<View> earlier_;   // of those with the same members the last
  std::vector<Other> others_;   // by rank; the own one is not used
  std::vector<CallId> newest_;  // of each bucket, ascending
  bool frozen_ = false;
  bool stuck_ = false;
  std::uint32_t changes_ = 0;
  Instant next_tick_ = kNever;
  std::optional<Instant> concerned_since_;
  std::optional<Instant> convinced_since_;
  std::optional<Instant> majority_since_;  // of members that this rank can talk to
  std::optional<Instant> minority_since_;
  Instant regained_at_{};  // when one was heard that had been silent, or not asked

  // The newest ballot that is known: this rank takes part in no older one.
  Ballot ballot_;
  Instant ballot_at_{};
  Ballot accepted_ballot_;
  Proposal accepted_;
  // As the coordinator of `ballot_`.
  std::map<Rank, MembershipMessage> votes_;
  bool proposed_ = false;
  std::set<Rank> acceptors_;

  std::size_t next_other_ = 0;  // whom Poll asks first
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_MEMBERSHIP_H_
