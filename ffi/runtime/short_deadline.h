// Detects learned deadlines that are too short because their upper bound ends calls before the data
// arrives. Its input is every call that has ended; it reads no clock.
//
// The bound is one option for all collectives, so a report suggests a longer bound, and a further
// report follows only if that would be too short as well: a program of many buckets gets one
// report.

#ifndef FFI_RUNTIME_SHORT_DEADLINE_H_
#define FFI_RUNTIME_SHORT_DEADLINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/by_collective.h"

namespace optireduce {

// Consecutive calls of one collective whose deadlines were cut.
// Chosen: enough for a mean, as for a slow rank; a learned deadline needs no other evidence.
inline constexpr std::size_t kShortDeadlineCalls = 10;
// Chosen: five times the default budget; a harmful cut is far above it.
inline constexpr double kMissedLate = 0.05;
// Chosen: learned deadlines vary with the network, and an unreached bound costs nothing.
inline constexpr int kSuggestedRoom = 2;

struct ShortDeadlineEvent {
  std::string collective;
  // Share of the contributions to the result that were late, in both stages together: a mean over
  // this many calls.
  std::size_t calls = 0;
  double late = 0;
  // The least sufficient bound, and the suggested one.
  Duration needed{};
  Duration suggested{};
};

class ShortDeadlineDetector {
 public:
  // `deadline_max` is the bound of a call, both stages together.
  explicit ShortDeadlineDetector(Duration deadline_max) : suggested_(deadline_max) {}

  // Adds a call that ended with a result.
  std::optional<ShortDeadlineEvent> Add(std::string_view collective, const CallStats& stats);

 private:
  Duration suggested_;             // initially the option of the user
  ByCollective<MeanOfCalls> cut_;  // the late shares of consecutive calls
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_SHORT_DEADLINE_H_
