// One call of one collective at one rank: contributions to its own shard come in and are summed
// (reduce_scatter), sums go out and come in (all_gather). What happens to data that is late is a
// policy of each stage; everything else is the same for every mode.
//
// It may open before the local program has called: then it gathers contributions, and where the
// policy is kDrop it closes its stage by itself, so that a slow program does not delay its shard.
//
// Reduction is in place. A result is written over the contribution it replaces; that is safe since
// a sum exists only after its owner has closed the segment, so that ours is either in it or late.

#ifndef FFI_PROTOCOL_EXCHANGE_H_
#define FFI_PROTOCOL_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket_view.h"
#include "ffi/protocol/buffer_pool.h"
#include "ffi/protocol/collective.h"
#include "ffi/protocol/outbox.h"
#include "ffi/protocol/reduction.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

class Exchange {
 public:
  // `collective` and `pool` must outlive this. `send_order` lists the other members in the order of
  // the schedule.
  Exchange(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
           std::span<const MemberIndex> send_order);

  const Collective& collective() const { return collective_; }
  CallId call() const { return {.collective = collective_.id, .sequence = sequence_}; }

  // ---- The local program.

  // The leaves have the collective's elements. At most once.
  void Submit(Instant now, Submission submission);
  bool submitted() const { return submitted_at_.has_value(); }
  Instant submitted_at() const { return *submitted_at_; }

  // ---- Peers.

  enum class Receipt : std::uint8_t { kNew, kDuplicate, kLate, kMismatched };
  // `tail`: one of the last that `from` has for this rank in the stage.
  Receipt TakeContribution(Instant now, MemberIndex from, SegmentIndex segment, bool tail,
                           std::span<const std::byte> payload);
  Receipt TakeResult(Instant now, MemberIndex from, SegmentIndex segment,
                     std::uint16_t contributors, bool tail, std::span<const std::byte> payload);
  // `from` has shown that it is in this call.
  void Heard(MemberIndex from) { heard_[from.index()] = true; }
  bool heard(MemberIndex from) const { return heard_[from.index()]; }
  // No rank but `from` has shown that it is in this call.
  bool OnlyHeard(Rank from) const;
  // Sums of the own shard that exist so far.
  std::size_t sums() const { return sums_.size(); }
  // `to` has every sum of this rank, or will not get it.
  bool Served(MemberIndex to) const { return outboxes_[to.index()].Delivered(); }
  // Something of `from` is missing here.
  bool Needs(MemberIndex from) const;
  // Whether `to` answers at all; one that does not takes no place among the `incast`.
  void SetStalled(MemberIndex to, bool stalled) { outbox(to).SetStalled(stalled); }

  // New contributions go to at most `incast` peers at a time.
  void SetIncast(std::uint16_t incast) { incast_ = incast; }

  // What to send next to a peer; it counts as sent once Sent() was called.
  std::optional<Outbox::Item> Next(MemberIndex to);
  std::size_t PayloadBytes(const Outbox::Item& item) const;
  void WritePayload(const Outbox::Item& item, std::span<std::byte> out) const;
  std::uint16_t Contributors(const Outbox::Item& item) const;
  // Whether it is one of the last for this peer in its stage.
  bool Tail(MemberIndex to, const Outbox::Item& item) const {
    // Chosen: that all of them are lost is rarer than anything else that goes wrong.
    constexpr std::uint32_t kTailSegments = 4;
    return outboxes_[to.index()].Remaining(item.kind) <= kTailSegments;
  }
  void Sent(MemberIndex to, const Outbox::Item& item) { outbox(to).Pop(item); }
  // There are contributions for `to`, but others' turn comes first.
  bool HeldBack(MemberIndex to) const {
    return submitted() && !finished_ && outboxes_[to.index()].contributing() && !MayContribute(to);
  }

  enum class Repair : std::uint8_t { kNotNeeded, kAgain, kAbandoned };
  Repair Lost(MemberIndex to, const Outbox::Item& item);
  void Delivered(MemberIndex to, const Outbox::Item& item);
  // `peer` has every sum, or will not take any: nothing is kept for it.
  void Release(MemberIndex peer);

  // ---- Time.

  // When Expire() will close a stage; kNever where nothing is dropped.
  Instant deadline() const;
  // Closes what is due; returns how many stages were closed with something missing.
  int Expire(Instant now);

  // ---- The end.

  // The result is there, or what is missing of it will not come.
  bool complete() const { return submitted() && !finished_ && (gathered_.full() || closed_); }
  // Ends the call for the local program: the leaves are not touched any more.
  CallDone Finish(Instant now, Status status);
  bool finished() const { return finished_; }
  // Nothing is left to do for anybody.
  bool removable() const;

 private:
  Outbox& outbox(MemberIndex member) { return outboxes_[member.index()]; }
  Instant ReduceScatterDeadline() const;
  Instant CallDeadline() const;
  Instant EarlyReduceScatter() const;
  Instant EarlyCall() const;
  bool MayContribute(MemberIndex to) const;
  void ReduceSegment(SegmentIndex segment, bool rescale);
  void CountResult(SegmentIndex segment, std::uint16_t contributors);
  void CloseReduceScatter();
  void CloseAllGather();  // what is missing will not come
  void Forget();          // the deadline of the call is over: nobody waits for anything
  MemberIndex Slowest() const;

  const Collective& collective_;
  Sequence sequence_;
  Instant opened_at_;
  std::span<const MemberIndex> send_order_;
  std::uint16_t incast_ = UINT16_MAX;
  BufferPool& pool_;

  std::optional<Instant> submitted_at_;
  std::uint64_t token_ = 0;
  BucketView bucket_;
  std::vector<std::byte> mutable scratch_;  // one segment across leaves

  Reduction reduction_;
  std::vector<SegmentIndex> sums_;  // of the own shard, in the order they became ready
  Bitmap gathered_;                 // segments of the bucket whose result is here
  Buffer early_results_;            // results that came before the local call
  std::vector<Outbox> outboxes_;    // by member; the own one stays empty
  std::vector<bool> heard_;         // by member

  // The early end of a stage: who has sent its last segments, and when the last one came.
  struct Tails {
    std::vector<bool> seen;
    std::size_t missing = 0;
    Instant last{};
    void See(MemberIndex from) {
      if (!seen[from.index()]) --missing;
      seen[from.index()] = true;
    }
  };
  Tails contributed_tails_;
  Tails result_tails_;
  bool expired_ = false;

  bool reduced_closed_ = false;
  bool closed_ = false;
  bool finished_ = false;

  CallStats stats_;
  MemberIndex last_from_;
  double contributed_ = 0;  // elements of results, times their contributors
  std::uint64_t result_bytes_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_EXCHANGE_H_
