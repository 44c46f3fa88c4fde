#include "ffi/protocol/call/reduce_scatter_stage.h"

namespace optireduce {

ReduceScatterStage::ReduceScatterStage(Collective& collective, CallPolicy& policy,
                                       SegmentCodec& codec, BufferPool& pool)
    : collective_(collective),
      policy_(policy),
      codec_(codec),
      first_(collective.layout.FirstSegment(collective.self).value()),
      segments_(collective.layout.SegmentsOf(collective.self)),
      contributed_(HasReduceScatter(collective.spec) ? segments_ : 0),
      reduction_(collective.layout, collective.self, collective.spec.element_type, pool,
                 HasReduceScatter(collective.spec)),
      missed_(collective.layout.members()),
      absent_(collective.layout.members()),
      holds_deferred_(segments_),
      last_segments_(collective.layout.members()) {
  for (const MemberIndex member : collective.layout.Members()) {
    if (policy.Straggles(member)) reduction_.MakeOptional(member);
  }
  for (const MemberIndex member : collective.others) {
    if (contributed_ > 0) last_segments_.Await(member);
  }
}

void ReduceScatterStage::Submit(Instant now, BucketView& bucket) {
  absent_[collective_.self.index()] = false;
  last_segments_.Record(now);
  std::vector<std::byte> scratch(sums_.empty() ? 0 : collective_.layout.LargestSegmentBytes());
  for (const SegmentIndex segment : sums_) {
    // This rank's contribution is late for a sum that exists.
    const ByteRange range = collective_.layout.Segment(segment);
    policy_.Defer(Stage::kReduceScatter, segment, bucket.Read(range, scratch));
    bucket.Write(range.offset, Sum(segment));
  }
  reduction_.Attach(&bucket);
  ReduceReady();
}

Receipt ReduceScatterStage::Handle(Instant now, MemberIndex from, const Header& header,
                                   std::span<const std::byte> payload) {
  const SegmentIndex segment = header.segment;
  // Nothing at all of this segment was there at the close.
  if (closed() && !HasSum(segment)) return Receipt::kLate;
  policy_.HandleSenderInfo(from, header);
  const Receipt receipt = reduction_.Receive(from, segment, payload);
  if (receipt == Receipt::kLate) policy_.HandleLate(now, from, header, payload);
  if (receipt != Receipt::kNew) return receipt;
  policy_.RecordArrival(now, from, header);
  if ((header.flags & kFlagDeferred) != 0) holds_deferred_.Insert(segment.value() - first_);
  last_segments_.Record(now);
  if (header.flags & kFlagTail) last_segments_.See(from);
  if (reduction_.Ready(segment)) Reduce(segment);
  return Receipt::kNew;
}

void ReduceScatterStage::MakeOptional(MemberIndex absent) {
  absent_[absent.index()] = true;
  reduction_.MakeOptional(absent);
  if (absent != collective_.self) last_segments_.See(absent);
}

void ReduceScatterStage::Require(MemberIndex member) {
  absent_[member.index()] = false;
  reduction_.Require(member);
  if (contributed_ > 0) last_segments_.Await(member);
}

void ReduceScatterStage::Exclude(MemberIndex gone) {
  reduction_.Exclude(gone);
  ReduceReady();
}

void ReduceScatterStage::ReduceReady() {
  for (const SegmentIndex segment : collective_.layout.Segments(collective_.self)) {
    if (reduction_.Ready(segment)) Reduce(segment);
  }
}

void ReduceScatterStage::Reduce(SegmentIndex segment) {
  for (const MemberIndex member : collective_.others) {
    missed_[member.index()] += contributed_ > 0 && !reduction_.Received(member, segment);
  }
  if (policy_.retains() && collective_.deferred->late_contributions().Contains(segment)) {
    SegmentStore& late = collective_.deferred->late_contributions();
    reduction_.Reduce(segment, late.Get(segment), /*rescale=*/false, Represented());
    late.Remove(segment);
    holds_deferred_.Insert(segment.value() - first_);
  } else if (!reduction_.Reduce(segment, {}, policy_.RescalesSums(), Represented())) {
    return;
  }
  if (codec_.active()) codec_.RoundSum(segment, reduction_, policy_.errors());
  sums_.push_back(segment);
  incomplete_ = incomplete_ || contributors(segment) < collective_.layout.members();
}

std::size_t ReduceScatterStage::Represented() const {
  if (!collective_.averages_present || policy_.LosesLate()) return 0;
  // Fewer than half of the members, so that no contribution counts twice.
  const auto absent = static_cast<std::size_t>(std::ranges::count(absent_, true));
  return std::min(absent, (absent_.size() - 1) / 2);
}

void ReduceScatterStage::CloseNext() {
  while (HasSum(SegmentIndex(first_ + next_to_close_))) ++next_to_close_;
  Reduce(SegmentIndex(first_ + next_to_close_));
}

void ReduceScatterStage::Close() {
  state_ = State::kClosed;
  for (const SegmentIndex segment : collective_.layout.Segments(collective_.self)) {
    if (!HasSum(segment)) Reduce(segment);
  }
}

bool ReduceScatterStage::Drain() {
  if (closed() || incomplete_) return false;
  state_ = State::kOpen;
  for (const MemberIndex member : collective_.layout.Members()) reduction_.Require(member);
  return true;
}

}  // namespace optireduce
