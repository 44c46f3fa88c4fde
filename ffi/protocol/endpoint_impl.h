// The state of an endpoint. Its members are defined by theme: endpoint.cc (what comes in),
// endpoint_begin.cc (calls that start), endpoint_late.cc (what is late), endpoint_lag.cc (calls
// that others are past), endpoint_refusals.cc (what is not taken yet), endpoint_watch.cc (who is
// missing, who disagrees), endpoint_give_up.cc (calls that end with an error),
// endpoint_membership.cc (going on without ranks that are silent).

#ifndef FFI_PROTOCOL_ENDPOINT_IMPL_H_
#define FFI_PROTOCOL_ENDPOINT_IMPL_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/call/directory.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/protocol/session/call_table.h"
#include "ffi/protocol/session/lag_monitor.h"
#include "ffi/protocol/session/membership.h"
#include "ffi/protocol/session/mismatch_detector.h"
#include "ffi/protocol/session/peer_table.h"
#include "ffi/protocol/session/refusals.h"
#include "ffi/protocol/session/shared_membership.h"
#include "ffi/protocol/session/transmitter.h"

namespace optireduce {

class Endpoint::Impl {
 public:
  explicit Impl(const EndpointOptions& options);
  Status MakePeers();

  Status Submit(Instant now, Submission submission);
  void HandleDatagram(Instant now, std::span<const std::byte> datagram);
  void HandleTimeout(Instant now);
  std::optional<Transmit> PollTransmit(Instant now, std::span<std::byte> buffer,
                                       std::size_t batch_max);
  Instant PollTimeout() const;
  std::optional<CallDone> PollEvent();
  std::vector<WaitingCall> WaitingCalls(Instant before) const;
  std::vector<LateData> FindLateData() const;
  void Cancel(Instant now, const Status& why);
  void GiveUp(Instant now, Submission call, const Status& why);
  void Leave(Instant now, const Status& why);
  bool finished() const;
  std::size_t memory_bytes() const { return pool_.used_bytes(); }
  const Counters& counters() const { return counters_; }
  std::vector<Rank> live() const { return view().members; }
  std::vector<Rank> silent() const;
  std::vector<Rank> unreached() const;

 private:
  // A call that cannot begin yet.
  struct Held {
    Submission submission;
    Instant since;
    // Its program does not wait for it any more; peers learn that when it is known which they are.
    std::optional<Status> given_up;
  };

  // ---- endpoint.cc
  bool IsOnThisHost(Rank rank) const {
    return rank.index() < options_.same_host.size() && options_.same_host[rank.index()];
  }
  // What may be under way to a peer, where so many send to it.
  std::size_t WindowBytesMax(Rank to, std::size_t sharers) const;
  // The members have a new collective with this rank.
  void ShareWindows(const CollectiveSpec& spec);
  Status Validate(const CollectiveSpec& spec) const;
  Status ValidateLeaves(const Submission& submission) const;
  // The member has made this call, and may have ended it without this rank.
  bool HasCalled(const Collective& collective, const Submission& submission, Rank member) const;

  // ---- endpoint_refusals.cc
  // The local program has called it, or a later one, and nothing of it is open.
  bool IsOver(const Collective& collective, Sequence sequence) const;
  // The program will never call it, and peers must not wait for that.
  bool IsAbandoned(const Collective& collective) const {
    return collective.final_drain == Collective::FinalDrain::kVoid ||
           (leaving_ && Defers(collective.spec));
  }
  // Memory for what the program has not asked for.
  bool HasRoom(std::size_t bytes) const {
    return bytes == 0 || pool_.used_bytes() + bytes <= options_.early_bytes_max;
  }
  // Calls of a collective that wait for the local program, and the first that need not.
  struct Ahead {
    std::uint32_t calls = 0;
    std::optional<CallId> foldable;
  };
  Ahead AheadOf(const Collective& collective);
  // Memory for the contributions to one more.
  bool HasRoomFor(const Collective& collective) const;
  // Whatever comes for the call is taken now, of a rank that waits for this one unless this one is
  // `suspended` there.
  bool Takes(CallId call, bool suspended);
  // Counts the datagram, and lets its sender know.
  void Refuse(Instant now, const Header& header);
  // Tells those that were refused something that it is taken now.
  void LiftRefusals(Instant now);
  // The call a peer's datagram belongs to; opens it when that is allowed, else null.
  OpenCall* Admit(Instant now, const Header& header);

  // ---- endpoint.cc again
  // Each returns false when the datagram could not be taken now and has to come again.
  bool Dispatch(Instant now, const Header& header, std::span<const std::byte> payload);
  bool HandleSegment(Instant now, const Header& header, std::span<const std::byte> encoded);
  bool HandleValues(Instant now, const Collective& collective, MemberIndex from,
                    const Header& header, std::span<const std::byte> payload);
  bool HandleAnnouncement(Instant now, const Header& header, std::span<const std::byte> payload);
  void HandleAcknowledgement(Instant now, const Header& header, std::span<const std::byte> payload);
  void HandleLeave(Instant now, const Header& header, std::span<const std::byte> payload);
  void HandleFates(Instant now, Rank peer, const std::vector<Delivery>& deliveries);
  void HandleFate(Instant now, Rank to, const Delivery& delivery,
                  std::vector<CollectiveId>& advanced);
  void FinishIfComplete(Instant now, OpenCall& active);
  // All that are complete.
  void FinishComplete(Instant now);
  void Fail(Instant now, CallId call, Status why);
  void EraseIfRemovable(CallId call);

  // ---- endpoint_begin.cc
  // The error of a call that needs a member that is gone; else ok.
  Status RefuseUnreachable(const Collective& collective, const Submission& submission) const;
  // Starts a call that nothing keeps from it.
  void Begin(Instant now, Collective& collective, Submission submission);
  OpenCall& Open(Instant now, Collective& collective, Sequence sequence, bool drain);
  // The program makes no call before `next` any more: those that only peers have opened end without
  // it. True if all of them are over for the program.
  bool Overtake(Instant now, const Collective& collective, Sequence next, bool drain);
  // The call has begun without the members that are gone.
  void ReleaseGone(Instant now, const Collective& collective, Exchange& exchange);
  // Submits to the call, opening it first where nobody has.
  void SubmitTo(Instant now, Collective& collective, Submission submission);

  // ---- endpoint_late.cc
  // A call whose contributions and results have become part of others before the program made it.
  void SubmitLate(const Submission& submission, Collective& collective);
  // All others have called a drain that comes after `call`: what they had for it comes with that.
  bool OthersDrain(const Collective& collective, Sequence call);
  void NoteFolded(CallId call);
  // Counts a segment that is not new.
  void CountOld(Receipt receipt);
  // The peer calls `header.call`: it has the results of calls before.
  void ReleaseEarlier(Instant now, const Header& header);
  // A peer has all of some call: others may go on that had to wait for this.
  void Advance(Instant now, CollectiveId collective, Rank peer);

  // ---- endpoint_lag.cc
  // Where late data is dropped: a member has shown where it is. Ends what all others are past.
  void NoteAttendance(Instant now, Collective& collective, MemberIndex from, Sequence call);
  bool PassIfOthersHave(Instant now, const Collective& collective, OpenCall& active);
  // This rank is behind: the others wait for it again, up to their deadlines.
  void TellPosition(const Collective& collective, CallId call);

  // ---- endpoint_membership.cc
  static std::shared_ptr<SharedMembership> MakeMembership(const EndpointOptions& options);
  Result<Collective*> Learn(Instant now, const CollectiveSpec& spec);
  // Some collective goes on without ranks that are silent.
  bool Agrees() const { return membership_ && membership_->facts().in_use; }
  bool Survives(const CollectiveSpec& spec) const { return IsBounded(spec) && Agrees(); }
  // The newest that calls know of.
  const View& view() const { return views_.back(); }
  void UseMembership(Instant now);
  // Something that was authenticated has come.
  void HearMember(Instant now, const Header& header, std::span<const std::byte> payload);
  // The peer is silent for too long, or of no use for another reason.
  void Lose(Instant now, Rank silent, std::string why);
  // After anything that may have changed it, on this lane or another one.
  void FollowMembership(Instant now);
  void AdoptViews(Instant now);
  // Keeps nothing more for those that are silent.
  void ReleaseLost(Instant now);
  // No agreement on who takes part can be reached: too few can reach each other.
  bool IsStuck() const { return Agrees() && membership_->facts().stuck; }
  std::optional<Transmit> SendMembership(Instant now, std::span<std::byte> buffer);
  void BeginView(Instant now);
  Status WhyStuck(Instant now) const;
  // Fails the calls under way, and those that are held; false if there are none.
  bool FailAll(Instant now, const Status& why, bool only_bounded);
  // Ends the call for the program.
  void FailHeld(Instant now, Held& held, Status why);
  // What the collective is among those who take part in the call. Wants final drains where it has
  // changed.
  Result<Collective*> Effective(Collective& origin, Sequence sequence);
  // The call must wait: for a final drain, or for a decision on one that has left.
  bool MustHold(Instant now, const Collective& effective, const Submission& submission);
  // The call begins now in the present view, or has to be held.
  bool TryStart(const Collective& origin, const Collective& effective, Sequence sequence);
  // Begins what was held and can begin, and final drains.
  void GoOn(Instant now);
  // What was never sent to members that are gone joins this rank's contribution.
  void AdoptUnsent(const Collective& successor, const BucketView& bucket);
  // False while calls of the collective are under way.
  bool BeginFinalDrain(Instant now, Collective& collective);
  void EndFinalDrain(OpenCall& active);

  // ---- endpoint_watch.cc
  void Expire(Instant now, CallId call);
  void Tick(Instant now);
  // Fails the call if a member is silent for too long or left; asks the quiet ones for a sign.
  bool FailIfAbandoned(Instant now, const Exchange& exchange);
  // Gives up peers that do not answer for too long, whether or not a call waits for them.
  void GiveUpSilentPeers(Instant now);
  // After something was acknowledged or lost: do long datagrams to the peer arrive?
  void CheckPath(Instant now, Rank rank);
  // Fails the calls that wait for the peer, here or there.
  void FailUnserved(Instant now, Rank rank, const std::string& why);
  // What it means for a call that a member is gone.
  enum class Loss : std::uint8_t {
    kNone,
    kUndecided,  // the members have to agree on how the call goes on
    kFatal,      // the call cannot be completed
  };
  // The call waits for the member no more, and keeps nothing for it.
  Loss ReleaseIn(Instant now, OpenCall& open, MemberIndex gone);
  // A call that only the member that is gone had opened will never be called here.
  void EraseUncalled(Rank gone);
  // After a peer has gone: fails what needs it, keeps nothing for it.
  void Forget(Instant now, Rank gone);
  // Whom it waits for.
  WaitingCall WaitingFor(const Exchange& exchange) const;

  // ---- endpoint_give_up.cc
  // The call is over for this rank, which has not submitted it.
  void GiveUpUncalled(Instant now, Collective& collective, const Submission& call,
                      const Status& why);
  // Fails the call unless `why` is ok.
  bool FailIf(Instant now, CallId call, Status why);
  void Apply(Instant now, std::vector<Verdict> verdicts);
  // When a call of then has waited for too long.
  Instant TooLongAfter(Instant called_at) const;
  bool FailIfTooLong(Instant now, const Exchange& exchange);
  void FailHeldTooLong(Instant now);
  // What `rank` was seen to do.
  std::string LastSignOf(Instant now, Rank rank) const;

  std::string WhySilent(Rank rank) const;
  // In seconds, with one decimal.
  static std::string RoundedSeconds(Duration duration);
  // " on lane 1", where a rank has several.
  std::string OnLane() const;

  Peer& peer(Rank rank) { return peers_.Touch(rank); }
  const Peer& peer(Rank rank) const { return *peers_[rank]; }

  EndpointOptions options_;
  WindowedMin paths_;  // of the flows to all peers, which it outlives
  PeerTable peers_;
  std::set<Rank> unanswered_;  // whose flow has been, and may still be
  // What peers can receive is divided among those that share a collective with this rank, itself
  // included: they have as many as this one where groups are alike. (Where not, the rates tell.)
  Bitmap sharers_;                  // by rank
  std::vector<std::byte> opened_;   // a payload that came encrypted
  std::vector<std::byte> decoded_;  // a payload that came rounded
  BufferPool pool_;                 // outlives the collectives and the exchanges
  Directory directory_;
  // By the number of members, and which of them this rank is.
  std::map<std::pair<std::uint16_t, MemberIndex>, std::vector<MemberIndex>> send_orders_;
  CallTable calls_;
  LagMonitor lag_;
  Refusals refusals_;
  // Something has happened that may lift one.
  bool refusals_stale_ = false;
  std::size_t refusals_used_bytes_ = 0;  // by the pool, when they were looked at last
  std::deque<CallDone> events_;
  Counters counters_;
  Transmitter transmitter_;
  Instant next_tick_ = kNever;  // set while a call waits
  std::optional<Status> leaving_;

  std::shared_ptr<SharedMembership> membership_;   // null where too few ranks are left without one
  std::uint16_t lane_ = 0;                         // of this endpoint, among those that share it
  std::vector<View> views_;                        // the first one, and those with other members
  std::uint32_t changes_ = 0;                      // of the membership, that are followed
  bool uses_membership_ = false;                   // what was lost before is suspected
  bool membership_due_ = false;                    // it may have something to send
  std::optional<Status> removed_;                  // the others go on without this rank
  std::deque<Held> held_;                          // in order
  std::vector<Collective*> awaiting_final_drain_;  // want a final drain
  MismatchDetector mismatch_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_ENDPOINT_IMPL_H_
