// Totals of the calls of each collective that ended with a result, for monitoring: their number by
// duration, their bytes and their late data. Bounded, without floating point in the bins.
//
// Reads no clock. Not thread-safe: CallMonitor guards it.

#ifndef FFI_RUNTIME_COLLECTIVE_TOTALS_H_
#define FFI_RUNTIME_COLLECTIVE_TOTALS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/log_scale.h"
#include "ffi/base/time.h"
#include "ffi/runtime/by_collective.h"
#include "ffi/runtime/flight_recorder.h"

namespace optireduce {

// Bins of durations: one below 131 us, two in every doubling up to 69 s, one beyond.
// Chosen: a quantile within a fifth, over all useful durations, in 40 numbers.
inline constexpr std::size_t kDurationBins = 40;

// The largest duration in a bin; the last bin has none.
constexpr Duration DurationBinEnd(std::size_t bin) {
  constexpr std::uint32_t kFirst = LogStep<1>(std::uint64_t{1} << 17);
  return Duration(
      static_cast<Duration::rep>(LogStepBegin<1>(kFirst + static_cast<std::uint32_t>(bin))));
}

struct CallTotals {
  std::array<std::uint64_t, kDurationBins> calls{};  // one for each range of durations
  Duration elapsed{};
  std::uint64_t bytes = 0;           // size of all buckets
  double missing_contributions = 0;  // a share of each call
};

class CollectiveTotals {
 public:
  // Adds a call that has ended with a result.
  void Add(const CallRecord& call);

  // The totals under the name of each collective; collectives beyond kObservedMax are together
  // under "(others)".
  std::vector<std::pair<std::string, CallTotals>> Values() const;

 private:
  ByCollective<CallTotals> totals_;
  CallTotals others_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_COLLECTIVE_TOTALS_H_
