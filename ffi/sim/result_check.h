// Whether the numbers of one finished call can be right.

#ifndef FFI_SIM_RESULT_CHECK_H_
#define FFI_SIM_RESULT_CHECK_H_

#include <cstddef>
#include <span>
#include <string>

#include "ffi/protocol/submission.h"
#include "ffi/sim/workload.h"

namespace optireduce {

// Every element equals the reference sum, bit for bit, and nothing is reported missing. Empty when
// that is so, otherwise what is wrong.
std::string CheckExactResult(const SimCollective& collective, std::span<const std::byte> result,
                             std::span<const std::byte> reference, const CallStats& stats);

// Every element is zero, or members / k times the sum of exactly k contributions; and the stats
// count both. Empty when that is so, otherwise what is wrong.
std::string CheckLossyResult(const Workload& workload, const SimCollective& collective,
                             SimCall call, std::span<const std::byte> result,
                             const CallStats& stats);

}  // namespace optireduce

#endif  // FFI_SIM_RESULT_CHECK_H_
