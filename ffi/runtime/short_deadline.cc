#include "ffi/runtime/short_deadline.h"

namespace optireduce {

std::optional<ShortDeadlineEvent> ShortDeadlineDetector::Add(std::string_view collective,
                                                             const CallStats& stats) {
  // No learned deadline, or none yet: the call carries no information.
  if (stats.deadline_needed == Duration::zero()) return std::nullopt;
  if (stats.deadline_needed <= suggested_) {
    cut_.Erase(collective);
    return std::nullopt;
  }
  MeanOfCalls* const late = cut_.FindOrAdd(collective);
  if (late == nullptr) return std::nullopt;
  // The missing contributions to the whole result.
  late->Add(stats.missing_results + (1 - stats.missing_results) * stats.missing_contributions,
            kShortDeadlineCalls);
  if (late->count < kShortDeadlineCalls || late->value < kMissedLate) return std::nullopt;
  suggested_ = kSuggestedRoom * stats.deadline_needed;
  ShortDeadlineEvent event{.collective = std::string(collective),
                           .calls = late->count,
                           .late = late->value,
                           .needed = stats.deadline_needed,
                           .suggested = suggested_};
  cut_.Erase(collective);
  return event;
}

}  // namespace optireduce
