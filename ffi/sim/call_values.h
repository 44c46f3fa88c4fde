// Checks of the values of one finished call.

#ifndef FFI_SIM_CALL_VALUES_H_
#define FFI_SIM_CALL_VALUES_H_

#include <cstddef>
#include <span>
#include <string>

#include "ffi/protocol/submission.h"
#include "ffi/sim/workload.h"

namespace optireduce {

// No data is reported missing.
inline bool IsWhole(const CallStats& stats) {
  return stats.missing_contributions == 0 && stats.missing_results == 0;
}

// Each check is of some elements of the bucket `result`, those that the call gives a rank.

// Checks that every element equals the reference sum, bit for bit, and no data is reported missing.
// Returns the violation, empty if there is none.
std::string CheckExactResult(const SimCollective& collective, ElementRange elements,
                             std::span<const std::byte> result,
                             std::span<const std::byte> reference, const CallStats& stats);

// Checks that every element is zero, or members / k times the sum of exactly k contributions, and
// that the stats count both. Returns the violation, empty if there is none.
std::string CheckLossyResult(const Workload& workload, const SimCollective& collective,
                             SimCall call, ElementRange elements, std::span<const std::byte> result,
                             const CallStats& stats);

// Checks a lossy call in a wire format: elements are within the range of the contributions, the
// number of zeros covers the missing results, and a whole sum is near the reference.
std::string CheckRoundedLossyResult(const Workload& workload, const SimCollective& collective,
                                    SimCall call, ElementRange elements,
                                    std::span<const std::byte> result,
                                    std::span<const std::byte> reference, const CallStats& stats);

// Checks that every element of an all_gather that drops late data has its bits, or is zero, and
// that the stats count the latter. Returns the violation, empty if there is none.
std::string CheckGatheredResult(const SimCollective& collective, std::span<const std::byte> result,
                                std::span<const std::byte> reference, const CallStats& stats);

// Rounding of a sum and of its rescaling, relative to the value.
double RoundingOf(ElementType type);

// Largest error of an element of a call in a wire format: each contribution, and their sum, deviate
// by less than a step. A step is part of the largest value of a block. Source: wire_format.h.
inline constexpr double kRoundingSteps = 2.1;
constexpr double StepMax(WireFormat format) {
  return format == WireFormat::kFloat4 ? 1.0 / 2 : 1.0 / 63;
}
double RoundingErrorMax(const Workload& workload, const SimCollective& collective, SimCall call);

}  // namespace optireduce

#endif  // FFI_SIM_CALL_VALUES_H_
