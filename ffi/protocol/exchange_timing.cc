// What an exchange tells CallTiming, and how far it has come.

#include <algorithm>

#include "ffi/protocol/exchange.h"

namespace optireduce {

void Exchange::Time(Instant now, Stage stage, MemberIndex from, const Header& header) {
  if (carry_ == nullptr || drain_) return;
  Instant& began = began_[static_cast<std::size_t>(stage)][from.index()];
  if (began == kNever) {
    // One that was sent before does not tell when its sender began.
    began = (header.flags & kFlagRepair) != 0 ? opened_at_ : now;
    timing_->Began(stage, from, began - opened_at_);
  }
  const BucketLayout& layout = collective_.layout;
  const MemberIndex shard = stage == Stage::kReduceScatter ? collective_.self : from;
  timing_->Arrived(stage, from, now - opened_at_, now - began,
                   static_cast<double>(layout.Segment(header.segment).bytes) /
                       static_cast<double>(layout.Shard(shard).bytes));
}

void Exchange::TimeEnd(Instant now, Stage stage, StageExit exit) {
  if (timing_ == nullptr || carry_ != nullptr || !submitted()) return;
  const BucketLayout& layout = collective_.layout;
  const bool first = stage == Stage::kReduceScatter;
  // From the opening, as the deadlines count: a program that starts later than its peers is waited
  // for as usual.
  StageEnd end{.exit = exit, .elapsed = now - opened_at_};
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    const MemberIndex shard = first ? collective_.self : member;
    if (member == collective_.self || layout.SegmentsOf(shard) == 0) continue;
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

}  // namespace optireduce
