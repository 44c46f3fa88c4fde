#include "ffi/protocol/collective/deferred_data.h"

#include <algorithm>
#include <limits>

namespace optireduce {

DeferredData::DeferredData(const BucketLayout& layout, MemberIndex self, ElementType element_type,
                           std::uint32_t max_lag, bool goes_on, BufferPool& pool)
    : layout_(layout),
      self_(self),
      goes_on_(goes_on),
      late_contributions_(layout, layout.FirstSegment(self), layout.SegmentsOf(self), element_type,
                          pool),
      late_results_(layout, SegmentIndex(0), layout.segments(), element_type, pool),
      errors_(layout, SegmentIndex(0), layout.segments(), element_type, pool) {
  for (const MemberIndex member : layout.Members()) {
    Peer peer;
    for (const MemberIndex shard : {member, self}) {
      // Contributions go to the owner of a shard; sums of this rank's shard go to every member.
      peer.sending.push_back(
          {.window = SendWindow(max_lag),
           .deferred_sends = SegmentStore(layout, layout.FirstSegment(shard),
                                          layout.SegmentsOf(shard), element_type, pool)});
      peer.history.emplace_back(max_lag);
    }
    peers_.push_back(std::move(peer));
  }
  scratch_.resize(layout.LargestSegmentBytes());
}

std::uint64_t DeferredData::MoveLateResults(BucketView& bucket) {
  return late_results_.MoveTo(bucket, SegmentIndex(0), layout_.segments());
}

std::uint64_t DeferredData::MoveDeferredSends(MemberIndex to, BucketView& bucket) {
  std::uint64_t bytes = 0;
  for (SegmentStore* store : {&sending(Stage::kReduceScatter, to).deferred_sends, &errors_}) {
    bytes += store->MoveTo(bucket, layout_.FirstSegment(to), layout_.SegmentsOf(to));
  }
  return bytes;
}

void DeferredData::DeferAll(BucketView& bucket) {
  for (const SegmentIndex segment : layout_.Segments()) {
    const ByteRange range = layout_.Segment(segment);
    const MemberIndex owner = layout_.OwnerOf(segment);
    SegmentStore& store =
        owner == self_ ? late_contributions_ : sending(Stage::kReduceScatter, owner).deferred_sends;
    store.Add(segment, bucket.Read(range, scratch_));
    bucket.Zero(range);
  }
}

std::uint64_t DeferredData::LateBytes() const {
  // Data that has come since the newest call is part of the data that this call has missed.
  std::uint64_t bytes =
      std::max(missed_bytes_, late_contributions_.held_bytes() + late_results_.held_bytes());
  for (const Peer& peer : peers_) {
    for (const Sending& sending : peer.sending) bytes += sending.deferred_sends.held_bytes();
  }
  return bytes;
}

std::unique_ptr<SegmentStore> DeferredData::PopDeferredSends(Stage stage, MemberIndex to) {
  SegmentStore& store = sending(stage, to).deferred_sends;
  if (store.empty()) return nullptr;
  auto popped = std::make_unique<SegmentStore>(std::move(store));
  // A store that was moved from is valid and unspecified. NOLINTNEXTLINE(bugprone-use-after-move)
  store.Clear();
  return popped;
}

void DeferredData::DropPeer(MemberIndex peer) {
  for (const Stage stage : kBothStages) sending(stage, peer).window.DeliverAll();
  sending(Stage::kAllGather, peer).deferred_sends.Clear();
}

bool DeferredData::Lags(const Peer& peer, Sequence call) const {
  return std::ranges::any_of(peer.sending,
                             [call](const Sending& sending) { return sending.window.Lags(call); });
}

bool DeferredData::Lags(Sequence call) const {
  return !goes_on_ && std::ranges::any_of(peers_, [&](const Peer& peer) {
    return !peer.suspended && Lags(peer, call);
  });
}

void DeferredData::SuspendLagging(Sequence call) {
  for (Peer& peer : peers_) peer.suspended = peer.suspended || Lags(peer, call);
}

void DeferredData::RecordOpening(Sequence call, Instant at) {
  openings_[opened_++ % kOpenings] = {call, at};
}

std::optional<Instant> DeferredData::OpeningOf(Sequence call) const {
  for (std::size_t i = 0; i < std::min(opened_, kOpenings); ++i) {
    if (openings_[i].first == call) return openings_[i].second;
  }
  return std::nullopt;
}

void DeferredData::ResumeCaughtUp(Sequence call) {
  for (Peer& peer : peers_) peer.suspended = peer.suspended && Lags(peer, call);
}

void DeferredData::RecordResults(MemberIndex owner, Sequence call, bool complete) {
  // Calls need not end in their order.
  Peer& peer = peers_[owner.index()];
  auto& since = peer.complete_since;
  if (!complete) {
    peer.incomplete_last = std::max(peer.incomplete_last.value_or(call), call);
    if (since && *since <= call) since.reset();
  } else if (!since && (!peer.incomplete_last || call > *peer.incomplete_last)) {
    since = call;
  }
}

std::uint16_t DeferredData::CompleteBefore(MemberIndex owner, Sequence call) const {
  const auto& since = peers_[owner.index()].complete_since;
  if (!since || *since >= call) return 0;
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(
      call.value() - since->value(), std::numeric_limits<std::uint16_t>::max()));
}

}  // namespace optireduce
