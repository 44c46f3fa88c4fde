#include "ffi/runtime/late_share.h"

#include <algorithm>

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
  Calls* const calls = calls_.FindOrAdd(collective);
  if (calls == nullptr) return std::nullopt;
  MeanOfCalls& late = calls->late;
  late.Add(LateShareOf(stats, skips_), kLateShareCalls);
  if (late.value < kHarmlessLate) calls->told = false;
  if (calls->told || late.count < kLateShareCalls || late.value < kHarmfulLate) {
    return std::nullopt;
  }
  calls->told = true;
  return LateShareEvent{
      .collective = std::string(collective), .calls = late.count, .late = late.value};
}

}  // namespace optireduce
