// What an exchange tells CallTiming, and how far it has come.

#include <algorithm>

#include "ffi/protocol/call/exchange.h"

namespace optireduce {

void Exchange::Time(Instant now, Stage stage, MemberIndex from, const Header& header) {
  if (deferred_ == nullptr || drain_) return;
  Instant& began = began_[static_cast<std::size_t>(stage)][from.index()];
  if (began == kNever) {
    // One that was sent before does not tell when its sender began.
    began = (header.flags & kFlagRetransmission) != 0 ? opened_at_ : now;
    timing_->Began(stage, from, began - opened_at_);
  }
  const BucketLayout& layout = collective_.layout;
  const MemberIndex shard = stage == Stage::kReduceScatter ? collective_.self : from;
  timing_->Arrived(stage, from, now - opened_at_, now - began,
                   static_cast<double>(layout.Segment(header.segment).bytes) /
                       static_cast<double>(layout.Shard(shard).bytes));
}

void Exchange::TimeEnd(Instant now, Stage stage, StageExit exit) {
  if (timing_ == nullptr || deferred_ != nullptr || !submitted() || passed()) return;
  const BucketLayout& layout = collective_.layout;
  const bool first = stage == Stage::kReduceScatter;
  // From the opening, as the deadlines count: a program that starts later than its peers is waited
  // for as usual.
  StageEnd end{.exit = exit, .elapsed = now - opened_at_};
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    const MemberIndex shard = first ? collective_.self : member;
    if (member == collective_.self || absent_[m] || layout.SegmentsOf(shard) == 0) continue;
    const std::uint64_t bytes = layout.Shard(shard).bytes;
    const std::uint64_t received = first ? reduction_.received(member) : GatheredOf(member);
    end.expected_bytes += bytes;
    end.received_bytes += bytes * received / layout.SegmentsOf(shard);
  }
  if (first) {
    reduce_scatter_elapsed_ = end.elapsed;
  } else {
    end.elapsed = std::max(end.elapsed - reduce_scatter_elapsed_, Duration(1));
  }
  timing_->Ended(stage, end);
}

void Exchange::Forgo(MemberIndex absent) {
  const BucketLayout& layout = collective_.layout;
  absent_[absent.index()] = true;
  forgone_results_ += layout.SegmentsOf(absent);
  reduction_.Forgo(absent);
  if (layout.SegmentsOf(collective_.self) > 0) contributed_tails_.See(absent);
  if (layout.SegmentsOf(absent) > 0) result_tails_.See(absent);
}

void Exchange::Await(MemberIndex from) {
  const BucketLayout& layout = collective_.layout;
  absent_[from.index()] = false;
  forgone_results_ -= layout.SegmentsOf(from);
  reduction_.Await(from);
  if (layout.SegmentsOf(collective_.self) > 0) contributed_tails_.Expect(from);
  if (layout.SegmentsOf(from) > 0) result_tails_.Expect(from);
}

void Exchange::Pass(Instant now) {
  stats_.passed = true;
  if (!reduced_closed_) CloseReduceScatter(now, StageExit::kExpired);
  Forget();
}

std::optional<double> Exchange::Missing() const {
  if (!submitted() || over()) return std::nullopt;
  double missing = static_cast<double>(gathered_.size() - gathered_.count());
  for (std::uint16_t m = 0; m < collective_.layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    if (!heard_[m]) return std::nullopt;
    if (reduced_closed_) continue;
    missing += static_cast<double>(collective_.layout.SegmentsOf(collective_.self) -
                                   reduction_.received(member));
  }
  return missing;
}

std::uint32_t Exchange::GatheredOf(MemberIndex owner) const {
  const BucketLayout& layout = collective_.layout;
  const std::uint32_t segments = layout.SegmentsOf(owner);
  if (gathered_.full()) return segments;
  std::uint32_t gathered = 0;
  for (std::uint32_t i = 0; i < segments; ++i) {
    gathered += gathered_.Contains(layout.FirstSegment(owner).value() + i);
  }
  return gathered;
}

bool Exchange::Needs(MemberIndex from) const {
  const BucketLayout& layout = collective_.layout;
  return reduction_.received(from) < layout.SegmentsOf(collective_.self) ||
         GatheredOf(from) < layout.SegmentsOf(from);
}

bool Exchange::NeedsContribution(MemberIndex from) const {
  return !reduced_closed_ &&
         reduction_.received(from) < collective_.layout.SegmentsOf(collective_.self);
}

void Exchange::FindSlowest(Instant now) {
  stats_.slowest = collective_.RankOf(Slowest());
  // A rank that owns nothing gets no contributions: it cannot tell whom it waited for.
  if (collective_.layout.SegmentsOf(collective_.self) == 0) return;
  for (std::uint16_t m = 0; m < collective_.layout.members(); ++m) {
    if (arrivals_.Absent(MemberIndex(m))) stats_.absent.push_back(collective_.spec.members[m]);
  }
  const Arrivals::Latest latest = arrivals_.FindLatest(*submitted_at_, now);
  if (latest.behind == Duration::zero()) return;
  stats_.slowest = collective_.RankOf(latest.member);
  stats_.behind = latest.behind;
}

MemberIndex Exchange::Slowest() const {
  // Whoever left the most out, else whoever came last.
  const BucketLayout& layout = collective_.layout;
  std::size_t most = 0;
  MemberIndex slowest = last_from_;
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    const std::size_t contributions =
        reduced_closed_ ? missed_[m]
                        : layout.SegmentsOf(collective_.self) - reduction_.received(member);
    const std::size_t missing = contributions + layout.SegmentsOf(member) - GatheredOf(member);
    if (missing > most) {
      most = missing;
      slowest = member;
    }
  }
  return slowest;
}

}  // namespace optireduce
