#include "ffi/protocol/bucket/reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

Reduction::Reduction(const BucketLayout& layout, MemberIndex owner, ElementType element_type,
                     BufferPool& pool, bool contributed)
    : layout_(layout), owner_(owner), element_type_(element_type) {
  const std::uint32_t segments = layout.SegmentsOf(owner);
  staging_ = pool.Take(StagingBytes(layout, owner, contributed));
  received_.assign(layout.members(), Bitmap(segments));
  excluded_.assign(layout.members(), false);
  optional_.assign(layout.members(), false);
  arrived_.assign(segments, 0);
  summed_.assign(segments, 0);
  sum_slot_.assign(segments, owner);
  reduced_ = Bitmap(segments);
  if (segments > 0) scratch_.resize(layout.Segment(layout.FirstSegment(owner)).bytes);
  if (contributed) return;
  for (const MemberIndex member : layout.Members()) {
    if (member != owner) Exclude(member);
  }
}

std::uint64_t Reduction::StagingBytes(const BucketLayout& layout, MemberIndex owner,
                                      bool contributed) {
  // A group of one still needs a place for its sum.
  const std::size_t slots = contributed && layout.members() > 1 ? layout.members() - 1u : 1u;
  return layout.Shard(owner).bytes * slots;
}

std::byte* Reduction::Slot(MemberIndex source, SegmentIndex segment) const {
  const ByteRange shard = layout_.Shard(owner_);
  const std::size_t slot = source < owner_ ? source.index() : source.index() - 1;
  return staging_.data() + slot * shard.bytes + (layout_.Segment(segment).offset - shard.offset);
}

Receipt Reduction::Receive(MemberIndex source, SegmentIndex segment,
                           std::span<const std::byte> payload) {
  OR_CHECK(source != owner_ && payload.size() == layout_.Segment(segment).bytes);
  const std::size_t within = Within(segment);
  if (excluded_[source.index()]) return Receipt::kDuplicate;
  Require(source);
  Bitmap& received = received_[source.index()];
  if (!received.Insert(within)) return Receipt::kDuplicate;
  if (reduced_.Contains(within)) return Receipt::kLate;
  ++arrived_[within];
  if (Ready(segment)) {
    OR_CHECK(!last_);
    last_ = {.within = within, .source = source, .bytes = payload.data()};
  } else {
    std::memcpy(Slot(source, segment), payload.data(), payload.size());
  }
  return Receipt::kNew;
}

void Reduction::MakeOptional(MemberIndex source) {
  if (optional_[source.index()]) return;
  optional_[source.index()] = true;
  if (source == owner_) return;
  for (std::size_t within = 0; within < arrived_.size(); ++within) {
    if (!received_[source.index()].Contains(within)) ++arrived_[within];
  }
}

void Reduction::Require(MemberIndex source) {
  if (!optional_[source.index()] || excluded_[source.index()]) return;
  optional_[source.index()] = false;
  if (source == owner_) return;
  for (std::size_t within = 0; within < arrived_.size(); ++within) {
    if (!received_[source.index()].Contains(within)) --arrived_[within];
  }
}

void Reduction::Exclude(MemberIndex source) {
  excluded_[source.index()] = true;
  MakeOptional(source);
}

bool Reduction::Ready(SegmentIndex segment) const {
  const std::size_t within = Within(segment);
  return (own_ != nullptr || optional_[owner_.index()]) &&
         arrived_[within] + 1u == layout_.members() && !reduced_.Contains(within);
}

std::byte* Reduction::GatherSources(SegmentIndex segment) {
  const std::size_t within = Within(segment);
  OR_CHECK(!reduced_.Contains(within));
  // Rank order, not arrival order: float addition does not associate, and a replay must give the
  // same bits.
  sources_.clear();
  OR_CHECK(!last_ || last_->within == within);
  const std::optional<Last> last = std::exchange(last_, std::nullopt);
  // Without any contribution of a peer, every slot is free.
  MemberIndex slot(owner_.value() == 0 ? 1 : 0);
  bool placed = false;
  for (const MemberIndex source : layout_.Members()) {
    if (source == owner_) {
      if (own_ != nullptr)
        sources_.push_back(own_->Read(layout_.Segment(segment), scratch_).data());
    } else if (received_[source.index()].Contains(within)) {
      sources_.push_back(last && last->source == source ? last->bytes : Slot(source, segment));
      if (!placed) slot = source;
      placed = true;
    }
  }
  sum_slot_[within] = slot;
  summed_[within] = static_cast<std::uint16_t>(sources_.size());
  return Slot(slot, segment);
}

bool Reduction::Reduce(SegmentIndex segment, std::span<const std::byte> late, bool rescale,
                       std::size_t absent) {
  std::byte* const sum = GatherSources(segment);
  const std::size_t stand_for_all = rescale ? sources_.size() : layout_.members() - absent;
  const double scale =
      layout_.members() / static_cast<double>(std::max<std::size_t>(stand_for_all, 1));
  const std::size_t bytes = layout_.Segment(segment).bytes;
  const std::size_t elements = bytes / SizeOf(element_type_);
  if (absent > 0 && !sources_.empty() && !late.empty()) {
    SumContributions(element_type_, sources_, elements, scale, sum);
    sources_.assign({sum, late.data()});
    SumContributions(element_type_, sources_, elements, 1.0, sum);
  } else if (!late.empty()) {
    sources_.push_back(late.data());
    SumContributions(element_type_, sources_, elements, 1.0, sum);
  } else if (!sources_.empty()) {
    SumContributions(element_type_, sources_, elements, scale, sum);
  } else if (rescale) {
    return false;
  } else {
    std::memset(sum, 0, bytes);
  }
  reduced_.Insert(Within(segment));
  return true;
}

void Reduction::Compact(BufferPool& pool) {
  if (compact_) return;
  OR_CHECK(finished());
  const ByteRange shard = layout_.Shard(owner_);
  Buffer sums = pool.Take(shard.bytes);
  for (const SegmentIndex segment : layout_.Segments(owner_)) {
    const std::span<const std::byte> sum = Sum(segment);
    std::memcpy(sums.data() + (layout_.Segment(segment).offset - shard.offset), sum.data(),
                sum.size());
  }
  staging_ = std::move(sums);
  compact_ = true;
}

std::span<const std::byte> Reduction::Sum(SegmentIndex segment) const {
  const std::size_t within = Within(segment);
  OR_CHECK(reduced_.Contains(within));
  const ByteRange range = layout_.Segment(segment);
  const std::byte* const at = compact_
                                  ? staging_.data() + (range.offset - layout_.Shard(owner_).offset)
                                  : Slot(sum_slot_[within], segment);
  return {at, range.bytes};
}

void Reduction::ReplaceSum(SegmentIndex segment, std::span<const std::byte> sum) {
  OR_CHECK(Reduced(segment) && !compact_ && sum.size() == layout_.Segment(segment).bytes);
  std::memcpy(Slot(sum_slot_[Within(segment)], segment), sum.data(), sum.size());
}

std::uint16_t Reduction::contributions(SegmentIndex segment) const {
  return summed_[Within(segment)];
}

}  // namespace optireduce
