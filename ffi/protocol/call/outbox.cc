#include "ffi/protocol/call/outbox.h"

#include "ffi/base/check.h"

namespace optireduce {

std::optional<Outbox::Item> Outbox::Next(std::span<const SegmentIndex> sums, bool contribute) {
  for (const DatagramKind kind : {DatagramKind::kResult, DatagramKind::kContribution}) {
    const std::vector<SegmentIndex>& lost = Retransmissions(kind);
    if (!lost.empty()) return Item{.kind = kind, .segment = lost.back(), .retransmission = true};
  }
  if (contribute && contributing()) {
    return Item{.kind = DatagramKind::kContribution,
                .segment = SegmentIndex(peer_shard_ + next_contribution_)};
  }
  if (next_sum_ < sums.size() && !delivered_.full()) {
    return Item{.kind = DatagramKind::kResult, .segment = sums[next_sum_]};
  }
  return std::nullopt;
}

void Outbox::Pop(const Item& item) {
  std::vector<SegmentIndex>& retransmissions = Retransmissions(item.kind);
  if (!retransmissions.empty()) {
    OR_CHECK(retransmissions.back() == item.segment);
    retransmissions.pop_back();
  } else if (item.kind == DatagramKind::kResult) {
    ++next_sum_;
  } else {
    ++next_contribution_;
  }
}

void Outbox::DeliverAll() {
  for (std::size_t i = 0; i < delivered_.size(); ++i) delivered_.Insert(i);
  sum_retransmissions_.clear();
}

void Outbox::AbandonContributions() {
  next_contribution_ = peer_segments_;
  contribution_retransmissions_.clear();
}

}  // namespace optireduce
