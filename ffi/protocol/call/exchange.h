// One call of one collective at one rank: contributions to its own shard come in and are summed
// (reduce_scatter), sums go out and come in (all_gather). What happens to data that is late is a
// policy of each stage; everything else is the same for every mode.
//
// It may open before the local program has called: then it gathers contributions, and unless the
// policy is kWait it closes its stage by itself, so that a slow program does not delay its shard.
//
// Reduction is in place. A result is written over the contribution it replaces; that is safe since
// a sum exists only after its owner has closed the segment, so that ours is either in it or late.
// Late ones that are deferred (exchange_deferral.cc) are kept elsewhere first.
//
// Where late data is deferred, a call that is over for the program goes on for its peers: what they
// do not have yet is sent until they have it.

#ifndef FFI_PROTOCOL_CALL_EXCHANGE_H_
#define FFI_PROTOCOL_CALL_EXCHANGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/reduction.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/call/arrivals.h"
#include "ffi/protocol/call/collective.h"
#include "ffi/protocol/call/deferred_data.h"
#include "ffi/protocol/call/outbox.h"
#include "ffi/protocol/submission.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

struct ExchangeOptions {
  // The other members in the order of the schedule.
  std::span<const MemberIndex> send_order;
  // How long after its deadline a call waits for peers that are too far behind.
  Duration lag_timeout{};
  bool drain = false;
};

class Exchange {
 public:
  // `collective` and `pool` must outlive this.
  Exchange(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
           const ExchangeOptions& options);

  const Collective& collective() const { return collective_; }
  CallId call() const { return {.collective = collective_.id, .sequence = sequence_}; }

  // ---- The local program.

  // The leaves have the collective's elements. At most once. `in_order`: every earlier call of the
  // collective is over.
  void Submit(Instant now, Submission submission, bool in_order);
  bool submitted() const { return submitted_at_.has_value(); }
  // Some stage has no deadline.
  bool waits() const {
    return policy(Stage::kReduceScatter) == LatePolicy::kWait ||
           policy(Stage::kAllGather) == LatePolicy::kWait;
  }
  // The program waits for a stage that has no deadline. A final drain is no call of the program.
  bool waiting() const { return submitted() && !finished_ && waits() && sequence_ != kFinalDrain; }
  Instant submitted_at() const { return *submitted_at_; }
  // When the program called it; it may have been held until it was submitted.
  Instant called_at() const { return *submitted_at_ - held_; }
  std::uint64_t token() const { return token_; }

  // ---- Peers.

  enum class Receipt : std::uint8_t { kNew, kDuplicate, kLate, kMismatched };
  Receipt HandleContribution(Instant now, MemberIndex from, const Header& header,
                             std::span<const std::byte> payload);
  Receipt HandleResult(Instant now, MemberIndex from, const Header& header,
                       std::span<const std::byte> payload);
  // Bytes of memory that a result which comes now would take.
  std::size_t EarlyResultBytes() const;
  // `from` has shown that it is in this call.
  void Heard(MemberIndex from) {
    heard_[from.index()] = true;
    if (absent_[from.index()]) Await(from);
  }
  const std::vector<bool>& heard() const { return heard_; }
  bool heard(MemberIndex from) const { return heard_[from.index()]; }
  // No rank but `from` has shown that it is in this call.
  bool OnlyHeard(Rank from) const;
  // Sums of the own shard that exist so far.
  std::size_t sums() const { return sums_.size(); }
  // `to` has everything that this rank has for it, or will not get it.
  bool Served(MemberIndex to) const {
    return outboxes_[to.index()].Delivered() && undelivered_[to.index()] == 0;
  }
  // `to` has all contributions of this rank, as far as they were offered.
  bool ContributionsDelivered(MemberIndex to) const { return undelivered_[to.index()] == 0; }
  // Something of `from` is missing here.
  bool Needs(MemberIndex from) const;
  // A contribution of `from` is missing here, and waited for.
  bool NeedsContribution(MemberIndex from) const;
  // Whether `to` takes nothing for now; then it takes no place among the `incast`.
  void SetStalled(MemberIndex to, bool stalled) { outbox(to).SetStalled(stalled); }

  // New contributions go to at most `incast` peers at a time.
  void SetIncast(std::uint16_t incast) { incast_ = incast; }

  // What to send next to a peer; it counts as sent once Sent() was called.
  std::optional<Outbox::Item> Next(MemberIndex to);
  std::size_t PayloadBytes(const Outbox::Item& item) const;
  // Where it lies; or, where it does not lie anywhere as it is sent, written to `out`. Once for
  // each time it is sent.
  std::span<const std::byte> Payload(MemberIndex to, const Outbox::Item& item,
                                     std::span<std::byte> out);
  // There was nothing to send to `to`. Closes the next segment whose deadline is over, if there is
  // one and `to` may have its sum; true if so.
  bool CloseNext(Instant now, MemberIndex to);
  // The float32 values of a segment that comes rounded; nothing if it has not the bytes for that.
  // They stand in `scratch`.
  static std::optional<std::span<const std::byte>> Decoded(const Collective& collective,
                                                           const Header& header,
                                                           std::span<const std::byte> payload,
                                                           std::vector<std::byte>& scratch);
  // The parts of the header that are the exchange's to fill.
  void FillHeader(MemberIndex to, const Outbox::Item& item, Header& header) const;
  void Sent(MemberIndex to, const Outbox::Item& item) { outbox(to).Pop(item); }
  // Segments that are still to be sent to the peer for the first time.
  std::uint32_t Unsent(MemberIndex to) const {
    const Outbox& box = outboxes_[to.index()];
    return box.Remaining(DatagramKind::kContribution) + box.Remaining(DatagramKind::kResult);
  }
  // Segments that are still to come from all others; nothing while one of them is not in the call.
  std::optional<double> Missing() const;
  // There are contributions for `to`, but others' turn comes first.
  bool HeldBack(MemberIndex to) const {
    return Contributes(to) && outboxes_[to.index()].contributing() && !MayContribute(to);
  }

  enum class Retransmission : std::uint8_t { kNotNeeded, kAgain, kAbandoned };
  // It was lost, or refused.
  Retransmission Lost(MemberIndex to, const Outbox::Item& item, bool refused);
  // True when `to` now has everything of one stage.
  bool Delivered(MemberIndex to, const Outbox::Item& item);
  // `peer` has every sum.
  void ReleaseResults(MemberIndex peer);
  // `peer` is gone: nothing is kept for it but contributions that were never sent, which are
  // deferred.
  void Release(MemberIndex peer);

  // ---- Time.

  // When Expire() has something to do; kNever where everything is waited for.
  Instant deadline() const;
  // Closes what is due; returns how many stages were closed with something missing.
  int Expire(Instant now);

  // ---- The end.

  // Where late data is dropped: all others are past the call. It ends with what is there.
  void Pass(Instant now);
  bool passed() const { return stats_.passed; }
  // The result is there, or what is missing of it will not come.
  bool complete() const {
    return submitted() && !finished_ && (gathered_.full() || closed_) && !Lags();
  }
  // All that it waits for are peers that are too far behind.
  bool WaitsForLag() const {
    return submitted() && !finished_ && (gathered_.full() || closed_) && Lags();
  }
  // It does for this one.
  bool WaitsForLagOf(MemberIndex peer) const { return deferred_->Lags(peer, sequence_); }
  void Suspend(MemberIndex peer) { deferred_->Suspend(peer); }
  // Ends the call for the local program: the leaves are not touched any more.
  CallDone Finish(Instant now, Status status);
  bool finished() const { return finished_; }
  // Over for the program: it has its result, or will get it with a later call.
  bool over() const { return finished_ || folded_; }
  // Nobody waits for what is left to send: the call has ended by its deadline.
  bool behind() const {
    return deferred_ != nullptr && (folded_ || (finished_ && closed_)) && !waits();
  }
  // Nothing is left to do for anybody.
  bool removable() const;

  // ---- Where late data is deferred.

  // What waits for a program that has not called joins its next call, whichever that is.
  bool CanFold() const;
  void Fold();
  bool folded() const { return folded_; }
  // The program has called a later one: folds as soon as it can.
  void Skip() { skipped_ = true; }
  // The call drains its collective, as a peer knows already.
  void Drain();
  bool drains() const { return drain_; }
  // The program will not call it: what is there of it joins a call that comes later.
  void Close(Instant now);
  // The call waits for `gone` no more, nor for its shard, which stays as it is.
  void Exclude(Instant now, MemberIndex gone);
  // Of what the program has given to a call that is over, and of its sums, what peers do not have.
  std::uint64_t UndeliveredBytes() const;
  // Frees what only an open call needs.
  void Compact();
  // The program makes a later call, and has not waited for this one: it failed, or nobody is there.
  // Keeps of it no more than of one whose deadline is over, however fast such calls follow each
  // other. True if that leaves something to send, or nothing at all.
  bool Overtake(Instant now);
  // Before the removal: what has come of the call is remembered, lest it is added twice.
  void Remember();

 private:
  Outbox& outbox(MemberIndex member) { return outboxes_[member.index()]; }
  LatePolicy policy(Stage stage) const;
  Instant ReduceScatterDeadline() const;
  Instant CallDeadline() const;
  Instant EarlyReduceScatter() const;
  Instant EarlyCall() const;
  Instant LagDeadline() const;
  // It has something for `to`, if its turn comes.
  bool Contributes(MemberIndex to) const;
  bool MayContribute(MemberIndex to) const;
  // The header and the size of a result fit this call, and the shard of `from`.
  bool IsResultOf(MemberIndex from, const Header& header, std::size_t bytes) const;
  bool Needed(const Outbox::Item& item) const;
  void ReduceSegment(SegmentIndex segment);
  void PlaceEarlyResults();
  void CountResult(SegmentIndex segment, std::uint16_t contributors);
  void NoteReduced(Instant now);
  void NoteMissed(SegmentIndex segment);
  void CloseReduceScatter(Instant now, StageExit exit);
  void Forget();  // the deadline of the call is over: nobody waits for anything
  void ZeroMissing();
  MemberIndex Slowest() const;
  std::uint32_t GatheredOf(MemberIndex owner) const;

  // ---- exchange_timing.cc
  // Learns from a segment that is new, in time or late.
  void Time(Instant now, Stage stage, MemberIndex from, const Header& header);
  // Nobody waits for what the member has for the call, until it is heard in it.
  void Forgo(MemberIndex absent);
  void Await(MemberIndex from);
  // Every result is here but those of members that are forgone.
  bool Gathered() const { return gathered_.count() + forgone_results_ >= gathered_.size(); }
  // Learns from a stage that drops what is late, and is over.
  void TimeEnd(Instant now, Stage stage, StageExit exit);

  // ---- exchange_deferral.cc
  bool Lags() const { return deferred_ != nullptr && !drain_ && deferred_->Lags(sequence_); }
  // The stage is sent under the rules of SendWindow.
  bool Windowed(Stage stage) const;
  bool MaySend(Stage stage, MemberIndex to) const;
  // From now on the stage is sent to `to` under this call's identity, with its deferred sends.
  void Begin(Stage stage, MemberIndex to);
  // Copies the own contribution, if it is not delivered, before its place is written.
  void Keep(SegmentIndex segment);
  void DeliverContribution(SegmentIndex segment);
  void DeliverContributions(MemberIndex to);
  void DeliverResults(MemberIndex to);
  // The bytes of a contribution or result, without deferred data that joins it.
  std::span<const std::byte> OwnPayload(const Outbox::Item& item,
                                        std::span<std::byte> scratch) const;
  const SegmentStore* Joining(MemberIndex to, const Outbox::Item& item) const;
  // The call is over: what cannot begin is deferred.
  void Retire();
  void RetireSums();
  void RetireStage(Stage stage, MemberIndex to);
  // Nothing of the stage was sent to `to`: it is deferred.
  void DeferSends(Stage stage, MemberIndex to);
  std::uint64_t DeferredBytes() const;
  double InFlight() const;
  // What the call should have had here, and had not.
  std::uint64_t MissedBytes() const;
  void FindSlowest(Instant now);  // for the stats

  // ---- exchange_rounding.cc
  // The call travels in the wire format.
  bool rounds() const { return Rounds(collective_.spec) && !drain_; }
  void WriteRounded(MemberIndex to, const Outbox::Item& item, std::span<std::byte> out);
  // The sum as it leaves, and as this rank keeps it: all ranks hold the same bits.
  void RoundSum(SegmentIndex segment);
  std::uint64_t RoundingKey(DatagramKind kind, SegmentIndex segment) const;
  // Where a contribution lies, with what has joined it.
  void ReplaceContribution(SegmentIndex segment, std::span<const std::byte> values);

  const Collective& collective_;
  Sequence sequence_;
  Instant opened_at_;
  ExchangeOptions options_;
  std::uint16_t incast_ = UINT16_MAX;
  BufferPool& pool_;
  DeferredData* deferred_;
  bool drain_;
  CallTiming* timing_;
  // From the opening, for a stage that does not wait.
  Duration reduce_scatter_deadline_{};
  Duration call_deadline_{};
  std::array<std::vector<Instant>, kStages> began_;  // by member: the first of it in a stage
  Duration reduce_scatter_elapsed_{};

  std::optional<Instant> submitted_at_;
  Duration held_{};
  std::uint64_t token_ = 0;
  BucketView bucket_;
  std::vector<std::byte> mutable scratch_;  // one segment across leaves
  std::vector<std::byte> exact_;            // one segment before it is rounded,
  std::vector<std::byte> rounded_;          // and after that

  Reduction reduction_;
  std::vector<SegmentIndex> sums_;     // of the own shard, in the order they became ready
  Bitmap gathered_;                    // segments of the bucket whose result is here
  Buffer early_results_;               // results that came before the local call
  std::vector<Outbox> outboxes_;       // by member; the own one stays empty
  std::vector<bool> heard_;            // by member
  std::vector<bool> absent_;           // by member: forgone
  std::size_t forgone_results_ = 0;    // segments
  std::vector<std::uint32_t> missed_;  // by member: contributions that are not in the sums

  // Where late data is deferred.
  Bitmap delivered_;                            // own contributions that their owners have
  std::vector<std::uint32_t> undelivered_;      // by member: of what is offered, those that are not
  std::vector<std::uint16_t> complete_before_;  // by member, for the header
  std::vector<std::unique_ptr<SegmentStore>> kept_;  // by member: contributions, see Keep()
  // By stage and member: the deferred sends that join the stage.
  std::array<std::vector<std::unique_ptr<SegmentStore>>, kStages> joining_;
  Bitmap holds_deferred_;  // segments of the bucket whose sum holds data of earlier calls
  bool folded_ = false;
  bool skipped_ = false;

  // The early end of a stage: who has sent its last segments, and when the last one came.
  struct Tails {
    std::vector<bool> seen;
    std::size_t missing = 0;
    Instant last{};
    void See(MemberIndex from) {
      if (!seen[from.index()]) --missing;
      seen[from.index()] = true;
    }
    void Expect(MemberIndex from) {
      if (seen[from.index()]) ++missing;
      seen[from.index()] = false;
    }
  };
  Tails contributed_tails_;
  Tails result_tails_;
  bool expired_ = false;

  bool short_ = false;  // some sum is without some contribution
  // Where late data is deferred: the deadline of the first stage is over. A segment is closed when
  // its turn to be sent comes; what comes before that is not late.
  bool closing_ = false;
  std::uint32_t next_to_close_ = 0;  // within the own shard
  bool reduced_closed_ = false;
  bool closed_ = false;
  bool finished_ = false;

  CallStats stats_;
  MemberIndex last_from_;
  Arrivals arrivals_;
  double contributed_ = 0;  // elements of results, times their contributors
  std::uint64_t result_bytes_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_EXCHANGE_H_
