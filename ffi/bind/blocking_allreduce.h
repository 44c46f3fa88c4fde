// The allreduce for a caller without XLA's call frame: a Python callback of a program.

#ifndef FFI_BIND_BLOCKING_ALLREDUCE_H_
#define FFI_BIND_BLOCKING_ALLREDUCE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/bind/xla_allreduce.h"

namespace optireduce {

// Sums one leaf over the ranks of a group, in place, and waits for the result.
//   group_rank: the group and the rank in it
//   step:       number of the call; -1: the calls are counted
//   dtype:      name of the dtype of the leaf, "float32"
//   stats:      receives the statistics of the call, kStatistics.size() values
Status ReduceAndWait(const CallAttributes& attributes, std::array<std::int32_t, 2> group_rank,
                     std::int32_t step, std::string_view dtype, std::span<std::byte> leaf,
                     float* stats);

// Takes the sequence of a name's next allreduce, for a program that needs it before the call.
Result<Sequence> TakeNumber(std::string_view communicator, std::string_view name,
                            std::array<std::int32_t, 2> group_rank);

}  // namespace optireduce

#endif  // FFI_BIND_BLOCKING_ALLREDUCE_H_
