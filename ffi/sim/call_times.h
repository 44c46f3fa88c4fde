// Durations of calls: the calls of one number, of all collectives and ranks, count as one.

#ifndef FFI_SIM_CALL_TIMES_H_
#define FFI_SIM_CALL_TIMES_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

struct CallReport {
  Duration elapsed{};  // the longest of all ranks
  double late = 0;     // share of the data that had not arrived when they ended
};

class CallTimes {
 public:
  // Adds the end of a call at a rank; `elapsed` is the time since that rank's first call of the
  // number.
  void Add(std::size_t number, Duration elapsed, const CallStats& stats) {
    if (ended_.size() <= number) {
      ended_.resize(number + 1);
      sums_.resize(number + 1);
    }
    ++ended_[number];
    sums_[number].elapsed = std::max(sums_[number].elapsed, elapsed);
    sums_[number].late += 1 - (1 - stats.missing_contributions) * (1 - stats.missing_results);
  }

  // The reports, ordered by number.
  std::vector<CallReport> Reports() const {
    std::vector<CallReport> reports = sums_;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      reports[i].late /= static_cast<double>(std::max<std::size_t>(ended_[i], 1));
    }
    return reports;
  }

 private:
  std::vector<std::size_t> ended_;
  std::vector<CallReport> sums_;
};

}  // namespace optireduce

#endif  // FFI_SIM_CALL_TIMES_H_
