#include "ffi/runtime/short_deadline.h"

#include <algorithm>

namespace optireduce {

std::optional<ShortDeadlineEvent> ShortDeadlineDetector::Add(std::string_view collective,
                                                             const CallStats& stats) {
  // No learned deadline, or none yet: the call carries no information.
  if (stats.deadline_needed == Duration::zero()) return std::nullopt;
  auto found = cut_.find(collective);
  if (stats.deadline_needed <= suggested_) {
    if (found != cut_.end()) cut_.erase(found);
    return std::nullopt;
  }
  if (found == cut_.end()) {
    if (cut_.size() >= kObservedMax) return std::nullopt;
    found = cut_.emplace(collective, Calls{}).first;
  }
  Calls& calls = found->second;
  calls.count = std::min(calls.count + 1, kShortDeadlineCalls);
  // Of the contributions to the whole result.
  const double late =
      stats.missing_results + (1 - stats.missing_results) * stats.missing_contributions;
  calls.late += (late - calls.late) / static_cast<double>(calls.count);
  if (calls.count < kShortDeadlineCalls || calls.late < kMissedLate) return std::nullopt;
  suggested_ = kSuggestedRoom * stats.deadline_needed;
  ShortDeadlineEvent event{.collective = std::string(collective),
                           .calls = calls.count,
                           .late = calls.late,
                           .needed = stats.deadline_needed,
                           .suggested = suggested_};
  cut_.erase(found);
  return event;
}

}  // namespace optireduce
