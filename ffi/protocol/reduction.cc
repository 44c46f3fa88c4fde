#include "ffi/protocol/reduction.h"

#include <cstring>

#include "ffi/base/check.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

Reduction::Reduction(const BucketLayout& layout, MemberIndex owner, ElementType element_type,
                     BufferPool& pool)
    : layout_(layout), owner_(owner), element_type_(element_type) {
  const std::uint32_t segments = layout.SegmentsOf(owner);
  // A group of one still needs a place for its sum.
  const std::size_t slots = layout.members() > 1 ? layout.members() - 1u : 1u;
  staging_ = pool.Take(layout.Shard(owner).bytes * slots);
  received_.assign(layout.members(), Bitmap(segments));
  arrived_.assign(segments, 0);
  summed_.assign(segments, 0);
  sum_slot_.assign(segments, owner);
  reduced_ = Bitmap(segments);
  if (segments > 0) scratch_.resize(layout.Segment(layout.FirstSegment(owner)).bytes);
}

std::byte* Reduction::Slot(MemberIndex source, SegmentIndex segment) const {
  const ByteRange shard = layout_.Shard(owner_);
  const std::size_t slot = source < owner_ ? source.index() : source.index() - 1;
  return staging_.data() + slot * shard.bytes + (layout_.Segment(segment).offset - shard.offset);
}

Reduction::Receipt Reduction::Receive(MemberIndex source, SegmentIndex segment,
                                      std::span<const std::byte> payload) {
  OR_CHECK(source != owner_ && payload.size() == layout_.Segment(segment).bytes);
  const std::size_t within = Within(segment);
  Bitmap& received = received_[source.index()];
  if (received.Contains(within)) return Receipt::kDuplicate;
  if (reduced_.Contains(within)) return Receipt::kLate;
  received.Insert(within);
  std::memcpy(Slot(source, segment), payload.data(), payload.size());
  ++arrived_[within];
  return Receipt::kNew;
}

bool Reduction::Ready(SegmentIndex segment) const {
  const std::size_t within = Within(segment);
  return own_ != nullptr && arrived_[within] + 1u == layout_.members() &&
         !reduced_.Contains(within);
}

bool Reduction::Reduce(SegmentIndex segment, bool rescale) {
  const std::size_t within = Within(segment);
  OR_CHECK(!reduced_.Contains(within));
  const ByteRange range = layout_.Segment(segment);
  // Rank order, not arrival order: float addition does not associate, and a replay must give the
  // same bits.
  sources_.clear();
  std::byte* sum = nullptr;
  for (std::uint16_t m = 0; m < layout_.members(); ++m) {
    const MemberIndex source(m);
    if (source == owner_) {
      if (own_ != nullptr) sources_.push_back(own_->Read(range, scratch_));
    } else if (received_[m].Contains(within)) {
      sources_.push_back(Slot(source, segment));
      if (sum == nullptr) {
        sum = Slot(source, segment);
        sum_slot_[within] = source;
      }
    }
  }
  if (sources_.empty()) return false;
  if (sum == nullptr) {
    // Nobody else's came: any slot is free to hold the owner's own.
    const MemberIndex slot(owner_.value() == 0 ? 1 : 0);
    sum = Slot(slot, segment);
    sum_slot_[within] = slot;
  }
  const auto count = static_cast<std::uint16_t>(sources_.size());
  const double scale = rescale ? static_cast<double>(layout_.members()) / count : 1.0;
  SumContributions(element_type_, sources_, range.bytes / SizeOf(element_type_), scale, sum);
  summed_[within] = count;
  reduced_.Insert(within);
  return true;
}

std::span<const std::byte> Reduction::Sum(SegmentIndex segment) const {
  const std::size_t within = Within(segment);
  OR_CHECK(reduced_.Contains(within));
  return {Slot(sum_slot_[within], segment), layout_.Segment(segment).bytes};
}

std::uint16_t Reduction::contributions(SegmentIndex segment) const {
  return summed_[Within(segment)];
}

}  // namespace optireduce
