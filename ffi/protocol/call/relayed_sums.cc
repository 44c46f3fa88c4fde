#include "ffi/protocol/call/relayed_sums.h"

#include "ffi/base/check.h"

namespace optireduce {

RelayedSums::RelayedSums(const Collective& collective, BufferPool& pool)
    : collective_(collective), pool_(pool), members_(collective.layout.members()) {}

bool RelayedSums::Add(SegmentIndex segment, std::span<const std::byte> sum) {
  const BucketLayout& layout = collective_.layout;
  const MemberIndex owner = layout.OwnerOf(segment);
  OR_CHECK(owner != collective_.self && !holders_.contains(segment));
  Holders& holders = holders_.emplace(segment, Holders(members_.size())).first->second;
  holders.Insert(collective_.self.index());
  holders.Insert(owner.index());
  for (const MemberIndex member : collective_.others) {
    if (members_[member.index()].gone) holders.Insert(member.index());
  }
  if (holders.full()) return false;
  order_.push_back(segment);
  for (const MemberIndex member : collective_.others) {
    members_[member.index()].undelivered += holders.Contains(member.index()) ? 0 : 1;
  }
  SegmentStore& store =
      sums_
          .try_emplace(owner, layout, layout.FirstSegment(owner), layout.SegmentsOf(owner),
                       collective_.spec.element_type, pool_)
          .first->second;
  store.Add(segment, sum);
  return true;
}

std::span<const std::byte> RelayedSums::Sum(SegmentIndex segment) const {
  return sums_.at(collective_.layout.OwnerOf(segment)).Get(segment);
}

std::optional<RelayedSums::Item> RelayedSums::Next(MemberIndex to) {
  Member& member = members_[to.index()];
  std::erase_if(member.lost, [&](SegmentIndex segment) { return Delivered(to, segment); });
  if (!member.lost.empty()) return Item{.segment = member.lost.back(), .retransmission = true};
  while (member.next < order_.size() && Delivered(to, order_[member.next])) ++member.next;
  if (member.next == order_.size()) return std::nullopt;
  return Item{.segment = order_[member.next]};
}

void RelayedSums::Pop(MemberIndex to) {
  Member& member = members_[to.index()];
  if (member.lost.empty()) {
    ++member.next;
  } else {
    member.lost.pop_back();
  }
}

void RelayedSums::Retransmit(MemberIndex to, SegmentIndex segment) {
  members_[to.index()].lost.push_back(segment);
}

void RelayedSums::Deliver(MemberIndex to, SegmentIndex segment) {
  Holders& holders = holders_.at(segment);
  if (!holders.Insert(to.index())) return;
  --members_[to.index()].undelivered;
  if (holders.full()) sums_.at(collective_.layout.OwnerOf(segment)).Remove(segment);
}

bool RelayedSums::Delivered(MemberIndex to, SegmentIndex segment) const {
  return holders_.at(segment).Contains(to.index());
}

void RelayedSums::DropPeer(MemberIndex to) {
  members_[to.index()].gone = true;
  for (const SegmentIndex segment : order_) Deliver(to, segment);
}

std::uint32_t RelayedSums::Unsent(MemberIndex to) const {
  const Member& member = members_[to.index()];
  return member.gone ? 0 : static_cast<std::uint32_t>(order_.size() - member.next);
}

}  // namespace optireduce
