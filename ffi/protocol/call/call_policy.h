// The rules of one call for late data: the only code that knows the modes. Each stage waits
// for late data, drops it, or defers it to a later call (LatePolicy); a drain waits in both stages,
// and moves deferred data.
//
//                             wait        drop                       defer
//   may this be sent          always      always                     as SendWindow permits
//   is a loss retransmitted   always      while its sender or its    always
//                                         receiver measures calls;
//                                         in an all_gather always
//   when does the stage close complete    at its deadline            at its deadline
//   may it end early          no          a grace time after the     no
//                                         last segments of all; an
//                                         all_gather with its quorum
//   a late segment            is stale    is lost; sums are scaled   joins a later call
//                                         up for those they lack
//   at the end of the call    contributions are discarded            undelivered contributions are
//                                                                    delivered, or join a later
//                                                                    call
//
// A value of this class also stands for a call that is over, in HandleOver().

#ifndef FFI_PROTOCOL_CALL_CALL_POLICY_H_
#define FFI_PROTOCOL_CALL_CALL_POLICY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/call/last_segments.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

inline Stage StageOf(DatagramKind kind) {
  return kind == DatagramKind::kContribution ? Stage::kReduceScatter : Stage::kAllGather;
}

// A datagram of this kind shows that the program of its sender has made the call.
inline bool ShowsCall(const CollectiveSpec& spec, DatagramKind kind) {
  return kind == DatagramKind::kContribution || !HasReduceScatter(spec);
}

class CallPolicy {
 public:
  // Makes the parts of the collective that its calls need, unless it has them.
  static void Prepare(Collective& collective, const EndpointOptions& options, BufferPool& pool);
  // The policy of a call that opens now. `collective` must outlive it.
  static CallPolicy Open(Collective& collective, Sequence sequence, Instant now, bool drain);
  // The program makes the call. `in_order`: every earlier call of the collective is over.
  void Submit(Instant now, bool in_order);
  // The call drains its collective.
  void Drain() { drain_ = true; }
  bool drains() const { return drain_; }

  // ---- May this be sent?
  bool MaySend(Stage stage, MemberIndex to) const;
  // The stage begins for a peer, unless it has. Returns the deferred sends that join it; null if
  // there are none.
  std::unique_ptr<SegmentStore> Begin(Stage stage, MemberIndex to);
  // The peer has everything of the stage.
  void Deliver(Stage stage, MemberIndex to);
  // The stage has not begun for the peer. At the end of the call it begins, or joins a later call.
  bool DefersUnsent(Stage stage, MemberIndex to) const { return Unsent(stage, to) && !drain_; }
  // Errors of rounding, which join later data; null where they are lost.
  SegmentStore* errors() { return retains() ? &deferred_->errors() : nullptr; }
  // The sender's field in the headers of contributions to a peer, and the flags of all data for it.
  std::uint16_t SenderInfoFor(Instant now, MemberIndex to, SegmentIndex segment) const;
  std::uint8_t FlagsFor(MemberIndex to) const;
  void HandleSenderInfo(MemberIndex from, const Header& header);
  void HandleFlags(MemberIndex from, const Header& header);
  // The number of calls directly before the header's whose results the sender is known to have.
  static std::uint32_t CallsWithResults(const Collective& collective, const Header& header);

  // Sums of a late rank may be relayed: nothing ends before they have come, and their values are
  // the bytes that the owner sends.
  bool MayRelay() const {
    const CollectiveSpec& spec = collective_.spec;
    return !Rounds(spec) && spec.reduce_scatter == LatePolicy::kWait &&
           spec.all_gather == LatePolicy::kWait;
  }

  // ---- Is a lost segment sent again?
  bool Retransmits(Stage stage, MemberIndex to) const;
  // Contributions are counted until they are delivered.
  bool CountsDeliveries() const { return retains() || !HasAllGather(collective_.spec); }
  // The program waits until its contributions are delivered, or sent if losses are not repaired:
  // their memory is the program's, and no result shows that they have come.
  bool WaitsForDelivery() const {
    return !HasAllGather(collective_.spec) && policy(Stage::kReduceScatter) != LatePolicy::kDefer;
  }
  // The result shows that its owner needs no contribution of this rank to the segment.
  bool ShowsDelivery(std::uint16_t contributors) const {
    return !retains() || contributors == collective_.layout.members();
  }

  // ---- When does a stage close, and may it end early?
  bool Waits() const {
    return policy(Stage::kReduceScatter) == LatePolicy::kWait ||
           policy(Stage::kAllGather) == LatePolicy::kWait;
  }
  // No sum exists before this rank's contribution.
  bool SumsNeedAll() const { return policy(Stage::kReduceScatter) == LatePolicy::kWait; }
  Instant ReduceScatterDeadline(bool closing) const;
  Instant CallDeadline() const;
  // After the deadline of the first stage its segments close one by one, as peers can take their
  // sums, up to the deadline of the call.
  bool ClosesInTurns() const {
    return policy(Stage::kReduceScatter) == LatePolicy::kDefer && HasAllGather(collective_.spec);
  }
  // When a stage ends before its deadline, if nothing else comes.
  Instant EarlyEnd(Stage stage, const LastSegments& last) const;
  Duration call_deadline() const { return call_deadline_; }
  // The program waits for peers that are too far behind.
  bool Lags() const { return retains() && !drain_ && deferred_->Lags(sequence_); }
  bool Straggles(MemberIndex member) const;
  // The members, this rank included, whose contributions the call does not wait for until something
  // of them comes: their programs have missed calls before it, or wait in a drain.
  std::vector<MemberIndex> FindAbsent() const;
  // The program of the member waits in a drain that comes before this call.
  bool DrainsBefore(MemberIndex member) const;
  // An absent member whose process makes its sums: they are waited for.
  bool Serves(MemberIndex absent) const {
    return retains() && collective_.presence->Serves(collective_.RankOf(absent));
  }

  // ---- What happens with a segment that comes late?
  // The one place for it, whether its call is open or over. True if it joins a later call.
  bool HandleLate(Instant now, MemberIndex from, const Header& header,
                  std::span<const std::byte> payload);
  // A segment of a call that is over, which may be a repetition.
  static Receipt HandleOver(Instant now, Collective& collective, MemberIndex from,
                            const Header& header, std::span<const std::byte> payload);
  // Adds a segment to the late data of its stage, if that is deferred; true if so.
  bool Defer(Stage stage, SegmentIndex segment, std::span<const std::byte> values);
  // It is lost.
  bool LosesLate() const { return !drain_ && DropsLateData(collective_.spec); }
  // Sums are scaled up for contributions that they lack.
  bool RescalesSums() const { return policy(Stage::kReduceScatter) == LatePolicy::kDrop; }
  // Learns deadlines from a segment that is new, in time or late.
  void RecordArrival(Instant now, MemberIndex from, const Header& header);
  // The program of the member has come too late for the call, and waits for the next one.
  static void RecordReturn(Instant now, Collective& collective, MemberIndex member,
                           Sequence skipped);

  // ---- What happens when the call is over?
  // Contributions are retained until they are delivered, also after the end of the call.
  bool retains() const { return deferred_ != nullptr; }
  // The call is over by its deadline at every rank, and is sent to its end afterwards.
  bool ContinuesLate() const { return policy_of_last_stage() == LatePolicy::kDefer; }
  // When no rank waits for anything any longer, and nothing is retained; kNever once released.
  Instant ServiceEndsAt() const;
  bool service_ended() const { return service_ended_; }
  void EndService() { service_ended_ = true; }
  // Before the removal of the call: its segments that have come from a peer are not added again.
  void Remember(Stage stage, MemberIndex from, Bitmap received);
  // Learns from the end of a stage that drops late data.
  void EndStage(Stage stage, StageEnd end);
  Duration deadline_needed() const;

 private:
  // `opened_at`: kNever if it is forgotten.
  CallPolicy(Collective& collective, Sequence sequence, Instant opened_at, bool drain);
  // The stage is sent as SendWindow permits.
  bool Windowed(Stage stage) const;
  // Nothing of such a stage was sent to the peer.
  bool Unsent(Stage stage, MemberIndex to) const;
  LatePolicy policy(Stage stage) const;
  LatePolicy policy_of_last_stage() const {
    return policy(HasAllGather(collective_.spec) ? Stage::kAllGather : Stage::kReduceScatter);
  }
  bool Absent(MemberIndex member) const;
  bool WaitsElsewhere(MemberIndex member) const;
  // When the sender of the segment began its stage; not before the opening.
  Instant BeganAt(Instant now, const Header& header) const;

  const Collective& collective_;
  Sequence sequence_;
  Instant opened_at_;
  bool drain_;
  bool service_ended_ = false;
  Instant submitted_at_{};  // set only where late data is deferred
  DeferredData* deferred_;  // null unless a stage defers
  CallTiming* timing_;      // null if both stages wait
  // All three count from the opening.
  Duration reduce_scatter_deadline_{};
  Duration call_deadline_{};
  Duration reduce_scatter_elapsed_{};
  // When each stage of each member began, in an open call.
  std::array<std::vector<Instant>, kStages> began_;
  std::vector<std::uint16_t> complete_before_;  // one for each member, copied into the header
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_CALL_POLICY_H_
