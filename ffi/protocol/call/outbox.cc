#include "ffi/protocol/call/outbox.h"

#include "ffi/base/check.h"

namespace optireduce {

std::optional<Outbox::Item> Outbox::Next(std::span<const SegmentIndex> sums, bool contribute) {
  if (!sum_repairs_.empty()) {
    return Item{.kind = DatagramKind::kResult, .segment = sum_repairs_.back(), .repair = true};
  }
  if (!contribution_repairs_.empty()) {
    return Item{.kind = DatagramKind::kContribution,
                .segment = contribution_repairs_.back(),
                .repair = true};
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
  std::vector<SegmentIndex>& repairs = Repairs(item.kind);
  if (!repairs.empty()) {
    OR_CHECK(repairs.back() == item.segment);
    repairs.pop_back();
  } else if (item.kind == DatagramKind::kResult) {
    ++next_sum_;
  } else {
    ++next_contribution_;
  }
}

void Outbox::DeliverAll() {
  for (std::size_t i = 0; i < delivered_.size(); ++i) delivered_.Insert(i);
  sum_repairs_.clear();
}

void Outbox::AbandonContributions() {
  next_contribution_ = peer_segments_;
  contribution_repairs_.clear();
}

}  // namespace optireduce
