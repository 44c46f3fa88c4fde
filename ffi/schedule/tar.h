// Transpose AllReduce (TAR): every rank sends its part of each shard directly to the shard's owner,
// and each owner sends the sum directly to all ranks. No partial sum is forwarded, so a lost
// datagram costs one contribution to one segment.
// Source: Warraich et al., OptiReduce, NSDI'25, section on Transpose AllReduce.

#ifndef FFI_SCHEDULE_TAR_H_
#define FFI_SCHEDULE_TAR_H_

#include <cstdint>
#include <vector>

#include "ffi/schedule/schedule.h"

namespace optireduce {

// 2 * ceil((n - 1) / incast) rounds. In the d-th step of a stage rank i sends to (i - d) mod n; a
// round joins `incast` steps. `incast` is limited to [1, n - 1]; a world size of 1 has no rounds.
Schedule TarSchedule(std::uint16_t world_size, std::uint16_t incast);

// The peers of `member` in the order in which TarSchedule serves them in one stage.
std::vector<MemberIndex> TarSendOrder(std::uint16_t world_size, MemberIndex member);

}  // namespace optireduce

#endif  // FFI_SCHEDULE_TAR_H_
