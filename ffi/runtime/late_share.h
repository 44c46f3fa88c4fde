// Detects collectives of which so much data is late, call after call, that a training loses most of
// its progress or diverges. Its input is every call that has ended with a deadline.

#ifndef FFI_RUNTIME_LATE_SHARE_H_
#define FFI_RUNTIME_LATE_SHARE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ffi/protocol/submission.h"
#include "ffi/runtime/by_collective.h"

namespace optireduce {

// Calls over which the share is averaged.
// Chosen: a few minutes of training at most; a phase of some calls costs little.
inline constexpr std::size_t kLateShareCalls = 50;
// Source: docs/figures.md: a quarter of late data costs 2 to 3 points of accuracy, a tenth up to
// 0.8.
inline constexpr double kHarmfulLate = 0.25;
inline constexpr double kHarmlessLate = 0.1;

struct LateShareEvent {
  std::string collective;
  std::size_t calls = 0;
  double late = 0;  // share of the contributions to the result, a mean over the calls
};

class LateShareDetector {
 public:
  // With `skips` an absent rank skips calls: its data is not late, there is none.
  explicit LateShareDetector(bool skips) : skips_(skips) {}

  // Adds a call that ended with a result. Reports a collective again only once its share was
  // harmless.
  std::optional<LateShareEvent> Add(std::string_view collective, const CallStats& stats);

 private:
  struct Calls {
    MeanOfCalls late;
    bool told = false;
  };

  bool skips_;
  ByCollective<Calls> calls_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_LATE_SHARE_H_
