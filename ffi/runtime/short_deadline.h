// Detects learned deadlines that are too short because their bound ends calls before the data is
// there. Its input is every call that has ended; it knows no clock.
//
// The bound is one option for all collectives, so a line suggests a longer one, and another line
// comes only when that would be too short as well: a program of many buckets gets one, not many.

#ifndef FFI_RUNTIME_SHORT_DEADLINE_H_
#define FFI_RUNTIME_SHORT_DEADLINE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Calls of one collective in a row whose deadlines were cut.
// Chosen: enough for a mean, as with a slow rank; a learned deadline needs no other proof.
inline constexpr std::size_t kShortDeadlineCalls = 10;
// Chosen: five times the default budget; a call that is cut where it matters is far above it.
inline constexpr double kMissedLate = 0.05;
// Chosen: learned deadlines vary with the network, and an unreached bound costs nothing.
inline constexpr int kSuggestedRoom = 2;

struct ShortDeadlineNews {
  std::string collective;
  // Share of the contributions to the result that was late, in both stages together: a mean of
  // this many calls.
  std::size_t calls = 0;
  double late = 0;
  // The least sufficient bound, and the suggested one.
  Duration needed{};
  Duration suggested{};
};

class ShortDeadlineWatch {
 public:
  // The bound of a call, both stages together.
  explicit ShortDeadlineWatch(Duration deadline_max) : suggested_(deadline_max) {}

  // A call that has ended with a result.
  std::optional<ShortDeadlineNews> Add(std::string_view collective, const CallStats& stats);

 private:
  struct Calls {
    std::size_t count = 0;  // in a row, no more than kShortDeadlineCalls
    double late = 0;        // their mean, in which older ones count less
  };

  Duration suggested_;                             // at first the option of the user
  std::map<std::string, Calls, std::less<>> cut_;  // by collective
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_SHORT_DEADLINE_H_
