#include "ffi/runtime/late_share.h"

#include <algorithm>

#include "ffi/runtime/short_deadline.h"

namespace optireduce {
namespace {

double LateShareOf(const CallStats& stats, bool skips) {
  const double absent =
      skips && stats.live > 0 ? static_cast<double>(stats.absent.size()) / stats.live : 0.0;
  const double contributions = std::max(stats.missing_contributions - absent, 0.0);
  return stats.missing_results + (1 - stats.missing_results) * contributions;
}

}  // namespace

std::optional<LateShareEvent> LateShareDetector::Add(std::string_view collective,
                                                     const CallStats& stats) {
  // A call that waits for all data, or one that skipped calls have made late.
  if (stats.deadline == Duration(0) && (skips_ || !stats.passed)) return std::nullopt;
  auto found = calls_.find(collective);
  if (found == calls_.end()) {
    if (calls_.size() >= kObservedMax) return std::nullopt;
    found = calls_.emplace(collective, Calls{}).first;
  }
  Calls& calls = found->second;
  calls.count = std::min(calls.count + 1, kLateShareCalls);
  calls.late += (LateShareOf(stats, skips_) - calls.late) / static_cast<double>(calls.count);
  if (calls.late < kHarmlessLate) calls.told = false;
  if (calls.told || calls.count < kLateShareCalls || calls.late < kHarmfulLate) {
    return std::nullopt;
  }
  calls.told = true;
  return LateShareEvent{
      .collective = std::string(collective), .calls = calls.count, .late = calls.late};
}

}  // namespace optireduce
