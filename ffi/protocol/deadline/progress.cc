#include "ffi/protocol/deadline/progress.h"

#include <algorithm>
#include <cstddef>

namespace optireduce {
namespace {

// Chosen: less is within the error of the estimate, and late data is not free for other reasons:
// replicas differ until it has come.
constexpr double kGainMin = 1.05;

}  // namespace

Duration BestDeadline(const Waits& waits, Duration least, Duration most) {
  if (least >= most || waits.data.total() <= 0 || waits.calls.total() <= 0) return most;
  double ended = 0;      // weight of the calls that have ended by the deadline
  double ended_sum = 0;  // sum of their times
  double in_time = 0;    // weight of the data that has come by then
  Duration best = most;
  double best_progress = 0;
  double most_progress = 0;
  for (std::size_t bin = 0; bin < LatencyHistogram::kBins; ++bin) {
    const Duration deadline = LatencyHistogram::EndOf(bin);
    ended += waits.calls.weight(bin);
    ended_sum += waits.calls.weight(bin) * Nanoseconds(deadline);
    in_time += waits.data.weight(bin);
    if (deadline < least) continue;
    const double cut_off = std::max(waits.calls.total() - ended, 0.0);
    const double wait = (ended_sum + cut_off * Nanoseconds(deadline)) / waits.calls.total();
    const double step =
        Nanoseconds(waits.computation) + std::max(wait, Nanoseconds(waits.transfer));
    const double progress = in_time / waits.data.total() / step;
    if (progress > best_progress) {
      best_progress = progress;
      best = deadline;
    }
    most_progress = progress;
    if (deadline >= most) break;
  }
  return best_progress > kGainMin * most_progress ? std::min(best, most) : most;
}

}  // namespace optireduce
