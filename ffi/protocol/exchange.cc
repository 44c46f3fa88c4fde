#include "ffi/protocol/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Chosen: what is still under way when the last segments are there comes within a twentieth of the
// stage's time. The second stage waits twice as long: owners may have to close the first one.
constexpr int kReduceScatterGraceShare = 20;
constexpr int kAllGatherGraceShare = 10;

}  // namespace

Exchange::Exchange(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
                   std::span<const MemberIndex> send_order)
    : collective_(collective),
      sequence_(sequence),
      opened_at_(now),
      send_order_(send_order),
      pool_(pool),
      reduction_(collective.layout, collective.self, collective.spec.element_type, pool),
      gathered_(collective.layout.segments()),
      heard_(collective.layout.members()),
      last_from_(collective.self) {
  const BucketLayout& layout = collective.layout;
  contributed_tails_.seen.resize(layout.members());
  result_tails_.seen.resize(layout.members());
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    const bool self = member == collective.self;
    outboxes_.emplace_back(layout.FirstSegment(member), self ? 0 : layout.SegmentsOf(member),
                           layout.FirstSegment(collective.self),
                           self ? 0 : layout.SegmentsOf(collective.self));
    if (!self) {
      contributed_tails_.missing += layout.SegmentsOf(collective.self) > 0;
      result_tails_.missing += layout.SegmentsOf(member) > 0;
    }
    // Contributions exist only once the program has called.
    outboxes_.back().AbandonContributions();
  }
}

void Exchange::Submit(Instant now, Submission submission) {
  OR_CHECK(!submitted());
  Expire(now);
  const BucketLayout& layout = collective_.layout;
  submitted_at_ = now;
  token_ = submission.token;
  bucket_ = BucketView(submission.leaves, SizeOf(collective_.spec.element_type));
  OR_CHECK(bucket_.bytes() == layout.bytes());
  std::size_t segment_bytes_max = 0;
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    if (layout.SegmentsOf(member) == 0) continue;
    segment_bytes_max =
        std::max<std::size_t>(segment_bytes_max, layout.Segment(layout.FirstSegment(member)).bytes);
    if (member == collective_.self || reduced_closed_) continue;
    outbox(member) =
        Outbox(layout.FirstSegment(member), layout.SegmentsOf(member),
               layout.FirstSegment(collective_.self), layout.SegmentsOf(collective_.self));
  }
  scratch_.resize(segment_bytes_max);
  contributed_tails_.last = std::max(contributed_tails_.last, now);
  result_tails_.last = std::max(result_tails_.last, now);
  // Results that were here first.
  for (std::uint32_t s = 0; s < layout.segments() && early_results_.size() > 0; ++s) {
    const SegmentIndex segment(s);
    if (!gathered_.Contains(s) || layout.OwnerOf(segment) == collective_.self) continue;
    const ByteRange range = layout.Segment(segment);
    bucket_.Write(range.offset, {early_results_.data() + range.offset, range.bytes});
  }
  early_results_ = Buffer();
  for (const SegmentIndex segment : sums_) {
    bucket_.Write(layout.Segment(segment).offset, reduction_.Sum(segment));
  }
  reduction_.Attach(&bucket_);
  for (std::uint32_t i = 0; i < layout.SegmentsOf(collective_.self); ++i) {
    const SegmentIndex segment(layout.FirstSegment(collective_.self).value() + i);
    if (reduction_.Ready(segment)) ReduceSegment(segment, /*rescale=*/false);
  }
}

Exchange::Receipt Exchange::TakeContribution(Instant now, MemberIndex from, SegmentIndex segment,
                                             bool tail, std::span<const std::byte> payload) {
  const BucketLayout& layout = collective_.layout;
  if (segment.value() >= layout.segments() || layout.OwnerOf(segment) != collective_.self ||
      payload.size() != layout.Segment(segment).bytes) {
    return Receipt::kMismatched;
  }
  Heard(from);
  // Of this segment nothing at all was there at the close.
  if (reduced_closed_ && !reduction_.Reduced(segment)) {
    ++stats_.late;
    return Receipt::kLate;
  }
  switch (reduction_.Receive(from, segment, payload)) {
    case Reduction::Receipt::kDuplicate:
      return Receipt::kDuplicate;
    case Reduction::Receipt::kLate:
      ++stats_.late;
      return Receipt::kLate;
    case Reduction::Receipt::kNew:
      break;
  }
  last_from_ = from;
  contributed_tails_.last = now;
  if (tail) contributed_tails_.See(from);
  if (reduction_.Ready(segment)) ReduceSegment(segment, /*rescale=*/false);
  return Receipt::kNew;
}

Exchange::Receipt Exchange::TakeResult(Instant now, MemberIndex from, SegmentIndex segment,
                                       std::uint16_t contributors, bool tail,
                                       std::span<const std::byte> payload) {
  const BucketLayout& layout = collective_.layout;
  if (segment.value() >= layout.segments() || layout.OwnerOf(segment) != from ||
      from == collective_.self || payload.size() != layout.Segment(segment).bytes ||
      contributors == 0 || contributors > layout.members()) {
    return Receipt::kMismatched;
  }
  const bool early = !submitted();
  // Where nothing is dropped, a sum contains this rank's contribution: it cannot come before it.
  if (early && collective_.spec.reduce_scatter == LatePolicy::kWait) return Receipt::kMismatched;
  Heard(from);
  if (gathered_.Contains(segment.index())) return Receipt::kDuplicate;
  if (finished_ || closed_) {
    ++stats_.late;
    return Receipt::kLate;
  }
  const std::uint64_t offset = layout.Segment(segment).offset;
  if (early) {
    if (early_results_.size() == 0) early_results_ = pool_.Take(layout.bytes());
    std::memcpy(early_results_.data() + offset, payload.data(), payload.size());
  } else {
    bucket_.Write(offset, payload);
  }
  gathered_.Insert(segment.index());
  CountResult(segment, contributors);
  last_from_ = from;
  result_tails_.last = now;
  if (tail) result_tails_.See(from);
  return Receipt::kNew;
}

void Exchange::ReduceSegment(SegmentIndex segment, bool rescale) {
  if (!reduction_.Reduce(segment, rescale)) return;
  const std::span<const std::byte> sum = reduction_.Sum(segment);
  if (submitted()) bucket_.Write(collective_.layout.Segment(segment).offset, sum);
  sums_.push_back(segment);
  gathered_.Insert(segment.index());
  CountResult(segment, reduction_.contributions(segment));
}

void Exchange::CountResult(SegmentIndex segment, std::uint16_t contributors) {
  const std::uint64_t bytes = collective_.layout.Segment(segment).bytes;
  result_bytes_ += bytes;
  contributed_ += static_cast<double>(bytes) * contributors;
}

bool Exchange::MayContribute(MemberIndex to) const {
  // The first `incast` peers of the schedule that have not been sent everything once. What is sent
  // again does not wait for its turn, nor keep it: a peer that refuses delays nobody else.
  std::uint16_t before = 0;
  for (const MemberIndex peer : send_order_) {
    if (peer == to) return true;
    const Outbox& other = outboxes_[peer.index()];
    if (other.contributing() && !other.stalled() && ++before >= incast_) return false;
  }
  return false;
}

std::optional<Outbox::Item> Exchange::Next(MemberIndex to) {
  const bool contribute = submitted() && !finished_ && MayContribute(to);
  while (const auto item = outbox(to).Next(sums_, contribute)) {
    // The owner has closed this segment: a contribution to it is no use any more.
    if (item->kind != DatagramKind::kContribution || !gathered_.Contains(item->segment.index())) {
      return item;
    }
    outbox(to).Pop(*item);
  }
  return std::nullopt;
}

std::size_t Exchange::PayloadBytes(const Outbox::Item& item) const {
  return collective_.layout.Segment(item.segment).bytes;
}

void Exchange::WritePayload(const Outbox::Item& item, std::span<std::byte> out) const {
  const std::byte* from = item.kind == DatagramKind::kResult
                              ? reduction_.Sum(item.segment).data()
                              : bucket_.Read(collective_.layout.Segment(item.segment), scratch_);
  std::memcpy(out.data(), from, out.size());
}

std::uint16_t Exchange::Contributors(const Outbox::Item& item) const {
  return item.kind == DatagramKind::kResult ? reduction_.contributions(item.segment) : 0;
}

Exchange::Repair Exchange::Lost(MemberIndex to, const Outbox::Item& item) {
  const bool contribution = item.kind == DatagramKind::kContribution;
  // A result for the segment shows that its owner needs no contribution to it.
  if (contribution && (finished_ || gathered_.Contains(item.segment.index()))) {
    return Repair::kNotNeeded;
  }
  if (!contribution && outbox(to).Delivered()) return Repair::kNotNeeded;
  const CollectiveSpec& spec = collective_.spec;
  if ((contribution ? spec.reduce_scatter : spec.all_gather) == LatePolicy::kDrop) {
    // Nothing is kept for what nobody will ask for.
    if (!contribution) outbox(to).Delivered(item.segment);
    return Repair::kAbandoned;
  }
  outbox(to).Lost(item);
  ++stats_.repaired;
  return Repair::kAgain;
}

void Exchange::Delivered(MemberIndex to, const Outbox::Item& item) {
  if (item.kind == DatagramKind::kResult) outbox(to).Delivered(item.segment);
}

void Exchange::Release(MemberIndex peer) {
  outbox(peer).DeliverAll();
  outbox(peer).AbandonContributions();
}

Instant Exchange::ReduceScatterDeadline() const {
  if (collective_.spec.reduce_scatter == LatePolicy::kWait) return kNever;
  return SaturatingAdd(opened_at_, collective_.spec.reduce_scatter_deadline);
}

Instant Exchange::CallDeadline() const {
  if (collective_.spec.all_gather == LatePolicy::kWait) return kNever;
  return SaturatingAdd(
      opened_at_, collective_.spec.reduce_scatter_deadline + collective_.spec.all_gather_deadline);
}

Instant Exchange::EarlyReduceScatter() const {
  if (collective_.spec.reduce_scatter == LatePolicy::kWait) return kNever;
  if (!submitted() || contributed_tails_.missing > 0) return kNever;
  return contributed_tails_.last +
         collective_.spec.reduce_scatter_deadline / kReduceScatterGraceShare;
}

Instant Exchange::EarlyCall() const {
  if (collective_.spec.all_gather == LatePolicy::kWait) return kNever;
  if (!reduced_closed_ && !reduction_.finished()) return kNever;
  if (!submitted() || result_tails_.missing > 0) return kNever;
  return result_tails_.last + collective_.spec.all_gather_deadline / kAllGatherGraceShare;
}

Instant Exchange::deadline() const {
  if (expired_) return kNever;
  Instant at = CallDeadline();
  if (!reduced_closed_) at = std::min({at, ReduceScatterDeadline(), EarlyReduceScatter()});
  if (!closed_ && !finished_) at = std::min(at, EarlyCall());
  return at;
}

int Exchange::Expire(Instant now) {
  int expired = 0;
  if (!reduced_closed_ && now >= std::min(ReduceScatterDeadline(), EarlyReduceScatter())) {
    if (!reduction_.finished()) ++expired;
    CloseReduceScatter();
  }
  if (!closed_ && !finished_ && now >= std::min(CallDeadline(), EarlyCall())) {
    if (!gathered_.full()) ++expired;
    CloseAllGather();
  }
  if (!expired_ && now >= CallDeadline()) Forget();
  return expired;
}

void Exchange::CloseReduceScatter() {
  reduced_closed_ = true;
  for (std::uint32_t i = 0; i < collective_.layout.SegmentsOf(collective_.self); ++i) {
    const SegmentIndex segment(collective_.layout.FirstSegment(collective_.self).value() + i);
    if (!reduction_.Reduced(segment)) ReduceSegment(segment, /*rescale=*/true);
  }
}

void Exchange::CloseAllGather() { closed_ = true; }

void Exchange::Forget() {
  expired_ = true;
  closed_ = true;
  // Whoever opened this call at the same time has closed it too.
  for (Outbox& outbox : outboxes_) {
    outbox.DeliverAll();
    outbox.AbandonContributions();
  }
}

CallDone Exchange::Finish(Instant now, Status status) {
  OR_CHECK(submitted() && !finished_);
  finished_ = true;
  const BucketLayout& layout = collective_.layout;
  if (status.ok() && !gathered_.full()) {
    // Zero, not the rank's own value that still lies there: that would be a result of one rank.
    for (std::uint32_t s = 0; s < layout.segments(); ++s) {
      if (!gathered_.Contains(s)) bucket_.Zero(layout.Segment(SegmentIndex(s)));
    }
  }
  if (layout.bytes() > 0) {
    const auto all = static_cast<double>(layout.bytes());
    stats_.missing_results = 1.0 - static_cast<double>(result_bytes_) / all;
  }
  if (result_bytes_ > 0) {
    stats_.missing_contributions =
        1.0 - contributed_ / (static_cast<double>(result_bytes_) * layout.members());
  }
  stats_.elapsed = now - *submitted_at_;
  stats_.slowest = collective_.RankOf(Slowest());
  reduction_.Detach();
  bucket_ = BucketView();
  for (Outbox& outbox : outboxes_) {
    outbox.AbandonContributions();
    if (!status.ok()) outbox.DeliverAll();
  }
  return {.token = token_, .status = std::move(status), .stats = stats_};
}

bool Exchange::OnlyHeard(Rank from) const {
  for (std::size_t m = 0; m < heard_.size(); ++m) {
    if (heard_[m] && collective_.spec.members[m] != from) return false;
  }
  return true;
}

bool Exchange::Needs(MemberIndex from) const {
  const BucketLayout& layout = collective_.layout;
  if (reduction_.received(from) < layout.SegmentsOf(collective_.self)) return true;
  for (std::uint32_t i = 0; i < layout.SegmentsOf(from) && !gathered_.full(); ++i) {
    if (!gathered_.Contains(layout.FirstSegment(from).value() + i)) return true;
  }
  return false;
}

MemberIndex Exchange::Slowest() const {
  // Whoever left the most out, else whoever came last.
  const BucketLayout& layout = collective_.layout;
  std::size_t most = 0;
  MemberIndex slowest = last_from_;
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    std::size_t missing = layout.SegmentsOf(collective_.self) - reduction_.received(member);
    for (std::uint32_t i = 0; i < layout.SegmentsOf(member) && !gathered_.full(); ++i) {
      if (!gathered_.Contains(layout.FirstSegment(member).value() + i)) ++missing;
    }
    if (missing > most) {
      most = missing;
      slowest = member;
    }
  }
  return slowest;
}

bool Exchange::removable() const {
  if (!finished_) return false;
  return std::ranges::all_of(outboxes_, [](const Outbox& outbox) { return outbox.Delivered(); }) ||
         expired_;
}

}  // namespace optireduce
