// One call of one collective at one rank: contributions to its own shard come in and are summed
// (ReduceScatterStage), sums go out (CallSender) and come in (AllGatherStage). CallPolicy decides
// on late data; everything else is the same for every mode.
//
// A call may open before the local program makes it: it gathers contributions, and unless it waits
// for them it closes its stage by itself, so that a slow program does not delay its shard. Where
// late data is deferred, a call that is over for the program continues for its peers, until they
// have their data.

#ifndef FFI_PROTOCOL_CALL_EXCHANGE_H_
#define FFI_PROTOCOL_CALL_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/call/all_gather_stage.h"
#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/call_sender.h"
#include "ffi/protocol/call/call_stats_builder.h"
#include "ffi/protocol/call/program_state.h"
#include "ffi/protocol/call/reduce_scatter_stage.h"
#include "ffi/protocol/call/segment_codec.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/submission.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

struct ExchangeOptions {
  // The other members in the order of the schedule.
  std::span<const MemberIndex> send_order;
  // The wait of a call, after its deadline, for peers that are too far behind.
  Duration lag_timeout{};
  bool drain = false;
  // The format of the data that this rank sends, unless the call is a drain.
  WireFormat wire_format = WireFormat::kFloat32;
  // EndpointOptions::relay_segments_min.
  std::uint32_t relay_segments_min = 0;
};

// The effects of an arriving segment on its call.
struct ArrivalOutcome {
  Receipt receipt = Receipt::kNew;
  bool first = false;                    // nothing of its sender has come before
  bool sums_added = false;               // there are new sums to send
  bool relayed = false;                  // its sum is to be forwarded
  bool contributions_delivered = false;  // the last contribution of this rank is at its sender
};

// The effects of time on a call.
struct ExpiryOutcome {
  int stages_expired = 0;   // stages that were closed and lack data
  bool sums_added = false;  // there are new sums to send
  bool merged = false;      // the call has joined the program's next one
};

class Exchange {
 public:
  // `collective` and `pool` must outlive this.
  Exchange(Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
           const ExchangeOptions& options);
  // Its parts refer to each other.
  Exchange(const Exchange&) = delete;

  Collective& collective() { return collective_; }
  const Collective& collective() const { return collective_; }
  CallId call() const { return {.collective = collective_.id, .sequence = sequence_}; }
  const ProgramState& program() const { return program_; }
  const CallPolicy& policy() const { return policy_; }
  const ReduceScatterStage& reduce_scatter() const { return reduce_scatter_; }
  const AllGatherStage& all_gather() const { return all_gather_; }
  // Its part in the turns of this rank's datagrams.
  CallSender& sender() { return sender_; }
  const CallSender& sender() const { return sender_; }

  // ---- The local program.

  // The leaves have the collective's elements. At most once. `in_order`: every earlier call of the
  // collective is over.
  void Submit(Instant now, const Submission& submission, bool in_order);
  // The program waits for a stage that has no deadline. A final drain is no call of the program.
  bool waiting() const { return program_.running() && policy_.Waits() && sequence_ != kFinalDrain; }
  // The result is there, or its missing part will not come.
  bool complete() const {
    return program_.running() && all_gather_.ended() && !policy_.Lags() && Contributed();
  }
  // The call waits only for peers that are too far behind.
  bool WaitsForLag() const { return program_.running() && all_gather_.ended() && policy_.Lags(); }
  // Ends the call for the local program: the leaves are not touched afterwards.
  CallDone Finish(Instant now, Status status);
  // The program makes a later call. A call that it has not made is abandoned. A call that failed,
  // or has no peer, retains no more than one whose deadline is over, however fast such calls follow
  // each other. With `too_old` a peer that lacks data of the call is more than max_lag calls
  // behind. True if that leaves something to send, or nothing at all.
  bool Supersede(Instant now, bool too_old);
  // The call ends although the program has not made it: its results join the program's next call.
  bool CanMerge() const {
    return program_.uncalled() && policy_.ContinuesLate() && reduce_scatter_.finished();
  }
  // Closes the first stage where it is open.
  void Merge(Instant now);

  // ---- Peers.

  // A contribution or a result.
  ArrivalOutcome Handle(Instant now, MemberIndex from, const Header& header,
                        std::span<const std::byte> payload);
  // `from` has shown that it is in this call.
  void Heard(MemberIndex from);
  bool heard(MemberIndex from) const { return heard_[from.index()]; }
  // Something of `from` is missing here.
  bool Needs(MemberIndex from) const {
    return reduce_scatter_.NotReceived(from) > 0 || all_gather_.NotReceived(from) > 0;
  }
  // All contributions of the member are here, so it has made the call; others may relay its sums.
  bool MayBeRelayed(MemberIndex from) const {
    return AllowsRelays() && reduce_scatter_.NotReceived(from) == 0;
  }
  // The program waits for data of the member, or until the member has its own.
  bool WaitsFor(MemberIndex member) const { return Needs(member) || !sender_.Contributed(member); }
  // `to` has nothing left to get. Closes the next segment whose deadline is over, if there is
  // one and `to` may have its sum; true if so.
  bool CloseNext(Instant now, MemberIndex to);
  // Members that are absent by now are not waited for, until something of them comes. True if that
  // adds sums.
  bool SpareAbsent(Instant now);
  // The call waits for `gone` no more, nor for its shard, which stays as it is.
  void Exclude(Instant now, MemberIndex gone);
  // The call drains its collective, as a peer knows already.
  void Drain();

  // ---- Time.

  // When Expire() has something to do; kNever where everything is waited for.
  Instant deadline() const;
  // Closes the stages that are due.
  ExpiryOutcome Expire(Instant now);
  // Where late data is lost: all others are past the call. It ends with the data that is there.
  void Pass(Instant now);

  // ---- The end.

  // No rank waits for the data that is left to send: the call has ended by its deadline.
  bool behind() const {
    return policy_.ContinuesLate() &&
           (program_.merged() || (program_.finished() && all_gather_.closed()));
  }
  // Nothing is left to do for any rank.
  bool removable() const;
  // Before the removal: the segments that have come are remembered, lest they are added twice.
  void Remember();
  // The contributions and sums of a call that is over that peers do not have.
  std::uint64_t UndeliveredBytes() const;

 private:
  bool Contributed() const;
  // Late ranks of this call may send their sums through others.
  bool AllowsRelays() const {
    return policy_.MayRelay() && collective_.layout.segments() >= relay_segments_min_;
  }
  // The program is late: the members that relay its sums, none if it is not.
  std::vector<MemberIndex> FindRelays() const;
  // No peer waits for sums of this call, so that it ends no sooner than the program makes it.
  bool AwaitsProgram() const {
    return !HasAllGather(collective_.spec) && program_.uncalled() && !program_.abandoned();
  }
  void SpareAbsent();
  void HeardResult(MemberIndex from);
  Receipt Take(Instant now, MemberIndex from, const Header& header,
               std::span<const std::byte> payload);
  Instant ReduceScatterEnd() const;
  Instant CallEnd() const;
  Instant LagDeadline() const;
  bool ExpireReduceScatter(Instant now);
  bool ExpireCall(Instant now);
  void PlaceSums(Instant now);
  void CloseReduceScatter(Instant now, StageExit exit);
  void EndService();
  void EndStage(Instant now, Stage stage, StageExit exit);
  // At the end: which members have taken part.
  void RecordPresence();
  // The members of which nothing has come, though the call is over.
  void RecordMissed(Presence::Place place);
  void RecordSelf(bool takes_part);
  void Retire();
  void Report(Instant now, bool ok);

  Collective& collective_;
  Sequence sequence_;
  Instant opened_at_;
  Duration lag_timeout_;
  std::uint32_t relay_segments_min_;
  BufferPool& pool_;
  ProgramState program_;
  BucketView bucket_;
  CallPolicy policy_;
  SegmentCodec codec_;
  ReduceScatterStage reduce_scatter_;
  CallSender sender_;
  AllGatherStage all_gather_;
  CallStatsBuilder report_;
  std::size_t placed_ = 0;      // sums that are part of the result
  std::vector<bool> heard_;     // one for each member
  std::vector<bool> optional_;  // members that are absent, which are not waited for
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_EXCHANGE_H_
