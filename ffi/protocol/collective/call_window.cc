#include "ffi/protocol/collective/call_window.h"

#include "ffi/base/check.h"

namespace optireduce {

void SendWindow::Begin(Sequence call) {
  OR_CHECK(MayBegin(call));
  if (Begun(call)) return;
  const auto at = std::ranges::upper_bound(begun_, call, {}, &Entry::sequence);
  begun_.insert(at, {.sequence = call});
  if (begun_.size() > max_lag_ + 1u) begun_.erase(begun_.begin());
}

void SendWindow::Deliver(Sequence call) {
  const auto at = std::ranges::find(begun_, call, &Entry::sequence);
  if (at != begun_.end()) at->delivered = true;
}

bool SendWindow::Lags(Sequence call) const {
  // Calls that have left the window are delivered.
  const auto at = std::ranges::lower_bound(begun_, call, {}, &Entry::sequence);
  const auto older = static_cast<std::size_t>(at - begun_.begin());
  if (older < max_lag_) return false;
  const auto end = begun_.begin() + static_cast<std::ptrdiff_t>(older - max_lag_ + 1);
  return std::any_of(begun_.begin(), end, [](const Entry& entry) { return !entry.delivered; });
}

void CallHistory::Insert(Sequence call, Bitmap received) {
  const auto at = std::ranges::upper_bound(records_, call, {}, &Record::sequence);
  records_.insert(at, {.sequence = call, .received = std::move(received)});
  if (records_.size() <= max_lag_ + 1u) return;
  floor_ = records_.front().sequence;
  records_.erase(records_.begin());
}

Receipt CallHistory::Take(Sequence call, std::size_t within, std::size_t segments) {
  if (!Stale(call) && Find(call) == records_.end()) Insert(call, Bitmap(segments));
  // The new record may be the oldest one.
  if (Stale(call)) return Receipt::kStale;
  return Find(call)->received.Insert(within) ? Receipt::kNew : Receipt::kDuplicate;
}

void CallHistory::Remember(Sequence call, Bitmap received) {
  if (Stale(call)) return;
  const auto at = Find(call);
  if (at == records_.end()) return Insert(call, std::move(received));
  at->received = std::move(received);
}

}  // namespace optireduce
