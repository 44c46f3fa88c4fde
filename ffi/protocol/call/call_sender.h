// The data of one call on its way to the other members: contributions to their shards, and sums of
// this rank's shard. It decides the order, and retains contributions until their owners have them.

#ifndef FFI_PROTOCOL_CALL_CALL_SENDER_H_
#define FFI_PROTOCOL_CALL_CALL_SENDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/outbox.h"
#include "ffi/protocol/call/reduce_scatter_stage.h"
#include "ffi/protocol/call/relayed_sums.h"
#include "ffi/protocol/call/segment_codec.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class CallSender {
 public:
  // All of them must outlive this. `bucket` is empty until the program has called. `send_order`:
  // the other members in the order of the schedule.
  CallSender(Collective& collective, CallPolicy& policy, SegmentCodec& codec,
             const ReduceScatterStage& sums, BucketView& bucket, BufferPool& pool,
             std::span<const MemberIndex> send_order);

  // The program has called: there are contributions.
  void Submit();
  // The program is late: each sum goes to one of the relays, in turn. Nothing without relays.
  void RelaySums(std::span<const MemberIndex> relays);
  // A sum has come that is to be forwarded, if it is from its owner. True if there is something new
  // to send.
  bool Relay(MemberIndex from, SegmentIndex segment, std::span<const std::byte> sum);

  // ---- The next datagram.
  // New contributions go to at most `incast` peers at a time.
  void SetIncast(std::uint16_t incast) { incast_ = incast; }
  // Whether `to` takes nothing for now; then it takes no place among the `incast`.
  void SetStalled(MemberIndex to, bool stalled) { outbox(to).SetStalled(stalled); }
  // The next segment for a peer; it counts as sent once Sent() was called.
  std::optional<Outbox::Item> Next(MemberIndex to);
  std::size_t PayloadBytes(const Outbox::Item& item) const {
    return codec_.PayloadBytes(item.segment);
  }
  // Rounded segments are shorter than a datagram, which may hold several.
  struct Run {
    Outbox::Item first;
    std::uint8_t segments = 1;  // `first`, and the segments that follow it with the same header
    std::size_t bytes = 0;      // size of the payload
  };
  // The longest from `first` on, the last item of Next(), with at most `bytes_max` if it has
  // several.
  Run RunFrom(MemberIndex to, const Outbox::Item& first, std::size_t bytes_max) const;
  void Sent(MemberIndex to, const Run& run);
  // The payload where it lies, else written to `out`. Once for each time it is sent.
  std::span<const std::byte> Payload(MemberIndex to, const Run& run, std::span<std::byte> out);
  // All of the header but the number and the sender.
  void FillHeader(Instant now, CallId call, MemberIndex to, const Run& run, Header& header) const;
  // There are contributions for `to`, but the turn of others comes first.
  bool OutOfTurn(MemberIndex to) const {
    return Contributes(to) && outboxes_[to.index()].contributing() && !IsTurnOf(to);
  }
  // `to` lacks sums, and there is nothing else to send to it.
  bool WantsSum(MemberIndex to) const {
    return !outboxes_[to.index()].Delivered() && !OutOfTurn(to) &&
           policy_.MaySend(Stage::kAllGather, to);
  }
  // Segments that are still to be sent to the peer for the first time.
  std::uint32_t Unsent(MemberIndex to) const;

  // ---- Deliveries and losses.
  enum class Retransmission : std::uint8_t { kNotNeeded, kAgain, kAbandoned };
  // The segment was lost, or `refused`.
  Retransmission HandleLoss(MemberIndex to, const Outbox::Item& item, bool refused);
  // Lost segments that were retransmitted.
  std::uint64_t retransmitted() const { return retransmitted_; }
  // True when `to` now has everything of one stage.
  bool HandleDelivery(MemberIndex to, const Outbox::Item& item);
  // The owner of the segment needs no contribution of this rank to it.
  void DeliverContribution(SegmentIndex segment);
  // `to` has everything that this rank has for it, or will not get it.
  bool Served(MemberIndex to) const {
    return outboxes_[to.index()].Delivered() && ContributionsDelivered(to) &&
           relayed_.Delivered(to);
  }
  // The program need not wait for the delivery of its contributions to `to`.
  bool Contributed(MemberIndex to) const;
  // `to` has all contributions of this rank, as far as they were offered.
  bool ContributionsDelivered(MemberIndex to) const { return undelivered_[to.index()] == 0; }
  // Copies this rank's contribution, unless it is delivered, before its place is written.
  void RetainContribution(SegmentIndex segment);
  // Does so for all segments, before the program gets its memory back.
  void RetainContributions();

  // ---- The end.
  // `peer` has every sum.
  void ConfirmResults(MemberIndex peer);
  // `peer` is gone: nothing is retained for it but contributions that were never sent, which are
  // deferred.
  void DropPeer(MemberIndex peer);
  // No peer waits for anything.
  void DropAllPeers();
  // All peers are done with contributions.
  void StopContributing();
  // The call has failed.
  void Fail();
  // The call is over: data of the stage that cannot begin for a peer is deferred.
  void DeferRest(Stage stage);
  // The share of this rank's data in the call that peers have not acknowledged.
  double InFlight() const;
  // The undelivered bytes of contributions, and with `sums` those of sums, too.
  std::uint64_t UndeliveredBytes(bool sums) const;

 private:
  Outbox& outbox(MemberIndex member) { return outboxes_[member.index()]; }
  std::span<const std::byte> SegmentPayload(MemberIndex to, const Outbox::Item& item,
                                            std::span<std::byte> out);
  // Data of earlier calls is in the segment.
  bool HoldsDeferred(MemberIndex to, const Outbox::Item& item) const;
  // Segments of either kind for a member: none of a stage that the collective lacks.
  std::uint32_t ContributionsFor(MemberIndex to) const;
  std::uint32_t SumsFor(MemberIndex to) const;
  bool Contributes(MemberIndex to) const;
  bool IsTurnOf(MemberIndex to) const;
  bool Needed(MemberIndex to, const Outbox::Item& item) const;
  // A sum of another member.
  bool IsRelayed(const Outbox::Item& item) const {
    return item.kind == DatagramKind::kResult &&
           collective_.layout.OwnerOf(item.segment) != collective_.self;
  }
  void Begin(Stage stage, MemberIndex to);
  void DeliverContributions(MemberIndex to);
  void DeliverSums(MemberIndex to);
  // Nothing of the stage was sent to `to`: it is deferred.
  void DeferSends(Stage stage, MemberIndex to);
  std::unique_ptr<SegmentStore>& Joining(Stage stage, MemberIndex to) {
    return joining_[Index(stage)][to.index()];
  }
  // The deferred sends that join a segment; null if there are none.
  const SegmentStore* JoiningOf(MemberIndex to, const Outbox::Item& item) const;
  // A contribution or a sum without deferred data that joins it; in `scratch` if it lies across
  // leaves.
  std::span<const std::byte> OwnPayload(const Outbox::Item& item,
                                        std::span<std::byte> scratch) const;
  void WriteRounded(MemberIndex to, const Outbox::Item& item, std::span<std::byte> out);
  // Writes over a contribution, with deferred data that has joined it.
  void ReplaceContribution(SegmentIndex segment, std::span<const std::byte> values);
  SegmentStore* RetainedOf(SegmentIndex segment) const;

  Collective& collective_;
  CallPolicy& policy_;
  SegmentCodec& codec_;
  const ReduceScatterStage& sums_;
  BucketView& bucket_;
  BufferPool& pool_;
  std::span<const MemberIndex> send_order_;
  std::uint16_t incast_ = UINT16_MAX;
  bool contributes_ = false;
  std::uint64_t retransmitted_ = 0;
  std::vector<Outbox> outboxes_;  // one for each member; that of this rank stays empty
  Bitmap delivered_;              // segments whose owner is done with this rank's contribution
  std::vector<std::uint32_t> undelivered_;  // contributions to each member; if CountsDeliveries()
  std::vector<std::unique_ptr<SegmentStore>> retained_;  // contributions to each member
  // The deferred sends that join each stage, for each member.
  std::array<std::vector<std::unique_ptr<SegmentStore>>, kStages> joining_;
  std::vector<std::byte> scratch_;  // one segment across leaves
  bool relays_sums_ = false;        // other members forward those of this rank
  RelayedSums relayed_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_CALL_SENDER_H_
