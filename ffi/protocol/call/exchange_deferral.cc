// The part of an exchange whose late data is deferred into later calls: what is kept for whom, and
// under which identity it is sent.

#include <algorithm>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/call/exchange.h"

namespace optireduce {
namespace {

DatagramKind KindOf(Stage stage) {
  return stage == Stage::kReduceScatter ? DatagramKind::kContribution : DatagramKind::kResult;
}

// So many segments of a shard, whose last one may be shorter.
std::uint64_t BytesOf(const BucketLayout& layout, MemberIndex shard, std::size_t segments) {
  return std::min(segments * layout.LargestSegmentBytes(), layout.Shard(shard).bytes);
}

}  // namespace

bool Exchange::Windowed(Stage stage) const {
  if (deferred_ == nullptr) return false;
  const CollectiveSpec& spec = collective_.spec;
  return (stage == Stage::kReduceScatter ? spec.reduce_scatter : spec.all_gather) ==
         LatePolicy::kDefer;
}

bool Exchange::MaySend(Stage stage, MemberIndex to) const {
  if (!Windowed(stage)) return true;
  const SendWindow& window = deferred_->window(stage, to);
  if (window.Begun(sequence_)) return true;
  // What comes of a drain shows that everything before it has come.
  return drain_ ? window.all_delivered() : window.MayBegin(sequence_);
}

void Exchange::Begin(Stage stage, MemberIndex to) {
  if (!Windowed(stage)) return;
  SendWindow& window = deferred_->window(stage, to);
  if (window.Begun(sequence_)) return;
  window.Begin(sequence_);
  joining_[static_cast<std::size_t>(stage)][to.index()] = deferred_->PopDeferredSends(stage, to);
}

const SegmentStore* Exchange::Joining(MemberIndex to, const Outbox::Item& item) const {
  if (deferred_ == nullptr) return nullptr;
  const auto stage = item.kind == DatagramKind::kContribution ? 0u : 1u;
  const SegmentStore* const joining = joining_[stage][to.index()].get();
  return joining != nullptr && joining->Contains(item.segment) ? joining : nullptr;
}

void Exchange::Keep(SegmentIndex segment) {
  if (deferred_ == nullptr || delivered_.Contains(segment.index())) return;
  const BucketLayout& layout = collective_.layout;
  const MemberIndex owner = layout.OwnerOf(segment);
  if (owner == collective_.self) return;
  auto& kept = kept_[owner.index()];
  if (!kept) {
    kept =
        std::make_unique<SegmentStore>(layout, layout.FirstSegment(owner), layout.SegmentsOf(owner),
                                       collective_.spec.element_type, pool_);
  }
  if (kept->Contains(segment)) return;
  const ByteRange range = layout.Segment(segment);
  kept->Add(segment, {bucket_.Read(range, scratch_), range.bytes});
}

void Exchange::DeliverContribution(SegmentIndex segment) {
  if (deferred_ == nullptr || !delivered_.Insert(segment.index())) return;
  const MemberIndex owner = collective_.layout.OwnerOf(segment);
  auto& kept = kept_[owner.index()];
  if (kept) kept->Remove(segment);
  OR_CHECK(undelivered_[owner.index()] > 0);
  if (--undelivered_[owner.index()] > 0) return;
  deferred_->window(Stage::kReduceScatter, owner).Deliver(sequence_);
  joining_[static_cast<std::size_t>(Stage::kReduceScatter)][owner.index()].reset();
}

void Exchange::DeliverContributions(MemberIndex to) {
  if (deferred_ == nullptr || undelivered_[to.index()] == 0) return;
  const BucketLayout& layout = collective_.layout;
  for (std::uint32_t i = 0; i < layout.SegmentsOf(to); ++i) {
    DeliverContribution(SegmentIndex(layout.FirstSegment(to).value() + i));
  }
}

void Exchange::DeliverResults(MemberIndex to) {
  if (!Windowed(Stage::kAllGather)) return;
  deferred_->window(Stage::kAllGather, to).Deliver(sequence_);
  joining_[static_cast<std::size_t>(Stage::kAllGather)][to.index()].reset();
}

std::uint64_t Exchange::DeferredBytes() const {
  const BucketLayout& layout = collective_.layout;
  if (holds_deferred_.count() == 0 && deferred_->late_results().empty()) return 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t s = 0; s < layout.segments(); ++s) {
    const SegmentIndex segment(s);
    const bool in_sum = holds_deferred_.Contains(s) && gathered_.Contains(s);
    if (in_sum || deferred_->late_results().Contains(segment))
      bytes += layout.Segment(segment).bytes;
  }
  return bytes;
}

double Exchange::InFlight() const {
  std::uint64_t all = 0;
  std::uint64_t undelivered = 0;
  for (std::uint16_t m = 0; m < undelivered_.size(); ++m) {
    if (MemberIndex(m) == collective_.self) continue;
    all += collective_.layout.SegmentsOf(MemberIndex(m));
    all += collective_.layout.SegmentsOf(collective_.self);
    undelivered += undelivered_[m] + outboxes_[m].undelivered();
  }
  return all == 0 ? 0.0 : static_cast<double>(undelivered) / static_cast<double>(all);
}

std::uint64_t Exchange::MissedBytes() const {
  // What a drain has not brought was with a member that is gone.
  if (drain_) return 0;
  const BucketLayout& layout = collective_.layout;
  std::uint64_t bytes = layout.bytes() - result_bytes_;
  for (const std::uint32_t missed : missed_) bytes += BytesOf(layout, collective_.self, missed);
  return bytes;
}

std::uint64_t Exchange::UndeliveredBytes() const {
  if (deferred_ == nullptr || drain_ || !over()) return 0;
  const BucketLayout& layout = collective_.layout;
  std::uint64_t bytes = 0;
  for (std::uint16_t m = 0; m < undelivered_.size(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    bytes += BytesOf(layout, member, undelivered_[m]);
    if (Windowed(Stage::kAllGather) && reduction_.finished()) {
      bytes += BytesOf(layout, collective_.self, outboxes_[m].undelivered());
    }
  }
  return bytes;
}

void Exchange::Retire() {
  for (std::uint16_t m = 0; m < outboxes_.size(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    if (undelivered_[m] > 0) RetireStage(Stage::kReduceScatter, member);
    deferred_->NoteResults(member, sequence_,
                           GatheredOf(member) == collective_.layout.SegmentsOf(member));
  }
  if (reduction_.finished()) RetireSums();
}

void Exchange::RetireSums() {
  for (std::uint16_t m = 0; m < outboxes_.size(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self || outboxes_[m].Delivered()) continue;
    RetireStage(Stage::kAllGather, member);
  }
}

void Exchange::RetireStage(Stage stage, MemberIndex to) {
  // What a drain has for a peer waits until all else is there.
  if (!Windowed(stage) || drain_) return;
  if (MaySend(stage, to)) {
    Begin(stage, to);
    return;
  }
  // Nothing of it was sent yet, or else it would have begun.
  DeferSends(stage, to);
  if (stage == Stage::kAllGather) ReleaseResults(to);
}

void Exchange::DeferSends(Stage stage, MemberIndex to) {
  const bool contributions = stage == Stage::kReduceScatter;
  const BucketLayout& layout = collective_.layout;
  const MemberIndex shard = contributions ? to : collective_.self;
  for (std::uint32_t i = 0; i < layout.SegmentsOf(shard); ++i) {
    const Outbox::Item item{.kind = KindOf(stage),
                            .segment = SegmentIndex(layout.FirstSegment(shard).value() + i)};
    deferred_->deferred_sends(stage, to).Add(item.segment, OwnPayload(item, scratch_));
  }
  if (!contributions) return;
  DeliverContributions(to);
  outbox(to).AbandonContributions();
}

bool Exchange::CanFold() const {
  return deferred_ != nullptr && !drain_ && !submitted() && !over() && reduction_.finished() &&
         collective_.spec.all_gather == LatePolicy::kDefer;
}

void Exchange::Fold() {
  OR_CHECK(CanFold());
  const BucketLayout& layout = collective_.layout;
  SegmentStore& late = deferred_->late_results();
  for (std::uint32_t s = 0; s < layout.segments(); ++s) {
    const SegmentIndex segment(s);
    if (!gathered_.Contains(s)) continue;
    const ByteRange range = layout.Segment(segment);
    const bool own = layout.OwnerOf(segment) == collective_.self;
    late.Add(segment,
             own ? reduction_.Sum(segment)
                 : std::span<const std::byte>(early_results_.data() + range.offset, range.bytes));
  }
  early_results_ = Buffer();
  folded_ = true;
  Retire();
}

void Exchange::Drain() {
  if (reduced_closed_ || short_) return;
  drain_ = true;
  for (std::uint16_t m = 0; m < missed_.size(); ++m) reduction_.Await(MemberIndex(m));
}

void Exchange::Close(Instant now) {
  if (!reduced_closed_) CloseReduceScatter(now, StageExit::kExpired);
  Fold();
}

void Exchange::Exclude(Instant now, MemberIndex gone) {
  OR_CHECK(submitted() && drain_);
  Release(gone);
  const BucketLayout& layout = collective_.layout;
  reduction_.Exclude(gone);
  for (std::uint32_t i = 0; i < layout.SegmentsOf(collective_.self); ++i) {
    const SegmentIndex segment(layout.FirstSegment(collective_.self).value() + i);
    if (reduction_.Ready(segment)) ReduceSegment(segment);
  }
  NoteReduced(now);
  for (std::uint32_t i = 0; i < layout.SegmentsOf(gone); ++i) {
    gathered_.Insert(layout.FirstSegment(gone).value() + i);
  }
}

void Exchange::Compact() {
  if (over() && reduction_.finished()) reduction_.Compact(pool_);
}

void Exchange::Remember() {
  if (deferred_ == nullptr) return;
  const BucketLayout& layout = collective_.layout;
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    if (reduction_.received(member) > 0) {
      deferred_->history(Stage::kReduceScatter, member)
          .Remember(sequence_, reduction_.received_bitmap(member));
    }
    if (!Windowed(Stage::kAllGather) || GatheredOf(member) == 0) continue;
    Bitmap gathered(layout.SegmentsOf(member));
    for (std::uint32_t i = 0; i < gathered.size(); ++i) {
      if (gathered_.Contains(layout.FirstSegment(member).value() + i)) gathered.Insert(i);
    }
    deferred_->history(Stage::kAllGather, member).Remember(sequence_, std::move(gathered));
  }
}

}  // namespace optireduce
