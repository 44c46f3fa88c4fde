#include "ffi/protocol/call/call_sender.h"

#include <algorithm>

#include "ffi/base/check.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

CallSender::CallSender(Collective& collective, CallPolicy& policy, SegmentCodec& codec,
                       const ReduceScatterStage& sums, BucketView& bucket, BufferPool& pool,
                       std::span<const MemberIndex> send_order)
    : collective_(collective),
      policy_(policy),
      codec_(codec),
      sums_(sums),
      bucket_(bucket),
      pool_(pool),
      send_order_(send_order),
      delivered_(collective.layout.segments()),
      undelivered_(collective.layout.members()),
      retained_(collective.layout.members()),
      scratch_(collective.layout.LargestSegmentBytes()),
      relayed_(collective, pool) {
  const BucketLayout& layout = collective.layout;
  for (const MemberIndex member : layout.Members()) {
    outboxes_.emplace_back(layout.FirstSegment(member), ContributionsFor(member),
                           layout.FirstSegment(collective.self), SumsFor(member));
  }
  for (auto& joining : joining_) joining.resize(layout.members());
}

std::uint32_t CallSender::ContributionsFor(MemberIndex to) const {
  const bool none = to == collective_.self || !HasReduceScatter(collective_.spec);
  return none ? 0 : collective_.layout.SegmentsOf(to);
}

std::uint32_t CallSender::SumsFor(MemberIndex to) const {
  const bool none = to == collective_.self || !HasAllGather(collective_.spec);
  return none ? 0 : collective_.layout.SegmentsOf(collective_.self);
}

void CallSender::Submit() {
  contributes_ = true;
  for (const MemberIndex member : collective_.others) {
    outbox(member).OfferContributions();
    if (policy_.CountsDeliveries()) undelivered_[member.index()] = ContributionsFor(member);
  }
}

bool CallSender::Contributes(MemberIndex to) const {
  return contributes_ && policy_.MaySend(Stage::kReduceScatter, to);
}

bool CallSender::IsTurnOf(MemberIndex to) const {
  // The first `incast` peers of the schedule that have not been sent everything once. A
  // retransmission neither waits for its turn nor takes one: a peer that refuses delays no other.
  if (incast_ + 1u >= outboxes_.size()) return true;
  std::uint16_t before = 0;
  for (const MemberIndex peer : send_order_) {
    if (peer == to) return true;
    const Outbox& other = outboxes_[peer.index()];
    const bool waits = other.contributing() && !other.stalled();
    if (waits && policy_.MaySend(Stage::kReduceScatter, peer) && ++before >= incast_) return false;
  }
  return false;
}

void CallSender::RelaySums(std::span<const MemberIndex> relays) {
  relays_sums_ = !relays.empty();
  if (!relays_sums_) return;
  std::size_t turn = 0;
  for (const SegmentIndex segment : collective_.layout.Segments(collective_.self)) {
    const MemberIndex relay = relays[turn++ % relays.size()];
    for (const MemberIndex member : collective_.others) {
      if (member != relay) outbox(member).Deliver(segment);
    }
  }
}

bool CallSender::Relay(MemberIndex from, SegmentIndex segment, std::span<const std::byte> sum) {
  if (collective_.layout.OwnerOf(segment) != from) return false;
  return relayed_.Add(segment, sum);
}

bool CallSender::Needed(MemberIndex to, const Outbox::Item& item) const {
  if (item.kind != DatagramKind::kContribution) return !outboxes_[to.index()].PeerHas(item.segment);
  return contributes_ && !delivered_.Contains(item.segment.index());
}

std::optional<Outbox::Item> CallSender::Next(MemberIndex to) {
  const bool contribute = Contributes(to) && IsTurnOf(to);
  std::span<const SegmentIndex> sums;
  if (policy_.MaySend(Stage::kAllGather, to)) sums = sums_.sums();
  while (const auto item = outbox(to).Next(sums, contribute)) {
    if (Needed(to, *item)) {
      Begin(StageOf(item->kind), to);
      return item;
    }
    outbox(to).Pop(*item);
  }
  if (const auto relayed = relayed_.Next(to)) {
    return Outbox::Item{.kind = DatagramKind::kResult,
                        .segment = relayed->segment,
                        .retransmission = relayed->retransmission};
  }
  return std::nullopt;
}

void CallSender::Begin(Stage stage, MemberIndex to) {
  if (auto joining = policy_.Begin(stage, to)) Joining(stage, to) = std::move(joining);
}

std::uint32_t CallSender::Unsent(MemberIndex to) const {
  const Outbox& box = outboxes_[to.index()];
  return box.Remaining(DatagramKind::kContribution) + box.Remaining(DatagramKind::kResult) +
         relayed_.Unsent(to);
}

// ---- Payloads.

const SegmentStore* CallSender::JoiningOf(MemberIndex to, const Outbox::Item& item) const {
  const auto& joining = joining_[Index(StageOf(item.kind))][to.index()];
  return joining && joining->Contains(item.segment) ? joining.get() : nullptr;
}

SegmentStore* CallSender::RetainedOf(SegmentIndex segment) const {
  const auto& retained = retained_[collective_.layout.OwnerOf(segment).index()];
  return retained && retained->Contains(segment) ? retained.get() : nullptr;
}

std::span<const std::byte> CallSender::OwnPayload(const Outbox::Item& item,
                                                  std::span<std::byte> scratch) const {
  if (IsRelayed(item)) return relayed_.Sum(item.segment);
  if (item.kind == DatagramKind::kResult) return sums_.Sum(item.segment);
  if (const SegmentStore* retained = RetainedOf(item.segment)) return retained->Get(item.segment);
  return bucket_.Read(collective_.layout.Segment(item.segment), scratch);
}

CallSender::Run CallSender::RunFrom(MemberIndex to, const Outbox::Item& first,
                                    std::size_t bytes_max) const {
  Run run{.first = first, .bytes = PayloadBytes(first)};
  const bool sum = first.kind == DatagramKind::kResult;
  // A note of CallTiming belongs to one segment.
  const bool several = codec_.rounds() && (sum || !policy_.LosesLate());
  while (several && run.segments < UINT8_MAX &&
         outboxes_[to.index()].Follows(first, run.segments, sums_.sums())) {
    Outbox::Item next = first;
    next.segment = SegmentIndex(first.segment.value() + run.segments);
    const std::size_t bytes = run.bytes + PayloadBytes(next);
    if (bytes > bytes_max || !Needed(to, next)) break;
    // Encoded sums lie apart from those that deferred data joins.
    if ((JoiningOf(to, next) == nullptr) != (JoiningOf(to, first) == nullptr)) break;
    if (HoldsDeferred(to, next) != HoldsDeferred(to, first)) break;
    if (sum && sums_.contributors(next.segment) != sums_.contributors(first.segment)) break;
    ++run.segments;
    run.bytes = bytes;
  }
  return run;
}

void CallSender::Sent(MemberIndex to, const Run& run) {
  if (IsRelayed(run.first)) return relayed_.Pop(to);
  Outbox::Item item = run.first;
  for (std::uint8_t i = 0; i < run.segments; ++i) {
    item.segment = SegmentIndex(run.first.segment.value() + i);
    outbox(to).Pop(item);
  }
}

std::span<const std::byte> CallSender::Payload(MemberIndex to, const Run& run,
                                               std::span<std::byte> out) {
  if (run.segments == 1) return SegmentPayload(to, run.first, out);
  std::span<const std::byte> whole;
  Outbox::Item item = run.first;
  for (std::uint8_t i = 0; i < run.segments; ++i) {
    item.segment = SegmentIndex(run.first.segment.value() + i);
    const std::span<std::byte> place = out.subspan(whole.size(), PayloadBytes(item));
    const std::span<const std::byte> payload = SegmentPayload(to, item, place);
    // Encoded sums are adjacent.
    OR_CHECK(whole.empty() || payload.data() == whole.data() + whole.size());
    whole = {whole.empty() ? payload.data() : whole.data(), whole.size() + payload.size()};
  }
  return whole;
}

std::span<const std::byte> CallSender::SegmentPayload(MemberIndex to, const Outbox::Item& item,
                                                      std::span<std::byte> out) {
  if (codec_.active()) {
    const bool whole = item.kind == DatagramKind::kResult && JoiningOf(to, item) == nullptr;
    if (whole && codec_.rounds()) return codec_.EncodedSum(item.segment);
    WriteRounded(to, item, out);
    return out;
  }
  const std::span<const std::byte> payload = OwnPayload(item, out);
  const SegmentStore* const joining = JoiningOf(to, item);
  if (joining == nullptr) return payload;
  const ElementType type = collective_.spec.element_type;
  const std::array<const std::byte*, 2> both = {payload.data(), joining->Get(item.segment).data()};
  SumContributions(type, both, out.size() / SizeOf(type), 1.0, out.data());
  return out;
}

void CallSender::WriteRounded(MemberIndex to, const Outbox::Item& item, std::span<std::byte> out) {
  const bool contribution = item.kind == DatagramKind::kContribution;
  SegmentStore* const errors = policy_.errors();
  std::array<const std::byte*, 3> parts = {OwnPayload(item, scratch_).data()};
  std::size_t count = 1;
  // Deferred data that joins a contribution is part of it once it is sent.
  const bool joins = !(contribution && item.retransmission);
  if (const SegmentStore* joining = joins ? JoiningOf(to, item) : nullptr) {
    parts[count++] = joining->Get(item.segment).data();
  }
  if (joins && contribution && errors != nullptr && errors->Contains(item.segment)) {
    parts[count++] = errors->Get(item.segment).data();
  }
  const std::span<const std::byte> exact =
      codec_.Encode(item.kind, item.segment, std::span(parts).first(count), out);
  if (errors == nullptr || item.retransmission || (!contribution && count == 1)) return;
  if (!contribution) {
    codec_.Round(item.segment, exact, out,
                 &collective_.deferred->sending(Stage::kAllGather, to).deferred_sends);
    return;
  }
  errors->Remove(item.segment);
  ReplaceContribution(item.segment, codec_.Round(item.segment, exact, out, errors));
}

void CallSender::ReplaceContribution(SegmentIndex segment, std::span<const std::byte> values) {
  if (SegmentStore* retained = RetainedOf(segment)) {
    retained->Replace(segment, values);
  } else {
    bucket_.Write(collective_.layout.Segment(segment).offset, values);
  }
}

bool CallSender::HoldsDeferred(MemberIndex to, const Outbox::Item& item) const {
  const bool sum = item.kind == DatagramKind::kResult;
  if (IsRelayed(item)) return false;
  return (sum && sums_.HoldsDeferred(item.segment)) || JoiningOf(to, item) != nullptr;
}

void CallSender::FillHeader(Instant now, CallId call, MemberIndex to, const Run& run,
                            Header& header) const {
  // Chosen: that all of them are lost is rarer than anything else that goes wrong.
  constexpr std::uint32_t kTailSegments = 4;
  const Outbox::Item& item = run.first;
  const bool contribution = item.kind == DatagramKind::kContribution;
  header.kind = item.kind;
  header.call = call;
  header.segment = item.segment;
  header.flags = policy_.FlagsFor(to);
  if (run.segments > 1) header.flags |= kFlagSeveral;
  const std::uint32_t left = outboxes_[to.index()].Remaining(item.kind);
  if (left < kTailSegments + run.segments) header.flags |= kFlagTail;
  if (item.retransmission) header.flags |= kFlagRetransmission;
  if (HoldsDeferred(to, item)) header.flags |= kFlagDeferred;
  if (contribution) {
    header.sender_info = policy_.SenderInfoFor(now, to, item.segment);
  } else if (IsRelayed(item)) {
    header.flags |= kFlagRelayed;
    header.contributors = collective_.layout.members();
  } else {
    if (relays_sums_) header.flags |= kFlagRelayed;
    header.contributors = sums_.contributors(item.segment);
  }
}

// ---- Deliveries and losses.

CallSender::Retransmission CallSender::HandleLoss(MemberIndex to, const Outbox::Item& item,
                                                  bool refused) {
  const bool contribution = item.kind == DatagramKind::kContribution;
  const bool relayed = IsRelayed(item);
  if (relayed ? relayed_.Delivered(to, item.segment) : !Needed(to, item)) {
    return Retransmission::kNotNeeded;
  }
  // The call was erased, and has opened again for a peer that is behind.
  if (!contribution && !relayed && !sums_.HasSum(item.segment)) return Retransmission::kNotNeeded;
  if (!policy_.Retransmits(StageOf(item.kind), to)) {
    // Nothing is retained for a loss that is not repaired.
    if (!contribution) outbox(to).Deliver(item.segment);
    return Retransmission::kAbandoned;
  }
  relayed ? relayed_.Retransmit(to, item.segment) : outbox(to).Retransmit(item);
  retransmitted_ += !refused;
  return Retransmission::kAgain;
}

bool CallSender::HandleDelivery(MemberIndex to, const Outbox::Item& item) {
  if (item.kind == DatagramKind::kContribution) {
    if (!policy_.CountsDeliveries()) return false;
    DeliverContribution(item.segment);
    return ContributionsDelivered(to);
  }
  if (IsRelayed(item)) {
    relayed_.Deliver(to, item.segment);
    return false;
  }
  outbox(to).Deliver(item.segment);
  if (!outbox(to).Delivered()) return false;
  DeliverSums(to);
  return true;
}

void CallSender::DeliverContribution(SegmentIndex segment) {
  if (policy_.CountsDeliveries() && !contributes_) return;
  if (!delivered_.Insert(segment.index()) || !policy_.CountsDeliveries()) return;
  const MemberIndex owner = collective_.layout.OwnerOf(segment);
  if (retained_[owner.index()]) retained_[owner.index()]->Remove(segment);
  OR_CHECK(undelivered_[owner.index()] > 0);
  if (--undelivered_[owner.index()] > 0) return;
  policy_.Deliver(Stage::kReduceScatter, owner);
  Joining(Stage::kReduceScatter, owner).reset();
}

void CallSender::DeliverContributions(MemberIndex to) {
  if (ContributionsDelivered(to)) return;
  for (const SegmentIndex segment : collective_.layout.Segments(to)) DeliverContribution(segment);
}

void CallSender::DeliverSums(MemberIndex to) {
  policy_.Deliver(Stage::kAllGather, to);
  Joining(Stage::kAllGather, to).reset();
}

void CallSender::RetainContribution(SegmentIndex segment) {
  const MemberIndex owner = collective_.layout.OwnerOf(segment);
  if (owner == collective_.self || !contributes_ || delivered_.Contains(segment.index())) return;
  auto& retained = retained_[owner.index()];
  if (!retained) {
    retained = std::make_unique<SegmentStore>(
        collective_.layout, collective_.layout.FirstSegment(owner),
        collective_.layout.SegmentsOf(owner), collective_.spec.element_type, pool_);
  }
  if (retained->Contains(segment)) return;
  retained->Add(segment, bucket_.Read(collective_.layout.Segment(segment), scratch_));
}

void CallSender::RetainContributions() {
  for (const MemberIndex owner : collective_.others) {
    if (ContributionsDelivered(owner)) continue;
    for (const SegmentIndex segment : collective_.layout.Segments(owner)) {
      RetainContribution(segment);
    }
  }
}

bool CallSender::Contributed(MemberIndex to) const {
  if (!policy_.WaitsForDelivery()) return true;
  return policy_.Retransmits(Stage::kReduceScatter, to) ? ContributionsDelivered(to)
                                                        : !outboxes_[to.index()].contributing();
}

// ---- The end.

void CallSender::ConfirmResults(MemberIndex peer) {
  outbox(peer).DeliverAll();
  relayed_.DropPeer(peer);
  DeliverSums(peer);
}

void CallSender::DropPeer(MemberIndex peer) {
  // Data of a drain joins no later call.
  if (!ContributionsDelivered(peer) && policy_.DefersUnsent(Stage::kReduceScatter, peer)) {
    DeferSends(Stage::kReduceScatter, peer);
  }
  ConfirmResults(peer);
  DeliverContributions(peer);
  outbox(peer).AbandonContributions();
}

void CallSender::DropAllPeers() {
  for (Outbox& outbox : outboxes_) {
    outbox.DeliverAll();
    outbox.AbandonContributions();
  }
}

void CallSender::StopContributing() {
  contributes_ = false;
  std::ranges::fill(undelivered_, 0);
  for (Outbox& outbox : outboxes_) outbox.AbandonContributions();
}

void CallSender::Fail() {
  for (const MemberIndex member : collective_.others) {
    DeliverContributions(member);
    outbox(member).AbandonContributions();
    // Peers get the sums all the same where those are deferred.
    if (!policy_.retains() || policy_.drains()) ConfirmResults(member);
  }
}

void CallSender::DeferRest(Stage stage) {
  const bool sums = stage == Stage::kAllGather;
  for (const MemberIndex to : collective_.others) {
    const bool delivered = sums ? outbox(to).Delivered() : ContributionsDelivered(to);
    if (delivered || !policy_.DefersUnsent(stage, to)) continue;
    if (policy_.MaySend(stage, to)) {
      Begin(stage, to);
      continue;
    }
    DeferSends(stage, to);
    if (sums) ConfirmResults(to);
  }
}

void CallSender::DeferSends(Stage stage, MemberIndex to) {
  const bool contributions = stage == Stage::kReduceScatter;
  const auto kind = contributions ? DatagramKind::kContribution : DatagramKind::kResult;
  for (const SegmentIndex segment :
       collective_.layout.Segments(contributions ? to : collective_.self)) {
    collective_.deferred->sending(stage, to).deferred_sends.Add(
        segment, OwnPayload({.kind = kind, .segment = segment}, scratch_));
  }
  if (!contributions) return;
  DeliverContributions(to);
  outbox(to).AbandonContributions();
}

double CallSender::InFlight() const {
  std::uint64_t all = 0;
  std::uint64_t undelivered = 0;
  for (const MemberIndex member : collective_.others) {
    all += ContributionsFor(member) + SumsFor(member);
    undelivered += undelivered_[member.index()] + outboxes_[member.index()].undelivered();
  }
  return all == 0 ? 0.0 : static_cast<double>(undelivered) / static_cast<double>(all);
}

std::uint64_t CallSender::UndeliveredBytes(bool sums) const {
  std::uint64_t bytes = 0;
  for (const MemberIndex member : collective_.others) {
    bytes += collective_.layout.BytesOf(member, undelivered_[member.index()]);
    const std::size_t lacks = sums ? outboxes_[member.index()].undelivered() : 0;
    bytes += collective_.layout.BytesOf(collective_.self, lacks);
  }
  return bytes;
}

}  // namespace optireduce
